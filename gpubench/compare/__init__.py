"""The changes between two runs, and the noise of one run: pairs, tests, verdicts and gates.

Reports, the command line and wings use this package.
"""
