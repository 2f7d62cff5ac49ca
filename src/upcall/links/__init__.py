"""Links to tools and agents of others. Each link is an adapter of its own; none imports another."""
