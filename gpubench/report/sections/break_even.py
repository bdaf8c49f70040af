"""The break-even table, with a column for each situation, and how many calls repay a copy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.speedup import BreakEven, cpu_codes
from gpubench.analysis.thresholds import (
    Reuse,
    WeightLoad,
    both_text,
    cell_text,
    extent,
    range_text,
    reuses,
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
    "above": "> n: the CPU wins up to n, the largest size measured", "mixed": "mixed: it wins and loses by turns below",
}  # fmt: skip
_MOST_OPS = 4  # named with a reason


@section("breakeven", order=60, help="From which size on each device wins, in every situation")
def break_even_section(analysis: Analysis, options: RenderOptions) -> Section | None:
    """Draw the thresholds; in a narrow place without their intervals."""
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


REUSE_TITLE = "Re-use: calls a copy from which the GPU pays"
_MEANING = "Every call uses the same data, which is copied in before the first and out after the last."
_LEFT_OUT = "Only sizes at which the number of calls decides; all: --sections reuse or --format markdown."
_REUSE_WORDS = {
    "1": "1: pays at every call", "never": "never: not even without copies",
    "? noise": "? noise: the times differ too much",
    "? parts": "? parts: more calls than were measured, and copies that are timed singly cost over 10% more or less",
    "? no parts": "? no parts: more calls than were measured, and copies were not timed singly",
}  # fmt: skip
_REASONS = {"noise": "? noise", "parts-differ": "? parts", "no-parts": "? no parts"}
_TONES: dict[str, Tone] = {"already": "gpu", "at": "gpu", "never": "cpu"}


@section("reuse", order=70, help="How many calls repay a copy")
def reuse_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Draw the calls that repay a copy, with what a transfer, a call and the CPU cost; then what loading weights
    costs."""
    unit, everything = options.time_unit, reuses(analysis)
    decided = {(reuse.op, reuse.dtype, _size(reuse)) for reuse in everything if reuse.verdict == "at"}
    rows = [
        reuse for reuse in everything if options.every_size or (reuse.op, reuse.dtype, _size(reuse)) in decided
    ]
    loads = weight_loads(analysis)
    weights = [_weights_table(loads, unit)] if loads else []
    if not rows:
        return Section(title=REUSE_TITLE, tables=tuple(weights))
    # Of a selection without the CPU the speedups have its cases.
    by_id = {reuse.id: reuse for reuse in (*analysis.cases, *(ratio.baseline for ratio in analysis.speedups))}
    bases = [by_id[reuse.baseline_id] for reuse in rows if reuse.baseline_id in by_id]
    lines = [against_text(analysis, bases), _MEANING, *([_LEFT_OUT] if len(rows) < len(everything) else [])]
    tables = (_reuse_table(rows, unit), *weights)
    return Section(title=REUSE_TITLE, lines=tuple(lines), tables=tables, folded=options.full)


def _weights_table(rows: Sequence[WeightLoad], unit: str) -> Table:
    """Return what loading the weights costs, once."""
    columns = heads("op", "device", number("weights"), number("loaded in"), "repaid by", number("at n"))
    body = tuple(
        cells(
            reuse.op, reuse.device_id, format_bytes(reuse.weight_bytes), seconds_text(reuse.load_s, unit),
            "never" if reuse.calls is None else f"call {reuse.calls}", _size(reuse),
        )
        for reuse in rows
    )  # fmt: skip
    title = "Weights stay on the device: they are loaded once"
    return Table(
        columns, body, title=title, legend="repaid by: by what each waited call of this size gains over the CPU"
    )


def _reuse_table(rows: Sequence[Reuse], unit: str) -> Table:
    columns = heads(
        "op", "dtype", number("n"), "device", "calls", number("a transfer", 2), number("a call", 3),
        number("a call on the CPU", 4),
    )  # fmt: skip
    body = [
        cells(
            reuse.op, reuse.dtype, _size(reuse), reuse.device_id,
            Cell(calls_text(reuse), _TONES.get(reuse.verdict, "muted")),
            seconds_text(reuse.transfer_s, unit), seconds_text(reuse.launch_s, unit), seconds_text(reuse.cpu_s, unit),
        )
        for reuse in rows
    ]  # fmt: skip
    return Table(columns, mark_repeats(body, 3), legend=_reuse_legend(rows))


def _size(reuse: Reuse | WeightLoad) -> str:
    return with_params(format_size(reuse.n, table=True), reuse.params)


def calls_text(reuse: Reuse) -> str:
    """Return `3 [2, 4]`, `1`, `12 [9, ..]` with an open end, `> 10` past what was measured, `never`, or why there is
    none."""
    if reuse.reason is not None:
        return _REASONS[reuse.reason]
    if reuse.verdict == "never":
        return "never"
    if reuse.verdict == "beyond":
        return f"> {reuse.shared_by}"
    if reuse.lo == reuse.hi:
        return str(reuse.calls)
    return f"{reuse.calls} [{reuse.lo}, {'..' if reuse.hi is None else reuse.hi}]"


def _reuse_legend(rows: Sequence[Reuse]) -> str:
    texts = [calls_text(reuse) for reuse in rows]
    shown = {text.split(" [")[0] for text in texts}
    beyond = dict.fromkeys(reuse.shared_by for reuse in rows if reuse.verdict == "beyond")
    return "; ".join([
        *(words for text, words in _REUSE_WORDS.items() if text in shown),
        *(f"> {calls}: that many are too few, and no more were measured" for calls in beyond),
        *(["..: no end seen"] if any("..]" in text for text in texts) else []),
    ])  # fmt: skip


def _tell(analysis: Analysis) -> Iterable[BreakEven]:
    return (msgspec.structs.replace(reuse, text=threshold_text(reuse)) for reuse in analysis.break_even)


ROWS = (
    Rows("break_even", BreakEven, _tell, order=30),
    Rows("reuse", Reuse, reuses, order=110),
    Rows("weights", WeightLoad, weight_loads, order=120),
)
