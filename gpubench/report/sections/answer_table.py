"""The tables of the final screen. The run decides which one is shown: all ops in two situations, one op in all
situations, requested sizes, CPU implementations (without a GPU), or GPU times (without a CPU)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.answer import AnswerRow, BestImplementation, GpuTimes, MachineAnswer
from gpubench.analysis.thresholds import ALWAYS, AnswerCell, Gain, SizeUnit, both_text, cell_text, size_text
from gpubench.base import group_by
from gpubench.base.plugins import wings
from gpubench.base.table import Cell, Column, Table, mark_repeats, number
from gpubench.base.units import format_seconds
from gpubench.report.sections.answer_text import (
    asked_size_text,
    factor_text,
    gain_cell,
    gain_of,
    named_size_text,
    series_text,
    threshold_cell,
)
from gpubench.report.wording import (
    IMPLEMENTATIONS,
    backend_text,
    device_names,
    plain_text,
    short_text,
    situation_text,
)
from gpubench.result.case import QUEUED, SHORT_DTYPES, WAITED


def bare_table(columns: Iterable[Column], rows: Iterable[Iterable[Cell]]) -> Table:
    """Return a table without rules, in the style of the answer."""
    return Table(tuple(columns), tuple(map(tuple, rows)), bare=True)


def thresholds_table(answer: MachineAnswer) -> Table:
    """Return a table of the break-evens (`pays from`) and gains, with a row for each row of the answer and
    columns for each of its regimes. The heading names the most common size of the gains. A gain at another size
    is followed by its size. If most gains have another size, a column has the size of each row instead."""
    counted: SizeUnit = "plain" if all(entry.size_unit == "plain" for entry in answer.rows) else "elements"
    columns, rows = _names(answer)
    common = {regime: _commonest(answer, regime) for regime in answer.regimes}
    tops: list[int | None] = [None] * len(rows)
    if _sizes_differ(answer, common):
        columns.append(Column("size", right=True))
        for i, (entry, line) in enumerate(zip(answer.rows, rows, strict=True)):
            n = max((gain.n for regime in answer.regimes if (gain := gain_of(entry, regime))), default=None)
            tops[i] = None if n is None else entry.elements(n)
            line.append(Cell("" if n is None else size_text(n, entry.size_unit)))
    for regime in answer.regimes:
        group, n = situation_text(regime), None if any(tops) else common[regime]
        at = "gain" if n is None else f"at {size_text(n, counted)}"
        columns += [Column("pays from", right=True, group=group), Column(at, group=group)]
        for entry, line, top in zip(answer.rows, rows, tops, strict=True):
            cell = entry.cells.get(regime)
            line += [threshold_cell(cell, cell_text(cell, entry.size_unit)), _gain(entry, cell, top or n)]
    return bare_table(columns, mark_repeats(rows, 1))


def _sizes_differ(answer: MachineAnswer, common: Mapping[str, int | None]) -> bool:
    """Return whether most gains are at another size than the `common` one of their regime."""
    at_common = [
        entry.elements(gain.n) == n
        for regime, n in common.items() for entry in answer.rows if (gain := gain_of(entry, regime))
    ]  # fmt: skip
    return 2 * sum(at_common) < len(at_common)


def _gain(entry: AnswerRow, cell: AnswerCell | None, common: int | None) -> Cell:
    """Return the cell of a gain, with its size if that is not `common` elements."""
    gain = None if cell is None or cell.tied else cell.gain
    if gain is None or common is None or entry.elements(gain.n) == common:
        return gain_cell(gain)
    return gain_cell(gain, f" at {size_text(gain.n, entry.size_unit)}")


def _commonest(answer: MachineAnswer, regime: str) -> int | None:
    sizes = Counter(entry.elements(gain.n) for entry in answer.rows if (gain := gain_of(entry, regime)))
    return max(sizes, key=lambda n: (sizes[n], n)) if sizes else None


def _names(answer: MachineAnswer) -> tuple[list[Column], list[list[Cell]]]:
    """Return the columns and cells that name the rows: the op, and the GPU if rows are of different GPUs."""
    names = [[Cell(label)] for label in series_labels(answer.rows)]
    if all(entry.count == len(answer.devices) for entry in answer.rows):
        return [Column("")], names
    gpus = device_names(answer.devices)
    for entry, name in zip(answer.rows, names, strict=True):
        many = f"{entry.count} x {backend_text(entry.device_id)}"
        name.append(Cell(many if entry.count > 1 else gpus[entry.device_id]))
    return [Column(""), Column("GPU")], names


def series_labels(rows: Sequence[AnswerRow | BestImplementation | GpuTimes]) -> list[str]:
    """Return the op of each row with its params. If there are several dtypes, the dtype's short name follows."""
    several = len({entry.dtype for entry in rows}) > 1
    return [
        f"{series_text(entry)} {SHORT_DTYPES.get(entry.dtype, entry.dtype)}" if several else series_text(entry)
        for entry in rows
    ]


def _order(regime: str) -> tuple[int, str]:
    """Return the sort key of a regime: queued, waited, all others by id, copied."""
    return ({QUEUED: 0, WAITED: 1, ALWAYS: 3}.get(regime, 2), regime)


def one_op_table(entry: AnswerRow) -> Table:
    """Return a table with a row for each situation of one op: the break-even, the gain and the GPU's time."""
    gains = [cell.gain for cell in entry.cells.values() if cell.gain is not None]
    n = max((gain.n for gain in gains), default=None)
    cpu_s = next((gain.cpu_s for gain in gains if gain.n == n), None)
    cpu = "" if cpu_s is None else f" (CPU {format_seconds(cpu_s)})"
    at = "" if n is None else f"at {named_size_text(n, entry.size_unit)}{cpu}"
    rows = []
    for regime in sorted(entry.cells, key=_order):
        cell = entry.cells[regime]
        gain = cell.gain
        tail = f"  at {named_size_text(gain.n, entry.size_unit)}" if gain is not None and gain.n != n else ""
        seconds = "" if gain is None else format_seconds(gain.gpu_s) + tail
        threshold = threshold_cell(cell, both_text(cell, entry.size_unit))
        name = Cell(situation_text(regime, beside_queued=True))
        rows.append((name, threshold, gain_cell(None if cell.tied else gain), Cell(seconds)))
    return bare_table(
        (Column(""), Column("", group="pays from"), Column("", group=at), Column("", group=at)), rows
    )


def sizes_table(answer: MachineAnswer) -> Table:
    """Return a table with a row for each op and requested size."""
    # Code is weaker if numba would be faster but does not work.
    cpu = "CPU" if any(code.weaker for code in answer.cpu) else "best CPU"
    columns, names = _names(answer)
    count = len(columns)
    columns += [Column("size", right=True), Column(cpu, right=True)]
    for regime in answer.regimes:
        group = situation_text(regime)
        columns += [Column("", right=True, group=group), Column("", group=group)]
    rows = []
    for entry, name in zip(answer.rows, names, strict=True):
        for n in sorted({gain.n for cell in entry.cells.values() for gain in cell.gains}) or [0]:
            line = [*name, Cell(asked_size_text(n, entry.size_unit) if n else "-"), _cpu_time(entry, n)]
            for regime in answer.regimes:
                cell = entry.cells.get(regime)
                gain = next((gain for gain in cell.gains if gain.n == n), None) if cell is not None else None
                line += [_gpu_time(cell, gain), gain_cell(gain)]
            rows.append(line)
    return bare_table(columns, mark_repeats(rows, count))


def _cpu_time(entry: AnswerRow, n: int) -> Cell:
    seconds = (gain.cpu_s for cell in entry.cells.values() for gain in cell.gains if gain.n == n)
    return Cell(next(map(format_seconds, seconds), "-"))


def _gpu_time(cell: AnswerCell | None, gain: Gain | None) -> Cell:
    if gain is not None:
        return Cell(format_seconds(gain.gpu_s))
    return Cell(cell.kind if cell is not None and cell.kind in ("wrong", "failed") else "-")


def implementations_table(answer: MachineAnswer) -> Table:
    """Return a table of the fastest CPU implementations, for a run without a GPU. Each op has a row, with its
    sizes side by side. For a single op, or if the user requested sizes, each size has a row."""
    ops = {
        (implementation.op, implementation.dtype, *implementation.params.items())
        for implementation in answer.implementations
    }
    named = any(implementation.asked for implementation in answer.implementations)
    return _implementations_below(answer) if len(ops) == 1 or named else _implementations_beside(answer)


def _implementations_below(answer: MachineAnswer) -> Table:
    rows = []
    for implementation, name in zip(answer.implementations, series_labels(answer.implementations), strict=True):
        plain = "-" if implementation.plain_s is None else format_seconds(implementation.plain_s)
        best = [Cell("-"), Cell(""), Cell("as good", "muted")]
        if implementation.device_id is not None:
            best = [
                Cell(_implementation_name(implementation)),
                Cell(format_seconds(implementation.best_s)),
                _implementation_gain(implementation),
            ]
        rows.append([Cell(name), Cell(_measured_size(implementation)), Cell(plain), *best])
    fastest = "implementation" if any(code.weaker for code in answer.cpu) else "fastest"
    columns = (
        Column(""), number("n"), number(plain_text(answer.cpu)), Column(fastest), number(""), number("gain"),
    )  # fmt: skip
    return bare_table(columns, mark_repeats(rows, 1))


def _implementations_beside(answer: MachineAnswer) -> Table:
    by_label: dict[str, dict[int, BestImplementation]] = {}
    for implementation, label in zip(
        answer.implementations, series_labels(answer.implementations), strict=True
    ):
        by_label.setdefault(label, {})[implementation.place] = implementation
    columns, common = [Column("")], {}
    for place, implementations in sorted(group_by(answer.implementations, lambda entry: entry.place).items()):
        common[place] = elements = Counter(
            implementation.elements for implementation in implementations
        ).most_common(1)[0][0]
        counted: SizeUnit = (
            "plain"
            if all(implementation.size_unit == "plain" for implementation in implementations)
            else "elements"
        )
        group = size_text(elements, counted)
        columns += [Column("fastest", group=group), Column("gain", right=True, group=group)]
    rows = [
        [
            Cell(label),
            *(cell for place, n in common.items() for cell in _implementation_cells(by_place.get(place), n)),
        ]
        for label, by_place in by_label.items()
    ]
    return bare_table(columns, rows)


def _implementation_cells(implementation: BestImplementation | None, elements: int) -> list[Cell]:
    """Return the cells of one op in a column whose heading names a size of `elements` elements."""
    if implementation is None:
        return [Cell("-"), Cell("")]
    tail = "" if implementation.elements == elements else f" at {_measured_size(implementation)}"
    name = "plain" if implementation.device_id is None else _implementation_name(implementation)
    return [
        Cell(name + tail),
        Cell("") if implementation.ratio is None else _implementation_gain(implementation),
    ]


def _implementation_name(implementation: BestImplementation) -> str:
    device_id = implementation.device_id or ""
    name = IMPLEMENTATIONS.get(implementation.implementation, implementation.implementation)
    return name if device_id.startswith("numpy") else backend_text(device_id)


def _measured_size(implementation: BestImplementation | GpuTimes) -> str:
    return (asked_size_text if implementation.asked else size_text)(implementation.n, implementation.size_unit)


def times_table(answer: MachineAnswer) -> Table:
    """Return a table with the time of a call on each GPU, for a run without CPU times."""
    regimes = sorted({regime for entry in answer.times for regime in entry.seconds}, key=_order)
    gpus = device_names(dict.fromkeys(entry.device_id for entry in answer.times))
    rows = [
        (
            Cell(label), Cell(_measured_size(entry)), Cell(gpus[entry.device_id]),
            *(Cell(format_seconds(entry.seconds[regime]) if regime in entry.seconds else "-") for regime in regimes),
        )
        for entry, label in zip(answer.times, series_labels(answer.times), strict=True)
    ]  # fmt: skip
    words = situation_text if len(regimes) < 3 else short_text  # three long names are wider than a terminal
    columns = (Column(""), number("size"), Column("GPU"), *(number(words(regime)) for regime in regimes))
    return bare_table(columns, mark_repeats(rows, 2))


def _implementation_gain(implementation: BestImplementation) -> Cell:
    return (
        Cell("-")
        if implementation.ratio is None
        else Cell(factor_text(implementation.ratio, implementation.within), "cpu")
    )


# ---------------------------------------------------------------- what wings add


class AnswerPart(NamedTuple):
    """The content that a wing adds to the answer."""

    needed: tuple[str, ...] = ()  # the lines that are never left out
    sentences: tuple[str, ...] = ()  # the answer if no GPU was compared with a CPU
    context: str = ""  # the line that names the devices of `sentences`
    table: Table | None = None  # the table below `sentences`; None if there is none
    times_below: bool = False  # whether a later section also shows the times of one GPU


def answer_part(analysis: Analysis, *, alone: bool) -> AnswerPart:
    """Return the joint content that all wings add to the answer. If several wings have sentences, a context or
    a table, the first one counts. `alone` means that no GPU was compared with a CPU."""
    makers = wings.find_all(wings.brought("answers")).values()
    parts: list[AnswerPart] = [make(analysis, alone=alone) for make in makers]
    return AnswerPart(
        needed=tuple(line for part in parts for line in part.needed),
        sentences=next((part.sentences for part in parts if part.sentences), ()),
        context=next((part.context for part in parts if part.context), ""),
        table=next((part.table for part in parts if part.table is not None), None),
        times_below=any(part.times_below for part in parts),
    )
