"""Backends that answer to their name and are never listed."""
