"""The break-even table, with a column for each situation, and how many calls repay a copy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.speedup import BreakEven, cpu_codes
from gpubench.analysis.thresholds import (
    Amortization,
    WeightLoad,
    amortizations,
    both_text,
    cell_text,
    extent,
    range_text,
    threshold,
    threshold_text,
    weight_loads,
    why_text,
)
from gpubench.base.groups import group_by
from gpubench.base.plugins.sections import Rows, section
from gpubench.base.streams import printable
from gpubench.base.table import Cell, Column, Table, Tone, cells, heads, mark_repeats, narrowing, number
from gpubench.base.units import format_bytes, format_size, truncate
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.sections.answer_text import threshold_cell
from gpubench.report.wording import (
    against_text,
    cpu_names,
    regime_order,
    seconds_text,
    shared_text,
    short_text,
    situation_text,
    where_legend,
    with_params,
)
from gpubench.result.case import QUEUED, WAITED, own_names

TITLE = "Break-even: the size from which the GPU pays"
_WORDS = {
    "at": "23 K (16-34 K): the threshold and its interval", "rough": "~23 K: within 2 times either way",
    "range": "16-90 K: the threshold lies in it",
    "below": "< n: the GPU wins at every size measured, the smallest is n",
    "above": "> n: the CPU surely wins up to n, beyond it is not sure",
    "mixed": "mixed: it wins and loses by turns below",
}  # fmt: skip
_MOST_OPS = 4  # named with a reason


@section("breakeven", order=60, help="From which size on each device wins, in every situation")
def break_even_section(analysis: Analysis, options: RenderOptions) -> Section | None:
    """Draw the break-evens; in a narrow place without their intervals."""
    names = own_names(curve.op for curve in analysis.break_even)
    curves = [msgspec.structs.replace(curve, op=names[curve.op]) for curve in analysis.break_even]
    if not curves:
        return None
    table = narrowing(_table(analysis, curves, short=short) for short in (True, False))
    return Section(title=TITLE, lines=(printable(analysis.baseline),), tables=(table,))


def _table(analysis: Analysis, curves: Sequence[BreakEven], *, short: bool) -> Table:
    """Return a row for each op, dtype and device. What is the same in all rows stands in the title."""
    words = cell_text if short else both_text
    dtypes, devices, title = shared_text(analysis, [curve.case for curve in curves])
    regimes = list(
        dict.fromkeys(curve.regime for curve in sorted(curves, key=lambda curve: regime_order(curve.case)))
    )
    beside = QUEUED in regimes and WAITED in regimes
    columns = heads(
        "op", dtypes and "dtype", devices and "device",
        *(short_text(name) if short else situation_text(name, beside_queued=beside) for name in regimes),
        Column("measured", rank=1),
    )  # fmt: skip
    body = []
    for rows in group_by(curves, lambda curve: (curve.case.series, curve.device_id)).values():
        first, by_regime = rows[0], {curve.regime: threshold(curve) for curve in rows}
        counted = extent(first.case)
        thresholds = [
            threshold_cell(by_regime[name], words(by_regime[name], counted)) if name in by_regime else ""
            for name in regimes
        ]
        measured = range_text(min(curve.first for curve in rows), max(curve.last for curve in rows), counted)
        body.append(
            cells(
                with_params(first.op, first.params), dtypes and first.dtype, devices and first.device_id,
                *thresholds, measured,
            )
        )  # fmt: skip
    return Table(
        columns, mark_repeats(body, 2), title=title, note=_cpu_note(analysis, curves),
        legend=_legend(curves, short=short),
    )  # fmt: skip


def _cpu_note(analysis: Analysis, curves: Sequence[BreakEven]) -> str:
    """Return `CPU, the fastest at each size: numba; add, dot: numba or PyTorch`: by op, what most ops have without
    names; nothing if all have the same."""
    groups: dict[str, list[str]] = {}
    for op, rows in group_by(curves, lambda curve: with_params(curve.op, curve.params)).items():
        bases = [point.baseline for curve in rows for point in curve.points]
        names = " or ".join(sorted(cpu_names(cpu_codes(analysis.run, bases), short=True)))
        groups.setdefault(names, []).append(op)
    usual = max(groups, key=lambda names: len(groups[names]))
    others = [f"{', '.join(ops)}: {names}" for names, ops in groups.items() if names != usual]
    return f"CPU, the fastest at each size: {'; '.join([usual, *others])}" if others else ""


def _legend(curves: Sequence[BreakEven], *, short: bool) -> str:
    """Return what the cells mean; for `?` the reasons."""
    pairs = [(curve, threshold(curve)) for curve in curves]
    kinds: set[str] = {cell.kind for _, cell in pairs} | {"mixed" for _, cell in pairs if cell.mixed}
    kinds |= {"rough" for _, cell in pairs if cell.kind == "at" and not cell.sharp}
    kinds |= {"at" for _, cell in pairs if cell.kind == "range" and cell.n is not None}
    opens = [(curve.op, why_text(cell.why)) for curve, cell in pairs if cell.kind == "open" and not cell.tied]
    whys = group_by(opens, lambda pair: pair[1])
    reasons = [
        f"{truncate(list(dict.fromkeys(op for op, _ in ops)), _MOST_OPS)} ({why})" for why, ops in whys.items()
    ]
    return "; ".join([
        *([where_legend(curve.case for curve in curves)] if short else []),
        *(words for kind, words in _WORDS.items() if kind in kinds and not (short and kind == "at")),
        *([f"?: {'; '.join(reasons)}"] if reasons else []),
        *(["K is 1024"] if any(extent(curve.case) == "elements" for curve in curves) else []),
    ])  # fmt: skip


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
    """Draw the calls that repay a copy, with what a transfer, a call and the CPU cost; then what loading weights
    costs."""
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
    # Of a selection without the CPU the speedups have its cases.
    by_id = {
        result.id: result for result in (*analysis.cases, *(ratio.baseline for ratio in analysis.speedups))
    }
    bases = [by_id[result.baseline_id] for result in rows if result.baseline_id in by_id]
    lines = [against_text(analysis, bases), _MEANING, *([_LEFT_OUT] if len(rows) < len(everything) else [])]
    tables = (_amortization_table(rows, unit), *weights)
    return Section(title=AMORTIZATION_TITLE, lines=tuple(lines), tables=tables, folded=options.full)


def _weights_table(rows: Sequence[WeightLoad], unit: str) -> Table:
    """Return what loading the weights costs, once."""
    columns = heads("op", "device", number("weights"), number("loaded in"), "repaid by", number("at n"))
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
            seconds_text(result.transfer_s, unit), seconds_text(result.launch_s, unit),
            seconds_text(result.cpu_s, unit),
        )
        for result in rows
    ]  # fmt: skip
    return Table(columns, mark_repeats(body, 3), legend=_amortization_legend(rows))


def _size(result: Amortization | WeightLoad) -> str:
    return with_params(format_size(result.n, table=True), result.params)


def calls_text(result: Amortization) -> str:
    """Return `3 [2, 4]`, `1`, `12 [9, ..]` with an open end, `> 10` past what was measured, `never`, or why there is
    none."""
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
    return "; ".join([
        *(words for text, words in _AMORTIZATION_WORDS.items() if text in shown),
        *(f"> {calls}: that many are too few, and no more were measured" for calls in beyond),
        *(["..: no end seen"] if any("..]" in text for text in texts) else []),
    ])  # fmt: skip


def _tell(analysis: Analysis) -> Iterable[BreakEven]:
    return (msgspec.structs.replace(result, text=threshold_text(result)) for result in analysis.break_even)


ROWS = (
    Rows("break_even", BreakEven, _tell, order=30),
    Rows("amortization", Amortization, amortizations, order=110),
    Rows("weights", WeightLoad, weight_loads, order=120),
)
