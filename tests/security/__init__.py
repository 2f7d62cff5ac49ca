"""Attacks, and that nothing comes of them."""
