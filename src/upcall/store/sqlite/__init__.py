"""The log in a SQLite file: one writer thread, group commit, wake-ups between processes.

Entry point: `store.SqliteStore`.
"""
