"""Logs of earlier versions, one per version, that must always fold."""
