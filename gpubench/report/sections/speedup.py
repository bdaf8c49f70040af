"""The speedup section: for a terminal a table per op with a column per regime, in full a row per ratio."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.means import Mean, means
from gpubench.analysis.speedup import Speedup, baseline_line, cpu_line
from gpubench.analysis.thresholds import extent, threshold_text
from gpubench.analysis.thresholds import size_text as threshold_size
from gpubench.base.escaping import printable
from gpubench.base.groups import group_by
from gpubench.base.plugins.sections import Rows, chart, section
from gpubench.base.table import Cell, Column, Table, Tone, cells, heads, number
from gpubench.base.units import truncate
from gpubench.report import charts
from gpubench.report.charts import (
    MARKS,
    Chart,
    ChartRow,
    ChartRows,
    common,
    device_ids,
    regime_names,
    short,
    size_ticks,
)
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.sections.baseline import against_text
from gpubench.report.wording import (
    FORMS,
    data_text,
    device_text,
    devices_text,
    gain_text,
    interval_text,
    legend,
    mark,
    percent_ratio_text,
    rate_text,
    ratio_text,
    regime_order,
    regimes,
    seconds_text,
    series_name,
    short_ratio_text,
    situation_text,
    size_text,
    time_text,
    where_legend,
    winner_text,
)
from gpubench.result.case import WAITED

_HOW_TO_READ = "+-: the farther end of the interval; lib, tuned (l, t): the form"
_HOW_TO_READ_WIDE = "[a, b]: the interval; lib, tuned: the form"
_LIBRARY = "; lib/lib: library on both sides"
_LEFT_OUT = "Sizes of the break-even search alone are left out; "
_IN_MARKDOWN, _BELOW = "--format markdown has them.", "the table of every ratio has them."


@section("speedup", order=80, help="How many times as fast a GPU is, at every size")
def speedup_sections(analysis: Analysis, options: RenderOptions) -> tuple[Section, ...]:
    """Draw the tables with a column per regime; in full, folded, a row for each ratio with both times, too.

    Of a reader who chose an order the rows alone, as they stand in the analysis.
    """
    unit, full = options.time_unit, options.full
    if options.sort is not None:
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
    title = "Speedup: which side wins, and by how much" if real else "CPU: library and tuned form"
    title = (
        title if all(row.baseline.device_kind == "cpu" for row in headline) else "Speedup: baseline / device"
    )
    return Section(title=title, lines=tuple(lines), tables=tuple(tables))


def _by_op(rows: Sequence[Speedup]) -> list[list[Speedup]]:
    groups = group_by(rows, lambda row: (row.case.case.op, row.case.case.dtype))
    return list(groups.values())


def _lines(analysis: Analysis, rows: Sequence[Speedup], how: str, *, shared: bool) -> list[str]:
    """What holds for all tables: the baseline, the devices' names, the words of the headings."""
    devices = dict.fromkeys(row.case.case.device_id for row in rows)
    lines = [printable(baseline_line(analysis.run, rows))] if shared else []
    lines.append(f"on {devices_text(analysis, list(devices))}")
    if how:
        library = _LIBRARY if _library_ratios(analysis, rows) else ""
        lines.append(f"{where_legend(row.case.case for row in rows)}; {how}{library}")
    return lines


def _several_cpus(analysis: Analysis) -> bool:
    """Whether more than one backend measured the CPU: then each time of it says whose it is."""
    timed = {row.case.device_id for row in analysis.cases if row.device_kind == "cpu" and row.time is not None}
    return len(timed) > 1


def _cpu_table(analysis: Analysis, unit: str) -> Table:
    several = _several_cpus(analysis)
    columns = heads(
        "op", Column("dtype", rank=1), several and "device", number("n"),
        number("library"),
        number("tuned"), number("compute", 3), number("payload", 2),
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
        where = [best.case.device_id] if several else []
        body.append(cells(best.case.op, best.case.dtype, *where, size_text(best), *texts, *rates))
    labels = {row.label for forms in workloads.values() for row in forms.values()}
    note = f"{printable(cpu_line(analysis.run))}; wall time of one call, rates of the faster form"
    payload = "payload: each input read once and the output written once"
    return Table(columns, tuple(body), note=note, legend="; ".join(filter(None, [legend(labels), payload])))


WAITED_FOR = "waited for: one launch at a time, for whoever waits after each; no speedup counts it"
SIDES = {"software": "adapter", "hybrid": "hybrid"}


def rows_table(
    analysis: Analysis, rows: Sequence[Speedup], unit: str, note: str, *, in_order: bool = False
) -> Table:
    """All of `rows`: one device after the other, one regime after the other, sizes ascending; `in_order`: as they
    are."""
    first = rows[0].case
    library = _library_ratios(analysis, rows)
    against = "CPU" if rows[0].baseline.device_kind == "cpu" else "baseline"
    # Where waited calls were measured, they have rows of their own.
    waited = any(row.case.single_s is not None for row in rows) and not any(
        row.case.case.regime == WAITED for row in rows
    )
    several = _several_cpus(analysis)
    columns = heads(
        "device", "data", number("n"), number(against, 2),
        number(SIDES.get(first.device_kind, "GPU"), 1),
        waited and number("waited for", 4), number("gain"),
        bool(library) and number("lib/lib", 3),
    )  # fmt: skip
    body = []
    if not in_order:
        rows = sorted(rows, key=lambda row: (row.case.case.device_id, regime_order(row.case.case)))
    for row in rows:
        case = row.case.case
        beside = library.get((case.workload, case.regime_id, case.device_id))
        beside_text = gain_text(beside) + mark(beside.label) if beside else "-"
        sides = [f"{time_text(side.time, unit)} {FORMS[side.case.form]}" for side in (row.baseline, row.case)]
        sides[0] += f" {row.baseline.case.device_id}" if several else ""
        body.append(
            cells(
                case.device_id, data_text(case), size_text(row.case), *sides,
                waited and seconds_text(row.case.single_s, unit),
                Cell(gain_text(row, ratio_text) + mark(row.label), _tone(row)), bool(library) and beside_text,
            )
        )  # fmt: skip
    return Table(
        columns, tuple(body), title=_table_title(analysis, rows), note=note,
        legend="; ".join(filter(None, [WAITED_FOR if waited else "", legend({row.label for row in rows})])),
    )  # fmt: skip


def _table_title(analysis: Analysis, rows: Sequence[Speedup]) -> str:
    """Op and dtype; a table of software adapters says what they are."""
    first = rows[0].case
    adapters = dict.fromkeys(row.case.case.device_id for row in rows if row.case.device_kind == "software")
    where = f" on {', '.join(device_text(analysis, name) for name in adapters)}" if adapters else ""
    return f"{first.case.op} {first.case.dtype}{where}"


def _library_ratios(analysis: Analysis, rows: Sequence[Speedup]) -> dict[tuple[str, str, str], Speedup]:
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


def _tone(row: Speedup) -> Tone:
    """Better or worse than the baseline, where the interval says so."""
    if not row.headline:
        return "muted"
    return "good" if row.lo > 1 else "bad" if row.hi < 1 else "plain"


MANY_SIZES = 6  # from here on, sizes of which a search measured a small part alone are left out
SpeedupStyle = Literal["interval", "percent", "letters", "bare"]
_LETTERS = {"library": "l", "tuned": "t"}
PivotSizes = dict[str, list[Speedup]]


class Pivot(NamedTuple):
    """A table of one op and dtype: its rows by size, and the library-to-library ratios that belong to them."""

    analysis: Analysis
    sizes: PivotSizes
    library: dict[tuple[str, str, str], Speedup]
    unit: str
    note: str


def pivot_table(analysis: Analysis, rows: Sequence[Speedup], unit: str, note: str) -> Table:
    """All regimes beside each other; narrower forms shorten the intervals."""
    pivot = Pivot(analysis, mostly_measured(rows), _library_ratios(analysis, rows), unit, note)
    table: Table | None = None
    styles: list[SpeedupStyle] = ["bare", "letters", "percent", "interval"]
    for style in styles:
        table = _pivot(pivot, style, table)
    assert table is not None
    return table


def mostly_measured(rows: Sequence[Speedup]) -> PivotSizes:
    """The rows by size; of many sizes those of the plan, without those at which a search looked at a part."""
    sizes = group_by(rows, lambda row: size_text(row.case))
    if len(sizes) <= MANY_SIZES:
        return sizes
    most = max(len(found) for found in sizes.values())
    return {name: found for name, found in sizes.items() if 2 * len(found) > most}


def _pivot(pivot: Pivot, style: SpeedupStyle, narrower: Table | None) -> Table:
    sizes, unit = pivot.sizes, pivot.unit
    rows = [row for found in sizes.values() for row in found]
    data = regimes(row.case.case for row in rows)
    bases = {row.baseline.case.form for row in rows}
    several = _several_cpus(pivot.analysis)
    # Without transfers a CPU has one time per size; another baseline pays its own in each regime.
    timed = all(len({row.baseline.id for row in found}) == 1 for found in sizes.values())
    against = "CPU" if rows[0].baseline.device_kind == "cpu" else "baseline"
    against += f" {FORMS[min(bases)]}" if len(bases) == 1 else ""
    columns = heads(
        number("n"), timed and Column(against, right=True, rank=int(style == "bare")),
        Column(SIDES.get(rows[0].case.device_kind, "GPU")), *(number(name) for name in data),
    )  # fmt: skip
    body: list[tuple[Cell, ...]] = []
    for size, found in sizes.items():
        base = found[0].baseline
        form = f" {_forms(style)[base.case.form]}" if len(bases) > 1 else ""
        form += f" {base.case.device_id}" if several else ""
        head = [size, *([time_text(base.time, unit) + form] if timed else [])]
        for line in _pivot_lines(found, data, pivot.library, style, unit):
            body.append((*cells(*head), *line))
            head = [""] * len(head)
    return Table(
        columns, tuple(body), title=_table_title(pivot.analysis, rows), note=pivot.note,
        legend=_pivot_legend(rows, style), narrower=narrower,
    )  # fmt: skip


def _pivot_lines(
    rows: Sequence[Speedup],
    data: Sequence[str],
    library: dict[tuple[str, str, str], Speedup],
    style: SpeedupStyle,
    unit: str,
) -> list[tuple[Cell, ...]]:
    """One line per device, one below it with its times, and one for library against library, where that is another
    pair."""
    lines = []
    for device in dict.fromkeys(row.case.case.device_id for row in rows):
        ours = {data_text(row.case.case): row for row in rows if row.case.case.device_id == device}
        forms = [row.case.case.form for row in ours.values()]
        usual = max(dict.fromkeys(forms), key=forms.count)
        name = f"{device} {_forms(style)[usual]}"
        lines.append((Cell(name), *(_pivot_cell(ours.get(key), style, usual) for key in data)))
        lines.append((Cell("  time", "muted"), *(_pivot_time(ours.get(key), unit) for key in data)))
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


def _pivot_cell(row: Speedup | None, style: SpeedupStyle, usual: str) -> Cell:
    """The ratio; with its form where that is not the one that stands before the row."""
    if row is None:
        return Cell("")
    form = row.case.case.form
    suffix = "" if form == usual else f" {_forms(style)[form]}"
    text = {"interval": ratio_text, "bare": short_ratio_text}.get(style, percent_ratio_text)
    return Cell(gain_text(row, text) + mark(row.label) + suffix, _tone(row))


def _pivot_time(row: Speedup | None, unit: str) -> Cell:
    return Cell("" if row is None else time_text(row.case.time, unit), "muted")


def _forms(style: SpeedupStyle) -> dict[str, str]:
    return FORMS if style in ("interval", "percent") else _LETTERS


def _beside(row: Speedup | None) -> Cell:
    return Cell(gain_text(row) + mark(row.label) if row else "", "muted")


def _pivot_legend(rows: Sequence[Speedup], style: SpeedupStyle) -> str:
    marks = legend({row.label for row in rows})
    parts = [marks] if marks else []
    parts += ["intervals: in a wider terminal or --format markdown"] if style == "bare" else []
    return "; ".join(parts)


MEANS_TITLE = "Mean gain: geometric, of what every situation has"
_NOT_ALIKE = "*: some of the same cases are missing, so it compares with no other mean"
_MOST = 12  # of the missing cases of one mean; JSON names all


@section("speedup", order=85)
def means_section(analysis: Analysis, options: RenderOptions) -> Section | None:
    """Draw the means, in full with the cases that are missing, by name; None where there is nothing to average."""
    rows = means(analysis)
    if not any(row.count > 1 for row in rows):
        return None
    devices = list(dict.fromkeys(row.device_id for row in rows))
    families: dict[tuple[str, str], dict[str, Mean]] = {}
    for row in rows:
        families.setdefault((row.regime, row.dtype), {})[row.device_id] = row
    columns = heads("data", Column("dtype", rank=1), *(number(name) for name in devices))
    wide, narrow = (
        tuple(
            cells(
                situation_text(regime, beside_queued=True),
                dtype,
                *(_mean_text(ours[name], full=full) if name in ours else "-" for name in devices),
            )
            for (regime, dtype), ours in families.items()
        )
        for full in (True, False)
    )
    legend = _NOT_ALIKE if any(row.missing for row in rows) else ""
    table = Table(columns, wide, legend=legend, narrower=Table(columns, narrow, legend=legend))
    lines = [against_text(analysis, [row.baseline for row in analysis.speedups if row.headline])]
    lines += [_missing_text(row) for row in rows if row.missing] if options.full else []
    return Section(title=MEANS_TITLE, lines=tuple(lines), tables=(table,), folded=True)


def _missing_text(row: Mean) -> str:
    """`cupy:0, copied at every call, float32 lacks matmul/n=4096/float32`."""
    situation = situation_text(row.regime, beside_queued=True)
    return f"{row.device_id}, {situation}, {row.dtype} lacks {truncate(row.missing, _MOST)}"


def _mean_text(row: Mean, *, full: bool) -> str:
    """`GPU 5.1x [4.8, 5.3] of 12`, marked where cases are missing."""
    gain = winner_text(row.interval, ratio_text if full else short_ratio_text)
    return f"{gain} of {row.count}{'*' if row.missing else ''}"


COLUMNS = (
    ("device", "device"), ("regime", "data"), ("form", "form"), ("size", "n"), ("baseline", "baseline"),
    ("time", "time"), ("speedup", "speedup"), ("interval", "95 % interval"), ("label", "label"),
)  # fmt: skip
MARK_COLUMNS = (("device", "device"), ("regime", "data"), ("text", "break-even n"))
AXIS_TITLE = "baseline time / device time"
CAPTION = (
    "Speedup against size: above the line at 1 the device is faster than the best form of the baseline. The band is "
    "the 95 % interval; a diamond on the line is a break-even, with its interval as a bar."
)


@chart("speedup", order=20)
def speedup_chart(analysis: Analysis, options: RenderOptions) -> Chart:
    """One line for each device and regime; the baseline is the same for all forms."""
    return Chart(
        id="speedup", section="speedup", title="Speedup against size", caption=CAPTION, columns=COLUMNS,
        rows=_rows(analysis, options.time_unit), marks=_marks(analysis),
        spec=_spec(device_ids(analysis), regime_names(analysis)), params=size_ticks(analysis),
    )  # fmt: skip


def _rows(analysis: Analysis, unit: str) -> ChartRows:
    found: ChartRows = {}
    best = {row.case.id for row in analysis.speedups if row.kind == "headline"}
    for row in analysis.speedups:
        if row.kind == "library":  # its baseline is another one
            continue
        found.setdefault(series_name(row.case.case), []).append(
            common(row.case, best)
            | {
                "value": short(row.ratio), "low": short(row.lo), "high": short(row.hi),
                "baseline": f"{time_text(row.baseline.time, unit)} {FORMS[row.baseline.case.form]}",
                "time": time_text(row.case.time, unit), "speedup": short_ratio_text(row.interval),
                "interval": interval_text(row.interval), "label": row.label,
            }
        )  # fmt: skip
    return found


def _marks(analysis: Analysis) -> ChartRows:
    """The thresholds; an open end of an interval reaches to the end of what was measured."""
    found: ChartRows = {}
    for row in analysis.break_even:
        if row.verdict == "at" and row.n is not None:
            low, high = row.lo or row.first, row.hi or row.last
            found.setdefault(series_name(row.case), []).append(
                {
                    "n": row.n, "low": low, "high": high, "one": 1, "text": threshold_text(row),
                    "short": threshold_size(row.n, extent(row.case)),
                    "device": printable(row.device_id), "regime": data_text(row.case),
                }
            )  # fmt: skip
    return found


@functools.cache
def _spec(names: tuple[str, ...], data: tuple[str, ...]) -> ChartRow:
    import altair

    label = "format(datum.value, '~r') + '\\u00d7'"
    base = altair.Chart(charts.named()).encode(
        x=charts.size_axis(),
        y=charts.log_axis("value", AXIS_TITLE, label),
        color=charts.accent(names),
        detail="regime:N",
    )
    band = base.mark_area(opacity=0.2).encode(y=charts.log_axis("low", AXIS_TITLE, label), y2="high:Q")
    one = altair.Chart(charts.named()).mark_rule(strokeWidth=1.5).encode(y=altair.datum(1))
    marks = altair.Chart(charts.named(MARKS)).encode(
        y=charts.log_axis("one", AXIS_TITLE, label),
        color=charts.accent(names),
        tooltip=charts.tooltip(MARK_COLUMNS),
    )
    bar = marks.mark_rule(strokeWidth=7, opacity=0.4).encode(x=altair.X("low:Q"), x2="high:Q")
    diamond = marks.mark_point(shape="diamond", size=130, filled=True, opacity=1).encode(x="n:Q")
    return charts.finished(
        altair.layer(band, one, *charts.curves(base, names, data, COLUMNS), bar, diamond), CAPTION
    )


def _named_ratios(analysis: Analysis) -> Iterable[Speedup]:
    return (row for row in analysis.speedups if row.kind != "case")


ROWS = (
    Rows("speedups", Speedup, _named_ratios, order=20),
    Rows("means", Mean, means, order=170),
)
