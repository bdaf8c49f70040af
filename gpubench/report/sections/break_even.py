"""The break-even table: a row per op, dtype and device, a column per regime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.break_even import BreakEven
from gpubench.analysis.reuse import Reuse, WeightLoad, reuses, weight_loads
from gpubench.analysis.speedup import cpu_codes
from gpubench.analysis.thresholds import (
    AnswerCell,
    Extent,
    both_text,
    cell_text,
    extent,
    range_text,
    size_text,
    threshold,
    threshold_text,
    why_text,
)
from gpubench.base.escaping import printable
from gpubench.base.groups import group_by
from gpubench.base.plugins.sections import Rows, section
from gpubench.base.table import Cell, Column, Table, Tone, cells, heads, number
from gpubench.base.units import format_bytes, format_size, truncate
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.sections.answer_text import gain_text, threshold_cell
from gpubench.report.sections.baseline import against_text, cpu_names
from gpubench.report.wording import (
    FORMS,
    device_text,
    mark,
    regime_order,
    seconds_text,
    short_text,
    situation_text,
    time_text,
    where_legend,
)
from gpubench.result.case import QUEUED, WAITED

TITLE = "Break-even: the size from which the GPU pays"
_WORDS = {
    "at": "23 K (16-34 K): the threshold and its interval", "rough": "~23 K: within 2 times either way",
    "range": "16-90 K: the threshold lies in it",
    "below": "< n: the GPU wins at every size measured, the smallest is n",
    "above": "> n: the CPU wins up to n, the largest size measured", "mixed": "mixed: it wins and loses by turns below",
}  # fmt: skip
_MOST_OPS = 4  # named with a reason
ByRegime = dict[str, BreakEven]  # one op, dtype and device, by regime
Words = Callable[[AnswerCell, Extent], str]


@section("breakeven", order=60, help="From which size on each device wins, in every situation")
def break_even_section(analysis: Analysis, options: RenderOptions) -> Section | None:
    """Draw the thresholds; in full with every column, whatever its width."""
    if not analysis.break_even:
        return None
    line, rows = printable(analysis.baseline), analysis.break_even
    if options.full:
        tables = [_table(analysis, rows, both_text, None, full=True)]
    else:
        tables = []
        for dtype in dict.fromkeys(row.dtype for row in rows):
            ours = [row for row in rows if row.dtype == dtype]
            narrower = _table(analysis, ours, cell_text, None, full=False)
            tables.append(_table(analysis, ours, both_text, narrower, full=False))
    return Section(title=TITLE, lines=(line,), tables=tuple(tables))


def _table(
    analysis: Analysis, rows: Sequence[BreakEven], words: Words, narrower: Table | None, *, full: bool
) -> Table:
    """What is the same in all rows (dtype, device) stands in the title instead of a column, unless `full`."""
    data = list(dict.fromkeys(row.regime for row in sorted(rows, key=lambda row: regime_order(row.case))))
    devices = {row.device_id for row in rows}
    by_device = full or len(devices) > 1
    short = not full and narrower is None
    beside = QUEUED in data and WAITED in data
    columns = [Column("op")]
    columns += [Column("dtype")] if full else []
    columns += [Column("device")] if by_device else []
    columns += [
        Column(short_text(name) if short else situation_text(name, beside_queued=beside)) for name in data
    ]
    columns += [Column("gain and time at largest size")] if full else []
    differ = len({frozenset(_cpu_names(analysis, [row])) for row in rows}) > 1
    columns += [Column("CPU")] if full and differ else []
    body = []
    for device, family in _by_regime(rows, merge=not full):
        first = next(iter(family.values()))
        row: list[str | Cell] = [_op_text(first)]
        row += [first.dtype] if full else []
        row += [device] if by_device else []
        row += [_threshold(family[name], words) if name in family else "" for name in data]
        last = max(one.last for one in family.values())
        gains = [_gain(family[name], last) if name in family else "-" for name in data]
        row += [" / ".join(gains)] if full else []
        row += [", ".join(_cpu_names(analysis, family.values()))] if full and differ else []
        body.append(cells(*row, _measured(list(family.values()))))
    title = "" if full else rows[0].dtype
    title += "" if by_device else f" on {device_text(analysis, min(devices))}"
    return Table(
        (*columns, Column("measured", rank=1)), tuple(body), title=printable(title),
        note=_cpu_note(analysis, rows) if differ and not full else "", legend=_legend(rows, short=short),
        narrower=narrower,
    )  # fmt: skip


def _cpu_names(analysis: Analysis, rows: Iterable[BreakEven]) -> list[str]:
    """What computes on the CPU at the sizes of these rows, the most of them first; nothing for another baseline."""
    bases = [point.baseline for row in rows for point in row.points]
    return cpu_names(cpu_codes(analysis.run, bases), short=True)


def _cpu_note(analysis: Analysis, rows: Sequence[BreakEven]) -> str:
    """`CPU, the fastest at each size: numba; add, dot: numba or PyTorch`: by op, what most ops have without names."""
    by_op = group_by(rows, lambda row: _op_text(row))
    order = {name: place for place, name in enumerate(_cpu_names(analysis, rows))}
    groups: dict[str, list[str]] = {}
    for op, ours in by_op.items():
        names = sorted(_cpu_names(analysis, ours), key=lambda name: order.get(name, len(order)))
        groups.setdefault(" or ".join(names), []).append(op)
    usual = max(groups, key=lambda names: len(groups[names]))
    others = [f"{', '.join(ops)}: {names}" for names, ops in groups.items() if names != usual]
    return f"CPU, the fastest at each size: {'; '.join([usual, *others])}"


def _op_text(row: BreakEven) -> str:
    return row.op + "".join(f" {name}={value}" for name, value in row.params.items())


def _by_regime(rows: Sequence[BreakEven], *, merge: bool) -> list[tuple[str, ByRegime]]:
    """The rows of each op and device by regime, with the device's name.

    `merge`: devices of one op share a row where none of them has a verdict, for the same reason.
    """
    ops: dict[tuple[object, ...], dict[str, ByRegime]] = {}
    for row in rows:
        by_device = ops.setdefault((row.op, tuple(row.params.items()), row.dtype), {})
        by_device.setdefault(row.device_id, {})[row.regime] = row
    found: list[tuple[str, ByRegime]] = []
    for by_device in ops.values():
        said = {
            tuple((name, threshold_text(row)) for name, row in family.items()) for family in by_device.values()
        }
        undecided = all(row.verdict == "undecided" for family in by_device.values() for row in family.values())
        if merge and undecided and len(said) == 1 and len(by_device) > 1:
            found.append((f"all {len(by_device)}", next(iter(by_device.values()))))
        else:
            found += by_device.items()
    return found


def _threshold(row: BreakEven, words: Words) -> Cell:
    cell = threshold(row)
    return threshold_cell(cell, words(cell, extent(row.case)))


def _legend(rows: Sequence[BreakEven], *, short: bool) -> str:
    """What the cells mean; of `?` the reasons."""
    found = [(row, threshold(row)) for row in rows]
    kinds: set[str] = {cell.kind for _, cell in found} | {"mixed" for _, cell in found if cell.mixed}
    kinds |= {"rough" for _, cell in found if cell.kind == "at" and not cell.sharp}
    if short:
        kinds -= {"at"}
    elif any(cell.kind == "range" and cell.n is not None for _, cell in found):
        kinds |= {"at"}
    whys: dict[str, list[str]] = {}
    for row, cell in found:
        if cell.kind == "open" and not cell.tied:
            ops = whys.setdefault(why_text(cell.why), [])
            ops += [row.op] if row.op not in ops else []
    reasons = "; ".join(f"{truncate(ops, _MOST_OPS)} ({why})" for why, ops in whys.items())
    parts = [where_legend(row.case for row in rows)] if short else []
    parts += [words for kind, words in _WORDS.items() if kind in kinds]
    parts += [f"?: {reasons}"] if reasons else []
    parts += ["K is 1024"] if any(extent(row.case) == "elements" for row in rows) else []
    return "; ".join(parts)


def _gain(row: BreakEven, last: int) -> str:
    """`GPU 54x 2.85 ms`; with its size where another situation of the row has a larger one."""
    gain = threshold(row).gain
    if gain is None:
        return "-"
    at = "" if row.last == last else f" at {size_text(row.last, extent(row.case))}"
    return f"{gain_text(gain)}{mark(row.points[-1].label)} {time_text(row.points[-1].case.time)}{at}"


def _measured(rows: Sequence[BreakEven]) -> str:
    return range_text(min(row.first for row in rows), max(row.last for row in rows), extent(rows[0].case))


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
_TONES: dict[str, Tone] = {"already": "good", "at": "good", "never": "bad"}


@section("reuse", order=70, help="How many calls repay a copy")
def reuse_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Draw the calls that repay a copy; in full a row for each device with what a transfer, a call and the CPU cost."""
    unit, full = options.time_unit, options.full
    groups = _by_size(reuses(analysis))
    shown = {
        key: rows
        for key, rows in groups.items()
        if options.every_size or any(row.verdict == "at" for row in rows)
    }
    weights = _weights_table(weight_loads(analysis), unit) if weight_loads(analysis) else None
    if not shown:
        return Section(title=REUSE_TITLE, tables=(weights,) if weights else ())
    rows = [row for ours in shown.values() for row in ours]
    # Of a selection without the CPU the speedups have its cases.
    known = {row.id: row for row in (*analysis.cases, *(found.baseline for found in analysis.speedups))}
    bases = [known[row.baseline_id] for row in rows if row.baseline_id in known]
    lines = [against_text(analysis, bases), _MEANING, *([_LEFT_OUT] if len(shown) < len(groups) else [])]
    table = _full_table(rows, unit) if full else _reuse_table(analysis, list(shown.values()))
    tables = (table, weights) if weights else (table,)
    return Section(title=REUSE_TITLE, lines=tuple(lines), tables=tables, folded=full)


def _weights_table(rows: Sequence[WeightLoad], unit: str) -> Table:
    """What loading the weights costs, once."""
    columns = heads(
        "op", "device", number("weights"), number("loaded in"),
        "repaid by", number("at n"),
    )  # fmt: skip
    body = tuple(
        cells(
            row.op, row.device_id, format_bytes(row.weight_bytes), seconds_text(row.load_s, unit),
            "never" if row.calls is None else f"call {row.calls}",
            format_size(row.n, table=True) + "".join(f" {name}={value}" for name, value in row.params.items()),
        )
        for row in rows
    )  # fmt: skip
    title = "Weights stay on the device: they are loaded once"
    return Table(
        columns, body, title=title, legend="repaid by: by what each waited call of this size gains over the CPU"
    )


def _by_size(rows: Sequence[Reuse]) -> dict[tuple[str, str, str], list[Reuse]]:
    return group_by(rows, lambda row: (row.op, row.dtype, _size(row)))


def _reuse_table(analysis: Analysis, groups: Sequence[Sequence[Reuse]]) -> Table:
    rows = [row for ours in groups for row in ours]
    devices, dtypes = (
        list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("device_id", "dtype")
    )
    several = len(dtypes) > 1
    columns = [Column("op"), *([Column("dtype")] if several else []), number("n")]
    body = []
    for ours in groups:
        by_device = {row.device_id: row for row in ours}
        first = ours[0]
        body.append(
            cells(
                first.op, several and first.dtype, _size(first),
                *(_cell(by_device[name]) if name in by_device else "-" for name in devices),
            )
        )  # fmt: skip
    names = ", ".join(device_text(analysis, name) for name in devices)
    title = printable(names if several else f"{dtypes[0]} on {names}")
    return Table((*columns, *map(Column, devices)), tuple(body), title=title, legend=_reuse_legend(rows))


def _full_table(rows: Sequence[Reuse], unit: str) -> Table:
    columns = heads(
        "op", "dtype", number("n"), "device", "form", "calls",
        number("a transfer"), number("a call"), number("a call on the CPU"),
    )  # fmt: skip
    body = tuple(
        cells(
            row.op, row.dtype, _size(row), row.device_id, FORMS[row.form], _cell(row),
            seconds_text(row.transfer_s, unit), seconds_text(row.launch_s, unit), seconds_text(row.cpu_s, unit),
        )
        for row in rows
    )  # fmt: skip
    return Table(columns, body, legend=_reuse_legend(rows))


def _size(row: Reuse) -> str:
    return format_size(row.n, table=True) + "".join(f" {name}={value}" for name, value in row.params.items())


def _cell(row: Reuse) -> Cell:
    return Cell(calls_text(row), _TONES.get(row.verdict, "muted"))


def calls_text(row: Reuse) -> str:
    """`3 [2, 4]`, `1`, `12 [9, ..]` with an open end, `> 10` past what was measured, `never`, or why there is none."""
    if row.reason is not None:
        return _REASONS[row.reason]
    if row.verdict == "never":
        return "never"
    if row.verdict == "beyond":
        return f"> {row.shared_by}"
    if row.lo == row.hi:
        return str(row.calls)
    return f"{row.calls} [{row.lo}, {'..' if row.hi is None else row.hi}]"


def _reuse_legend(rows: Sequence[Reuse]) -> str:
    texts = [calls_text(row) for row in rows]
    parts = [
        words for text, words in _REUSE_WORDS.items() if any(found.split(" [")[0] == text for found in texts)
    ]
    beyond = dict.fromkeys(row.shared_by for row in rows if row.verdict == "beyond")
    parts += [f"> {calls}: that many are too few, and no more were measured" for calls in beyond]
    return "; ".join([*parts, *(["..: no end seen"] if any("..]" in text for text in texts) else [])])


def _told(analysis: Analysis) -> Iterable[BreakEven]:
    return (msgspec.structs.replace(row, text=threshold_text(row)) for row in analysis.break_even)


ROWS = (
    Rows("break_even", BreakEven, _told, order=30),
    Rows("reuse", Reuse, reuses, order=110),
    Rows("weights", WeightLoad, weight_loads, order=120),
)
