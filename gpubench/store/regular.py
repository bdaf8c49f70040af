"""The same function under its first name."""

from gpubench.disk import open_regular

__all__ = ["open_regular"]
