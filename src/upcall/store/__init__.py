"""Where logs are kept: a list in memory, or SQLite on disk."""
