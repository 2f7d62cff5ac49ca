"""Stores: one suite of promises for every kind, then what is special about SQLite's file."""
