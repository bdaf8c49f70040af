"""One module a noun of a report: its table, its chart and its rows of JSON, derived by the analysis.

`contents` and the exporters put them together; sections know no renderer.
"""
