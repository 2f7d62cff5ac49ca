"""A session as its events: folded into state, loaded from a store, appended to it.

Entry points: `state.State`, `load.load_state`, `request_diff`.
"""
