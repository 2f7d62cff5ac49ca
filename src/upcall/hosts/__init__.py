"""Hosts: the ways to reach a person, such as a terminal."""
