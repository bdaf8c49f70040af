"""How a report is to look. What it says does not depend on it."""

from __future__ import annotations

import msgspec

SECTIONS = (
    "machines", "history", "verdict", "breakeven", "reuse", "speedup", "chart", "hybrid", "skipped", "anatomy",
    "roofline", "claims", "warnings", "environment", "raw",
)  # fmt: skip
DEFAULT_SECTIONS = tuple(name for name in SECTIONS if name != "raw")
TIME_UNITS = ("auto", "s", "ms", "us", "ns")


class RenderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`width` in characters; `sections` by key, in the order of SECTIONS whatever order they are given in.

    `columns`: what tables are cut down to; none: all of theirs. `in_order`: the rows were sorted on request.
    """

    width: int = 80
    color: bool = False
    ascii_only: bool = False
    sections: tuple[str, ...] = DEFAULT_SECTIONS
    time_unit: str = "auto"
    columns: tuple[str, ...] = ()
    in_order: bool = False
