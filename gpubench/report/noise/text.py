"""Noise as sections and tables for people: the suite first, then every case, the noisiest first."""

from __future__ import annotations

from gpubench.report.compare.options import INTERLEAVED
from gpubench.report.drawing import FORMATS as FORMATS
from gpubench.report.drawing import rendered
from gpubench.report.formats._document import Cell, Column, Document, Section, Table, cells, printable
from gpubench.report.formats._options import RenderOptions
from gpubench.report.noise.types import Noise, NoisyCase


def render(found: Noise, format: str, options: RenderOptions, *, allowed_share: float) -> str:
    """Text with one trailing newline, the same bytes for the same document. `format` is one of FORMATS."""
    return rendered(found, lambda: [document(found, allowed_share)], format, options, "gpubench noise")


def document(found: Noise, allowed_share: float) -> Document:
    """What is said; `allowed_share` is the share of false alarms that a suite may have."""
    left_out = len(found.left_out)
    sections = [
        Section(key="verdict", title="Verdict", lines=_verdict(found, allowed_share)),
        Section(key="noise", title="Noise of each case", tables=(_table(found),)),
    ]
    if left_out:
        lines = tuple(printable(name) for name in found.left_out)
        sections.append(
            Section(
                key="left-out",
                title="Left out: too few sessions, or no number that can be true",
                lines=lines,
                folded=True,
            )
        )
    return Document(headings=(f"Machine: {printable(found.machine)}",), sections=tuple(sections))


def _verdict(found: Noise, allowed_share: float) -> tuple[str, ...]:
    state = "more than" if found.false_alarm_share > allowed_share else "at most"
    cases = f"{len(found.cases)} case{'s' if len(found.cases) != 1 else ''}"
    text = (
        f"Unchanged work was called SLOWER in {_percent(found.false_alarm_share)} of {found.labellings} comparisons of "
        f"{cases}, {found.sessions} sessions a side: {state} the {_percent(allowed_share)} that a suite may have."
    )
    lines = [text]
    if any(row.threshold > INTERLEAVED for row in found.cases):
        lines.append(
            f"With the thresholds below it is {_percent(found.raised_alarm_share)}; compare takes them by --thresholds."
        )
    return tuple(lines)


def _table(found: Noise) -> Table:
    columns = (
        Column("case"), Column("spread", right=True), Column("threshold", right=True),
        Column("alarms", right=True, rank=1),
    )  # fmt: skip
    rows = sorted(found.cases, key=lambda row: (-row.threshold, row.id))
    legend = (
        "spread: 95 % of all comparisons of unchanged work differ by less; threshold: what a change has to exceed;"
        " alarms: comparisons in which the case was called SLOWER at 5 %"
    )
    return Table(columns, tuple(_row(row) for row in rows), legend=legend)


def _row(row: NoisyCase) -> tuple[Cell, ...]:
    return cells(
        printable(row.id),
        _percent(row.spread),
        _percent(row.threshold),
        Cell(_percent(row.alarm_share), "bad" if row.alarm_share else "plain"),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
