"""The changes between two runs, and what one run differs in by noise: pairs, tests, verdicts, gates.

Reports, the command line and wings use it.
"""
