"""Agents as files, and the problems that reading them finds."""
