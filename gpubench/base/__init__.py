"""The ground that every room stands on: messages, errors, units, tables, processes, files, plugins.

Every room may use it, and it uses none.
"""

# The part of the CPUs' time that others may take without disturbing (docs/measuring.md).
BUSY_SHARE = 0.05
