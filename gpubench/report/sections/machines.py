"""Several files together: machines side by side, and the history of one machine."""

from __future__ import annotations

import math
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
from gpubench.analysis.answer import answer
from gpubench.analysis.speedup import BreakEven, Speedup, earliest
from gpubench.analysis.thresholds import ALWAYS, threshold_text
from gpubench.base.plugins.sections import section
from gpubench.base.streams import printable, shorten
from gpubench.base.table import Cell, Column, Table, Tone, cells, heads, narrowing, number
from gpubench.base.units import count_noun, format_size, list_words
from gpubench.compare.comparison import APART
from gpubench.compare.judge import STEP_LEAST, StepChange, find_steps
from gpubench.curves.stats import Interval, geometric_mean
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.wording import (
    data_text,
    gain_text,
    mark,
    ratio_text,
    regimes,
    seconds_text,
    time_text,
    where_legend,
    with_params,
    with_text,
)
from gpubench.result.case import WAITED, SeriesKey

MACHINES = "machines"
_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "12345678"
_CHANGED = 0.05  # a smaller change has no colour


def letter(index: int) -> str:
    """Return `A` to `Z`, then `A1`, `B1` and so on: the name of a machine in the tables."""
    name = chr(ord("A") + index % 26)
    return name if index < 26 else f"{name}{index // 26}"


def names(sides: Sequence[MachineRuns]) -> list[str]:
    """Return `A: AMD EPYC 7763, ... (2026-11-20)`: the letter of each machine, and what it stands for. Machines of the
    same words have the time of day and the host's tag, too."""
    words = [f"{printable(side.newest.machine)}{_label(side)}" for side in sides]
    texts = []
    for i, (text, side) in enumerate(zip(words, sides, strict=True)):
        if words.count(text) > 1:
            run = side.newest.run
            tag = f"{run.started_at[11:16]}, host {run.fingerprint.machine.hash[-6:]}"
            text = f"{text.removesuffix(')')} {tag})"
        texts.append(f"{letter(i)}: {text}")
    return texts


def _label(side: MachineRuns) -> str:
    run = side.newest.run
    label = f", {shorten(run.label, 30)}" if run.label else ""
    return f"{label} ({run.started_at[:10]})"


def overview_sentences(sides: Sequence[MachineRuns]) -> tuple[str, ...]:
    """Return on how many machines a GPU was compared, and where it wins every op."""
    answers = [answer(side.newest) for side in sides]
    compared = [answered for answered in answers if answered.rows]
    if len(sides) < 2 or not compared:
        return ()
    clauses = []
    for regime in (WAITED, ALWAYS):
        gains = [
            [cell.gain for entry in answered.rows if (cell := entry.cells.get(regime)) and cell.gain]
            for answered in compared
        ]
        winners = sum(bool(own) and all(gain.winner == "gpu" for gain in own) for own in gains)
        if any(gains):
            clauses.append(
                f"{with_text(regime)} the GPU wins every op on {winners} of {len(compared)} machines"
            )
    text = "; ".join(clauses)
    missing = len(sides) - len(compared)
    text += f"; {count_noun(missing, 'machine')} compared no GPU with a CPU" if missing else ""
    return (f"{text[:1].upper()}{text[1:]}.",)


@section("machines", order=10, together=True, help="Machines side by side, where the files are of several")
def machines_section(analyses: Sequence[Analysis], options: RenderOptions) -> Section | None:
    sides = machine_runs(analyses)
    if len(sides) < 2:
        return None
    rows = [entry for side in sides for entry in headlines(side.newest)]
    tables = [table for table in (_break_evens(sides), _times(sides, options.time_unit)) if table.rows]
    by_baseline: dict[str, list[str]] = {}
    for i, side in enumerate(sides):
        if side.newest.speedups:
            by_baseline.setdefault(printable(side.newest.baseline), []).append(letter(i))
    baselines = tuple(f"{list_words(who)} {against}" for against, who in by_baseline.items())
    legend = (where_legend(entry.case.case for entry in rows),) if rows else ()
    lines = (*names(sides), *baselines, *legend)
    return Section(title="Machines side by side", lines=lines, tables=tuple(tables)) if tables else None


def _break_evens(sides: Sequence[MachineRuns]) -> Table:
    """Return where the GPU starts to win: a row per series and regime, a column per machine."""
    rows: dict[tuple[SeriesKey, str], dict[int, list[BreakEven]]] = {}
    for i, side in enumerate(sides):
        for entry in side.newest.break_even:
            rows.setdefault((entry.case.series, data_text(entry.case)), {}).setdefault(i, []).append(entry)
    body = []
    for ((op, dtype, params), data), by_machine in rows.items():
        curves = [earliest(by_machine.get(i, ())) for i in range(len(sides))]
        if any(entry is not None and (entry.verdict != "undecided" or entry.bracketed) for entry in curves):
            texts = [threshold_text(entry) if entry else "-" for entry in curves]
            body.append(cells(with_params(op, dict(params)), dtype, data, *texts))
    columns = heads("op", Column("dtype", rank=1), "data", *_letters(sides))
    table = Table(columns, tuple(body), title="Break-even: the size from which the GPU pays")
    return _stacked_below(table, sides, what=3)


def _times(sides: Sequence[MachineRuns], unit: str) -> Table:
    """Return the times at the largest size that all machines measured, with the speedup over the own CPU."""
    body: list[tuple[Cell, ...]] = []
    for name, n in common_sizes(sides).items():
        compared = [_at(side.newest, name, n) for side in sides]
        size = with_params(format_size(n, table=True), dict(name[2]))
        cpu = [time_text(rows[0].baseline.time, unit) + mark(rows[0].baseline.label) for rows in compared]
        body.append(cells(name[0], name[1], size, "CPU", *cpu))
        for data in regimes(entry.case.case for rows in compared for entry in rows):
            body.append((*cells(name[0], name[1], size, data), *(_best(rows, data, unit) for rows in compared)))
    columns = heads(
        "op", Column("dtype", rank=1), number("n"), "time",
        *(number(column.name) for column in _letters(sides)),
    )  # fmt: skip
    title = "Time of one call at the largest common size; in brackets the winner there"
    return _stacked_below(Table(columns, tuple(body), title=title), sides, what=4)


def _at(analysis: Analysis, name: SeriesKey, n: int) -> list[Speedup]:
    return [
        entry
        for entry in headlines(analysis)
        if entry.case.case.series == name and entry.case.case.params["n"] == n
    ]


def _best(rows: Sequence[Speedup], data: str, unit: str) -> Cell:
    ratios = [entry for entry in rows if data_text(entry.case.case) == data]
    if not ratios:
        return Cell("-", "muted")
    entry = max(ratios, key=lambda entry: entry.ratio)
    tone: Tone = (
        "plain" if not entry.headline else "gpu" if entry.lo > 1 else "cpu" if entry.hi < 1 else "plain"
    )
    return Cell(f"{time_text(entry.case.time, unit)} ({gain_text(entry)}){mark(entry.label)}", tone)


def _letters(sides: Sequence[MachineRuns]) -> tuple[Column, ...]:
    return tuple(Column(letter(i)) for i in range(len(sides)))


def _stacked_below(table: Table, sides: Sequence[MachineRuns], *, what: int) -> Table:
    """Return `table` with a form for narrow places: a row per machine below the first `what` columns."""
    columns = (*table.columns[:what], Column("machine"), Column("result"))
    rows = tuple(
        (*(entry[:what] if i == 0 else cells(*[""] * what)), Cell(letter(i)), entry[what + i])
        for entry in table.rows
        for i in range(len(sides))
    )
    return narrowing([Table(columns, rows, title=table.title), table])


@section("history", order=20, together=True, help="How the cases of a machine changed over its files")
def history_section(analyses: Sequence[Analysis], options: RenderOptions) -> Section | None:
    sides = machine_runs(analyses)
    tables = []
    for i, side in enumerate(sides):
        rows = histories(side) if len(side.runs) > 1 else ()
        if rows:
            tables.append(_history(side, rows, f"{letter(i)}: {_span(side)}", options))
    line = (
        "Time of a case from the oldest run to the newest; high is slow, a gap is a run without it. A change is sure "
        f"where the runs before and behind it tell, {STEP_LEAST} on each side at least (compare's test, a run being "
        "one observation)."
    )
    named_above = MACHINES in options.sections and len(sides) > 1
    whose = [] if named_above else names(sides)
    return Section(title="History", lines=(*whose, line), tables=tuple(tables)) if tables else None


def _span(side: MachineRuns) -> str:
    return f"{len(side.runs)} runs, {side.runs[0].run.started_at} to {side.runs[-1].run.started_at}"


def _history(side: MachineRuns, rows: Sequence[History], title: str, options: RenderOptions) -> Table:
    """Return a row for each case; those that surely changed come first, the largest change on top."""
    # The sure changes of each case that has some, oldest first.
    steps = find_steps({entry.id: entry.times for entry in rows}, APART)
    columns = heads(
        "history", number("oldest", 2), number("newest", 1), number("change"), bool(steps) and "surely since", "case",
    )  # fmt: skip
    sizes = {name: max(abs(math.log(step.ratio)) for step in own) for name, own in steps.items()}
    ordered = sorted(rows, key=lambda entry: -sizes.get(entry.id, 0))
    body = []
    for entry in ordered:
        measured = [time for time in entry.times if time is not None]
        own = steps.get(entry.id, [])
        body.append(
            cells(
                history_text(entry.times, options), seconds_text(measured[0], options.time_unit),
                seconds_text(measured[-1], options.time_unit), Cell(_percent(entry.change), _tone(entry.change)),
                bool(steps)
                and Cell("; ".join(_step_text(side, step) for step in own), _tone(own[-1].ratio if own else 1)),
                entry.id,
            )
        )  # fmt: skip
    mean = geometric_mean([entry.change for entry in rows])
    legend = f"surely changed: {len(steps)} of {count_noun(len(rows), 'case')}; geometric mean of the changes: "
    return Table(columns, tuple(body), title=title, legend=f"{legend}{_percent(mean)}")


def _step_text(side: MachineRuns, step: StepChange) -> str:
    """Return `2026-11-20 5b0c11d: 1.31x [1.28, 1.33]`: the first run behind the change, by its date and label."""
    run = side.runs[step.run].run
    label = f" {shorten(run.label, 12)}" if run.label else ""
    return f"{run.started_at[:10]}{label}: {ratio_text(Interval(step.low, step.ratio, step.high, 'sessions'))}"


def history_text(times: Sequence[float | None], options: RenderOptions) -> str:
    """Return times as bars of eight heights from the least to the greatest; times within 5 % of each other are
    level."""
    bars = _ASCII_BARS if options.ascii_only else _BARS
    measured = [time for time in times if time is not None]
    low, high = min(measured), max(measured)
    if high <= low * (1 + _CHANGED):
        return "".join(" " if time is None else bars[3] for time in times)
    steps = [None if time is None else round((time - low) / (high - low) * (len(bars) - 1)) for time in times]
    return "".join(" " if step is None else bars[step] for step in steps)


def _percent(change: float) -> str:
    """Return `+12%`, `-3%`, `0%`."""
    percent = round((change - 1) * 100)
    return f"{percent:+d}%" if percent else "0%"


def _tone(change: float) -> Tone:
    return "bad" if change > 1 + _CHANGED else "good" if change < 1 / (1 + _CHANGED) else "plain"
