"""Charts of one run: an analysis in, declarative specs with their rows out; pictures are drawn from the same specs.

Needs the extra `plots` (altair, vl-convert-python) in `charts` and `drawing`; nothing is imported before that.
"""
