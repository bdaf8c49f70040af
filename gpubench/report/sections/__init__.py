"""Sections of a report, one module each. A section defines its table, its chart and its JSON rows from the analysis.

`contents` and the exporters combine the sections; sections know no renderer.
"""
