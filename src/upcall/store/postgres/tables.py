"""The tables and functions in the database, in a schema of their own called `upcall`."""

from __future__ import annotations

from pathlib import Path

VERSION = 1

TABLES = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
FUNCTIONS = Path(__file__).with_name("functions.sql").read_text(encoding="utf-8")

UPGRADES: dict[int, str] = {}
"""Statements that upgrade a database of each older version to the next, before the functions are replaced."""
