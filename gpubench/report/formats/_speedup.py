"""The speedup section: for a terminal a table per op with a column per regime, in full a row per ratio."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpubench.report.analysis.baseline import baseline_line, cpu_line
from gpubench.report.analysis.types import Analysis, CaseResult, Speedup
from gpubench.report.formats._document import Column, Section, Table, cells, printable
from gpubench.report.formats._names import devices_text, size_text, where_legend
from gpubench.report.formats._numbers import legend, mark, rate_text, time_text
from gpubench.report.formats._speedup_pivot import mostly_measured, pivot_table
from gpubench.report.formats._speedup_rows import library_ratios, rows_table

_HOW_TO_READ = "+-: the farther end of the interval; lib, tuned (l, t): the form"
_HOW_TO_READ_WIDE = "[a, b]: the interval; lib, tuned: the form"
_LIBRARY = "; lib/lib: library on both sides"
_LEFT_OUT = "Sizes of the break-even search alone are left out; "
_IN_MARKDOWN, _BELOW = "--format markdown has them.", "the table of every ratio has them."


def speedup_sections(
    analysis: Analysis, unit: str, *, full: bool, in_order: bool = False
) -> tuple[Section, ...]:
    """The tables with a column per regime; `full`: and, folded, a row for each ratio with both times.

    `in_order`: the rows alone, as they stand in the analysis.
    """
    if in_order:
        return (_section(analysis, unit, full=True, elsewhere=_BELOW, in_order=True),)
    if not full:
        return (_section(analysis, unit, full=False, elsewhere=_IN_MARKDOWN),)
    pivots, rows = (_section(analysis, unit, full=full, elsewhere=_BELOW) for full in (False, True))
    if not any(row.kind == "headline" for row in analysis.speedups):
        return (pivots,)  # no ratio, so there is nothing to tell in full
    return pivots, msgspec.structs.replace(rows, title="Every speedup, with both times", folded=True)


def _section(analysis: Analysis, unit: str, *, full: bool, elsewhere: str, in_order: bool = False) -> Section:
    """A table per op and dtype; software adapters after all devices; without a GPU, the CPU's forms."""
    headline = [row for row in analysis.speedups if row.kind == "headline"]
    real = [row for row in headline if row.case.device_kind != "software"]
    software = [row for row in headline if row.case.device_kind == "software"]
    groups = [*_by_op(real), *_by_op(software)]
    notes = [printable(baseline_line(analysis.run, group)) for group in groups]
    # The tables name the form; the line above them all the device, with its BLAS and threads.
    shared = bool(real) and len({row.baseline.case.device_id for row in headline}) == 1
    how = "" if full else _HOW_TO_READ_WIDE if elsewhere == _BELOW else _HOW_TO_READ
    if notes and not real:
        words = where_legend(row.case.case for row in software)
        notes[0] += f"; {words}; {how}" if how else f"; {words}"
    tables = [
        rows_table(analysis, group, unit, "" if shared else note, in_order=in_order)
        if full
        else pivot_table(analysis, group, unit, "" if shared else note)
        for group, note in zip(groups, notes, strict=True)
    ]
    lines = _lines(analysis, real, how, shared=shared) if real else []
    if not full and any(sum(map(len, mostly_measured(group).values())) < len(group) for group in groups):
        lines.append(_LEFT_OUT + elsewhere)
    if not real and any(row.device_kind == "cpu" and row.time for row in analysis.cases):
        tables.insert(0, _cpu_table(analysis, unit))
    title = "Speedup: CPU time / GPU time" if real else "CPU: library and tuned form"
    title = (
        title if all(row.baseline.device_kind == "cpu" for row in headline) else "Speedup: baseline / device"
    )
    return Section(key="speedup", title=title, lines=tuple(lines), tables=tuple(tables))


def _by_op(rows: Sequence[Speedup]) -> list[list[Speedup]]:
    groups: dict[tuple[object, ...], list[Speedup]] = {}
    for row in rows:
        groups.setdefault((row.case.case.op, row.case.case.dtype), []).append(row)
    return list(groups.values())


def _lines(analysis: Analysis, rows: Sequence[Speedup], how: str, *, shared: bool) -> list[str]:
    """What holds for all tables: the baseline, the devices' names, the words of the headings."""
    devices = dict.fromkeys(row.case.case.device_id for row in rows)
    lines = [printable(baseline_line(analysis.run, rows))] if shared else []
    lines.append(f"on {devices_text(analysis, list(devices))}")
    if how:
        library = _LIBRARY if library_ratios(analysis, rows) else ""
        lines.append(f"{where_legend(row.case.case for row in rows)}; {how}{library}")
    return lines


def _cpu_table(analysis: Analysis, unit: str) -> Table:
    columns = (
        Column("op"), Column("dtype", rank=1), Column("n", right=True), Column("library", right=True),
        Column("tuned", right=True), Column("compute", right=True, rank=3), Column("payload", right=True, rank=2),
    )  # fmt: skip
    workloads: dict[tuple[str, str], dict[str, CaseResult]] = {}
    for row in analysis.cases:
        if row.device_kind == "cpu" and row.time is not None and row.case.variant is None:
            workloads.setdefault((row.case.workload, row.case.device_id), {})[row.case.form] = row
    body = []
    for forms in workloads.values():
        best = min(forms.values(), key=lambda row: (row.time.estimate if row.time else 0.0, row.id))
        texts = [
            time_text(forms[form].time, unit) + mark(forms[form].label) if form in forms else "-"
            for form in ("library", "tuned")
        ]
        rates = [rate_text(best.rates, flops=flops) for flops in (True, False)]
        body.append(cells(best.case.op, best.case.dtype, size_text(best), *texts, *rates))
    labels = {row.label for forms in workloads.values() for row in forms.values()}
    note = f"{printable(cpu_line(analysis.run))}; wall time of one call, rates of the faster form"
    payload = "payload: each input read once and the output written once"
    return Table(columns, tuple(body), note=note, legend="; ".join(filter(None, [legend(labels), payload])))
