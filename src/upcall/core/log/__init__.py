"""A session as its events: folded into state, loaded from a store, appended to it.

Entry points: `state.SessionState`, `load.load_state`, `session_log.SessionLog`, `request_diff`.
"""
