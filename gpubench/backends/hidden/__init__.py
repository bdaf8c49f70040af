"""Backends that are not listed. They are used only if the user names them."""
