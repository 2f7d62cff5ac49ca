"""Checks on everything that comes from outside: sizes, patterns, schemas, files, secrets.

Entry points: `bounds`, `patterns`, `schema_check`, `small_files`, `private_files`, `secrets`, `framing`.
"""
