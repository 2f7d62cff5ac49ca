"""Ways to look at what happened."""
