"""The sections of a report, one module for each. A section makes its table, its chart and its JSON rows from
the analysis. No section depends on a renderer."""
