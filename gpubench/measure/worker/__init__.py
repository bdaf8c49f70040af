"""The child process that drives one device.

The parent reaches it by the messages of `protocol`, and imports none of it.
"""
