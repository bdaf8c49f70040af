"""The sections about gains and break-evens: tables with a column for each situation, all ratios with the times of
both sides, and the number of calls that repay a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gpubench.analysis.analyse import Analysis, Mean, means
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.speedup import BreakEven, Speedup, baseline_line, cpu_codes, cpu_line, fastest
from gpubench.analysis.thresholds import (
    Amortization,
    AnswerCell,
    SizeUnit,
    WeightLoad,
    amortizations,
    both_text,
    cell_text,
    range_text,
    size_unit_of,
    threshold,
    threshold_text,
    weight_loads,
    why_text,
)
from gpubench.base import group_by
from gpubench.base.plugins.sections import Rows, chart, section
from gpubench.base.streams import printable
from gpubench.base.table import Cell, Column, Table, Tone, cells, heads, mark_repeats, number
from gpubench.base.units import format_bytes, format_size, truncate
from gpubench.report.charts import (
    DIAMOND,
    MARKS,
    Chart,
    accent,
    banded_curves,
    by_series,
    case_fields,
    layer,
    log_axis,
    make_spec,
    quantity,
    short,
    tooltip,
)
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.sections.answer_text import threshold_cell
from gpubench.report.wording import (
    IMPLEMENTATIONS,
    TONES,
    cpu_names,
    data_text,
    device_text,
    devices_text,
    gain_text,
    interval_text,
    join_texts,
    legend,
    mark,
    rate_text,
    ratio_text,
    regime_order,
    regimes,
    seconds_text,
    shared_text,
    short_ratio_text,
    size_text,
    time_text,
    where_legend,
    with_params,
)
from gpubench.result.case import own_names

_FEW_LEFT_OUT = "Sizes that few situations have are left out; all sizes and both times: --sections speedup."
_LIBRARY = "lib/lib: plain expression against plain expression"
_RANKS = {"waited": 0, "copied": 0, "queued": 2}  # ranks of the situations; others are left out first
MANY_SIZES = 6  # if an op has more sizes, those that only some cases have are left out


@section("speedup", order=80, help="How many times as fast a GPU is, at every size")
def speedup_sections(analysis: Analysis, options: RenderOptions) -> tuple[Section, ...]:
    """Return two sections: tables of the gains, and a folded section with a row for each ratio. GPUs and
    software adapters have separate tables. The second section is empty unless the options ask for every size or
    for an order. With an order, the first section has no tables of gains."""
    headline = [ratio for ratio in analysis.speedups if ratio.kind == "headline"]
    by_software = group_by(headline, lambda ratio: ratio.case.device_kind == "software")
    groups, real = [by_software[key] for key in sorted(by_software)], False in by_software
    tables = [] if options.sort else [_gains_table(analysis, group, options) for group in groups]
    ratios = [_ratios_table(analysis, group, options) for group in groups if options.every_size or options.sort]
    lines = []
    if headline:
        names = dict.fromkeys(ratio.case.case.device_id for ratio in headline)
        lines += [printable(baseline_line(analysis.run, headline)), f"on {devices_text(analysis, [*names])}"]
        lines.append(where_legend(ratio.case.case for ratio in headline))
        if not options.every_size and len(_usual_sizes(headline)) < len(headline):
            lines.append(_FEW_LEFT_OUT)
    if not real and any(case.device_kind == "cpu" and case.time for case in analysis.cases):
        tables.insert(0, _cpu_table(analysis, options.time_unit))
    title = "Speedup: which side wins, and by how much" if real else "CPU: library and tuned implementation"
    if any(ratio.baseline.device_kind != "cpu" for ratio in headline):
        title = "Speedup: baseline / device"
    return (
        Section(title=title, lines=tuple(lines), tables=tuple(tables)),
        Section(title="Every speedup, with both times", tables=tuple(ratios), folded=True),
    )


def _usual_sizes(rows: Sequence[Speedup]) -> list[Speedup]:
    """Return the rows at usual sizes. If an op has more than MANY_SIZES sizes, a size is usual if more than half
    as many rows have it as have the most common size. Otherwise all sizes are usual."""
    usual = []
    for group in group_by(rows, lambda ratio: ratio.case.case.series).values():
        sizes = group_by(group, lambda ratio: ratio.case.case.n)
        most = max(map(len, sizes.values())) if len(sizes) > MANY_SIZES else 0
        usual += [ratio for at_size in sizes.values() for ratio in at_size if 2 * len(at_size) > most]
    return usual


def _whose(analysis: Analysis) -> Callable[[CaseResult], str]:
    """Return a function that gives the device id of a CPU case, or an empty text if only one CPU device has a
    time."""
    timed = {
        case.case.device_id for case in analysis.cases if case.device_kind == "cpu" and case.time is not None
    }
    return lambda case: f" {case.case.device_id}" if len(timed) > 1 else ""


def _cpu_table(analysis: Analysis, unit: str) -> Table:
    workloads: dict[tuple[str, str], dict[str, CaseResult]] = {}
    for result in analysis.cases:
        if result.device_kind == "cpu" and result.time is not None and result.case.variant is None:
            place = result.case.workload, result.case.device_id
            workloads.setdefault(place, {})[result.case.implementation] = result
    several = len({device_id for _, device_id in workloads}) > 1  # then rows may differ only in their device
    columns = heads(
        "op", Column("dtype", rank=1), Column("device", rank=0 if several else 4), number("n"),
        number("library"), number("tuned"), number("compute", 3), number("payload", 2),
    )  # fmt: skip
    body = []
    for implementations in workloads.values():
        pair = [implementations.get(implementation) for implementation in ("library", "tuned")]
        texts = [
            "-" if result is None else time_text(result.time, unit) + mark(result.label) for result in pair
        ]
        if best := fastest(implementations.values()):
            rates = [rate_text(best.rates, flops=flops) for flops in (True, False)]
            names = (best.case.op, best.case.dtype, best.case.device_id)
            body.append(cells(*names, size_text(best), *texts, *rates))
    labels = {result.label for implementations in workloads.values() for result in implementations.values()}
    note = f"{printable(cpu_line(analysis.run))}; wall time of one call, rates of the faster implementation"
    payload = "payload: each input read once and the output written once"
    return Table(columns, tuple(body), note=note, legend=join_texts(legend(labels), payload))


def _gains_table(analysis: Analysis, rows: Sequence[Speedup], options: RenderOptions) -> Table:
    """Return a table with a row for each op, size and device, and a column for each situation."""
    rows = rows if options.every_size else _usual_sizes(rows)
    data = regimes(ratio.case.case for ratio in rows)
    lines = group_by(rows, lambda ratio: (ratio.case.case.series, ratio.case.case.n, ratio.case.case.device_id))
    # A CPU copies nothing, so it has one time at each size. Another baseline has one in each situation.
    timed = all(len({ratio.baseline.id for ratio in line}) == 1 for line in lines.values())
    whose, (dtypes, devices, _) = _whose(analysis), shared_text(analysis, [ratio.case.case for ratio in rows])
    columns = heads(
        "op", dtypes and "dtype", number("n"), timed and number(_against(rows), 1), devices and "device",
        *(number(name, _RANKS.get(name, 3)) for name in data),
    )  # fmt: skip
    body = []
    for line in lines.values():
        first, gains = line[0], {data_text(ratio.case.case): ratio for ratio in line}
        case = first.case.case
        body.append(
            cells(
                case.op, dtypes and case.dtype, size_text(first.case),
                timed and time_text(first.baseline.time, options.time_unit) + whose(first.baseline),
                devices and case.device_id,
                *(_gain_cell(gains[name], brief=True) if name in gains else "" for name in data),
            )
        )  # fmt: skip
    title, marks = _adapters_text(analysis, rows), legend({ratio.label for ratio in rows})
    return Table(columns, mark_repeats(body, 2 + dtypes + timed), title=title, legend=marks)


def _ratios_table(analysis: Analysis, rows: Sequence[Speedup], options: RenderOptions) -> Table:
    """Return a table with a row for each of `rows`: the gain, and both times with their implementations."""
    library = _library_ratios(analysis, rows)
    whose, unit = _whose(analysis), options.time_unit
    columns = heads(
        "op", Column("dtype", rank=4), "device", "data", number("n"), number(_against(rows), 2), number("time", 1),
        number("gain"), bool(library) and number("lib/lib", 3),
    )  # fmt: skip
    if options.sort is None:
        series = list(dict.fromkeys(ratio.case.case.series for ratio in rows))
        rows = sorted(
            rows,
            key=lambda ratio: (
                series.index(ratio.case.case.series),
                ratio.case.case.device_id,
                regime_order(ratio.case.case),
                ratio.case.case.n,
            ),
        )
    body = []
    for ratio in rows:
        case = ratio.case.case
        beside = library.get((case.workload, case.regime_id, case.device_id))
        body.append(
            cells(
                case.op, case.dtype, case.device_id, data_text(case), size_text(ratio.case),
                _side_text(ratio.baseline, unit) + whose(ratio.baseline), _side_text(ratio.case, unit),
                _gain_cell(ratio),
                bool(library) and (gain_text(beside) + mark(beside.label) if beside else "-"),
            )
        )  # fmt: skip
    words = join_texts(_LIBRARY if library else "", legend({ratio.label for ratio in rows}))
    return Table(columns, tuple(body), title=_adapters_text(analysis, rows), legend=words)


def _against(rows: Sequence[Speedup]) -> str:
    return "CPU" if rows[0].baseline.device_kind == "cpu" else "baseline"


def _side_text(side: CaseResult, unit: str) -> str:
    return f"{time_text(side.time, unit)} {IMPLEMENTATIONS[side.case.implementation]}"


def _adapters_text(analysis: Analysis, rows: Sequence[Speedup]) -> str:
    """Return a table title that names software adapters, or an empty text for other devices."""
    adapters = dict.fromkeys(
        ratio.case.case.device_id for ratio in rows if ratio.case.device_kind == "software"
    )
    return f"on {', '.join(device_text(analysis, name) for name in adapters)}" if adapters else ""


def _library_ratios(analysis: Analysis, rows: Sequence[Speedup]) -> dict[tuple[str, str, str], Speedup]:
    """Return the speedups of `library` over the baseline's `library`, by workload, regime and device."""
    if all(
        {ratio.baseline.case.implementation, ratio.case.case.implementation} == {"library"} for ratio in rows
    ):
        return {}  # the table has these ratios already
    devices = {ratio.case.case.device_id for ratio in rows}
    return {
        (ratio.case.case.workload, ratio.case.case.regime_id, ratio.case.case.device_id): ratio
        for ratio in analysis.speedups
        if ratio.kind == "library" and ratio.case.case.device_id in devices
    }


def _gain_cell(ratio: Speedup, *, brief: bool = False) -> Cell:
    """Return the cell of a gain, in the colour of the winner if the interval excludes 1."""
    text, short = (gain_text(ratio, style) + mark(ratio.label) for style in (ratio_text, short_ratio_text))
    return Cell(text, TONES[ratio.state] if ratio.headline else "muted", brief=short if brief else "")


COLUMNS = (
    ("who", "device"), ("regime", "data"), ("implementation", "implementation"), ("size", "n"),
    ("baseline", "baseline"), ("time", "time"), ("speedup", "speedup"), ("interval", "95 % interval"),
    ("label", "label"),
)  # fmt: skip
MARK_COLUMNS = (("device", "device"), ("regime", "data"), ("text", "break-even n"))
AXIS_TITLE, AXIS_LABEL = "baseline time / device time", "format(datum.value, '~r') + '\\u00d7'"
CAPTION = (
    "Speedup against size: above the line at 1 the device is faster than the best implementation of the baseline. "
    "The band is "
    "the 95 % interval; a diamond on the line is a break-even, with its interval as a bar."
)


@chart("speedup", order=20)
def speedup_chart(analysis: Analysis, options: RenderOptions) -> Chart:
    """Return the chart of the speedups: a line for each device and regime, with the break-evens at the height
    of 1."""
    unit = options.time_unit
    rows = by_series(
        (
            ratio.case.case,
            case_fields(ratio.case)
            | {
                "value": short(ratio.ratio), "low": short(ratio.lo), "high": short(ratio.hi), "label": ratio.label,
                "baseline": _side_text(ratio.baseline, unit), "time": time_text(ratio.case.time, unit),
                "speedup": short_ratio_text(ratio.interval), "interval": interval_text(ratio.interval),
            },
        )
        for ratio in analysis.speedups
        if ratio.kind == "headline"
    )  # fmt: skip
    # An open end of an interval is drawn at the first or last measured size.
    marks = by_series(
        (
            ratio.case,
            {
                "n": ratio.n, "low": ratio.lo or ratio.first, "high": ratio.hi or ratio.last, "one": 1,
                "text": threshold_text(ratio), "device": printable(ratio.device_id), "regime": data_text(ratio.case),
            },
        )
        for ratio in analysis.break_even
        if ratio.verdict == "at" and ratio.n is not None
    )  # fmt: skip
    unity = layer("rule", {"y": {"datum": 1}}, strokeWidth=1.5)
    places = {
        "y": log_axis("one", AXIS_TITLE, AXIS_LABEL), "color": accent(analysis),
        "tooltip": tooltip(MARK_COLUMNS),
    }  # fmt: skip
    span = places | {"x": quantity("low"), "x2": {"field": "high"}}
    bar = layer("rule", span, MARKS, strokeWidth=7, opacity=0.4)
    diamond = layer("point", places | {"x": quantity("n")}, MARKS, **DIAMOND)
    band, *curves = banded_curves(analysis, AXIS_TITLE, AXIS_LABEL, COLUMNS)
    return Chart(
        id="speedup", title="Speedup against size", caption=CAPTION, rows=rows, marks=marks,
        spec=make_spec(CAPTION, band, unity, *curves, bar, diamond),
    )  # fmt: skip


TITLE = "Break-even: the size from which the GPU pays"
_WORDS = {
    "at": "23 K (16-34 K): the break-even and its interval", "rough": "~23 K: within 2 times either way",
    "range": "16-90 K: the break-even lies in it",
    "below": "< n: the GPU wins at every size measured, the smallest is n",
    "above": "> n: the CPU surely wins up to n, beyond it is not sure",
    "mixed": "mixed: it wins and loses by turns below",
}  # fmt: skip
_MOST_OPS = 4  # the most ops that are named with a reason


@section("breakeven", order=60, help="From which size on each device wins, in every situation")
def break_even_section(analysis: Analysis, options: RenderOptions) -> Section | None:
    """Return the section of the break-evens, or None if there are none."""
    names = own_names(curve.op for curve in analysis.break_even)
    curves = [msgspec.structs.replace(curve, op=names[curve.op]) for curve in analysis.break_even]
    if not curves:
        return None
    lines = (printable(analysis.baseline),)
    return Section(title=TITLE, lines=lines, tables=(_table(analysis, curves),))


def _table(analysis: Analysis, curves: Sequence[BreakEven]) -> Table:
    """Return a table with a row for each op, dtype and device."""
    dtypes, devices, title = shared_text(analysis, [curve.case for curve in curves])
    data = regimes(curve.case for curve in curves)
    columns = heads(
        "op", dtypes and "dtype", devices and "device",
        *data,
        Column("measured", rank=1),
    )  # fmt: skip
    body = []
    for rows in group_by(curves, lambda curve: (curve.case.series, curve.device_id)).values():
        first, by_regime = rows[0], {data_text(curve.case): threshold(curve) for curve in rows}
        counted = size_unit_of(first.case)
        thresholds = [_threshold_cell(by_regime[name], counted) if name in by_regime else "" for name in data]
        measured = range_text(min(curve.first for curve in rows), max(curve.last for curve in rows), counted)
        body.append(
            cells(
                with_params(first.op, first.params), dtypes and first.dtype, devices and first.device_id,
                *thresholds, measured,
            )
        )  # fmt: skip
    return Table(
        columns, mark_repeats(body, 2), title=title, note=_cpu_note(analysis, curves), legend=_legend(curves)
    )


def _threshold_cell(cell: AnswerCell, size_unit: SizeUnit) -> Cell:
    """Return the cell of a break-even with its interval. The brief text of the cell has no interval."""
    full = threshold_cell(cell, both_text(cell, size_unit))
    return msgspec.structs.replace(full, brief=cell_text(cell, size_unit))


def _cpu_note(analysis: Analysis, curves: Sequence[BreakEven]) -> str:
    """Return a text with the fastest CPU code of each op, or an empty text if it is the same for all ops."""
    groups: dict[str, list[str]] = {}
    for op, rows in group_by(curves, lambda curve: with_params(curve.op, curve.params)).items():
        bases = [point.baseline for curve in rows for point in curve.points]
        names = " or ".join(sorted(cpu_names(cpu_codes(analysis.run, bases), short=True)))
        groups.setdefault(names, []).append(op)
    usual = max(groups, key=lambda names: len(groups[names]))
    others = [f"{', '.join(ops)}: {names}" for names, ops in groups.items() if names != usual]
    return f"CPU, the fastest at each size: {'; '.join([usual, *others])}" if others else ""


def _legend(curves: Sequence[BreakEven]) -> str:
    """Return the meanings of the cells in the table, and the reasons for cells such as `?` and `> n`."""
    pairs = [(curve, threshold(curve)) for curve in curves]
    kinds: set[str] = {cell.kind for _, cell in pairs} | {"mixed" for _, cell in pairs if cell.mixed}
    kinds |= {"rough" for _, cell in pairs if cell.kind == "at" and not cell.sharp}
    kinds |= {"at" for _, cell in pairs if cell.kind == "range" and cell.n is not None}
    kinds |= {"above" for _, cell in pairs if cell.kind == "open" and cell.low and not cell.tied}
    opens = [
        (curve.op, why_text(cell.reason)) for curve, cell in pairs if cell.kind == "open" and not cell.tied
    ]
    whys = group_by(opens, lambda pair: pair[1])
    reasons = [
        f"{truncate(list(dict.fromkeys(op for op, _ in ops)), _MOST_OPS)} ({why})" for why, ops in whys.items()
    ]
    return join_texts(
        where_legend(curve.case for curve in curves),
        *(words for kind, words in _WORDS.items() if kind in kinds),
        f"not sure: {'; '.join(reasons)}" if reasons else "",
        "K is 1024" if any(size_unit_of(curve.case) == "elements" for curve in curves) else "",
    )  # fmt: skip


AMORTIZATION_TITLE = "Amortization: calls a copy from which the GPU pays"
_MEANING = "Every call uses the same data, which is copied in before the first and out after the last."
_LEFT_OUT = (
    "Only sizes at which the number of calls decides; all: --sections amortization or --format markdown."
)
_AMORTIZATION_WORDS = {
    "1": "1: pays at every call", "never": "never: not even without copies",
    "? noise": "? noise: the times differ too much",
    "? parts": "? parts: more calls than were measured, and copies that are timed singly cost over 10% more or less",
    "? no parts": "? no parts: more calls than were measured, and copies were not timed singly",
}  # fmt: skip
_REASONS = {"noise": "? noise", "parts-differ": "? parts", "no-parts": "? no parts"}
_TONES: dict[str, Tone] = {"already": "gpu", "at": "gpu", "never": "cpu"}


@section("amortization", order=70, help="How many calls repay a copy")
def amortization_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Return the section with the number of calls that repay a copy, and with the costs of loading weights.
    Unless the options ask for every size, it has only the ops and sizes at which the number of calls decides."""
    unit, everything = options.time_unit, amortizations(analysis)
    decided = {(result.op, result.dtype, _size(result)) for result in everything if result.verdict == "at"}
    rows = [
        result
        for result in everything
        if options.every_size or (result.op, result.dtype, _size(result)) in decided
    ]
    loads = weight_loads(analysis)
    weights = [_weights_table(loads, unit)] if loads else []
    if not rows:
        return Section(title=AMORTIZATION_TITLE, tables=tuple(weights))
    left_out = [_LEFT_OUT] if len(rows) < len(everything) else []
    lines = [printable(analysis.baseline), _MEANING, *left_out]
    tables = (_amortization_table(rows, unit), *weights)
    return Section(title=AMORTIZATION_TITLE, lines=tuple(lines), tables=tables, folded=options.full)


def _weights_table(rows: Sequence[WeightLoad], unit: str) -> Table:
    """Return a table of the time that it takes to load the weights, and of the call that repays it."""
    columns = heads("op", "device", number("weights", 1), number("loaded in"), "repaid by", number("at n"))
    body = tuple(
        cells(
            result.op, result.device_id, format_bytes(result.weight_bytes), seconds_text(result.load_s, unit),
            "never" if result.calls is None else f"call {result.calls}", _size(result),
        )
        for result in rows
    )  # fmt: skip
    title = "Weights stay on the device: they are loaded once"
    return Table(
        columns, body, title=title, legend="repaid by: by what each waited call of this size gains over the CPU"
    )


def _amortization_table(rows: Sequence[Amortization], unit: str) -> Table:
    columns = heads(
        "op", "dtype", number("n"), "device", "calls", number("a transfer", 2), number("a call", 3),
        number("a call on the CPU", 4),
    )  # fmt: skip
    body = [
        cells(
            result.op, result.dtype, _size(result), result.device_id,
            Cell(calls_text(result), _TONES.get(result.verdict, "muted")),
            seconds_text(result.transfer_s, unit), seconds_text(result.launch_s or None, unit),
            seconds_text(result.cpu_s, unit),
        )
        for result in rows
    ]  # fmt: skip
    return Table(columns, mark_repeats(body, 3), legend=_amortization_legend(rows))


def _size(result: Amortization | WeightLoad) -> str:
    return with_params(format_size(result.n), result.params)


def calls_text(result: Amortization) -> str:
    """Return the number of calls that repay a copy, such as `3 [2, 4]`, `1`, or `12 [9, ..]` with an open end.
    `> 10` means that 10 calls are too few, and `never` that no number suffices. For an unknown number, return
    the reason."""
    if result.reason is not None:
        return _REASONS[result.reason]
    if result.verdict == "never":
        return "never"
    if result.verdict == "beyond":
        return f"> {result.shared_by}"
    if result.lo == result.hi:
        return str(result.calls)
    return f"{result.calls} [{result.lo}, {'..' if result.hi is None else result.hi}]"


def _amortization_legend(rows: Sequence[Amortization]) -> str:
    texts = [calls_text(result) for result in rows]
    shown = {text.split(" [")[0] for text in texts}
    beyond = dict.fromkeys(result.shared_by for result in rows if result.verdict == "beyond")
    return join_texts(
        *(words for text, words in _AMORTIZATION_WORDS.items() if text in shown),
        *(f"> {calls}: that many are too few, and no more were measured" for calls in beyond),
        "..: no end seen" if any("..]" in text for text in texts) else "",
        "a call -: lost in the noise" if any(not result.launch_s for result in rows) else "",
    )  # fmt: skip


ROWS = (
    Rows(
        "speedups",
        Speedup,
        lambda analysis: [ratio for ratio in analysis.speedups if ratio.kind != "case"],
        order=20,
    ),
    Rows("means", Mean, means, order=170),
    Rows(
        "break_even",
        BreakEven,
        lambda analysis: [
            msgspec.structs.replace(curve, text=threshold_text(curve)) for curve in analysis.break_even
        ],
        order=30,
    ),
    Rows("amortization", Amortization, amortizations, order=110),
    Rows("weights", WeightLoad, weight_loads, order=120),
)
