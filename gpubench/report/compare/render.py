"""A comparison in the format asked for."""

from __future__ import annotations

from gpubench.report import drawing
from gpubench.report.compare.types import Comparison
from gpubench.report.formats._options import RenderOptions

FORMATS = (*drawing.FORMATS, "csv")


def render(comparison: Comparison, format: str, options: RenderOptions) -> str:
    """Text with one trailing newline, the same bytes for the same files. `format` is one of FORMATS."""
    if format == "csv":
        from gpubench.report.compare import csv_rows

        return csv_rows.render(comparison)
    from gpubench.report.compare.text import documents

    return drawing.rendered(
        comparison, lambda: documents(comparison, options.time_unit), format, options, "gpubench compare"
    )
