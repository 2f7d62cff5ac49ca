"""Typed functions as tools."""
