"""The plan and the measurement: the parent chooses cases and asks; a worker a device checks, then times.

The command line, the Python interface and wings use it; it asks nothing of the analysis.
"""
