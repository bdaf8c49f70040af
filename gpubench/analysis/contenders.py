"""The contenders for a call of one op, and the choice among them at a size.

A contender is one implementation on one device. Its time over the size is its curve (gpubench/curves). At a
measured size, the measured time is used. Outside the measured sizes there is no answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from gpubench.analysis.analyse import analyse
from gpubench.analysis.estimate import CALLS, CaseResult
from gpubench.analysis.hybrid import SharedCall, shared_calls
from gpubench.analysis.samples import Label
from gpubench.analysis.speedup import ContenderKey, case_series, contender_key, ids_beside
from gpubench.base import group_by
from gpubench.base.errors import UsageError, suggest
from gpubench.curves import TimeCurve, TimedSizes, fastest, fit, interval, kind_of, unsure
from gpubench.curves.stats import Interval, IntervalLike, weaker
from gpubench.kernels.contract.op import Implementation
from gpubench.result.case import MAPPED, QUEUED, RESIDENT, SITUATIONS, WAITED, parse_situation
from gpubench.result.run import DeviceKind, Run

# The reason of a case that did not fit in the device's memory. Larger sizes do not fit either.
NO_ROOM = "out-of-memory"
# `bracketed` occurs only in older documents.
Basis = Literal["measured", "interpolated", "bracketed", "unknown"]


class Key(NamedTuple):
    """The op, dtype and params that the calls of one curve have in common."""

    op: str  # the name of the op
    dtype: str  # the dtype of the elements
    params: tuple[tuple[str, int], ...] = ()  # the params other than the size, sorted by name


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The expected time of a call, and the evidence for it."""

    time: IntervalLike  # the time with its interval
    basis: Basis  # whether the time is measured or interpolated
    # the measured sizes below and above this size; both are this size if it was measured
    between: tuple[int, int]
    rows: tuple[CaseResult, ...]  # the cases behind the time

    @property
    def measured(self) -> bool:
        """Whether the time was measured, and not interpolated."""
        return self.basis == "measured"

    @property
    def labels(self) -> frozenset[Label]:
        """The labels of the cases behind the time, without `ok`."""
        return frozenset(case.label for case in self.rows if case.label is not None and case.label != "ok")


class Contender(NamedTuple):
    """One implementation on one device, with its measured times."""

    device_id: str  # the id of the device
    implementation: Implementation  # the name of the implementation
    kind: DeviceKind  # the kind of the device
    points: dict[int, Expected]  # the times at the measured sizes, by ascending size
    curve: TimeCurve  # the curve through the points

    @property
    def first(self) -> int:
        """The smallest measured size."""
        return next(iter(self.points))

    @property
    def last(self) -> int:
        """The largest measured size."""
        return next(reversed(self.points))

    def seconds(self, n: int) -> float | None:
        """Return the expected time at n in seconds: the measured time, else the time of the curve. Returns None
        outside the measured sizes."""
        point = self.points.get(n)
        if point is not None:
            return point.time.estimate
        x = math.log(n)
        inside = self.curve.first < x < self.curve.last
        # corrected by the measured sizes near n
        return math.exp(self.curve.mean(x) + self.curve.pull(x)) if inside else None

    def is_timed_at(self, n: int) -> bool:
        """Tell whether the time at n was measured, and not interpolated."""
        point = self.points.get(n)
        return point is not None and point.measured

    def expect(self, n: int) -> Expected | None:
        """Return the expected time at n with its interval and evidence, or None outside the measured sizes."""
        seconds = self.seconds(n)
        if n in self.points or seconds is None:
            return self.points.get(n)
        low, high = max(size for size in self.points if size < n), min(size for size in self.points if size > n)
        time = Interval(*interval(self.curve, math.log(n)), "prior")
        return Expected(
            time=time.around(seconds), basis="interpolated", between=(low, high),
            rows=(*self.points[low].rows, *self.points[high].rows),
        )  # fmt: skip


class CaseGroup(NamedTuple):
    """The cases of one op and dtype (and params other than the size)."""

    rows: tuple[CaseResult, ...]  # the cases on single devices
    splits: tuple[SharedCall, ...]  # the splits and stage assignments that the report recommends
    # the times of all contenders of the run, for all ops, because curves of different ops are fitted together
    series: Mapping[ContenderKey, TimedSizes]


class ContenderSet(NamedTuple):
    """The contenders for calls of one op, dtype, params and regime, and the sizes at which they can
    be compared."""

    run: Run  # the run that measured them
    rows: tuple[CaseResult, ...]  # the cases of the op
    cpu: tuple[Contender, ...]  # the contenders on the CPU
    others: tuple[Contender, ...]  # the contenders on all other devices
    # the size from which no CPU has enough memory; 0: nothing ever ran on a CPU; infinity: no size was too large
    cpu_gone_from: float
    others_gone_from: float  # like `cpu_gone_from`, for all other devices
    splits: Mapping[int, Sequence[SharedCall]]  # the recommended splits by measured size, the fastest first
    # the smallest and the largest size at which both sides can be compared; if there is no such size, the first
    # number is larger than the second
    shared: tuple[float, float]
    # the ranges of sizes in which no choice is safe: each may cost too much time
    unsure: tuple[tuple[float, float], ...]

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """The contenders of both sides."""
        return (*self.cpu, *self.others)


class Decision(NamedTuple):
    """The fastest contender at one size, and the fastest contender of the other side (CPU or other devices)."""

    best: Contender | None = None  # the fastest contender; None: unknown
    seconds: float = math.inf  # the time of the fastest contender
    against: Contender | None = None  # the fastest contender of the other side; None: unknown
    against_s: float = math.inf  # the time of the other side's fastest contender

    def basis(self, n: int) -> Basis:
        """Return `measured` if the chosen contender, and the other side's if there is one, were measured at
        size `n`. Returns `unknown` without a choice, else `interpolated`."""
        if self.best is None:
            return "unknown"
        exact = self.best.is_timed_at(n) and (self.against is None or self.against.is_timed_at(n))
        return "measured" if exact else "interpolated"


def case_groups(run: Run) -> dict[Key, CaseGroup]:
    """Return the cases that advice can use, in a group for each op, dtype and params that has a time. It uses no
    variants, overheads, collectives or software adapters, and no compiled code of a user's function that runs as
    written on both a CPU and a GPU."""
    analysis = analyse(run)
    rows = [case for case in analysis.everything if case.case.variant is None and case.case.group not in CALLS]
    # A caller has the function as it is written, for each library, but has no compiled code of it.
    beside = ids_beside(rows)
    alone = [
        case
        for case in rows
        if case.case.shared_with is None and case.device_kind != "software"
        and (case.id not in beside or case.case.implementation == "library")
    ]  # fmt: skip
    shared = shared_calls(analysis)
    splits = group_by((split for split in shared if split.recommended), lambda split: split.case.case.series)
    series = case_series(alone)
    return {
        Key(*key): CaseGroup(tuple(members), tuple(splits.get(key, ())), series)
        for key, members in group_by(alone, lambda case: case.case.series).items()
        if any(map(has_time, members))
    }


def contender_set(run: Run, group: CaseGroup, regime: str) -> ContenderSet:
    """Return the contender set of the cases in `group` for calls of this regime (by id)."""
    return compete(run, group, regime, list(contenders(group, regime)))


def compete(run: Run, group: CaseGroup, regime: str, contenders: Sequence[Contender]) -> ContenderSet:
    """Return the contender set for calls of this regime (by id), with the splits that were timed in this
    regime. `contenders` are all or some of those that the function `contenders` yields."""
    cpu = tuple(contender for contender in contenders if contender.kind == "cpu")
    others = tuple(contender for contender in contenders if contender.kind != "cpu")
    by_device = group_by(group.rows, lambda case: (case.device_kind == "cpu", case.case.device_id))
    gone = {key: _gone_from(rows, RESIDENT if key[0] else regime) for key, rows in by_device.items()}
    cpu_gone, others_gone = (
        max((n for key, n in gone.items() if key[0] is on_cpu), default=0) for on_cpu in (True, False)
    )
    shared = _shared_sizes(cpu, others, {key[1] for key, n in gone.items() if n < math.inf and not key[0]})
    splits = [split for split in group.splits if split.regime == regime]
    splits.sort(key=lambda split: (split.seconds, split.device_id))
    return ContenderSet(
        run, group.rows, cpu, others, cpu_gone, others_gone, group_by(splits, lambda split: split.n), shared,
        unsure([contender.curve for contender in contenders], *shared),
    )  # fmt: skip


def _shared_sizes(
    cpu: Sequence[Contender], others: Sequence[Contender], without_room: set[str]
) -> tuple[float, float]:
    """Return the smallest and the largest size at which both sides can be compared. Without such a size, the
    first number is larger than the second."""
    both = (*cpu, *others)
    lows = [min((contender.first for contender in side), default=math.inf) for side in (cpu, others)]
    highs = [max((contender.last for contender in side), default=-math.inf) for side in (cpu, others)]
    # Beyond the sizes of a contender that is the fastest at their end, it may still be the fastest.
    lows += [item.first for item in both if fastest(both, item.first)[0] is item]
    highs += [
        item.last for item in both if item.device_id not in without_room and fastest(both, item.last)[0] is item
    ]
    return max(lows), min(highs)


def choose(contender_set: ContenderSet, n: int) -> Decision:
    """Return the fastest contender at size `n`, and the fastest of the other side. The decision is empty if the
    choice is too uncertain, or if `n` lies outside the common sizes of both sides. A side whose memory is too
    small for `n` needs no time."""
    cpu, cpu_s = fastest(contender_set.cpu, n)
    other, other_s = fastest(contender_set.others, n)
    if cpu is not None and other is not None:
        low, high = contender_set.shared
        if not low <= n <= high or is_unsure(contender_set, n, cpu, other):
            return Decision()
        return Decision(other, other_s, cpu, cpu_s) if other_s < cpu_s else Decision(cpu, cpu_s, other, other_s)
    if cpu is not None and n >= contender_set.others_gone_from:
        return Decision(cpu, cpu_s)
    if other is not None and n >= contender_set.cpu_gone_from:
        return Decision(other, other_s)
    return Decision()


def is_unsure(contender_set: ContenderSet, n: int, *fastest: Contender) -> bool:
    """Tell whether no contender is a safe choice at size `n`: each may cost too much time. Returns False if all
    contenders in `fastest` have a time at `n`."""
    if all(n in contender.points for contender in fastest):
        return False
    return any(low <= n <= high for low, high in contender_set.unsure)


def split_of(contender_set: ContenderSet, n: int, decision: Decision) -> SharedCall | None:
    """Return the fastest recommended split at size `n` that is faster than the choice of `decision`. If the
    choice is a GPU, splits of other GPUs are ignored. Returns None without such a split, or without a choice."""
    best = decision.best
    if best is None:
        return None
    for split in contender_set.splits.get(n, ()):
        if best.kind == "cpu" or best.device_id == split.case.case.shared_with:
            return split if split.seconds < decision.seconds else None
    return None


def first_to_know(sets: Iterable[ContenderSet], n: int) -> tuple[ContenderSet, Decision] | None:
    """Return a set with its decision: the first that compares both sides at `n`, else the first that chooses a
    device there, else the first. `sets` go from the newest run to the oldest, and are read as far as needed.
    Returns None without sets."""
    best: tuple[ContenderSet, Decision] | None = None
    for contender_set in sets:
        decision = choose(contender_set, n)
        if decision.against is not None:
            return contender_set, decision
        if best is None or (decision.best is not None and best[1].best is None):
            best = contender_set, decision
    return best


def has_time(case: CaseResult) -> bool:
    return case.time is not None


def contenders(group: CaseGroup, regime: str) -> Iterator[Contender]:
    """Yield a contender for each pair of device and implementation that has a time for calls of this regime
    (by id)."""
    by_implementation = group_by(
        filter(has_time, group.rows),
        lambda case: (case.case.device_id, case.case.implementation, case.device_kind),
    )
    series, points = dict(group.series), {}
    for (device_id, implementation, kind), rows in sorted(by_implementation.items()):
        # A CPU's data is at home, so its one time counts for every regime.
        own = RESIDENT if kind == "cpu" else regime
        calls: dict[int, Expected] = {}
        for n, cases in sorted(group_by(rows, lambda case: case.n).items()):
            point = call_time({case.case.regime_id: case for case in cases}, own)
            calls |= {n: point} if point is not None else {}
        if not calls:
            continue
        key = contender_key(next(iter(calls.values())).rows[0].case)
        if not all(point.measured for point in calls.values()):
            key = (key[0], device_id, implementation, regime)
            series[key] = TimedSizes(kind_of(kind, regime), {n: _blocks(point) for n, point in calls.items()})
        points[key] = (device_id, implementation, kind, calls)
    curves = fit(series, points.__contains__)
    for key, place in points.items():
        yield Contender(*place, curves[key])


def _blocks(point: Expected) -> list[Sequence[float]]:
    """Return the blocks of a call, or one block with the expected time if it is interpolated."""
    return list(point.rows[0].blocks.values()) if point.measured else [[point.time.estimate]]


def _gone_from(rows: Sequence[CaseResult], regime: str) -> float:
    """Return the size from which the device's memory is too small: 0 if nothing ever ran there, infinity if no
    size was too large."""
    largest = max((case.n for case in rows if has_time(case)), default=None)
    if largest is None:
        return 0
    kind = "transfer-once" if calls_of(regime) else regime  # the number of calls does not change the memory
    full = (case.n for case in rows if case.reason == NO_ROOM and case.case.regime == kind and case.n > largest)
    return min(full, default=math.inf)


RegimeCases = Mapping[str, CaseResult]  # the cases of one device, implementation and size, by regime id


def calls_of(regime: str) -> int | None:
    """Return N, the number of calls that share a copy, for the regime `transfer-once-N`. Returns None for
    other regimes."""
    head, _, count = regime.rpartition("-")
    return int(count) if head == "transfer-once" and count.isdecimal() else None


def situation_regime(situation: str) -> str:
    """Return the id of the regime that `situation` names, by a word of the glossary or by an id. `resident`
    means a waited call, and one call a copy is `transfer-always`. Raises UsageError for any other text."""
    regime = parse_situation(str(situation))
    if regime == RESIDENT:
        return WAITED
    if regime in SITUATIONS.values() or calls_of(regime):
        return "transfer-always" if calls_of(regime) == 1 else regime
    raise UsageError(
        "unknown-regime", f"there is no situation {regime!r}",
        why=f"known: {', '.join(SITUATIONS)}, and the ids {', '.join(SITUATIONS.values())}",
        hint=suggest(regime, [*SITUATIONS, *SITUATIONS.values()]) or None,
    )  # fmt: skip


def call_time(regimes: RegimeCases, regime: str) -> Expected | None:
    """Return the time of one call of this regime (by id), measured or interpolated, or None if it is unknown.

    N calls that share a copy cost T(N) = a + b N. So the time of one call, T(N) / N, is a straight line over
    1/N. It is interpolated between the nearest two measured points of this line (`_anchors`).
    """
    exact = regimes.get(regime)
    if regime.startswith("transfer") and not any(name.startswith("transfer") for name in regimes):
        exact = regimes.get(MAPPED)  # a GPU whose memory is the host's copies nothing
    if exact is not None and exact.time is not None:
        return Expected(time=exact.time, basis="measured", between=(exact.n, exact.n), rows=(exact,))
    calls = calls_of(regime)
    if calls is None:
        return None
    anchors = sorted(_anchors(regimes), key=lambda anchor: anchor[0])
    below = [anchor for anchor in anchors if anchor[0] < 1 / calls]
    above = [anchor for anchor in anchors if anchor[0] > 1 / calls]
    if not below or not above:
        return None
    (u0, t0, first), (u1, t1, second) = below[-1], above[0]
    weight = (1 / calls - u0) / (u1 - u0)
    low, middle, high = (a + (b - a) * weight for a, b in zip(t0[:3], t1[:3], strict=True))
    time = Interval(low, middle, high, weaker(t0.kind, t1.kind))
    return Expected(time=time, basis="interpolated", between=(first.n, first.n), rows=(first, second))


def _anchors(regimes: RegimeCases) -> Iterable[tuple[float, Interval, CaseResult]]:
    """Yield (1/N, time of one call, case) for each measured point of the line over 1/N: queued calls (1/N = 0),
    calls that share a copy, and calls that each copy (1/N = 1)."""
    for case in regimes.values():
        assert case.time is not None
        time = Interval(case.time.low, case.time.estimate, case.time.high, case.time.kind)
        if case.case.regime == QUEUED:
            yield 0.0, time, case
        elif case.case.regime == "transfer-always":
            parts = case.time_breakdown
            # The allocation is kept if the parts do not add up to the time, or if no time would be left.
            if parts is not None and not parts.mismatch and parts.alloc_s < time.low:
                low, middle, high = (seconds - parts.alloc_s for seconds in time[:3])
                time = Interval(low, middle, high, time.kind)
            yield 1.0, time, case
        elif calls := calls_of(case.case.regime_id):
            yield 1 / calls, time, case
