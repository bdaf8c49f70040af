"""The parts of a report (estimates, speedups, break-evens, peaks, advice, claims), computed from result files
alone.

Comparisons, reports and advice may use this package. The measuring code never imports it.
"""
