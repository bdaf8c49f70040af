"""Backends that no list shows: a user has to name them."""
