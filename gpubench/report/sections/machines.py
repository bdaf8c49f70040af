"""What several files have in common: machines side by side, and the history of one machine."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.analysis.analyse import (
    Analysis,
    History,
    MachineRuns,
    common_sizes,
    headlines,
    histories,
    machine_runs,
)
from gpubench.analysis.break_even import earliest
from gpubench.analysis.speedup import Speedup
from gpubench.analysis.thresholds import threshold_text
from gpubench.base.escaping import printable, shortened
from gpubench.base.plugins.sections import section
from gpubench.base.table import Cell, Column, Table, Tone, cells, heads, number
from gpubench.base.units import format_size, listed
from gpubench.curves.stats import geometric_mean
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.wording import (
    data_text,
    gain_text,
    mark,
    regimes,
    seconds_text,
    time_text,
    where_legend,
)
from gpubench.result.case import SeriesKey

MACHINES, HISTORY = "machines", "history"
_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "12345678"
_CHANGED = 0.05  # a smaller change has no colour


def letter(index: int) -> str:
    """`A` to `Z`, then `A1`, `B1` and so on: the name of a machine in the tables."""
    name = chr(ord("A") + index % 26)
    return name if index < 26 else f"{name}{index // 26}"


def names(found: Sequence[MachineRuns]) -> list[str]:
    """`A: AMD EPYC 7763, ... (2026-11-20)`: the letter of each machine, and what it stands for."""
    return [f"{letter(i)}: {printable(side.newest.machine)}{_label(side)}" for i, side in enumerate(found)]


def _label(side: MachineRuns) -> str:
    run = side.newest.run
    label = f", {shortened(run.label, 30)}" if run.label else ""
    return f"{label} ({run.started_at[:10]})"


@section("machines", order=10, together=True, help="Machines side by side, where the files are of several")
def machines_section(analyses: Sequence[Analysis], options: RenderOptions) -> Section | None:
    found = machine_runs(analyses)
    if len(found) < 2:
        return None
    rows = [row for side in found for row in headlines(side.newest)]
    tables = [table for table in (_break_evens(found), _times(found, options.time_unit)) if table.rows]
    by_baseline: dict[str, list[str]] = {}
    for i, side in enumerate(found):
        if side.newest.speedups:
            by_baseline.setdefault(printable(side.newest.baseline), []).append(letter(i))
    baselines = tuple(f"{listed(who)} {against}" for against, who in by_baseline.items())
    legend = (where_legend(row.case.case for row in rows),) if rows else ()
    lines = (*names(found), *baselines, *legend)
    return Section(title="Machines side by side", lines=lines, tables=tuple(tables)) if tables else None


def _break_evens(found: Sequence[MachineRuns]) -> Table:
    """Where the GPU starts to win: a row per series and regime, a column per machine."""
    rows = [row for side in found for row in side.newest.break_even]
    keys = dict.fromkeys((row.op, row.dtype, tuple(row.params.items()), data_text(row.case)) for row in rows)
    body = []
    for op, dtype, params, data in keys:
        found_rows = [
            earliest(
                row
                for row in side.newest.break_even
                if (row.op, row.dtype, tuple(row.params.items()), data_text(row.case))
                == (op, dtype, params, data)
            )
            for side in found
        ]
        if all(row is None or (row.verdict == "undecided" and not row.bracketed) for row in found_rows):
            continue  # nobody knows
        what = op + "".join(f" {name}={value}" for name, value in params)
        body.append(cells(what, dtype, data, *(threshold_text(row) if row else "-" for row in found_rows)))
    columns = heads("op", Column("dtype", rank=1), "data", *_letters(found))
    table = Table(columns, tuple(body), title="Break-even: the size from which the GPU pays")
    return _stacked_below(table, found, what=3)


def _times(found: Sequence[MachineRuns], unit: str) -> Table:
    """The times at the largest size that all machines measured, with the speedup over the own CPU."""
    body: list[tuple[Cell, ...]] = []
    for name, n in common_sizes(found).items():
        compared = [_at(side.newest, name, n) for side in found]
        size = format_size(n, table=True) + "".join(f" {key}={value}" for key, value in name[2])
        cpu = [time_text(rows[0].baseline.time, unit) + mark(rows[0].baseline.label) for rows in compared]
        body.append(cells(name[0], name[1], size, "CPU", *cpu))
        for data in regimes(row.case.case for rows in compared for row in rows):
            body.append((*cells(name[0], name[1], size, data), *(_best(rows, data, unit) for rows in compared)))
    columns = heads(
        "op", Column("dtype", rank=1), number("n"), "time",
        *(number(column.name) for column in _letters(found)),
    )  # fmt: skip
    title = "Time of one call at the largest common size; in brackets the winner there"
    return _stacked_below(Table(columns, tuple(body), title=title), found, what=4)


def _at(analysis: Analysis, name: SeriesKey, n: int) -> list[Speedup]:
    return [
        row for row in headlines(analysis) if row.case.case.series == name and row.case.case.params["n"] == n
    ]


def _best(rows: Sequence[Speedup], data: str, unit: str) -> Cell:
    ours = [row for row in rows if data_text(row.case.case) == data]
    if not ours:
        return Cell("-", "muted")
    row = max(ours, key=lambda row: row.ratio)
    tone: Tone = "plain" if not row.headline else "good" if row.lo > 1 else "bad" if row.hi < 1 else "plain"
    return Cell(f"{time_text(row.case.time, unit)} ({gain_text(row)}){mark(row.label)}", tone)


def _letters(found: Sequence[MachineRuns]) -> tuple[Column, ...]:
    return tuple(Column(letter(i)) for i in range(len(found)))


def _stacked_below(table: Table, found: Sequence[MachineRuns], *, what: int) -> Table:
    """`table` with a form for narrow places: a row per machine below the first `what` columns."""
    columns = (*table.columns[:what], Column("machine"), Column("result"))
    rows = tuple(
        (*(row[:what] if i == 0 else cells(*[""] * what)), Cell(letter(i)), row[what + i])
        for row in table.rows
        for i in range(len(found))
    )
    narrower = Table(columns, rows, title=table.title)
    return Table(table.columns, table.rows, title=table.title, narrower=narrower)


@section("history", order=20, together=True, help="How the cases of a machine changed over its files")
def history_section(analyses: Sequence[Analysis], options: RenderOptions) -> Section | None:
    found = machine_runs(analyses)
    tables = []
    for i, side in enumerate(found):
        rows = histories(side) if len(side.runs) > 1 else ()
        if rows:
            first, last = side.runs[0].run.started_at, side.runs[-1].run.started_at
            title = f"{letter(i)}: {len(side.runs)} runs, {first} to {last}"
            tables.append(_history(rows, title, options))
    line = (
        "Time of a case from the oldest run to the newest; high is slow, a gap is a run without it. Whether a "
        "change is more than chance: gpubench compare"
    )
    named_above = MACHINES in options.sections and len(found) > 1
    whose = [] if named_above else names(found)
    return Section(title="History", lines=(*whose, line), tables=tuple(tables)) if tables else None


def _history(rows: Sequence[History], title: str, options: RenderOptions) -> Table:
    columns = heads(
        "history", number("oldest", 2), number("newest", 1),
        number("change"), "case",
    )  # fmt: skip
    body = []
    for row in rows:
        measured = [time for time in row.times if time is not None]
        body.append(
            cells(
                history_text(row.times, options), seconds_text(measured[0], options.time_unit),
                seconds_text(measured[-1], options.time_unit), Cell(_percent(row.change), _tone(row.change)), row.id,
            )
        )  # fmt: skip
    mean = geometric_mean([row.change for row in rows])
    return Table(columns, tuple(body), title=title, legend=f"geometric mean of the changes: {_percent(mean)}")


def history_text(times: Sequence[float | None], options: RenderOptions) -> str:
    """Times as bars of eight heights from the least to the greatest; times within 5 % of each other are level."""
    bars = _ASCII_BARS if options.ascii_only else _BARS
    measured = [time for time in times if time is not None]
    low, high = min(measured), max(measured)
    if high <= low * (1 + _CHANGED):
        return "".join(" " if time is None else bars[3] for time in times)
    steps = [None if time is None else round((time - low) / (high - low) * (len(bars) - 1)) for time in times]
    return "".join(" " if step is None else bars[step] for step in steps)


def _percent(change: float) -> str:
    """`+12%`, `-3%`, `0%`."""
    percent = round((change - 1) * 100)
    return f"{percent:+d}%" if percent else "0%"


def _tone(change: float) -> Tone:
    return "bad" if change > 1 + _CHANGED else "good" if change < 1 / (1 + _CHANGED) else "plain"
