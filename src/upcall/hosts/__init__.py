"""Hosts stand between the runtime and a person."""
