"""Programs that a model writes."""
