"""The tables and functions in the database, in a schema of their own called `upcall`."""

from __future__ import annotations

from pathlib import Path

VERSION = 3
"""Raised with each change of the tables or of the functions."""

TABLES = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
FUNCTIONS = Path(__file__).with_name("functions.sql").read_text(encoding="utf-8")

UPGRADES: dict[int, str] = {1: "", 2: ""}
"""Statements that upgrade a database of each older version to the next, before the functions are replaced.

They are empty where nothing but the functions changed.
"""
