"""Speedups of one op for a terminal: a row per size and device, a column per regime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpubench.report.analysis.types import Analysis, Speedup
from gpubench.report.formats._document import Cell, Column, Table, cells
from gpubench.report.formats._names import FORMS, data_text, regimes, size_text
from gpubench.report.formats._numbers import (
    legend,
    mark,
    percent_ratio_text,
    ratio_text,
    short_ratio_text,
    time_text,
)
from gpubench.report.formats._speedup_rows import SIDES, library_ratios, table_title, tone

MANY_SIZES = 6  # from here on, sizes of which a search measured a small part alone are left out
Style = Literal["interval", "percent", "letters", "bare"]
_LETTERS = {"library": "l", "tuned": "t"}
Sizes = dict[str, list[Speedup]]


def pivot_table(analysis: Analysis, rows: Sequence[Speedup], unit: str, note: str) -> Table:
    """All regimes beside each other; narrower forms shorten the intervals."""
    sizes = mostly_measured(rows)
    library = library_ratios(analysis, rows)
    table: Table | None = None
    styles: list[Style] = ["bare", "letters", "percent", "interval"]
    for style in styles:
        table = _table(analysis, sizes, library, unit, style, note, table)
    assert table is not None
    return table


def mostly_measured(rows: Sequence[Speedup]) -> Sizes:
    """The rows by size; of many sizes those of the plan, without those at which a search looked at a part."""
    sizes: Sizes = {}
    for row in rows:
        sizes.setdefault(size_text(row.case), []).append(row)
    if len(sizes) <= MANY_SIZES:
        return sizes
    most = max(len(found) for found in sizes.values())
    return {name: found for name, found in sizes.items() if 2 * len(found) > most}


def _table(
    analysis: Analysis,
    sizes: Sizes,
    library: dict[tuple[str, str, str], Speedup],
    unit: str,
    style: Style,
    note: str,
    narrower: Table | None,
) -> Table:
    rows = [row for found in sizes.values() for row in found]
    data = regimes(row.case.case for row in rows)
    bases = {row.baseline.case.form for row in rows}
    # Without transfers a CPU has one time per size; another baseline pays its own in each regime.
    timed = all(len({row.baseline.id for row in found}) == 1 for found in sizes.values())
    against = "CPU" if rows[0].baseline.device_kind == "cpu" else "baseline"
    against += f" {FORMS[min(bases)]}" if len(bases) == 1 else ""
    columns = (
        Column("n", right=True), *([Column(against, right=True, rank=int(style == "bare"))] if timed else []),
        Column(SIDES.get(rows[0].case.device_kind, "GPU")), *(Column(name, right=True) for name in data),
    )  # fmt: skip
    body: list[tuple[Cell, ...]] = []
    for size, found in sizes.items():
        base = found[0].baseline
        form = f" {_forms(style)[base.case.form]}" if len(bases) > 1 else ""
        head = [size, *([time_text(base.time, unit) + form] if timed else [])]
        for line in _lines(found, data, library, style):
            body.append((*cells(*head), *line))
            head = [""] * len(head)
    return Table(
        columns, tuple(body), title=table_title(analysis, rows), note=note,
        legend=_legend(rows, style), narrower=narrower,
    )  # fmt: skip


def _lines(
    rows: Sequence[Speedup], data: Sequence[str], library: dict[tuple[str, str, str], Speedup], style: Style
) -> list[tuple[Cell, ...]]:
    """One line per device and one below it for library against library, where that is another pair."""
    lines = []
    for device in dict.fromkeys(row.case.case.device_id for row in rows):
        ours = {data_text(row.case.case): row for row in rows if row.case.case.device_id == device}
        forms = [row.case.case.form for row in ours.values()]
        usual = max(dict.fromkeys(forms), key=forms.count)
        name = f"{device} {_forms(style)[usual]}"
        lines.append((Cell(name), *(_cell(ours.get(key), style, usual) for key in data)))
        beside = {
            key: library.get((row.case.case.workload, row.case.case.regime_id, device))
            for key, row in ours.items()
        }
        pairs = [(row, beside[key]) for key, row in ours.items()]
        if any(pair is not None and pair.case is not row.case for row, pair in pairs) or any(
            pair is not None and pair.baseline is not row.baseline for row, pair in pairs
        ):
            lines.append((Cell("  lib/lib", "muted"), *(_beside(beside.get(key)) for key in data)))
    return lines


def _cell(row: Speedup | None, style: Style, usual: str) -> Cell:
    """The ratio; with its form where that is not the one that stands before the row."""
    if row is None:
        return Cell("")
    form = row.case.case.form
    suffix = "" if form == usual else f" {_forms(style)[form]}"
    text = {"interval": ratio_text, "bare": short_ratio_text}.get(style, percent_ratio_text)
    return Cell(text(row.ratio) + mark(row.label) + suffix, tone(row))


def _forms(style: Style) -> dict[str, str]:
    return FORMS if style in ("interval", "percent") else _LETTERS


def _beside(row: Speedup | None) -> Cell:
    return Cell(short_ratio_text(row.ratio) + mark(row.label) if row else "", "muted")


def _legend(rows: Sequence[Speedup], style: Style) -> str:
    marks = legend({row.label for row in rows})
    parts = [marks] if marks else []
    parts += ["intervals: in a wider terminal or --format markdown"] if style == "bare" else []
    return "; ".join(parts)
