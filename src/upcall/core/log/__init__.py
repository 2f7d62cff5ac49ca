"""A session as its events: folded into state, loaded from a store, appended to it.

Entry points: `state.SessionState`, `load.load_state`, `request_diff`.
"""
