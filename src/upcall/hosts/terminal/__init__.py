"""The terminal: how a run is shown there, and how its person is asked.

Entry point: `host.TerminalHost`.
"""
