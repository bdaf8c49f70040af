"""The sections of a report, one module for each. A section makes its table, its chart and its JSON rows from
the analysis.

`contents` and the exporters combine the sections. The sections do not depend on any renderer.
"""
