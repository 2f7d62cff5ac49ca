"""What stands between the runtime and everything from outside: sizes, patterns, schemas, files, secrets.

Entry points: `bounds`, `patterns`, `schema_check`, `small_files`, `private_files`, `secrets`, `framing`.
"""
