"""Backends that no list shows. They are used only if the user names them."""
