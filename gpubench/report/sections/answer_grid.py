"""The tables of the final screen: two situations of all ops, the situations of one op, sizes that were asked for, the
CPU's forms where there is no GPU, and times alone where no CPU was timed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpubench.analysis.answer import (
    ALWAYS,
    AnswerCell,
    AnswerRow,
    BestForm,
    Extent,
    Gain,
    GpuTimes,
    MachineAnswer,
)
from gpubench.base.escaping import columns, cut, padded
from gpubench.base.units import format_seconds
from gpubench.report.layout import Cell, Line
from gpubench.report.sections.answer_text import (
    asked_size_text,
    backend_text,
    both_text,
    cell_text,
    factor_text,
    gain_cell,
    named_size_text,
    series_text,
    size_text,
    threshold_cell,
)
from gpubench.report.wording import FORMS, short_text, situation_text
from gpubench.result.case import QUEUED, SHORT_DTYPES, WAITED

GAP, GROUP_GAP = "  ", "   "
WIDE = 78  # from here on two named sizes stand side by side
_SHOWN_ERROR = 0.05  # a ratio surer than this needs no +-
_SHORT_NAME = 8
NEAR_SIZE = 1.5  # sizes this near to that of a heading stand under it without their own


class AnswerGrid(msgspec.Struct, frozen=True, kw_only=True):
    """Columns under names, some of them together under a label: `groups` has the label by its first column. A row that
    goes on with the op above it does not repeat it; `whole` has the first cells with their ops."""

    names: tuple[str, ...]
    right: tuple[bool, ...]
    rows: tuple[Line, ...]
    groups: dict[int, str] = {}
    whole: tuple[str, ...] = ()

    def spread(self) -> tuple[str, ...]:
        """The label above each column; empty above those of no group, and of columns without a name but the first."""
        found, label = [], ""
        for i, name in enumerate(self.names):
            label = self.groups.get(i, label)
            found.append(label if name or i in self.groups else "")
        return tuple(found)

    def widths(self) -> list[int]:
        """Of the columns; the last one of a group is as wide as its label needs."""
        found = [
            max([columns(name), *(columns(row[i].text) for row in self.rows)])
            for i, name in enumerate(self.names)
        ]
        starts = [*sorted(self.groups), len(self.names)]
        for start, end in itertools.pairwise(starts):
            taken = sum(found[start:end]) + len(GAP) * (end - start - 1)
            # The label of the last group may end after its columns: nothing follows it.
            found[end - 1] += max(0, columns(self.groups[start]) - taken)
        return found

    def lines(self) -> list[Line]:
        """Drawn: labels, names, rows."""
        size = self.widths()
        head = [self._labels(size)] if self.groups else []
        names = tuple(Cell(name, "muted") for name in self.names)
        head += [self._line(names, size)] if any(self.names) else []
        return [*head, *(self._line(row, size) for row in self.rows)]

    def parts(self) -> tuple[AnswerGrid, ...]:
        """One grid for each group, the columns before the first group in all of them."""
        starts = [*sorted(self.groups), len(self.names)]
        found = []
        for start, end in itertools.pairwise(starts):
            kept = [*range(starts[0]), *range(start, end)]
            found.append(
                AnswerGrid(
                    names=tuple(self.names[i] for i in kept), right=tuple(self.right[i] for i in kept),
                    rows=tuple(tuple(row[i] for i in kept) for row in self.rows),
                    groups={starts[0]: self.groups[start]},
                )
            )  # fmt: skip
        return tuple(found) or (self,)

    def shortened(self, width: int) -> AnswerGrid:
        """With names in the first column that leave room for the others, down to 8 characters."""
        over = _width(self) - width
        room = max(_SHORT_NAME, self.widths()[0] - max(0, over))
        rows = tuple((Cell(cut(row[0].text, room), row[0].tone), *row[1:]) for row in self.rows)
        return msgspec.structs.replace(self, rows=rows)

    def _labels(self, size: Sequence[int]) -> Line:
        text = ""
        for start, label in sorted(self.groups.items()):
            text = padded(text, self._offset(start, size)) + label
        return (Cell(text, "muted"),)

    def _offset(self, index: int, size: Sequence[int]) -> int:
        return sum(size[:index]) + sum(len(self._gap(i)) for i in range(1, index + 1))

    def _gap(self, index: int) -> str:
        return GROUP_GAP if index in self.groups and index != min(self.groups) else GAP

    def _line(self, cells: Line, size: Sequence[int]) -> Line:
        found: list[Cell] = []
        for i, cell in enumerate(cells):
            text = padded(cell.text, size[i], right=self.right[i])
            found.append(Cell((self._gap(i) if i else "") + text, cell.tone))
        return _trimmed(found)


def drawn(grids: Sequence[AnswerGrid], width: int) -> list[Line]:
    """The first grid that fits; else the last one with shorter names; else its groups below each other."""
    fitting = next((grid for grid in grids if _width(grid) <= width), None)
    if fitting is not None:
        return fitting.lines()
    last = grids[-1].shortened(width)
    if _width(last) <= width:
        return last.lines()
    lines = [line for part in grids[-1].parts() for line in part.shortened(width).lines()]
    return [_cut_line(line, width) for line in lines]


def _width(grid: AnswerGrid) -> int:
    return max((sum(columns(cell.text) for cell in line) for line in grid.lines()), default=0)


def _trimmed(line: Sequence[Cell]) -> Line:
    found = list(line)
    while found and not found[-1].text.strip():
        found.pop()
    if found:
        found[-1] = Cell(found[-1].text.rstrip(), found[-1].tone)
    return tuple(found)


def _cut_line(line: Line, width: int) -> Line:
    text = "".join(cell.text for cell in line)
    return line if columns(text) <= width else (Cell(cut(text, width)),)


def thresholds_grids(found: MachineAnswer, *, ascii_only: bool) -> tuple[AnswerGrid, ...]:
    """A row for each op: `pays from` and the gain in two situations. The size of the gains stands in the heading, and
    beside a gain of another size; where a column of sizes is narrower, a second grid has one."""
    beside, column = (_thresholds(found, ascii_only, sized=sized) for sized in (False, True))
    return (beside, column) if _width(column) < _width(beside) else (beside,)


def _thresholds(found: MachineAnswer, ascii_only: bool, *, sized: bool) -> AnswerGrid:
    """`sized`: with a column of sizes, and none in the heading."""
    common = {regime: None if sized else _commonest(found, regime) for regime in found.regimes}
    counted: Extent = "plain" if all(row.extent == "plain" for row in found.rows) else "elements"
    names, right, groups = (["", "size"], [False, True], {}) if sized else ([""], [False], {})
    for regime in found.regimes:
        groups[len(names)] = situation_text(regime)
        n = common[regime]
        names += ["pays from", "gain" if n is None else f"at {size_text(n, counted)}"]
        right += [True, False]
    rows = []
    for row, label in zip(found.rows, _once(found), strict=True):
        line = [Cell(label)]
        told: Mapping[str, int | None] = common
        if sized:
            top = max((gain.n for cell in row.cells.values() if (gain := cell.gain) is not None), default=None)
            line.append(Cell("" if top is None else size_text(top, row.extent, ascii_only=ascii_only)))
            told = dict.fromkeys(found.regimes, None if top is None else row.elements(top))
        for regime in found.regimes:
            cell = row.cells.get(regime)
            line.append(threshold_cell(cell, cell_text(cell, row.extent, ascii_only=ascii_only)))
            line.append(_gain(row, cell, told[regime], ascii_only))
        rows.append(tuple(line))
    whole = tuple(" ".join(filter(None, pair)) for pair in _labels(found))
    return AnswerGrid(names=tuple(names), right=tuple(right), rows=tuple(rows), groups=groups, whole=whole)


def _gain(row: AnswerRow, cell: AnswerCell | None, told: int | None, ascii_only: bool) -> Cell:
    """The gain, and its size where it is not the one that is `told` already; a matrix counts by its elements there."""
    gain = None if cell is None or cell.tied else cell.gain
    if gain is None or told is None or row.elements(gain.n) == told:
        return gain_cell(gain)
    return gain_cell(gain, f" at {size_text(gain.n, row.extent, ascii_only=ascii_only)}")


def _commonest(found: MachineAnswer, regime: str) -> int | None:
    cells = [(row, row.cells.get(regime)) for row in found.rows]
    sizes = Counter(
        row.elements(cell.gain.n) for row, cell in cells if cell is not None and cell.gain is not None
    )
    return max(sizes, key=lambda n: (sizes[n], n)) if sizes else None


def _labels(found: MachineAnswer) -> list[tuple[str, str]]:
    """Of each row the op, with its dtype where there are several, and the GPU where there are several."""
    dtypes = len({row.dtype for row in found.rows}) > 1
    gpus = any(row.count < len(found.devices) for row in found.rows)
    return [
        (
            " ".join([series_text(row), *([SHORT_DTYPES.get(row.dtype, row.dtype)] if dtypes else [])]),
            _gpu(row, found.devices) if gpus else "",
        )
        for row in found.rows
    ]


def _once(found: MachineAnswer) -> list[str]:
    """The same in one text, the op once for all its GPUs."""
    labels = _labels(found)
    size = max(columns(name) for name, _ in labels)
    names = ["" if i and name == labels[i - 1][0] else name for i, (name, _) in enumerate(labels)]
    return [
        f"{padded(name, size)} {gpu}" if gpu else name for name, (_, gpu) in zip(names, labels, strict=True)
    ]


def _gpu(row: AnswerRow, devices: Sequence[str]) -> str:
    """`CuPy`, `2 x CuPy`."""
    if row.count > 1:
        return f"{row.count} x {backend_text(row.device_id)}"
    return _gpu_text(row.device_id, devices)


def _gpu_text(device_id: str, devices: Sequence[str]) -> str:
    """`CuPy`; `CuPy 1` where that backend has several."""
    name = backend_text(device_id)
    several = sum(backend_text(one) == name for one in devices) > 1
    return f"{name} {device_id.partition(':')[2]}" if several else name


def _order(regime: str) -> tuple[int, str]:
    """Queued, waited, N calls a copy, copied."""
    places: dict[str, int] = {QUEUED: 0, WAITED: 1, ALWAYS: 3}
    return (places.get(regime, 2), regime)


def _in_order(row: AnswerRow) -> list[str]:
    return sorted(row.cells, key=_order)


def one_op_grids(row: AnswerRow, *, ascii_only: bool) -> tuple[AnswerGrid, ...]:
    """A row for each situation of one op, with the time behind the gain."""
    gains = [cell.gain for cell in row.cells.values() if cell.gain is not None]
    n = max((gain.n for gain in gains), default=None)
    cpu_s = next((gain.cpu_s for gain in gains if gain.n == n), None)
    cpu = "" if cpu_s is None else f" (CPU {format_seconds(cpu_s)})"
    at = "" if n is None else f"at {_top_text(n, row.extent)}{cpu}"
    rows = []
    for regime in _in_order(row):
        cell = row.cells[regime]
        gain = cell.gain
        tail = f"  at {_top_text(gain.n, row.extent)}" if gain is not None and gain.n != n else ""
        seconds = "" if gain is None else format_seconds(gain.gpu_s) + tail
        text = threshold_cell(cell, both_text(cell, row.extent, ascii_only=ascii_only))
        said = gain_cell(None if cell.tied else gain)
        rows.append((Cell(situation_text(regime, beside_queued=True)), text, said, Cell(seconds)))
    groups = {1: "pays from", 2: at}
    return (AnswerGrid(names=("",) * 4, right=(False,) * 4, rows=tuple(rows), groups=groups),)


def _top_text(n: int, extent: Extent) -> str:
    """`n = 16 M`, `side = 4096`."""
    return f"side = {n}" if extent == "side" else f"n = {size_text(n, extent)}"


def sizes_grids(found: MachineAnswer, *, ascii_only: bool) -> tuple[AnswerGrid, ...]:
    """Sizes that were asked for: two of one op side by side, else a row for each."""
    sizes = sorted({gain.n for row in found.rows for cell in row.cells.values() for gain in cell.gains})
    long, cpu = _long_grid(found, ascii_only), _cpu_name(found)
    if len(found.rows) > 1 or not 0 < len(sizes) <= 2:
        return (long,)
    # Narrower than WIDE it does not fit where both sizes have all there is to say.
    return (_wide_grid(found.rows[0], sizes, cpu), long)


def _cpu_name(found: MachineAnswer) -> str:
    """`best CPU`, or `CPU` where numba would be faster and does not work."""
    return "CPU" if any(code.weaker for code in found.cpu) else "best CPU"


def _wide_grid(row: AnswerRow, sizes: Sequence[int], cpu: str) -> AnswerGrid:
    groups = {1 + 2 * i: named_size_text(n, row.extent) for i, n in enumerate(sizes)}
    best: list[Cell] = [Cell(cpu)]
    for n in sizes:
        cpu_s = next((g.cpu_s for cell in row.cells.values() for g in cell.gains if g.n == n), None)
        best += [Cell("" if cpu_s is None else format_seconds(cpu_s)), Cell("")]
    rows: list[Line] = [tuple(best)]
    for regime in [name for name in _in_order(row) if name in (QUEUED, WAITED, ALWAYS)] or _in_order(row):
        line = [Cell(situation_text(regime, beside_queued=True))]
        for n in sizes:
            gain = _at(row.cells[regime], n)
            line += [
                Cell(_missing(row.cells[regime]) if gain is None else format_seconds(gain.gpu_s)),
                _sure(gain),
            ]
        rows.append(tuple(line))
    names = ("",) * (1 + 2 * len(sizes))
    return AnswerGrid(names=names, right=(False, *(True, False) * len(sizes)), rows=tuple(rows), groups=groups)


def _long_grid(found: MachineAnswer, ascii_only: bool) -> AnswerGrid:
    names, right, groups = ["", "size", _cpu_name(found)], [False, True, True], {}
    for regime in found.regimes:
        groups[len(names)] = situation_text(regime)
        names += ["", ""]
        right += [True, False]
    rows, whole = [], []
    for row, label, pair in zip(found.rows, _once(found), _labels(found), strict=True):
        sizes = sorted({gain.n for cell in row.cells.values() for gain in cell.gains})
        for place, n in enumerate(sizes or [0]):
            gains = {regime: _at(row.cells.get(regime), n) for regime in found.regimes}
            cpu_s = next((g.cpu_s for cell in row.cells.values() for g in cell.gains if g.n == n), None)
            size = asked_size_text(n, row.extent, ascii_only=ascii_only) if n else "-"
            line = [
                Cell("" if place else label),
                Cell(size),
                Cell("-" if cpu_s is None else format_seconds(cpu_s)),
            ]
            for regime, gain in gains.items():
                cell = row.cells.get(regime)
                line += [Cell(_missing(cell) if gain is None else format_seconds(gain.gpu_s)), gain_cell(gain)]
            rows.append(tuple(line))
            whole.append(" ".join(filter(None, pair)))
    return AnswerGrid(
        names=tuple(names), right=tuple(right), rows=tuple(rows), groups=groups, whole=tuple(whole)
    )


def _missing(cell: AnswerCell | None) -> str:
    return cell.kind if cell is not None and cell.kind in ("wrong", "failed") else "-"


def _at(cell: AnswerCell | None, n: int) -> Gain | None:
    return next((gain for gain in cell.gains if gain.n == n), None) if cell is not None else None


def _sure(gain: Gain | None) -> Cell:
    """The gain, and how far it may be off where that is 5 % or more."""
    if gain is None or gain.within < _SHOWN_ERROR or gain.winner == "noisy":
        return gain_cell(gain)
    return gain_cell(gain, f" +-{gain.within * 100:.0f}%")


def forms_grids(found: MachineAnswer, *, ascii_only: bool) -> tuple[AnswerGrid, ...]:
    """Without a GPU: the fastest form of the CPU. Several ops have a row each, their sizes side by side; of one op, or
    at sizes that were asked for, each size has a row, with the time of plain NumPy."""
    below = _forms_below(found, ascii_only)
    if len({(form.op, form.dtype, *form.params.items()) for form in found.forms}) < 2 or found.forms[0].asked:
        return (below,)
    return (*(_forms_beside(found, ascii_only, timed=timed) for timed in (True, False)), below)


def _forms_below(found: MachineAnswer, ascii_only: bool) -> AnswerGrid:
    whole = _labels_alone(found.forms)
    rows = []
    for form, label in zip(found.forms, _told_once(whole), strict=True):
        line = [
            Cell(label),
            Cell(_measured_size(form, ascii_only)),
            Cell("-" if form.plain_s is None else format_seconds(form.plain_s)),
        ]
        if form.device_id is None:
            line += [Cell("-"), Cell(""), Cell("as good", "muted")]
        else:
            line += [Cell(_form_name(form)), Cell(format_seconds(form.best_s)), _form_gain(form)]
        rows.append(tuple(line))
    fastest = "form" if any(code.weaker for code in found.cpu) else "best form"
    names = ("", "n", "plain NumPy", fastest, "", "gain")
    right = (False, True, True, False, True, True)
    return AnswerGrid(names=names, right=right, rows=tuple(rows), whole=tuple(whole))


def _forms_beside(found: MachineAnswer, ascii_only: bool, *, timed: bool) -> AnswerGrid:
    """`timed`: with the time of the best form."""
    by_label: dict[str, dict[int, BestForm]] = {}
    for form, label in zip(found.forms, _labels_alone(found.forms), strict=True):
        by_label.setdefault(label, {})[form.place] = form
    names, right, groups, common = [""], [False], {}, {}
    for place in sorted({form.place for form in found.forms}):
        forms = [form for form in found.forms if form.place == place]
        common[place] = Counter(form.elements for form in forms).most_common(1)[0][0]
        counted: Extent = "plain" if all(form.extent == "plain" for form in forms) else "elements"
        near = any(form.elements != common[place] and _near(form, common[place]) for form in forms)
        groups[len(names)] = ("about " if near else "") + size_text(common[place], counted)
        names += ["form", *([""] if timed else []), "gain"]
        right += [False, *([True] if timed else []), True]
    rows = []
    for label, by_place in by_label.items():
        line = [Cell(label)]
        for place, elements in common.items():
            line += _beside(by_place.get(place), elements, ascii_only, timed=timed)
        rows.append(tuple(line))
    return AnswerGrid(names=tuple(names), right=tuple(right), rows=tuple(rows), groups=groups)


def _near(form: BestForm, elements: int) -> bool:
    return elements / NEAR_SIZE <= form.elements <= elements * NEAR_SIZE


def _beside(form: BestForm | None, elements: int, ascii_only: bool, *, timed: bool) -> list[Cell]:
    """The cells of one op under the size of a heading; a size that is not near that one is written."""
    if form is None:
        return [Cell("-"), *([Cell("")] if timed else []), Cell("")]
    tail = "" if _near(form, elements) else f" at {_measured_size(form, ascii_only)}"
    name = "plain" if form.device_id is None else _form_name(form)
    times = [Cell(format_seconds(form.seconds))] if timed else []
    return [Cell(name + tail), *times, Cell("") if form.ratio is None else _form_gain(form)]


def _form_name(form: BestForm) -> str:
    device_id = form.device_id or ""
    name = FORMS.get(form.form, form.form)
    return name if device_id.startswith("numpy") else backend_text(device_id)


def _measured_size(form: BestForm | GpuTimes, ascii_only: bool) -> str:
    text = asked_size_text if form.asked else size_text
    return text(form.n, form.extent, ascii_only=ascii_only)


def times_grids(found: MachineAnswer, *, ascii_only: bool) -> tuple[AnswerGrid, ...]:
    """Where no CPU was timed: what a call takes on each GPU. The GPUs stand side by side, else below each other."""
    below = (_times_below(found, text, ascii_only) for text in (situation_text, short_text))
    return (_times_beside(found, ascii_only), *below)


def _times_beside(found: MachineAnswer, ascii_only: bool) -> AnswerGrid:
    by_gpu: dict[str, dict[tuple[str, str], GpuTimes]] = {}
    for row in found.times:
        by_gpu.setdefault(row.device_id, {})[_places(row, found, ascii_only)] = row
    places = list(dict.fromkeys(_places(row, found, ascii_only) for row in found.times))
    names, groups, columns_of = ["", "size"], {}, []
    for regime in _timed_regimes(found):
        groups[len(names)] = situation_text(regime)
        names += [_gpu_text(device_id, [*by_gpu]) for device_id in by_gpu]
        columns_of += [(regime, device_id) for device_id in by_gpu]
    rows = []
    for place, label in zip(places, _told_once([label for label, _ in places]), strict=True):
        times = [_time_cell(by_gpu[device_id].get(place), regime) for regime, device_id in columns_of]
        rows.append((Cell(label), Cell(place[1]), *times))
    right = (False, *(True,) * (len(names) - 1))
    return AnswerGrid(
        names=tuple(names),
        right=right,
        rows=tuple(rows),
        groups=groups,
        whole=tuple(label for label, _ in places),
    )


def _times_below(found: MachineAnswer, text: Callable[[str], str], ascii_only: bool) -> AnswerGrid:
    regimes = _timed_regimes(found)
    devices = list(dict.fromkeys(row.device_id for row in found.times))
    places = [_places(row, found, ascii_only) for row in found.times]
    labels = _told_once([label for label, _ in places])
    sizes = ["" if i and place == places[i - 1] else place[1] for i, place in enumerate(places)]
    rows = tuple(
        (Cell(label), Cell(size), Cell(_gpu_text(row.device_id, devices)), *(_time_cell(row, one) for one in regimes))
        for row, label, size in zip(found.times, labels, sizes, strict=True)
    )  # fmt: skip
    right = (False, True, False, *(True,) * len(regimes))
    names = ("", "size", "GPU", *map(text, regimes))
    return AnswerGrid(names=names, right=right, rows=rows, whole=tuple(label for label, _ in places))


def _places(row: GpuTimes, found: MachineAnswer, ascii_only: bool) -> tuple[str, str]:
    """The op and the size of a row of times."""
    label = _form_label(row, dtypes=len({one.dtype for one in found.times}) > 1)
    return label, _measured_size(row, ascii_only)


def _timed_regimes(found: MachineAnswer) -> list[str]:
    return sorted({regime for row in found.times for regime in row.seconds}, key=_order)


def _time_cell(row: GpuTimes | None, regime: str) -> Cell:
    return Cell("-" if row is None or regime not in row.seconds else format_seconds(row.seconds[regime]))


def _labels_alone(rows: Sequence[BestForm]) -> list[str]:
    dtypes = len({row.dtype for row in rows}) > 1
    return [_form_label(row, dtypes=dtypes) for row in rows]


def _told_once(labels: Sequence[str]) -> list[str]:
    """Nothing where a row goes on with the op above it."""
    return ["" if i and label == labels[i - 1] else label for i, label in enumerate(labels)]


def _form_label(row: BestForm | GpuTimes, *, dtypes: bool) -> str:
    return f"{series_text(row)} {SHORT_DTYPES.get(row.dtype, row.dtype)}" if dtypes else series_text(row)


def _form_gain(form: BestForm) -> Cell:
    return Cell("-") if form.ratio is None else Cell(factor_text(form.ratio, form.within), "cpu")
