"""One turn of one session: model, tools and hooks meet here.

Entry points: `turn.Turn`, `model_step`, `tool_step`, `approval`, `access` (what hooks and tools are given).
"""
