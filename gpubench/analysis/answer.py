"""What the final screen of a run says: for each op from which size on one GPU backend pays, and by how much. The words
are those of `report/sections/answer.py`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from gpubench.analysis.absence import Absence, absence, out_of_budget
from gpubench.analysis.analyse import Analysis
from gpubench.analysis.break_even import WIDEST_INTERVAL, BreakEven, SizeRatio, earliest
from gpubench.analysis.estimate import CALLS, HOST_STAGE, CaseResult, declaration
from gpubench.analysis.speedup import EQUAL, CpuCode, cpu_codes, paired
from gpubench.base.groups import group_by
from gpubench.kernels.contract.op import Ladder
from gpubench.result.case import QUEUED, WAITED, Case, SeriesKey, beside_size
from gpubench.result.run import Device, Failure, Run

ALWAYS = "transfer-always"
# A threshold is a number where the ends of its interval lie no further apart (a factor of 1.5 either way), and about a
# number up to ROUGHLY, as far as a verdict is decided; else it is a range.
SHARP, ROUGHLY = 2.25, WIDEST_INTERVAL
NEAR_BEST = 1.1  # a backend this near to the fastest one is as good
ABOUT_EQUAL = "about-equal"  # the reason of a cell whose sides tie at the largest size
FEWEST_OPS = 4  # of fewer ops a median says nothing
# Without a GPU the CPU's forms are compared at sizes near these, in elements.
FORM_SIZES = (2**13, 2**20, 2**24)

# `at`: one size. `range`: the threshold lies in it. `below`, `above`: one side wins at every size measured, but the
# ladder's ends were not. `open`: no verdict, `why` says the reason. `pending`: none yet, the run goes on.
CellKind = Literal[
    "at", "range", "all-sizes", "below", "no-size", "above", "open", "wrong", "failed", "pending"
]
Winner = Literal["gpu", "cpu", "equal", "noisy"]
Extent = Literal["elements", "side", "plain"]


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """The two sides at one size. `ratio` above 1: the GPU is faster; `low` and `high` are its interval. `top`: there
    is no larger size in the op's ladder."""

    n: int
    ratio: float
    low: float
    high: float
    winner: Winner
    cpu_s: float
    gpu_s: float
    top: bool

    @property
    def about_equal(self) -> bool:
        """Whether the estimate is within 15 % of 1; how sure that is, `winner` tells."""
        return 1 / EQUAL <= self.ratio <= EQUAL

    @property
    def within(self) -> float:
        """How far the ratio may be off, as a share of it."""
        return _within(self.ratio, self.low, self.high)


def _within(ratio: float, low: float, high: float) -> float:
    return max(high / ratio - 1, 1 - low / ratio)


class AnswerCell(msgspec.Struct, frozen=True, kw_only=True):
    """From which size on the GPU pays in one situation. `low` and `high` are the threshold's interval, or of `below`
    and `above` the smallest and the largest size measured. `gains`: one for each size, ascending."""

    kind: CellKind
    n: int | None = None
    low: int | None = None
    high: int | None = None
    mixed: bool = False
    why: str = ""
    gains: tuple[Gain, ...] = ()

    @property
    def sharp(self) -> bool:
        """Whether the interval of the threshold is narrow enough for a bare number."""
        return self.low is not None and self.high is not None and self.high <= self.low * SHARP

    @property
    def tied(self) -> bool:
        """Whether there is no threshold because the sides are about equal at the largest size."""
        return self.kind == "open" and self.why == ABOUT_EQUAL

    @property
    def gain(self) -> Gain | None:
        """That at the largest size."""
        return self.gains[-1] if self.gains else None


class AnswerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One op on one GPU, or on `count` GPUs that do not differ; a cell for each regime by its id. `extent`: what a size
    counts, elements of one array or the side of a square matrix; `plain` where other params change the shape."""

    op: str
    dtype: str
    params: dict[str, int]
    device_id: str
    cells: dict[str, AnswerCell]
    extent: Extent
    count: int = 1

    def elements(self, n: int) -> int:
        return n * n if self.extent == "side" else n

    @property
    def on_host(self) -> bool:
        """Whether no GPU can take it."""
        return all(cell.why == HOST_STAGE for cell in self.cells.values())


class BestForm(msgspec.Struct, frozen=True, kw_only=True):
    """Without a GPU: plain NumPy at one size, if it has a time, and the fastest other CPU form if that surely wins."""

    op: str
    dtype: str
    params: dict[str, int]
    n: int
    extent: Extent
    place: int  # which of FORM_SIZES the size stands for
    asked: bool  # somebody named this size
    plain_s: float | None
    allocates: bool  # plain NumPy makes a new array for its result at every call
    device_id: str | None = None
    form: str = ""
    best_s: float = 0.0
    ratio: float | None = None
    within: float = 0.0  # how far the ratio may be off, as a share of it

    @property
    def elements(self) -> int:
        """How many elements one array has."""
        return self.n * self.n if self.extent == "side" else self.n

    @property
    def seconds(self) -> float:
        """The time of the best form."""
        return self.best_s if self.device_id is not None or self.plain_s is None else self.plain_s


class GpuTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Where no CPU has a time: those of one op on one GPU at one size, the fastest form for each regime."""

    op: str
    dtype: str
    params: dict[str, int]
    device_id: str
    n: int
    extent: Extent
    asked: bool  # somebody named this size
    seconds: dict[str, float]


class BestCode(msgspec.Struct, frozen=True, kw_only=True):
    """A user's function by the fastest code on each side. `cpu`: that of the CPU at the largest size, if it is not
    NumPy. `cells`: from which size on the fastest GPU pays, by regime."""

    op: str
    dtype: str
    extent: Extent
    cpu: BestForm | None
    cells: dict[str, AnswerCell]


class MachineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`devices` are the GPUs shown, of one backend or of all; `others` the further GPU backends with times. Without
    `rows` `absence` says why, and there are `forms` of the CPU, or `times` of GPUs alone. `wrong` are outputs that
    failed their check, `broken` other failures. `named`: all sizes were asked for. `missing`: ops that were not
    reached, of `ops` in all; `late`: of the others sizes that were asked for, and for which the time did not suffice;
    `unreached`: cases. `host`: ops that no GPU can take. `cpu`: what computed the CPU's times, the most of them first.
    """

    rows: tuple[AnswerRow, ...]
    devices: tuple[str, ...]
    others: tuple[str, ...]
    forms: tuple[BestForm, ...]
    times: tuple[GpuTimes, ...]
    absence: Absence | None
    wrong: tuple[Trouble, ...]
    broken: tuple[Trouble, ...]
    named: bool
    missing: tuple[str, ...]
    late: tuple[tuple[str, int, Extent], ...]
    unreached: int
    ops: int
    host: tuple[BestForm, ...] = ()
    cpu: tuple[CpuCode, ...] = ()
    best_code: tuple[BestCode, ...] = ()

    @property
    def regimes(self) -> tuple[str, ...]:
        """The two situations of the table: data on the GPU and copied. Where one was not measured, what there is."""
        found = set().union(*(row.cells for row in self.rows))
        home = WAITED if WAITED in found or QUEUED not in found else QUEUED
        shown = [regime for regime in (home, ALWAYS) if regime in found]
        return tuple(shown or sorted(found)[:2])

    @property
    def queued_gain(self) -> float | None:
        """How many times smaller the threshold of queued calls is: the median over the ops that have both; None of few
        ops."""
        found = [
            waited / queued
            for row in self.rows
            for waited, queued in [(_size(row, WAITED), _size(row, QUEUED))]
            if waited and queued
        ]
        return statistics.median(found) if len(found) >= FEWEST_OPS else None


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Ops of one backend that gave no number. `whole`: nothing of that backend has one."""

    backend: str
    ops: tuple[str, ...]
    detail: str
    hint: str = ""
    whole: bool = False


def answer(analysis: Analysis, *, by_device: bool = False) -> MachineAnswer:
    """What the screen says of a run; nothing but the file is asked. `by_device`: of every GPU backend."""
    run = analysis.run
    cases = [row for row in analysis.cases if row.case.group not in CALLS and row.case.variant is None]
    ranked = _ranked(analysis.break_even)
    shown = ranked if by_device else ranked[:1]
    compared = {row.device_id: row.case.backend for row in analysis.break_even}
    devices = sorted(
        (device_id for device_id, backend in compared.items() if backend in shown),
        key=lambda device_id: (shown.index(compared[device_id]), device_id),
    )
    rows = [row for device_id in devices for row in answer_rows(analysis.break_even, cases, device_id)]
    rows = [row for row in rows if not row.on_host]
    staying = {row.case.op for row in cases if row.reason == HOST_STAGE}
    rows.sort(key=lambda row: (row.op, row.dtype, sorted(row.params.items()), devices.index(row.device_id)))
    missing = _missing(analysis, cases)
    wrong, broken = _troubles(run, cases)
    without = None if rows else absence(run, analysis.cases)
    return MachineAnswer(
        rows=_merged(run, rows), devices=tuple(devices), others=tuple(ranked[len(shown):]), absence=without,
        forms=() if without is None or without.kind == "no-cpu" else _forms(run, cases),
        times=_gpu_times(run, cases) if without is not None and without.kind == "no-cpu" else (),
        wrong=wrong, broken=broken, missing=tuple(sorted(missing)), late=_late(run, cases, missing),
        unreached=sum(row.outcome == "planned" for row in cases), ops=len({row.case.op for row in cases} | missing),
        named=bool(rows) and all(run.selection.sizes.get(row.op) for row in rows),
        host=_forms(run, [row for row in cases if row.case.op in staying], largest=True) if rows else (),
        cpu=cpu_codes(run, held_against(analysis, devices) or [row for row in cases if row.time is not None]),
        best_code=tuple(_best_code(run, cases, analysis.best_code)),
    )  # fmt: skip


def _best_code(run: Run, cases: Sequence[CaseResult], curves: Sequence[BreakEven]) -> Iterable[BestCode]:
    """Of the functions of which other code than the user's is the fastest on a side."""
    for op, dtype in dict.fromkeys((curve.op, curve.dtype) for curve in curves):
        own = [curve for curve in curves if (curve.op, curve.dtype) == (op, dtype)]
        forms = _forms(run, [row for row in cases if (row.case.op, row.case.dtype) == (op, dtype)])
        cpu = forms[-1] if forms and forms[-1].ratio is not None else None
        if cpu is not None or any(curve.case.form != "library" for curve in own):
            cells = {
                regime: threshold(best)
                for regime in (WAITED, ALWAYS)
                if (best := earliest(curve for curve in own if curve.regime == regime))
            }
            yield BestCode(op=op, dtype=dtype, extent=extent(own[0].case), cpu=cpu, cells=cells)


def held_against(analysis: Analysis, devices: Collection[str]) -> list[CaseResult]:
    """The baselines of these devices, one for each ratio."""
    curves = (curve for curve in analysis.break_even if curve.device_id in devices)
    return [point.row.baseline for curve in curves for point in curve.points]


def _missing(analysis: Analysis, cases: Sequence[CaseResult]) -> set[str]:
    """Ops that were not reached: without a time that the budget left them, or asked for and not even planned."""
    run = analysis.run
    found = {row.case.op for row in cases if row.outcome == "planned" or out_of_budget(run, row)}
    if len(analysis.cases) == len(run.outcomes) and not (run.selection.filter or run.selection.skip):
        found |= {*run.selection.ops} - {outcome.case.op for outcome in run.outcomes}
    return found - {row.case.op for row in cases if row.time is not None}


def _late(
    run: Run, cases: Sequence[CaseResult], missing: Collection[str]
) -> tuple[tuple[str, int, Extent], ...]:
    found = {
        (row.case.op, row.case.params["n"], extent(row.case))
        for row in cases
        if row.case.op not in missing and run.selection.sizes.get(row.case.op) and out_of_budget(run, row)
    }
    return tuple(sorted(found))


def _ranked(curves: Sequence[BreakEven]) -> list[str]:
    """GPU backends, first the one with the most cells, waited and copied, within 10 % of the best."""
    cells = group_by(curves, lambda row: (row.case.series, row.regime))
    asked = [key for key in cells if key[1] in (WAITED, ALWAYS)] or list(cells)
    counts = {row.case.backend: 0 for row in curves}
    for key in asked:
        sizes = [{point.n for point in row.points} for row in cells[key]]
        # Times compare at one size alone: the largest that the most of them have.
        n = max(set().union(*sizes), key=lambda n: (sum(n in ours for ours in sizes), n))
        ratios: dict[str, float] = {}
        for row in cells[key]:
            for point in row.points:
                if point.n == n:
                    ratios[row.case.backend] = max(ratios.get(row.case.backend, 0.0), point.row.ratio)
        for backend, ratio in ratios.items():
            counts[backend] += ratio * NEAR_BEST >= max(ratios.values())
    return sorted(counts, key=lambda backend: -counts[backend])


def answer_rows(
    break_even: Sequence[BreakEven], cases: Sequence[CaseResult], device_id: str
) -> Iterable[AnswerRow]:
    """Return a row for each op that a GPU tried, from which size on it pays in each regime."""
    curves = {(row.case.series, row.regime): row for row in break_even if row.device_id == device_id}
    tried: dict[SeriesKey, dict[str, list[CaseResult]]] = {}
    for row in cases:
        if row.case.device_id == device_id and row.outcome != "planned":
            tried.setdefault(row.case.series, {}).setdefault(row.case.regime_id, []).append(row)
    for series, regimes in tried.items():
        case = next(iter(regimes.values()))[0].case
        cells = {regime: _cell(curves.get((series, regime)), rows, case) for regime, rows in regimes.items()}
        yield AnswerRow(
            op=case.op, dtype=case.dtype, params=dict(beside_size(case.params)), device_id=device_id, cells=cells,
            extent=extent(case),
        )  # fmt: skip


def extent(case: Case) -> Extent:
    """What the size of this case counts: elements, the side of a matrix, or rows, tokens and images of a network."""
    if case.group in ("network", "layers"):
        return "plain"
    if case.group != "matrix":
        return "elements"
    return "plain" if beside_size(case.params) else "side"


def declared_sizes(op: str, params: Mapping[str, int]) -> Ladder | None:
    """Return the sizes that the op declares; None where this installation does not know it, or where params beside the
    size shape it."""
    known = None if params else declaration(op)
    return known.sizes if known is not None else None


def threshold(curve: BreakEven) -> AnswerCell:
    """The cell of a curve, whatever failed beside it."""
    return _cell(curve, (), curve.case)


def _cell(curve: BreakEven | None, cases: Sequence[CaseResult], case: Case) -> AnswerCell:
    timed = () if curve is None else {point.n for point in curve.points}
    if any(row.reason == "wrong-result" and row.case.params["n"] not in timed for row in cases):
        return AnswerCell(kind="wrong")
    if curve is None:
        return _without_numbers(cases)
    ladder = declared_sizes(case.op, dict(beside_size(case.params)))
    gains = tuple(_gain(point, ladder) for point in curve.points)
    whole = ladder is not None and curve.first <= ladder.sizes()[0] and curve.last >= ladder.high
    if curve.verdict == "all-sizes":
        kind: CellKind = "all-sizes" if whole else "below"
        return AnswerCell(kind=kind, high=curve.first, gains=gains)
    if curve.verdict == "no-size":
        return AnswerCell(kind="no-size" if whole else "above", low=curve.last, gains=gains)
    low, high = curve.lo, curve.hi
    if curve.reason == ABOUT_EQUAL or low is None or high is None:
        return AnswerCell(
            kind="open", n=curve.n, low=low, high=high, why=curve.reason or "few-sizes", gains=gains
        )
    kind = "at" if curve.n is not None and high <= low * ROUGHLY else "range"
    return AnswerCell(kind=kind, n=curve.n, low=low, high=high, mixed=curve.mixed, gains=gains)


def _without_numbers(cases: Sequence[CaseResult]) -> AnswerCell:
    if any(row.time is not None for row in cases):
        return AnswerCell(kind="open", why="no-cpu-time")
    if any(row.outcome == "failure" for row in cases):
        return AnswerCell(kind="failed")
    return AnswerCell(kind="open", why=next((row.reason for row in cases if row.reason), None) or "no-samples")


def _gain(point: SizeRatio, ladder: Ladder | None) -> Gain:
    row = point.row
    assert row.baseline.time is not None  # a speedup has both
    assert row.case.time is not None
    gain = Gain(
        n=point.n, ratio=row.ratio, low=row.lo, high=row.hi, winner="noisy", cpu_s=row.baseline.time.estimate,
        gpu_s=row.case.time.estimate, top=ladder is not None and point.n >= ladder.high,
    )  # fmt: skip
    if gain.about_equal:
        winner: Winner = "equal" if row.about_equal else "noisy"
    else:
        winner = "gpu" if point.state == "win" else "cpu" if point.state == "loss" else "noisy"
    return msgspec.structs.replace(gain, winner=winner)


def _merged(run: Run, rows: Sequence[AnswerRow]) -> tuple[AnswerRow, ...]:
    """GPUs of one backend and name whose intervals overlap in every cell are one row; adapters of one GPU are not."""
    devices = {device.id: device for device in run.devices}
    found: list[AnswerRow] = []
    for row in rows:
        same = next((one for one in found if _like(one, row, devices)), None)
        if same is None:
            found.append(row)
        else:
            found[found.index(same)] = msgspec.structs.replace(same, count=same.count + 1)
    return tuple(found)


def _like(a: AnswerRow, b: AnswerRow, devices: Mapping[str, Device]) -> bool:
    one, other = devices.get(a.device_id), devices.get(b.device_id)
    if one is None or other is None or (one.gpu_id and one.gpu_id == other.gpu_id):
        return False
    return (
        (a.op, a.dtype, a.params, one.backend, one.name) == (b.op, b.dtype, b.params, other.backend, other.name)
        and a.cells.keys() == b.cells.keys()
        and all(_overlap(a.cells[regime], b.cells[regime]) for regime in a.cells)
    )


def _overlap(a: AnswerCell, b: AnswerCell) -> bool:
    if a.gain is None or b.gain is None:
        return a == b
    ratios = a.gain.n == b.gain.n and a.gain.low <= b.gain.high and b.gain.low <= a.gain.high
    if None in (a.low, a.high, b.low, b.high):
        return ratios and (a.kind, a.low, a.high, a.why) == (b.kind, b.low, b.high, b.why)
    thresholds = _end(a.low) <= _end(b.high) and _end(b.low) <= _end(a.high)
    return ratios and thresholds and a.mixed == b.mixed


def _end(n: int | None) -> int:
    return 0 if n is None else n


def _size(row: AnswerRow, regime: str) -> int | None:
    cell = row.cells.get(regime)
    return cell.n if cell is not None and cell.kind in ("at", "range") else None


def _forms(run: Run, cases: Sequence[CaseResult], *, largest: bool = False) -> tuple[BestForm, ...]:
    """The CPU's forms of each op and dtype that has a time on it: at each size that was asked for, or near FORM_SIZES.

    `largest`: at the largest of these alone.
    """
    sizes: dict[SeriesKey, dict[int, list[CaseResult]]] = {}
    for row in cases:
        if row.time is not None and row.device_kind == "cpu":
            sizes.setdefault(row.case.series, {}).setdefault(row.case.params["n"], []).append(row)
    forms = []
    for series, by_size in sizes.items():
        plain = {n: _plain(rows) for n, rows in by_size.items()}
        timed = sorted(n for n, row in plain.items() if row is not None) or sorted(by_size)
        asked = bool(run.selection.sizes.get(series[0]))
        kind = extent(by_size[timed[0]][0].case)
        places = dict.fromkeys(timed, 0) if asked else _near_form_sizes(timed, kind)
        chosen = list(places.items())[-1:] if largest and not asked else places.items()
        forms += [_best_form(plain[n], by_size[n], place, asked=asked) for n, place in chosen]
    return tuple(sorted(forms, key=lambda form: (form.op, form.dtype, form.n)))


def _near_form_sizes(sizes: Sequence[int], kind: Extent) -> dict[int, int]:
    """The places in FORM_SIZES of the sizes that are nearest to them; of rows or images the smallest, a middle one and
    the largest size. `sizes` ascend."""
    last = len(FORM_SIZES) - 1
    if kind == "plain":
        return {sizes[0]: 0, sizes[len(sizes) // 2]: 1} | {sizes[-1]: last}

    def distance(n: int, place: int) -> float:
        return abs(math.log((n * n if kind == "side" else n) / FORM_SIZES[place]))

    nearest: dict[int, int] = {}
    for n in sizes:
        place = min(range(last, -1, -1), key=lambda place: distance(n, place))
        if place not in nearest or distance(n, place) < distance(nearest[place], place):
            nearest[place] = n
    return {n: place for place, n in nearest.items()}


def _gpu_times(run: Run, cases: Sequence[CaseResult]) -> tuple[GpuTimes, ...]:
    """At the largest size of each op and GPU, or at each one that was asked for."""
    sizes: dict[tuple[SeriesKey, str], dict[int, dict[str, float]]] = {}
    extents: dict[SeriesKey, Extent] = {}
    for row in cases:
        if row.time is not None and row.device_kind == "gpu":
            extents[row.case.series] = extent(row.case)
            by_size = sizes.setdefault((row.case.series, row.case.device_id), {})
            best = by_size.setdefault(row.case.params["n"], {})
            best[row.case.regime_id] = min(best.get(row.case.regime_id, math.inf), row.time.estimate)
    shown = [
        (series, n, device_id)
        for (series, device_id), by_size in sizes.items()
        for n in (by_size if run.selection.sizes.get(series[0]) else [max(by_size)])
    ]
    return tuple(
        GpuTimes(
            op=series[0], dtype=series[1], params=dict(series[2]), device_id=device_id, n=n, extent=extents[series],
            asked=bool(run.selection.sizes.get(series[0])),
            seconds=sizes[series, device_id][n],
        )
        for series, n, device_id in sorted(shown)
    )  # fmt: skip


def _plain(rows: Sequence[CaseResult]) -> CaseResult | None:
    return next((row for row in rows if row.case.form == "library" and row.case.backend == "numpy"), None)


def _best_form(plain: CaseResult | None, rows: Sequence[CaseResult], place: int, *, asked: bool) -> BestForm:
    best = min(rows, key=lambda row: (row.time.estimate if row.time else 0.0, row.id))
    assert best.time is not None
    case = best.case
    form = BestForm(
        op=case.op, dtype=case.dtype, params=dict(beside_size(case.params)), n=case.params["n"], extent=extent(case),
        place=place, asked=asked, allocates=plain is not None and _makes_an_array(case),
        plain_s=None if plain is None or plain.time is None else plain.time.estimate,
        device_id=case.device_id, form=case.form, best_s=best.time.estimate,
    )  # fmt: skip
    if plain is None:
        return form
    ratio = paired(plain, best)
    if best is plain or ratio is None or ratio.low <= 1:
        return msgspec.structs.replace(form, device_id=None, form="", best_s=0.0)
    return msgspec.structs.replace(
        form, ratio=ratio.estimate, within=_within(ratio.estimate, ratio.low, ratio.high)
    )


def _makes_an_array(case: Case) -> bool:
    """Whether the result of the op has more than one element, as far as this installation knows the op."""
    known = declaration(case.op)
    return known is not None and any(math.prod(operand.shape(case.params)) > 1 for operand in known.outputs)


def _troubles(run: Run, cases: Sequence[CaseResult]) -> tuple[tuple[Trouble, ...], tuple[Trouble, ...]]:
    """Wrong results, and what else broke: of each backend the first detail stands for its ops."""
    checks = {one.id: one.check for one in run.outcomes if isinstance(one, Failure)}
    alive = {row.case.backend for row in cases if row.time is not None}
    wrong: dict[str, list[CaseResult]] = {}
    broken: dict[str, list[CaseResult]] = {}
    for row in cases:
        if row.outcome == "failure":
            (wrong if row.reason == "wrong-result" else broken).setdefault(row.case.backend, []).append(row)

    def trouble(backend: str, rows: Sequence[CaseResult]) -> Trouble:
        check = checks.get(rows[0].id)
        detail = rows[0].detail or rows[0].reason or ""
        if check is not None and check.max_error is not None:
            detail = f"error {check.max_error:.2g}, limit {check.limit:.2g}"
        return Trouble(
            backend=backend, ops=tuple(sorted({row.case.op for row in rows})), detail=detail, hint=rows[0].hint or "",
            whole=backend not in alive,
        )  # fmt: skip

    return (
        tuple(trouble(backend, rows) for backend, rows in wrong.items()),
        tuple(trouble(backend, rows) for backend, rows in broken.items()),
    )
