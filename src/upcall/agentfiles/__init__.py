"""Agents as files: Markdown with front matter, a JSON sidecar beside it, `team.toml`.

Entry point: `load.load_spec`.
"""
