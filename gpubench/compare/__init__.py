"""The comparison of two runs and the noise of one run: pairs of cases, tests, verdicts and gates.

Reports, the command line and wings use this package.
"""
