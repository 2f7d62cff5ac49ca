"""Sessions over a store: start, prompt, park, answer, resume.

Entry points: `sessions.Sessions`, `run_tree.RunTree`, `dispatcher` (a callback along its route), `inbox`,
`submitting` (the queue), `workers` (what takes from it).
"""
