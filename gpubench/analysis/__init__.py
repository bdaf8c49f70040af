"""The nouns of a report (estimates, speedups, break-evens, peaks, advice, claims), derived from files alone.

Whoever compares, reports or advises may use it; measuring asks nothing of it.
"""
