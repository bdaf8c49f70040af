"""The built-in networks, one file each."""
