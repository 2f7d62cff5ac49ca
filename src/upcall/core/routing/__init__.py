"""Decide who may be asked and which answers are valid. Pure functions: no I/O, no clock.

Entry points: `policy.Policy`, `route.route`, `explain.explain_unresolved`, `question.Question`, `answer`.
"""
