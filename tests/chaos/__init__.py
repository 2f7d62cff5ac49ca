"""Real processes that are killed, frozen and raced. Effects are counted outside the store."""
