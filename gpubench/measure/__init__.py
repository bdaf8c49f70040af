"""Plan a run and measure it. The parent process chooses the cases, and one worker process per device checks and
times them.

The command line, the Python interface and the wings use this package. It imports nothing from the analysis.
"""
