"""A person at a terminal: what a run looks like, and how questions are asked and answered.

Entry point: `host.TerminalHost`.
"""
