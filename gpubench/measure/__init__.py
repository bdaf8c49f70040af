"""The plan and the measurement: the parent chooses the cases; one worker per device checks and times them.

The command line, the Python interface and the wings use this package. It imports nothing from the analysis.
"""
