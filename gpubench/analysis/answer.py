"""The content of the final screen of a run: for each op, the size from which one GPU backend pays, and the
gain. If nothing can be compared, it is the reason for that. The sentences are in
`report/sections/answer_text.py`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import (
    CALLS,
    CHECK_ONLY,
    HOST_STAGE,
    NO_SAMPLES,
    CaseResult,
    OfSeries,
    declaration,
    series_fields,
)
from gpubench.analysis.speedup import BreakEven, CpuCode, cpu_codes, earliest, fastest, pair_ratio
from gpubench.analysis.thresholds import ALWAYS, AnswerCell, SizeUnit, largest_error, size_unit_of, threshold
from gpubench.base import group_by
from gpubench.result.case import ON_REQUEST, QUEUED, WAITED, Case, SeriesKey
from gpubench.result.run import Failure, Run

NEAR_BEST = 1.1  # a backend is near the best if its speedup is at most this factor below the highest one
FEWEST_OPS = 4  # with fewer ops a median is not meaningful
# If there is no GPU, the CPU's implementations are compared at the sizes nearest to these, in elements.
IMPLEMENTATION_SIZES = (2**13, 2**20, 2**24)


class AnswerRow(OfSeries, frozen=True, kw_only=True):
    """One op on one GPU, or on several GPUs of the same model whose results do not differ."""

    device_id: str  # the id of the GPU
    cells: dict[str, AnswerCell]  # the size from which the GPU pays, by regime id
    size_unit: SizeUnit  # the unit of the size (see `SizeUnit`)
    count: int = 1  # the number of GPUs that the row stands for

    def elements(self, n: int) -> int:
        """Return the number of elements of one array at size `n`, or `n` itself if sizes count rows, tokens
        or images."""
        return n * n if self.size_unit == "side" else n

    @property
    def on_host(self) -> bool:
        """Whether the op runs on the host in all situations, because no GPU can run it."""
        return all(cell.reason == HOST_STAGE for cell in self.cells.values())


class BestImplementation(OfSeries, frozen=True, kw_only=True):
    """The times of an op on the CPU at one size: plain NumPy, and the fastest implementation. The latter is
    given only if it is surely faster, or if plain NumPy was not measured."""

    n: int  # the size n of the op
    size_unit: SizeUnit  # the unit of the size (see `SizeUnit`)
    # the column of the table, as an index of IMPLEMENTATION_SIZES: that of the nearest size. For rows, tokens or
    # images: 0 for the smallest size, 1 for a middle one, 2 for the largest. Requested sizes have 0.
    place: int
    asked: bool  # whether the user requested this size
    plain_s: float | None  # the time of plain NumPy, in seconds; None: not measured
    allocates: bool  # whether plain NumPy allocates a new array for its result at every call
    device_id: str | None = None  # the device of the fastest implementation; None: plain NumPy is as good
    implementation: str = ""  # the fastest implementation
    best_s: float = 0.0  # the time of the fastest implementation, in seconds
    ratio: float | None = None  # `plain_s` / `best_s`; None: plain NumPy was not measured or is as good
    within: float = 0.0  # the largest relative error of `ratio`

    @property
    def elements(self) -> int:
        """The number of elements of one array."""
        return self.n * self.n if self.size_unit == "side" else self.n


class GpuTimes(OfSeries, frozen=True, kw_only=True):
    """The times of one op on one GPU at one size, for a run without a CPU time."""

    device_id: str  # the id of the GPU
    n: int  # the size n of the op
    size_unit: SizeUnit  # the unit of the size (see `SizeUnit`)
    asked: bool  # whether the user requested this size
    seconds: dict[str, float]  # the seconds of the fastest implementation, by regime id


class BestCode(msgspec.Struct, frozen=True, kw_only=True):
    """A user's function: its fastest code on the CPU, compared with its fastest code on the GPU."""

    op: str  # the name of the op
    dtype: str  # the dtype of the elements
    size_unit: SizeUnit  # the unit of the size (see `SizeUnit`)
    cpu: BestImplementation | None  # the fastest CPU code at the largest size; None: plain NumPy
    cells: dict[str, AnswerCell]  # the size from which the fastest GPU code pays, by regime id


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """The ops that failed on one backend, with the reason of the first failure."""

    backend: str  # the name of the backend
    ops: tuple[str, ...]  # the names of the failed ops
    detail: str  # the reason as text
    hint: str = ""  # the remedy
    whole: bool = False  # whether the backend has no time at all


# `checked`: outputs were checked and nothing was timed. `nothing`: no case has a time. `overheads`: only
# overheads have times. `no-cpu`: only GPUs have times. `hidden`: the GPU's cases are not among the shown cases.
# `not-asked`: the machine has a GPU, but no case of it was planned. `wrong`: the GPU computed wrong results.
# `no-time`: the GPU's cases have no time. `no-gpu`: the machine has no GPU.
AbsenceKind = Literal[
    "checked", "nothing", "overheads", "no-cpu", "hidden", "not-asked", "wrong", "no-time", "no-gpu"
]


class Absence(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a run has no times of a GPU and a CPU to compare."""

    kind: AbsenceKind  # the kind of reason
    causes: tuple[str, ...] = ()  # the reasons in the run, gravest first
    checked: int = 0  # the number of outputs that passed their check
    unchecked: int = 0  # the number of cases whose output was not checked


class MachineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the final screen of a run."""

    rows: tuple[AnswerRow, ...]  # one row for each op, dtype, params and GPU
    devices: tuple[str, ...]  # the ids of the shown GPUs, of one backend or of all
    others: tuple[str, ...]  # the other GPU backends that have times
    implementations: tuple[BestImplementation, ...]  # the best CPU implementations, if there are no rows
    times: tuple[GpuTimes, ...]  # the GPU's times, if only GPUs have times
    absence: Absence | None  # the reason why there are no rows; None if there are rows
    wrong: tuple[Trouble, ...]  # the ops whose outputs failed their check
    broken: tuple[Trouble, ...]  # the failed ops that `absence` does not explain
    named: bool  # whether the user requested the sizes of every op
    missing: tuple[str, ...]  # the ops that the run did not reach
    # op, size and unit of each requested size that the time budget did not reach
    late: tuple[tuple[str, int, SizeUnit], ...]
    unreached: int  # the number of cases that the run did not reach
    ops: int  # the number of ops, with those in `missing`
    host: tuple[BestImplementation, ...] = ()  # the CPU's times of the ops that no GPU can run
    cpu: tuple[CpuCode, ...] = ()  # the code that computed the CPU's times, the most frequent first
    best_code: tuple[BestCode, ...] = ()  # the users' functions for which other code is faster

    @property
    def regimes(self) -> tuple[str, ...]:
        """The ids of the regimes that the table shows: waited (or queued), copied, and those measured on
        request only. Without any of these, up to two measured ones are shown."""
        measured = set().union(*(entry.cells for entry in self.rows))
        home = WAITED if WAITED in measured or QUEUED not in measured else QUEUED
        shown = [regime for regime in (home, ALWAYS, *ON_REQUEST) if regime in measured]
        return tuple(shown or sorted(measured)[:2])

    @property
    def first(self) -> list[AnswerRow]:
        """The rows of the first GPU."""
        return [entry for entry in self.rows if entry.device_id == self.devices[0]]

    @property
    def queued_gain(self) -> float | None:
        """The factor by which queued calls pay from smaller sizes than waited calls, as a median over the rows.
        It is None if fewer than FEWEST_OPS rows have both break-evens."""
        pairs = [(_size(entry, WAITED), _size(entry, QUEUED)) for entry in self.rows]
        ratios = [waited / queued for waited, queued in pairs if waited and queued]
        return statistics.median(ratios) if len(ratios) >= FEWEST_OPS else None


def answer(
    analysis: Analysis, *, by_device: bool = False, backend: str | None = None, thresholds: bool = True
) -> MachineAnswer:
    """Return the content of the final screen. `by_device` shows every GPU backend. `backend` is shown in place
    of the fastest one, if it was compared with a CPU. Without `thresholds`, the cells hold gains only, which
    takes little time."""
    run, cases = analysis.run, op_cases(analysis)
    curves = analysis.break_even if thresholds else analysis.points
    ranked = _rank_backends(curves)
    ranked.sort(key=lambda name: name != backend)
    shown = ranked if by_device else ranked[:1]
    compared = {curve.device_id: curve.case.backend for curve in curves}
    devices = sorted(
        (device_id for device_id, backend in compared.items() if backend in shown),
        key=lambda device_id: (shown.index(compared[device_id]), device_id),
    )
    rows = [entry for device_id in devices for entry in answer_rows(curves, cases, device_id)]
    rows = [entry for entry in rows if not entry.on_host]
    rows.sort(
        key=lambda entry: (entry.op, entry.dtype, sorted(entry.params.items()), devices.index(entry.device_id))
    )
    staying = {case.case.op for case in cases if case.reason == HOST_STAGE}
    missing = _missing(analysis, cases)
    without = None if rows else absence(run, analysis.cases)
    gpus_alone = without is not None and without.kind == "no-cpu"
    timed = [case for case in cases if case.time is not None]
    failures = [case for case in cases if case.outcome == "failure"]
    return MachineAnswer(
        rows=_merge_like(run, rows), devices=tuple(devices), others=tuple(ranked[len(shown):]), absence=without,
        implementations=_implementations(run, timed) if without is not None and not gpus_alone else (),
        times=tuple(_gpu_times(run, timed)) if gpus_alone else (),
        wrong=_troubles(run, timed, [case for case in failures if case.reason == "wrong-result"]),
        broken=_troubles(run, timed, [case for case in failures if case.reason != "wrong-result"]),
        missing=tuple(sorted(missing)), late=_late(run, cases, missing),
        unreached=sum(case.outcome == "planned" for case in cases),
        ops=len({case.case.op for case in cases} | missing),
        named=bool(rows) and all(run.selection.sizes.get(entry.op) for entry in rows),
        host=_implementations(run, [case for case in timed if case.case.op in staying], largest=True) if rows else (),
        cpu=cpu_codes(run, held_against(curves, devices) or timed),
        best_code=tuple(_best_code(run, timed, analysis.best_code)),
    )  # fmt: skip


def op_cases(analysis: Analysis) -> list[CaseResult]:
    """Return the shown cases of ops, without variants, overheads and collectives."""
    return [case for case in analysis.cases if case.case.group not in CALLS and case.case.variant is None]


def _best_code(run: Run, timed: Sequence[CaseResult], curves: Sequence[BreakEven]) -> Iterable[BestCode]:
    """Yield the users' functions for which other code than the user's is the fastest on the CPU or on a GPU."""
    for (op, dtype), own in group_by(curves, lambda curve: (curve.op, curve.dtype)).items():
        implementations = _implementations(
            run, [case for case in timed if (case.case.op, case.case.dtype) == (op, dtype)]
        )
        cpu = implementations[-1] if implementations and implementations[-1].ratio is not None else None
        if cpu is not None or any(curve.case.implementation != "library" for curve in own):
            best = {
                regime: earliest(curve for curve in own if curve.regime == regime)
                for regime in (WAITED, ALWAYS)
            }
            cells = {regime: threshold(curve) for regime, curve in best.items() if curve}
            yield BestCode(op=op, dtype=dtype, size_unit=size_unit_of(own[0].case), cpu=cpu, cells=cells)


def held_against(curves: Iterable[BreakEven], devices: Collection[str]) -> list[CaseResult]:
    """Return the baselines of these devices' speedups, one for each speedup."""
    return [point.baseline for curve in curves if curve.device_id in devices for point in curve.points]


def _missing(analysis: Analysis, cases: Sequence[CaseResult]) -> set[str]:
    """Return the ops that have no time because the run did not reach them."""
    run = analysis.run
    missing = {case.case.op for case in cases if case.outcome == "planned" or out_of_budget(run, case)}
    # requested, but never planned at a size that memory holds
    if len(analysis.cases) == len(run.outcomes) and not (run.selection.filter or run.selection.skip):
        missing |= {*run.selection.ops} - {
            outcome.case.op
            for outcome in run.outcomes
            if run.selection.sizes.get(outcome.case.op) or getattr(outcome, "reason", "") != "out-of-memory"
        }
    return missing - {case.case.op for case in cases if case.time is not None}


def _late(
    run: Run, cases: Sequence[CaseResult], missing: Collection[str]
) -> tuple[tuple[str, int, SizeUnit], ...]:
    late = {
        (case.case.op, case.n, size_unit_of(case.case))
        for case in cases
        if case.case.op not in missing and run.selection.sizes.get(case.case.op) and out_of_budget(run, case)
    }
    return tuple(sorted(late))


def _rank_backends(curves: Sequence[BreakEven]) -> list[str]:
    """Return the GPU backends. First comes the one that is near the best in the most cells (series and
    regime)."""
    cells = group_by(curves, lambda curve: (curve.case.series, curve.regime))
    common = [key for key in cells if key[1] in (WAITED, ALWAYS)] or list(cells)
    counts = {curve.case.backend: 0 for curve in curves}
    for key in common:
        sizes = [{point.n for point in curve.points} for curve in cells[key]]
        # Ratios are compared at one size: the largest of those that the most curves have.
        n = max(set().union(*sizes), key=lambda n: (sum(n in measured for measured in sizes), n))
        ratios: dict[str, float] = {}
        for point in (point for curve in cells[key] for point in curve.points if point.n == n):
            backend = point.case.case.backend
            ratios[backend] = max(ratios.get(backend, point.ratio), point.ratio)
        for backend, ratio in ratios.items():
            counts[backend] += ratio * NEAR_BEST >= max(ratios.values())
    return sorted(counts, key=lambda backend: -counts[backend])


def answer_rows(
    break_even: Sequence[BreakEven], cases: Sequence[CaseResult], device_id: str
) -> Iterable[AnswerRow]:
    """Yield a row for each series with a measured, failed or skipped case on this device. It has one cell
    per regime."""
    curves = {curve.case.cell: curve for curve in break_even}
    tried = (case for case in cases if case.case.device_id == device_id and case.outcome != "planned")
    for of_op in group_by(tried, lambda case: case.case.series).values():
        case = of_op[0].case
        by_cell = group_by(of_op, lambda case: case.case.cell)
        yield AnswerRow(
            **series_fields(case), device_id=device_id,
            cells={cell[2]: threshold(curves.get(cell), members) for cell, members in by_cell.items()},
            size_unit=size_unit_of(case),
        )  # fmt: skip


def _merge_like(run: Run, rows: Sequence[AnswerRow]) -> tuple[AnswerRow, ...]:
    """Merge the rows of GPUs of one backend and model whose intervals overlap in every cell."""
    gpus = {device.id: device for device in run.devices}

    def are_like(a: AnswerRow, b: AnswerRow) -> bool:
        gpu, other = gpus.get(a.device_id), gpus.get(b.device_id)
        return (
            gpu is not None
            and other is not None
            and (a.op, a.dtype, a.params) == (b.op, b.dtype, b.params)
            and (gpu.backend, gpu.name) == (other.backend, other.name)
            # no two adapters of the same physical GPU
            and not (gpu.gpu_id and gpu.gpu_id == other.gpu_id)
            and a.cells.keys() == b.cells.keys()
            and all(_overlap(a.cells[regime], b.cells[regime]) for regime in a.cells)
        )

    merged: list[AnswerRow] = []
    for entry in rows:
        same = next((i for i, other in enumerate(merged) if are_like(other, entry)), None)
        if same is None:
            merged.append(entry)
        else:
            merged[same] = msgspec.structs.replace(merged[same], count=merged[same].count + 1)
    return tuple(merged)


def _overlap(a: AnswerCell, b: AnswerCell) -> bool:
    if a.gain is None or b.gain is None:
        return a == b
    if a.gain.n != b.gain.n or a.gain.low > b.gain.high or b.gain.low > a.gain.high:
        return False
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return (a.kind, a.low, a.high, a.reason) == (b.kind, b.low, b.high, b.reason)
    return a.low <= b.high and b.low <= a.high and a.mixed == b.mixed


def _size(entry: AnswerRow, regime: str) -> int | None:
    cell = entry.cells.get(regime)
    return cell.n if cell is not None and cell.kind in ("at", "range") else None


def _implementations(
    run: Run, timed: Sequence[CaseResult], *, largest: bool = False
) -> tuple[BestImplementation, ...]:
    """Return the best CPU implementation of each op, dtype and params at the requested sizes, or else at some
    measured ones. `largest` means only the largest of these."""
    implementations = []
    on_cpu = group_by((case for case in timed if case.device_kind == "cpu"), lambda case: case.case.series)
    for (op, *_), cases in on_cpu.items():
        by_size = group_by(cases, lambda case: case.n)
        plain = {
            case.n: case
            for case in cases
            if case.case.implementation == "library" and case.case.backend == "numpy"
        }
        sizes = sorted(plain or by_size)
        named = bool(run.selection.sizes.get(op))
        places = (
            dict.fromkeys(sizes, 0) if named else _near_implementation_sizes(sizes, size_unit_of(cases[0].case))
        )
        chosen = list(places.items())[-1:] if largest and not named else places.items()
        implementations += [
            _best_implementation(plain.get(n), by_size[n], place, named=named) for n, place in chosen
        ]
    return tuple(
        sorted(
            implementations,
            key=lambda implementation: (implementation.op, implementation.dtype, implementation.n),
        )
    )


def _near_implementation_sizes(sizes: Sequence[int], kind: SizeUnit) -> dict[int, int]:
    """Choose a few of the ascending `sizes`, the largest at least, each with the index of its column in a table."""
    *places, last = range(len(IMPLEMENTATION_SIZES))
    if kind == "plain":
        return {sizes[0]: 0, sizes[len(sizes) // 2]: 1} | {sizes[-1]: last}

    def distance(n: int, place: int) -> float:
        return abs(math.log((n * n if kind == "side" else n) / IMPLEMENTATION_SIZES[place]))

    nearest: dict[int, int] = {}
    for n in sizes:
        place = min((last, *places), key=lambda place: distance(n, place))
        if place not in nearest or distance(n, place) < distance(nearest[place], place):
            nearest[place] = n
    chosen = {n: place for place, n in nearest.items()}
    if last not in nearest:
        chosen.setdefault(sizes[-1], last)
    return chosen


def _best_implementation(
    plain: CaseResult | None, cases: Sequence[CaseResult], place: int, *, named: bool
) -> BestImplementation:
    best = fastest(cases)
    assert best is not None, "there is a time at each size"
    assert best.time is not None
    case, ratio = best.case, None
    implementation = BestImplementation(
        **series_fields(case), n=case.n, size_unit=size_unit_of(case),
        place=place, asked=named, allocates=plain is not None and _makes_an_array(case),
        plain_s=plain.time.estimate if plain and plain.time else None,
    )  # fmt: skip
    if plain is not None:
        ratio = pair_ratio(plain, best)
        if best is plain or ratio is None or ratio.low <= 1:
            return implementation
    return msgspec.structs.replace(
        implementation, device_id=case.device_id, implementation=case.implementation, best_s=best.time.estimate,
        ratio=ratio and ratio.estimate, within=largest_error(*ratio[:3]) if ratio else 0.0,
    )  # fmt: skip


def _makes_an_array(case: Case) -> bool:
    """Tell whether an output of the op is known to have more than one element."""
    op = declaration(case.op)
    return op is not None and any(math.prod(operand.shape(case.params)) > 1 for operand in op.outputs)


def _gpu_times(run: Run, timed: Sequence[CaseResult]) -> Iterable[GpuTimes]:
    """Yield the times of each series on each GPU, at all requested sizes or the largest one."""
    gpu = [case for case in timed if case.device_kind == "gpu"]
    largest: dict[tuple[SeriesKey, str], int] = {}
    for case in gpu:
        key = case.case.series, case.case.device_id
        largest[key] = max(case.n, largest.get(key, case.n))
    named = {case.case.op for case in gpu if run.selection.sizes.get(case.case.op)}
    shown = (
        case for case in gpu
        if case.case.op in named or case.n == largest[case.case.series, case.case.device_id]
    )  # fmt: skip
    rows = group_by(shown, lambda case: (case.case.series, case.n, case.case.device_id))
    for (_, n, device_id), cases in sorted(rows.items(), key=lambda item: item[0]):
        by_regime = group_by(cases, lambda case: case.case.regime_id)
        best = {regime: fastest(same) for regime, same in by_regime.items()}
        yield GpuTimes(
            **series_fields(cases[0].case), device_id=device_id, n=n, size_unit=size_unit_of(cases[0].case),
            asked=cases[0].case.op in named,
            seconds={regime: case.time.estimate for regime, case in best.items() if case and case.time},
        )  # fmt: skip


def _troubles(run: Run, timed: Sequence[CaseResult], failures: Sequence[CaseResult]) -> tuple[Trouble, ...]:
    """Group the failures by backend, with the detail of the backend's first one."""
    checks = {outcome.id: outcome.check for outcome in run.outcomes if isinstance(outcome, Failure)}
    alive = {case.case.backend for case in timed}
    troubles = []
    for backend, cases in group_by(failures, lambda case: case.case.backend).items():
        first, check = cases[0], checks.get(cases[0].id)
        detail = first.detail or first.reason or ""
        if check is not None and check.max_error is not None:
            detail = f"error {check.max_error:.2g}, limit {check.limit:.2g}"
        ops = tuple(sorted({case.case.op for case in cases}))
        troubles.append(
            Trouble(
                backend=backend, ops=ops, detail=detail, hint=first.hint or "", whole=backend not in alive,
            )
        )  # fmt: skip
    return tuple(troubles)


# ---------------------------------------------------------------- why there is nothing to compare

OUT_OF_TIME = "the time budget was used up first"
# Reasons of skips that every plan has. They explain an absence only if no other reason does.
_USUAL = frozenset({"no-implementation", "no-dtype", "no-transfer"})


def absence(run: Run, shown: Sequence[CaseResult]) -> Absence:
    """Return the reason why none of the `shown` cases has a speedup over the CPU."""
    cases = [case for case in shown if case.case.group not in CALLS]
    timed = [case for case in cases if case.time is not None]
    if not timed:
        return _nothing(run, shown, cases)
    if any(case.device_kind == "gpu" for case in timed):
        return Absence(kind="no-cpu")
    others = [case for case in cases if case.device_kind != "cpu"]
    if not others and _left_out(run, shown):
        return Absence(kind="hidden")
    if any(case.reason == "wrong-result" for case in others):
        return Absence(kind="wrong")
    # Failed cases are in other lines of the screen.
    causes = tuple(_reasons(run, [case for case in others if case.time is None and case.outcome != "failure"]))
    gpus = {device.id for device in run.devices if device.kind == "gpu" and not device.composed}
    if any(case.case.device_id in gpus for case in others):
        return Absence(kind="no-time", causes=causes)
    return Absence(kind="not-asked" if run.machine.gpus or gpus else "no-gpu", causes=causes)


def _nothing(run: Run, shown: Sequence[CaseResult], ops: Sequence[CaseResult]) -> Absence:
    overheads = any(case.time is not None for case in shown)
    cases = ops if overheads else shown
    if checked := sum(case.reason == CHECK_ONLY for case in cases):
        unchecked = sum(case.outcome == "planned" or out_of_budget(run, case) for case in shown)
        return Absence(kind="checked", checked=checked, unchecked=unchecked)
    causes = _reasons(run, cases)
    unfiltered = not (run.selection.filter or run.selection.skip)
    if not run.outcomes and run.settings.budget_s is not None and unfiltered:
        # Nothing was even planned.
        causes = ["it was interrupted" if run.exit_reason == "interrupted" else OUT_OF_TIME]
    if not overheads:
        causes = causes or _absent(run) or ["no case was planned"]
    return Absence(kind="overheads" if overheads else "nothing", causes=tuple(causes))


def _reasons(run: Run, cases: Sequence[CaseResult]) -> list[str]:
    """Return the reasons why these cases have no time, gravest first."""
    budget = [case for case in cases if out_of_budget(run, case)]
    failed = [case for case in cases if case.outcome == "failure"]
    planned = [case for case in cases if case.outcome == "planned"]
    explained = {case.case.device_id for case in (*budget, *failed, *planned)}
    others = [case for case in cases if case.case.device_id not in explained and case.time is None]
    others.sort(key=lambda case: (case.outcome == "skip", case.reason in _USUAL))
    early = "the run was interrupted" if run.exit_reason == "interrupted" else "the run ended early"
    return [
        *([OUT_OF_TIME] if budget else []), *_of_each_device(failed), *([early] if planned else []),
        *_of_each_device(others),
    ]  # fmt: skip


def out_of_budget(run: Run, case: CaseResult) -> bool:
    """Tell whether the case has no time because the run's time budget ended first."""
    return case.reason == "budget" or (case.reason == NO_SAMPLES and run.exit_reason == "budget")


def _of_each_device(cases: Iterable[CaseResult]) -> list[str]:
    """Return the first reason of each device, as `device: reason`."""
    return _name_first(
        (
            case.case.device_id,
            f"{(case.detail or case.reason or '').rstrip('.')}; {case.hint or ''}".strip("; "),
        )
        for case in cases
    )


def _absent(run: Run) -> list[str]:
    """Return the run's warnings about backends that are unavailable or only software, as `name: message`."""
    codes = ("unavailable", "software-device")
    messages = [warning.message for warning in run.warnings if warning.code in codes and warning.id is None]
    return _name_first((" ".join(message.split()).partition(":")[0], message) for message in messages)


def _name_first(texts: Iterable[tuple[str, str]]) -> list[str]:
    """Return `name: text` for each name in the pairs (name, text), with the name's first text."""
    first: dict[str, str] = {}
    for name, text in texts:
        first.setdefault(name, " ".join(text.split()))
    return [text if text.startswith(f"{name}:") else f"{name}: {text}" for name, text in first.items()]


def _left_out(run: Run, cases: Sequence[CaseResult]) -> bool:
    """Tell whether the run has cases on other devices than CPUs that are not among `cases`."""
    shown = {case.id for case in cases}
    others = {device.id for device in run.devices if device.kind != "cpu"}
    return any(outcome.id not in shown and outcome.case.device_id in others for outcome in run.outcomes)
