"""Stores keep the logs: in memory, or in a SQLite file."""
