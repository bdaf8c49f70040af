"""The claims section: expected speedups beside measured ones."""

from __future__ import annotations

from collections import Counter

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.claims import ClaimResult, ClaimVerdict
from gpubench.escaping import printable, shortened
from gpubench.report.layout import Cell, Column, Section, Table, Tone, cells
from gpubench.report.wording import (
    gain_text,
    legend,
    mark,
    percent_ratio_text,
    ratio_text,
    seconds_text,
    time_text,
)

_ORDER: tuple[ClaimVerdict, ...] = ("confirmed", "refuted", "undecided", "not measured")
_TONES: dict[str, Tone] = {"confirmed": "good", "refuted": "bad"}
_LONGEST, _SHORT = 28, 20  # of a claim's name


def claims_section(analysis: Analysis, unit: str, *, full: bool) -> Section:
    """A row per claim; a narrow terminal leaves the times out. Empty where no claims were given."""
    rows = analysis.claims
    if not rows:
        return Section(key="claims", title="Claims")
    counts = Counter(row.verdict for row in rows)
    title = "Claims: " + ", ".join(f"{counts[word]} {word}" for word in _ORDER if counts[word])
    shares = {row.tolerance for row in rows}
    lines = [printable(analysis.baseline)] if any(row.measured for row in rows) else []
    lines.append(
        "The kindest of the measured GPU cases answers a claim; it is confirmed if the whole interval reaches it"
        + (f" less {min(shares) * 100:.3g} %" if len(shares) == 1 else " less its tolerance")
        + ", refuted if none of the interval does."
    )
    return Section(key="claims", title=title, lines=tuple(lines), tables=(_table(rows, unit, full=full),))


def _table(rows: tuple[ClaimResult, ...], unit: str, *, full: bool) -> Table:
    columns = (
        Column("claim"), Column("claimed", right=True), Column("measured", right=True), Column("verdict"),
        Column("copied", right=True, rank=1), Column("CPU claimed", right=True, rank=3),
        Column("CPU", right=True, rank=2), Column("GPU claimed", right=True, rank=3),
        Column("GPU", right=True, rank=2), *([Column("case")] if full else []),
    )  # fmt: skip
    body = tuple(cells(*_cells(row, unit), *([_case(row)] if full else [])) for row in rows)
    short = tuple(cells(*_short_cells(row, unit), *([_case(row)] if full else [])) for row in rows)
    labels = {side.label for row in rows for side in (row.measured, row.with_copies) if side is not None}
    notes = ["copied: the same work, copied at every call", legend(labels)]
    narrower = Table(columns, short, legend="; ".join(filter(None, [*notes, "+-: the farther end"])))
    return Table(columns, body, legend="; ".join(filter(None, notes)), narrower=narrower)


def _cells(row: ClaimResult, unit: str) -> list[str | Cell]:
    found, copied = row.measured, row.with_copies
    return [
        shortened(row.claim, _LONGEST), "-" if row.claimed_speedup is None else f"{row.claimed_speedup:.3g}x",
        gain_text(found, ratio_text) + mark(found.label) if found else "-", Cell(row.verdict, _tone(row)),
        gain_text(copied) + mark(copied.label) if copied else "-",
        seconds_text(row.claimed_cpu_s, unit), time_text(found.baseline.time if found else None, unit),
        seconds_text(row.claimed_gpu_s, unit), time_text(found.case.time if found else None, unit),
    ]  # fmt: skip


def _short_cells(row: ClaimResult, unit: str) -> list[str | Cell]:
    """The same with shorter names and intervals, for a narrow terminal."""
    _, claimed, measured, *rest = _cells(row, unit)
    if row.measured:
        measured = gain_text(row.measured, percent_ratio_text) + mark(row.measured.label)
    return [shortened(row.claim, _SHORT), claimed, measured, *rest]


def _tone(row: ClaimResult) -> Tone:
    return _TONES.get(row.verdict, "muted")


def _case(row: ClaimResult) -> str:
    return row.id or row.reason or ""
