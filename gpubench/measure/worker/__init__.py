"""The child process that drives one device.

The parent talks to it by the messages of `protocol` and imports nothing from this package.
"""
