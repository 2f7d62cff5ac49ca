"""One turn of one session: model, tools and hooks meet here.

Entry points: `loop.run_turn`, `turn.Turn`, `model_step`, `tool_step`, `approval`, and `access`, which is what hooks
and tools are given.
"""
