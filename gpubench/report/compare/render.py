"""A comparison in the format asked for."""

from __future__ import annotations

from gpubench.report.compare.types import Comparison
from gpubench.report.formats._options import RenderOptions

FORMATS = ("table", "plain", "markdown", "json", "csv")


def render(comparison: Comparison, format: str, options: RenderOptions) -> str:
    """Text with one trailing newline, the same bytes for the same files. `format` is one of FORMATS."""
    if format == "csv":
        from gpubench.report.compare import csv_rows

        return csv_rows.render(comparison)
    if format == "json":
        from gpubench.report.formats._json import json_text

        return json_text(comparison, options)
    from gpubench.report.compare.text import documents

    found = documents(comparison, options.time_unit)
    if format == "markdown":
        from gpubench.report.formats import markdown

        return markdown.draw(found, options, "gpubench compare")
    if format == "table":
        from gpubench.report.formats import terminal

        return terminal.draw(found, options)
    from gpubench.report.formats import plain

    return plain.draw(found, options)
