"""Stores keep the logs: in memory, in a SQLite file, or in PostgreSQL."""
