"""Cells of a CSV file that a program reads as they are and no spreadsheet takes for a formula."""

from __future__ import annotations

from gpubench.report.formats._document import printable

Value = str | int | float | bool | tuple[str, ...] | None
DIGITS = 6
_FORMULA = ("=", "+", "-", "@")


def cell(value: Value) -> str:
    """Null is empty, a float has six significant digits, a list is separated by blanks, a text is one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    if isinstance(value, int):
        return str(value)
    text = printable(value if isinstance(value, str) else " ".join(value))
    return f"'{text}" if text.startswith(_FORMULA) else text
