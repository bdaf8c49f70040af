"""The ground that every room stands on: messages, errors, units, text, processes, files, plugins."""

# The part of the CPUs' time that others may take without disturbing (docs/measuring.md).
BUSY_SHARE = 0.05
