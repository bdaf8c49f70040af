"""The tables of the final screen: two situations of all ops, the situations of one op, sizes that were asked for, the
CPU's forms where there is no GPU, and times alone where no CPU was timed. Each has its narrower forms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.answer import AnswerRow, BestForm, GpuTimes, MachineAnswer
from gpubench.analysis.thresholds import ALWAYS, AnswerCell, Extent, Gain, both_text, cell_text, size_text
from gpubench.base.plugins import wings
from gpubench.base.table import Cell, Column, Line, Table, natural_width
from gpubench.base.units import format_seconds
from gpubench.report.sections.answer_text import (
    asked_size_text,
    backend_text,
    factor_text,
    gain_cell,
    named_size_text,
    series_text,
    threshold_cell,
)
from gpubench.report.sections.baseline import plain_text
from gpubench.report.wording import FORMS, short_text, situation_text
from gpubench.result.case import QUEUED, SHORT_DTYPES, WAITED

_SHOWN_ERROR = 0.05  # a ratio surer than this needs no +-
NEAR_SIZE = 1.5  # sizes this near to that of a heading stand under it without their own


def bare_table(
    columns: Iterable[Column], rows: Iterable[Iterable[Cell]], narrower: Table | None = None
) -> Table:
    """Return a table as the answer has it."""
    return Table(tuple(columns), tuple(map(tuple, rows)), narrower=narrower, bare=True)


def thresholds_table(answer: MachineAnswer) -> Table:
    """A row for each op: `pays from` and the gain in two situations. The size of the gains stands in the heading, and
    beside a gain of another size; where a column of sizes is narrower, the narrower form has one."""
    beside, column = (_thresholds(answer, sized=sized) for sized in (False, True))
    shorter = natural_width(column) < natural_width(beside)
    return msgspec.structs.replace(beside, narrower=column) if shorter else beside


def _thresholds(answer: MachineAnswer, *, sized: bool) -> Table:
    """`sized`: with a column of sizes, and none in the heading."""
    common = {regime: None if sized else _commonest(answer, regime) for regime in answer.regimes}
    counted: Extent = "plain" if all(row.extent == "plain" for row in answer.rows) else "elements"
    columns, names = _names(answer)
    columns += [Column("size", right=True)] if sized else []
    for regime, n in common.items():
        group = situation_text(regime)
        at = "gain" if n is None else f"at {size_text(n, counted)}"
        columns += [Column("pays from", right=True, group=group), Column(at, group=group)]
    rows = []
    for row, line in zip(answer.rows, names, strict=True):
        told = common
        if sized:
            top = max((gain.n for cell in row.cells.values() if (gain := cell.gain) is not None), default=None)
            line.append(Cell("" if top is None else size_text(top, row.extent)))
            told = dict.fromkeys(answer.regimes, None if top is None else row.elements(top))
        for regime in answer.regimes:
            cell = row.cells.get(regime)
            line += [threshold_cell(cell, cell_text(cell, row.extent)), _gain(row, cell, told[regime])]
        rows.append(line)
    return bare_table(columns, rows)


def _gain(row: AnswerRow, cell: AnswerCell | None, told: int | None) -> Cell:
    """The gain, and its size where it is not the one that is `told` already; a matrix counts by its elements there."""
    gain = None if cell is None or cell.tied else cell.gain
    if gain is None or told is None or row.elements(gain.n) == told:
        return gain_cell(gain)
    return gain_cell(gain, f" at {size_text(gain.n, row.extent)}")


def _commonest(answer: MachineAnswer, regime: str) -> int | None:
    gains = [(row, row.cells[regime].gain) for row in answer.rows if regime in row.cells]
    sizes = Counter(row.elements(gain.n) for row, gain in gains if gain is not None)
    return max(sizes, key=lambda n: (sizes[n], n)) if sizes else None


def _names(answer: MachineAnswer) -> tuple[list[Column], list[list[Cell]]]:
    """The op of each row, with its dtype where there are several, and the GPU where there are several."""
    dtypes = len({row.dtype for row in answer.rows}) > 1
    names = _told_once([_series_label(row, dtypes=dtypes) for row in answer.rows])
    if all(row.count == len(answer.devices) for row in answer.rows):
        return [Column("")], [[name] for name in names]
    return [Column(""), Column("GPU")], [
        [name, Cell(_gpu(row, answer.devices))] for name, row in zip(names, answer.rows, strict=True)
    ]


def _told_once(labels: Sequence[str]) -> list[Cell]:
    return [Cell(label, again=bool(i) and label == labels[i - 1]) for i, label in enumerate(labels)]


def _series_label(row: AnswerRow | BestForm | GpuTimes, *, dtypes: bool) -> str:
    return f"{series_text(row)} {SHORT_DTYPES.get(row.dtype, row.dtype)}" if dtypes else series_text(row)


def _gpu(row: AnswerRow, devices: Sequence[str]) -> str:
    """`CuPy`, `2 x CuPy`."""
    if row.count > 1:
        return f"{row.count} x {backend_text(row.device_id)}"
    return _gpu_text(row.device_id, devices)


def _gpu_text(device_id: str, devices: Sequence[str]) -> str:
    """`CuPy`; `CuPy 1` where that backend has several."""
    name = backend_text(device_id)
    several = sum(backend_text(other) == name for other in devices) > 1
    return f"{name} {device_id.partition(':')[2]}" if several else name


def _order(regime: str) -> tuple[int, str]:
    """Queued, waited, N calls a copy, copied."""
    return ({QUEUED: 0, WAITED: 1, ALWAYS: 3}.get(regime, 2), regime)


def one_op_table(row: AnswerRow) -> Table:
    """A row for each situation of one op, with the time behind the gain."""
    gains = [cell.gain for cell in row.cells.values() if cell.gain is not None]
    n = max((gain.n for gain in gains), default=None)
    cpu_s = next((gain.cpu_s for gain in gains if gain.n == n), None)
    cpu = "" if cpu_s is None else f" (CPU {format_seconds(cpu_s)})"
    at = "" if n is None else f"at {_top_text(n, row.extent)}{cpu}"
    rows = []
    for regime in sorted(row.cells, key=_order):
        cell = row.cells[regime]
        gain = cell.gain
        tail = f"  at {_top_text(gain.n, row.extent)}" if gain is not None and gain.n != n else ""
        seconds = "" if gain is None else format_seconds(gain.gpu_s) + tail
        threshold = threshold_cell(cell, both_text(cell, row.extent))
        name = Cell(situation_text(regime, beside_queued=True))
        rows.append((name, threshold, gain_cell(None if cell.tied else gain), Cell(seconds)))
    return bare_table(
        (Column(""), Column("", group="pays from"), Column("", group=at), Column("", group=at)), rows
    )


def _top_text(n: int, extent: Extent) -> str:
    """`n = 16 M`, `side = 4096`."""
    return f"side = {n}" if extent == "side" else f"n = {size_text(n, extent)}"


def sizes_table(answer: MachineAnswer) -> Table:
    """Sizes that were asked for: two of one op side by side, else a row for each."""
    sizes = sorted({gain.n for row in answer.rows for cell in row.cells.values() for gain in cell.gains})
    # Where numba would be faster and does not work, the CPU is not at its best.
    cpu = "CPU" if any(code.weaker for code in answer.cpu) else "best CPU"
    below = _sizes_below(answer, cpu)
    several = len(answer.rows) > 1 or not 0 < len(sizes) <= 2
    return below if several else _sizes_beside(answer.rows[0], sizes, cpu, below)


def _sizes_beside(row: AnswerRow, sizes: Sequence[int], cpu: str, narrower: Table) -> Table:
    columns, best = [Column("")], [Cell(cpu)]
    for n in sizes:
        group = named_size_text(n, row.extent)
        columns += [Column("", right=True, group=group), Column("", group=group)]
        best += [_cpu_time(row, n, ""), Cell("")]
    rows = [best]
    regimes = sorted(row.cells, key=_order)
    for regime in [name for name in regimes if name in (QUEUED, WAITED, ALWAYS)] or regimes:
        line = [Cell(situation_text(regime, beside_queued=True))]
        for n in sizes:
            gain = _at(row.cells[regime], n)
            line += [_gpu_time(row.cells[regime], gain), _sure(gain)]
        rows.append(line)
    return bare_table(columns, rows, narrower)


def _sizes_below(answer: MachineAnswer, cpu: str) -> Table:
    columns, names = _names(answer)
    columns += [Column("size", right=True), Column(cpu, right=True)]
    for regime in answer.regimes:
        group = situation_text(regime)
        columns += [Column("", right=True, group=group), Column("", group=group)]
    rows = []
    for row, name in zip(answer.rows, names, strict=True):
        sizes = sorted({gain.n for cell in row.cells.values() for gain in cell.gains})
        for place, n in enumerate(sizes or [0]):
            line = [msgspec.structs.replace(cell, again=cell.again or place > 0) for cell in name]
            line += [Cell(asked_size_text(n, row.extent) if n else "-"), _cpu_time(row, n, "-")]
            for regime in answer.regimes:
                cell = row.cells.get(regime)
                gain = _at(cell, n)
                line += [_gpu_time(cell, gain), gain_cell(gain)]
            rows.append(line)
    return bare_table(columns, rows)


def _cpu_time(row: AnswerRow, n: int, without: str) -> Cell:
    seconds = (gain.cpu_s for cell in row.cells.values() for gain in cell.gains if gain.n == n)
    return Cell(next(map(format_seconds, seconds), without))


def _gpu_time(cell: AnswerCell | None, gain: Gain | None) -> Cell:
    if gain is not None:
        return Cell(format_seconds(gain.gpu_s))
    return Cell(cell.kind if cell is not None and cell.kind in ("wrong", "failed") else "-")


def _at(cell: AnswerCell | None, n: int) -> Gain | None:
    return next((gain for gain in cell.gains if gain.n == n), None) if cell is not None else None


def _sure(gain: Gain | None) -> Cell:
    """The gain, and how far it may be off where that is 5 % or more."""
    if gain is None or gain.within < _SHOWN_ERROR or gain.winner == "noisy":
        return gain_cell(gain)
    return gain_cell(gain, f" +-{gain.within * 100:.0f}%")


def forms_table(answer: MachineAnswer) -> Table:
    """Without a GPU: the fastest form of the CPU. Several ops have a row each, their sizes side by side; of one op, or
    at sizes that were asked for, each size has a row, with the time of plain NumPy."""
    table = _forms_below(answer)
    if (
        len({(form.op, form.dtype, *form.params.items()) for form in answer.forms}) > 1
        and not answer.forms[0].asked
    ):
        for timed in (False, True):
            table = _forms_beside(answer, table, timed=timed)
    return table


def _forms_below(answer: MachineAnswer) -> Table:
    rows = []
    for form, name in zip(answer.forms, _told_once(_labels(answer.forms)), strict=True):
        plain = "-" if form.plain_s is None else format_seconds(form.plain_s)
        best = [Cell("-"), Cell(""), Cell("as good", "muted")]
        if form.device_id is not None:
            best = [Cell(_form_name(form)), Cell(format_seconds(form.best_s)), _form_gain(form)]
        rows.append([name, Cell(_measured_size(form)), Cell(plain), *best])
    fastest = "form" if any(code.weaker for code in answer.cpu) else "best form"
    columns = (
        Column(""), Column("n", right=True), Column(plain_text(answer.cpu), right=True), Column(fastest),
        Column("", right=True), Column("gain", right=True),
    )  # fmt: skip
    return bare_table(columns, rows)


def _forms_beside(answer: MachineAnswer, narrower: Table, *, timed: bool) -> Table:
    """`timed`: with the time of the best form."""
    by_label: dict[str, dict[int, BestForm]] = {}
    for form, label in zip(answer.forms, _labels(answer.forms), strict=True):
        by_label.setdefault(label, {})[form.place] = form
    columns, common = [Column("")], {}
    for place in sorted({form.place for form in answer.forms}):
        forms = [form for form in answer.forms if form.place == place]
        common[place] = elements = Counter(form.elements for form in forms).most_common(1)[0][0]
        counted: Extent = "plain" if all(form.extent == "plain" for form in forms) else "elements"
        near = any(form.elements != elements and _near(form, elements) for form in forms)
        group = ("about " if near else "") + size_text(elements, counted)
        columns += [Column("form", group=group), *([Column("", right=True, group=group)] if timed else [])]
        columns += [Column("gain", right=True, group=group)]
    rows = []
    for label, by_place in by_label.items():
        line = [Cell(label)]
        for place, elements in common.items():
            line += _form_cells(by_place.get(place), elements, timed=timed)
        rows.append(line)
    return bare_table(columns, rows, narrower)


def _near(form: BestForm, elements: int) -> bool:
    return elements / NEAR_SIZE <= form.elements <= elements * NEAR_SIZE


def _form_cells(form: BestForm | None, elements: int, *, timed: bool) -> list[Cell]:
    """The cells of one op under the size of a heading; a size that is not near that one is written."""
    if form is None:
        return [Cell("-"), *([Cell("")] if timed else []), Cell("")]
    tail = "" if _near(form, elements) else f" at {_measured_size(form)}"
    name = "plain" if form.device_id is None else _form_name(form)
    times = [Cell(format_seconds(form.seconds))] if timed else []
    return [Cell(name + tail), *times, Cell("") if form.ratio is None else _form_gain(form)]


def _form_name(form: BestForm) -> str:
    device_id = form.device_id or ""
    name = FORMS.get(form.form, form.form)
    return name if device_id.startswith("numpy") else backend_text(device_id)


def _measured_size(form: BestForm | GpuTimes) -> str:
    return (asked_size_text if form.asked else size_text)(form.n, form.extent)


def times_table(answer: MachineAnswer) -> Table:
    """Where no CPU was timed: what a call takes on each GPU. The GPUs stand side by side, else below each other."""
    return _times_beside(answer, _times_below(answer, situation_text, _times_below(answer, short_text)))


def _times_beside(answer: MachineAnswer, narrower: Table) -> Table:
    by_gpu: dict[str, dict[tuple[str, str], GpuTimes]] = {}
    for row in answer.times:
        by_gpu.setdefault(row.device_id, {})[_place(row, answer)] = row
    places = list(dict.fromkeys(_place(row, answer) for row in answer.times))
    pairs = [(regime, device_id) for regime in _timed_regimes(answer) for device_id in by_gpu]
    columns = [Column(""), Column("size", right=True)]
    columns += [
        Column(_gpu_text(device_id, [*by_gpu]), right=True, group=situation_text(regime))
        for regime, device_id in pairs
    ]
    rows = [
        (
            name,
            Cell(place[1]),
            *(_time_cell(by_gpu[device_id].get(place), regime) for regime, device_id in pairs),
        )
        for place, name in zip(places, _told_once([label for label, _ in places]), strict=True)
    ]
    return bare_table(columns, rows, narrower)


def _times_below(answer: MachineAnswer, text: Callable[[str], str], narrower: Table | None = None) -> Table:
    regimes = _timed_regimes(answer)
    devices = list(dict.fromkeys(row.device_id for row in answer.times))
    places = [_place(row, answer) for row in answer.times]
    names = _told_once([label for label, _ in places])
    rows: list[Line] = []
    for i, (row, place) in enumerate(zip(answer.times, places, strict=True)):
        size = Cell(place[1], again=bool(i) and place == places[i - 1])
        gpu = Cell(_gpu_text(row.device_id, devices))
        rows.append((names[i], size, gpu, *(_time_cell(row, regime) for regime in regimes)))
    times = (Column(text(regime), right=True) for regime in regimes)
    return bare_table((Column(""), Column("size", right=True), Column("GPU"), *times), rows, narrower)


def _place(row: GpuTimes, answer: MachineAnswer) -> tuple[str, str]:
    """The op and the size of a row of times."""
    label = _series_label(row, dtypes=len({other.dtype for other in answer.times}) > 1)
    return label, _measured_size(row)


def _timed_regimes(answer: MachineAnswer) -> list[str]:
    return sorted({regime for row in answer.times for regime in row.seconds}, key=_order)


def _time_cell(row: GpuTimes | None, regime: str) -> Cell:
    return Cell("-" if row is None or regime not in row.seconds else format_seconds(row.seconds[regime]))


def _labels(rows: Sequence[BestForm]) -> list[str]:
    dtypes = len({row.dtype for row in rows}) > 1
    return [_series_label(row, dtypes=dtypes) for row in rows]


def _form_gain(form: BestForm) -> Cell:
    return Cell("-") if form.ratio is None else Cell(factor_text(form.ratio, form.within), "cpu")


# ---------------------------------------------------------------- what wings add


class AnswerPart(NamedTuple):
    """Lines of a wing; where no GPU was held against a CPU, `sentences`, `context` and `table` are the answer."""

    needed: tuple[str, ...] = ()  # lines that are never left out
    sentences: tuple[str, ...] = ()
    context: str = ""
    table: Table | None = None
    times_below: bool = False  # a section that follows has the times of one GPU too


def answer_part(analysis: Analysis, *, alone: bool) -> AnswerPart:
    """Return what all wings add. `alone`: no GPU was held against a CPU."""
    makers = wings.find_all(wings.brought("answers")).values()
    parts: list[AnswerPart] = [make(analysis, alone=alone) for make in makers]
    return AnswerPart(
        needed=tuple(line for part in parts for line in part.needed),
        sentences=next((part.sentences for part in parts if part.sentences), ()),
        context=next((part.context for part in parts if part.context), ""),
        table=next((part.table for part in parts if part.table is not None), None),
        times_below=any(part.times_below for part in parts),
    )
