"""Speedups of one op in full: a row per device, regime and size, with both times."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.report.analysis.types import Analysis, Speedup
from gpubench.report.formats._document import Cell, Column, Table, Tone, cells
from gpubench.report.formats._names import FORMS, data_text, device_text, regime_order, size_text
from gpubench.report.formats._numbers import (
    legend,
    mark,
    ratio_text,
    seconds_text,
    short_ratio_text,
    time_text,
)

WAITED = "waited for: one launch at a time, for whoever waits after each; no speedup counts it"
SIDES = {"software": "adapter", "hybrid": "hybrid"}


def rows_table(
    analysis: Analysis, rows: Sequence[Speedup], unit: str, note: str, *, in_order: bool = False
) -> Table:
    """All of `rows`: one device after the other, one regime after the other, sizes ascending; `in_order`: as they
    are."""
    first = rows[0].case
    library = library_ratios(analysis, rows)
    against = "CPU" if rows[0].baseline.device_kind == "cpu" else "baseline"
    waited = any(row.case.single_s is not None for row in rows)
    columns = (
        Column("device"), Column("data"), Column("n", right=True), Column(against, right=True, rank=2),
        Column(SIDES.get(first.device_kind, "GPU"), right=True, rank=1),
        *([Column("waited for", right=True, rank=4)] if waited else []), Column("speedup", right=True),
        *([Column("lib/lib", right=True, rank=3)] if library else []),
    )  # fmt: skip
    body = []
    if not in_order:
        rows = sorted(rows, key=lambda row: (row.case.case.device_id, regime_order(row.case.case)))
    for row in rows:
        case = row.case.case
        beside = library.get((case.workload, case.regime_id, case.device_id))
        beside_text = short_ratio_text(beside.ratio) + mark(beside.label) if beside else "-"
        sides = [f"{time_text(side.time, unit)} {FORMS[side.case.form]}" for side in (row.baseline, row.case)]
        body.append(
            cells(
                case.device_id, data_text(case), size_text(row.case), *sides,
                *([seconds_text(row.case.single_s, unit)] if waited else []),
                Cell(ratio_text(row.ratio) + mark(row.label), tone(row)), *([beside_text] if library else []),
            )
        )  # fmt: skip
    return Table(
        columns, tuple(body), title=table_title(analysis, rows), note=note,
        legend="; ".join(filter(None, [WAITED if waited else "", legend({row.label for row in rows})])),
    )  # fmt: skip


def table_title(analysis: Analysis, rows: Sequence[Speedup]) -> str:
    """Op and dtype; a table of software adapters says what they are."""
    first = rows[0].case
    adapters = dict.fromkeys(row.case.case.device_id for row in rows if row.case.device_kind == "software")
    where = f" on {', '.join(device_text(analysis, name) for name in adapters)}" if adapters else ""
    return f"{first.case.op} {first.case.dtype}{where}"


def library_ratios(analysis: Analysis, rows: Sequence[Speedup]) -> dict[tuple[str, str, str], Speedup]:
    """The library-to-library ratios that belong to the rows of one table, by workload, regime and device.

    None where every headline is that ratio already: it would say everything twice.
    """
    if all({row.baseline.case.form, row.case.case.form} == {"library"} for row in rows):
        return {}
    wanted = {(row.case.case.workload, row.case.case.device_id) for row in rows}
    return {
        (row.case.case.workload, row.case.case.regime_id, row.case.case.device_id): row
        for row in analysis.speedups
        if row.kind == "library" and (row.case.case.workload, row.case.case.device_id) in wanted
    }


def tone(row: Speedup) -> Tone:
    """Better or worse than the baseline, where the interval says so."""
    if not row.headline:
        return "muted"
    return "good" if row.ratio.low > 1 else "bad" if row.ratio.high < 1 else "plain"
