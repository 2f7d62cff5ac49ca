"""The sidecar, and where a callback goes."""
