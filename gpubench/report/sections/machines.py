"""The sections about several files: machines side by side, and the history of each machine."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

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
from gpubench.base import units
from gpubench.base.plugins.sections import section
from gpubench.base.streams import inert_json, printable, shorten
from gpubench.base.table import Cell, Column, Table, Tone, cells, heads, number
from gpubench.base.units import count_noun, format_size, list_words
from gpubench.compare.comparison import APART
from gpubench.compare.judge import MOST_RUNS, STEP_LEAST, StepChange, find_steps
from gpubench.curves.stats import Interval, geometric_mean
from gpubench.report.charts import Chart, ChartRow, quantity, short, word
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.sections.answer_text import gain_of
from gpubench.report.wording import (
    TONES,
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

MACHINES, HISTORY = "machines", "history"
_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "12345678"
_CHANGED = 0.05  # the smallest change that has a colour


def letter(index: int) -> str:
    """Return the name of a machine in the tables: `A` to `Z`, then `A1`, `B1` and so on."""
    name = chr(ord("A") + index % 26)
    return name if index < 26 else f"{name}{index // 26}"


def names(sides: Sequence[MachineRuns]) -> list[str]:
    """Return the letter and the description of each machine, such as `A: AMD EPYC 7763, ... (2026-11-20)`. To
    equal descriptions, the time of day and a part of the fingerprint are added."""
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
    """Return one sentence: on how many machines the GPU wins every op. The result is empty for a single
    machine, or if no machine has compared a GPU with its CPU."""
    answers = [answer(side.newest) for side in sides]
    compared = [answered for answered in answers if answered.rows]
    if len(sides) < 2 or not compared:
        return ()
    clauses = []
    for regime in (WAITED, ALWAYS):
        gains = [[gain for entry in answered.rows if (gain := gain_of(entry, regime))] for answered in compared]
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
    """Return the section with the machines side by side, or None if there is one machine or no table."""
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
    """Return a table of the sizes from which the GPU pays, with a column for each machine."""
    rows: dict[tuple[SeriesKey, str], dict[int, list[BreakEven]]] = {}
    for i, side in enumerate(sides):
        for entry in side.newest.break_even:
            rows.setdefault((entry.case.series, data_text(entry.case)), {}).setdefault(i, []).append(entry)
    body = []
    for ((op, dtype, params), data), by_machine in rows.items():
        curves = [earliest(by_machine.get(i, ())) for i in range(len(sides))]
        # A row says nothing if no machine has a verdict.
        if any(entry is not None and (entry.verdict != "undecided" or entry.bracketed) for entry in curves):
            texts = [threshold_text(entry) if entry else "-" for entry in curves]
            body.append(cells(with_params(op, dict(params)), dtype, data, *texts))
    columns = heads("op", Column("dtype", rank=1), "data", *map(letter, range(len(sides))))
    return Table(columns, tuple(body), title="Break-even: the size from which the GPU pays")


def _times(sides: Sequence[MachineRuns], unit: str) -> Table:
    """Return a table of the times at the largest size that all machines measured."""
    body: list[tuple[Cell, ...]] = []
    for name, n in common_sizes(sides).items():
        compared = [
            [
                entry
                for entry in headlines(side.newest)
                if (entry.case.case.series, entry.case.case.n) == (name, n)
            ]
            for side in sides
        ]
        size = with_params(format_size(n), dict(name[2]))
        cpu = [time_text(rows[0].baseline.time, unit) + mark(rows[0].baseline.label) for rows in compared]
        body.append(cells(name[0], name[1], size, "CPU", *cpu))
        for data in regimes(entry.case.case for rows in compared for entry in rows):
            body.append((*cells(name[0], name[1], size, data), *(_best(rows, data, unit) for rows in compared)))
    columns = heads(
        "op", Column("dtype", rank=1), number("n"), "time",
        *(number(letter(i)) for i in range(len(sides))),
    )  # fmt: skip
    title = "Time of one call at the largest common size; in brackets the winner there"
    return Table(columns, tuple(body), title=title)


def _best(rows: Sequence[Speedup], data: str, unit: str) -> Cell:
    ratios = [entry for entry in rows if data_text(entry.case.case) == data]
    if not ratios:
        return Cell("-", "muted")
    entry = max(ratios, key=lambda entry: entry.ratio)
    tone: Tone = TONES[entry.state] if entry.headline else "plain"
    return Cell(f"{time_text(entry.case.time, unit)} ({gain_text(entry)}){mark(entry.label)}", tone)


@section("history", order=20, together=True, help="How the cases of a machine changed over its files")
def history_section(analyses: Sequence[Analysis], options: RenderOptions) -> Section | None:
    """Return the section with the history of each machine, or None if no machine has a case with a history."""
    sides = machine_runs(analyses)
    tables = []
    for i, side in enumerate(sides):
        if rows := histories(side):
            span = f"{side.runs[0].run.started_at} to {side.runs[-1].run.started_at}"
            tables.append(_history(side, rows, f"{letter(i)}: {len(side.runs)} runs, {span}", options))
    line = (
        "Time of a case from the oldest run to the newest; high is slow, a gap is a run without it. Looked for "
        f"are changes of {APART:.0%} or more among the newest {MOST_RUNS} runs, with {STEP_LEAST} on each side at "
        "least; a change is sure by compare's test, a run being one observation."
    )
    named_above = MACHINES in options.sections and len(sides) > 1
    whose = [] if named_above else names(sides)
    return Section(title="History", lines=(*whose, line), tables=tuple(tables)) if tables else None


def _history(side: MachineRuns, rows: Sequence[History], title: str, options: RenderOptions) -> Table:
    """Return a table with a row for each case of a machine, the largest sure change first."""
    steps = history_steps(rows)
    columns = heads(
        "history", number("oldest", 2), number("newest", 1), number("change"), bool(steps) and "surely since", "case",
    )  # fmt: skip
    changes = {case_id: max(abs(math.log(step.ratio)) for step in own) for case_id, own in steps.items()}
    ordered = sorted(rows, key=lambda entry: -changes.get(entry.id, 0.0))
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


def history_steps(rows: Sequence[History]) -> dict[str, list[StepChange]]:
    """Return the sure changes of each case, oldest first, by case id. Cases without a change are left out."""
    return find_steps({entry.id: entry.times for entry in rows}, APART)


def _step_text(side: MachineRuns, step: StepChange) -> str:
    """Return a change as text with the first run after it: `2026-11-20 5b0c11d: 1.31x [1.28, 1.33]`."""
    run = side.runs[step.run].run
    label = f" {shorten(run.label, 12)}" if run.label else ""
    return f"{run.started_at[:10]}{label}: {ratio_text(Interval(step.low, step.ratio, step.high, 'sessions'))}"


def history_text(times: Sequence[float | None], options: RenderOptions) -> str:
    """Return one character for each time, in order: a bar, which is higher for a longer time, or a blank for
    None. If all times are within 5 %, all bars have the same height."""
    bars = _ASCII_BARS if options.ascii_only else _BARS
    measured = [time for time in times if time is not None]
    low, high = min(measured), max(measured)

    def bar(time: float) -> str:
        flat = high <= low * (1 + _CHANGED)
        return bars[3 if flat else round((time - low) / (high - low) * (len(bars) - 1))]

    return "".join(" " if time is None else bar(time) for time in times)


def _percent(change: float) -> str:
    """Return a factor as a change in whole percent, such as `+12%`, `-3%` or `0%`."""
    percent = round((change - 1) * 100)
    return f"{percent:+d}%" if percent else "0%"


def _tone(change: float) -> Tone:
    return "bad" if change > 1 + _CHANGED else "good" if change < 1 / (1 + _CHANGED) else "plain"


# ---------------------------------------------------------------- the history as a chart

# The axis reaches at least this factor above and below 1, so that a change of 2 % does not look large.
_LEAST_SPAN = 1.1
_MOST_NAMED = 2  # how many of the cases that changed most are named
_CAPTION = (
    "Time of each case against its oldest one, on a log axis: up is slower. The thick line is the geometric mean of "
    "the cases that every run has; a triangle is a sure change. A line that ends early is of a case that later runs "
    "lack. Changed most: {}."
)
_FACTORS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_NEAR_ONE = (0.7, 0.8, 0.9, 1.1, 1.25, 1.5)  # ticks that are labelled if the axis spans less than _WIDE
_WIDE = 4


def history_chart(side: MachineRuns, name: str) -> Chart | None:
    """Return the chart of a machine's history, whose spec has its data, or None if no case has a history. `name`
    is the letter of the machine."""
    rows = histories(side)
    if not rows:
        return None
    cases = {entry.id: _factors(entry.times) for entry in rows}
    whole = [[f for f in factors if f is not None] for factors in cases.values() if None not in factors]
    mean = [geometric_mean(at_once) for at_once in zip(*whole, strict=True)]
    dates = [run.run.started_at for run in side.runs]
    last = {case_id: [f for f in factors if f is not None][-1] for case_id, factors in cases.items()}
    most = sorted(last, key=lambda case_id: -abs(math.log(last[case_id])))[:_MOST_NAMED]
    return Chart(
        id=HISTORY,
        rows={},
        title=f"Time over the runs of {name}: {printable(side.newest.machine)}, {len(side.runs)} runs",
        caption=_CAPTION.format("; ".join(f"{printable(case_id)} {last[case_id]:.2f}x" for case_id in most)),
        spec=_spec(cases, mean, dates, history_steps(rows)),
    )


def _factors(times: Sequence[float | None]) -> list[float | None]:
    first = next(time for time in times if time is not None)
    return [None if time is None else time / first for time in times]


def _places(dates: Sequence[str]) -> list[float]:
    """Return the position of each run on the time axis, from 0 (oldest) to 1. If dates are unreadable or all
    equal, the positions are evenly spaced."""
    seconds = [time.timestamp() for text in dates if (time := units.parse_time(text)) is not None]
    if len(seconds) < len(dates) or seconds[-1] <= seconds[0]:
        return [i / (len(dates) - 1) for i in range(len(dates))]
    return [(time - seconds[0]) / (seconds[-1] - seconds[0]) for time in seconds]


def _spec(
    cases: dict[str, list[float | None]],
    mean: Sequence[float],
    dates: Sequence[str],
    steps: dict[str, list[StepChange]],
) -> ChartRow:
    ratios = [f for factors in cases.values() for f in factors if f is not None]
    low, high = min(1 / _LEAST_SPAN, *ratios) / 1.02, max(_LEAST_SPAN, *ratios) * 1.02
    named = (*_FACTORS, *(_NEAR_ONE if high / low < _WIDE else ()))
    long = 19 if dates[0][:10] == dates[-1][:10] else 10  # the time of day is shown if all runs are of one day
    # The dates come from files, and Vega cannot read a raw line separator.
    days = (msgspec.json.encode(text[:long].replace("T", " ")) for text in (dates[0], dates[-1]))
    first, last = (inert_json(day).decode() for day in days)
    ends = f"datum.value > 0 ? {last} : {first}"
    bare = {"title": None, "domain": False, "ticks": False}
    x = quantity(
        "place", scale={"domain": [0, 1], "padding": 8},
        axis=bare | {"values": [0, 1], "labelExpr": ends, "grid": False},
    )  # fmt: skip
    y = quantity(
        "factor", scale={"type": "log", "domain": [low, high], "nice": False},
        axis=bare | {
            "values": [factor for factor in named if low <= factor <= high],
            "labelExpr": "format(datum.value, '~g') + 'x'",
        },
    )  # fmt: skip
    places = [short(place) for place in _places(dates)]
    lines = {printable(case_id): factors for case_id, factors in cases.items()}

    def rows(lines: dict[str, Sequence[float | None]]) -> list[ChartRow]:
        return [
            {"case": name, "place": place, "factor": short(factor)}
            for name, factors in lines.items()
            for place, factor in zip(places, factors, strict=False)
            if factor is not None
        ]

    marked = {
        printable(case_id): [
            factor if any(step.run == i for step in own) else None for i, factor in enumerate(cases[case_id])
        ]
        for case_id, own in steps.items()
    }
    thin = {"type": "line", "style": "quiet", "strokeWidth": 1, "strokeOpacity": 0.5}
    thick = {"type": "line", "style": "accent", "strokeWidth": 3}
    tooltip = word("case")
    return {
        "width": "container", "height": 180, "encoding": {"x": x, "y": y, "detail": tooltip, "tooltip": tooltip},
        "layer": [
            {"data": {"values": rows(dict(lines))}, "mark": thin | {"point": {"style": "quiet", "size": 12}}},
            {
                "data": {"values": rows({"geometric mean": mean})},
                "mark": thick | {"point": {"style": "accent", "size": 40}},
            },
            {
                "data": {"values": rows(dict(marked))},
                "mark": {"type": "point", "style": "accent", "shape": "triangle-up", "size": 120, "filled": True},
            },
        ],
    }  # fmt: skip
