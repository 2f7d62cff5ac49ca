"""Who may be asked, and what an answer may be. Pure: no I/O, no clock.

Entry points: `policy.Policy`, `route.route`, `explain.explain_unresolved`, `question.Question`, `answer`.
"""
