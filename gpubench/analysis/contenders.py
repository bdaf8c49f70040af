"""The contenders for a call of one op and the winner at a size: the decision without its evidence, in microseconds.

A contender's time over the size is its curve (gpubench/curves), and nothing is said beyond the sizes at which it was
timed. At a measured size the measured time counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from gpubench.analysis.analyse import analyse
from gpubench.analysis.break_even import ContenderKey, case_series, contender_key
from gpubench.analysis.estimate import CALLS, CaseResult
from gpubench.analysis.hybrid import SharedCall, shared_calls
from gpubench.analysis.labels import Label
from gpubench.analysis.speedup import beside_written
from gpubench.base.groups import group_by
from gpubench.curves import TimeCurve, TimedSizes, fit, interval, kind_of, unsure
from gpubench.curves.stats import Interval, IntervalKind, IntervalLike
from gpubench.kernels.contract.op import Form
from gpubench.result.case import QUEUED, RESIDENT
from gpubench.result.run import DeviceKind, Run

# A size at which a device gave up for lack of room: all larger ones are none of its business either.
NO_ROOM = "out-of-memory"
Basis = Literal["measured", "interpolated", "bracketed", "unknown"]  # `bracketed`: of older documents alone


class Key(NamedTuple):
    """One family of curves; `params` are those beside the size, sorted by name."""

    op: str
    dtype: str
    params: tuple[tuple[str, int], ...] = ()


class TimedCall(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one call at one size. `rows` are the cases behind it; several where calls were interpolated."""

    n: int
    time: IntervalLike
    rows: tuple[CaseResult, ...]

    @property
    def measured(self) -> bool:
        """Whether the very call was timed."""
        return len(self.rows) == 1


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The expected time of a call. `between` are the measured sizes around it; at a measured size it stands twice."""

    time: IntervalLike
    basis: Basis
    between: tuple[int, int]
    rows: tuple[CaseResult, ...]

    @property
    def labels(self) -> frozenset[Label]:
        """The labels of the cases behind it, without `ok`."""
        return frozenset(row.label for row in self.rows if row.label is not None and row.label != "ok")


class Contender(NamedTuple):
    """One form on one device. `points`: the calls in question that were timed, by ascending size."""

    device_id: str
    form: Form
    kind: DeviceKind
    points: dict[int, TimedCall]
    curve: TimeCurve

    @property
    def first(self) -> int:
        """The smallest size."""
        return next(iter(self.points))

    @property
    def last(self) -> int:
        """The largest size."""
        return next(reversed(self.points))

    def seconds(self, n: int) -> float | None:
        """The expected time at n; None outside the measured sizes."""
        point = self.points.get(n)
        if point is not None:
            return point.time.estimate
        x = math.log(n)
        return math.exp(self.curve.mean(x)) if self.curve.first < x < self.curve.last else None

    def measured(self, n: int) -> bool:
        """Whether the very call was timed at n."""
        point = self.points.get(n)
        return point is not None and point.measured

    def around(self, n: int) -> tuple[int, int]:
        """The measured sizes below and above n; n twice if it is measured. n lies between the ends."""
        return max(size for size in self.points if size <= n), min(size for size in self.points if size >= n)

    def expected(self, n: int) -> Expected | None:
        """The expected time at n with its interval; None outside the measured sizes."""
        point = self.points.get(n)
        if point is not None:
            basis: Basis = "measured" if point.measured else "interpolated"
            return Expected(time=point.time, basis=basis, between=(n, n), rows=point.rows)
        if not self.first < n < self.last:
            return None
        low, middle, high = interval(self.curve, math.log(n))
        between = self.around(n)
        rows = tuple(itertools.chain(*(self.points[size].rows for size in between)))
        return Expected(
            time=Interval(low, middle, high, "prior"), basis="interpolated", between=between, rows=rows
        )


class CaseGroup(NamedTuple):
    """The cases of one key, and of its splits and placements those that the report recommends. `series`: the times of
    all contenders of the run, whose curves share what ops have in common."""

    rows: tuple[CaseResult, ...]
    splits: tuple[SharedCall, ...]
    series: Mapping[ContenderKey, TimedSizes]


class TimedSplit(NamedTuple):
    """A recommended split of one call, or placement of its stages, and the time of that call."""

    row: SharedCall
    seconds: float


class ContenderSet(NamedTuple):
    """The contenders for one kind of call, and the sizes at which they can be compared."""

    run: Run
    rows: tuple[CaseResult, ...]
    cpu: tuple[Contender, ...]
    others: tuple[Contender, ...]
    # The size from which no device of that side takes part; 0: it never did; infinity: it always does.
    cpu_gone_from: float
    others_gone_from: float
    # By size, the fastest first. What a split gains between sizes nobody knows.
    splits: Mapping[int, tuple[TimedSplit, ...]]
    # Both sides may be known at the sizes `shared`, a side that has no other one at those `spanned`.
    shared: tuple[float, float]
    spanned: tuple[float, float]
    # Stretches of sizes in which no choice is cheap enough between measured sizes.
    unsure: tuple[tuple[float, float], ...]

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """Both sides."""
        return (*self.cpu, *self.others)


class Decision(NamedTuple):
    """The fastest contender at one size and the fastest of the other side; both None: unknown."""

    best: Contender | None
    seconds: float
    against: Contender | None
    against_s: float


UNDECIDED = Decision(None, math.inf, None, math.inf)


def case_groups(run: Run, cases: Sequence[CaseResult] | None = None) -> dict[Key, CaseGroup]:
    """Return the cases that can advise, by op, dtype and params; without variants, overheads and adapters. `cases` are
    the rows of the run, if they are at hand."""
    analysis = analyse(run)
    if cases is not None:
        analysis.everything = tuple(cases)
    rows = [row for row in analysis.everything if row.case.variant is None and row.case.group not in CALLS]
    # A caller has a function as it is written, on any library, and none of its compiled code.
    beside = beside_written(rows)
    rows = [row for row in rows if row.id not in beside or row.case.form == "library"]
    alone = [row for row in rows if row.case.shared_with is None and row.device_kind != "software"]
    groups = group_by(alone, lambda row: _key(row))
    splits: dict[Key, list[SharedCall]] = {}
    for split in shared_calls(analysis):
        if split.recommended:
            splits.setdefault(_key(split.case), []).append(split)
    series = case_series(alone)
    return {
        key: CaseGroup(tuple(members), tuple(splits.get(key, ())), series)
        for key, members in groups.items()
        if any(timed(row) for row in members)
    }


def _key(row: CaseResult) -> Key:
    return Key(*row.case.series)


def contender_set(run: Run, group: CaseGroup, regime: str) -> ContenderSet:
    """Return the contenders for a call of this regime, by its id."""
    return compete(run, group, regime, list(contenders(group, regime)))


def compete(run: Run, group: CaseGroup, regime: str, contenders: Sequence[Contender]) -> ContenderSet:
    """Return the set of `contenders`, which are some or all that the group has for this regime."""
    rows = group.rows
    cpu = tuple(contender for contender in contenders if contender.kind == "cpu")
    others = tuple(contender for contender in contenders if contender.kind != "cpu")
    cpu_gone = _gone_from([row for row in rows if row.device_kind == "cpu"])
    others_gone = _gone_from([row for row in rows if row.device_kind != "cpu"], regime)
    ends = [_ends(cpu), _ends(others)]
    without_room = {item.device_id for item in contenders if _has_no_room(rows, item, regime)}
    low, high = _covered(contenders, without_room)
    shared = (max(low, *(end[0] for end in ends)), min(high, *(end[1] for end in ends)))
    return ContenderSet(
        run, rows, cpu, others, cpu_gone, others_gone, _splits_by_size(group.splits, regime), shared=shared,
        spanned=(max(min(low for low, _ in ends), min(cpu_gone, others_gone)), max(high for _, high in ends)),
        unsure=unsure([contender.curve for contender in contenders], *shared),
    )  # fmt: skip


def _has_no_room(rows: Sequence[CaseResult], contender: Contender, regime: str) -> bool:
    own = [row for row in rows if row.case.device_id == contender.device_id]
    return math.isfinite(_device_gone_from(own, regime))


def _covered(contenders: Sequence[Contender], without_room: set[str]) -> tuple[float, float]:
    """Return the range of sizes in which no absent contender may be the fastest.

    A contender that wins where its sizes end may win beyond. A device without room for more is not missed.
    """
    low, high = -math.inf, math.inf
    for contender in contenders:
        if fastest(contenders, contender.first)[0] is contender:
            low = max(low, contender.first)
        if fastest(contenders, contender.last)[0] is contender and contender.device_id not in without_room:
            high = min(high, contender.last)
    whole = _ends(contenders)
    return (-math.inf if low == whole[0] else low, math.inf if high == whole[1] else high)


def _ends(side: Sequence[Contender]) -> tuple[float, float]:
    """Return the smallest and the largest size of one side; infinity and minus infinity if it is empty."""
    firsts, lasts = [contender.first for contender in side], [contender.last for contender in side]
    return min(firsts, default=math.inf), max(lasts, default=-math.inf)


def _splits_by_size(splits: Sequence[SharedCall], regime_id: str) -> dict[int, tuple[TimedSplit, ...]]:
    by_size: dict[int, list[TimedSplit]] = {}
    for split in splits:
        if split.case.case.regime_id == regime_id and split.case.time is not None:
            timed_split = TimedSplit(split, split.case.time.estimate)
            by_size.setdefault(split.case.case.params["n"], []).append(timed_split)
    return {
        n: tuple(sorted(same, key=lambda split: (split.seconds, split.row.device_id)))
        for n, same in by_size.items()
    }


def choose(contender_set: ContenderSet, n: int) -> Decision:
    """Return the fastest at n. A side without a time at n makes the answer unknown, unless it takes no part there."""
    cpu, cpu_s = fastest(contender_set.cpu, n)
    other, other_s = fastest(contender_set.others, n)
    if cpu is not None and other is not None:
        low, high = contender_set.shared
        if not low <= n <= high or is_unsure(contender_set, n, cpu, other):
            return UNDECIDED
        return Decision(other, other_s, cpu, cpu_s) if other_s < cpu_s else Decision(cpu, cpu_s, other, other_s)
    if cpu is not None and n >= contender_set.others_gone_from:
        return Decision(cpu, cpu_s, None, math.inf)
    if other is not None and n >= contender_set.cpu_gone_from:
        return Decision(other, other_s, None, math.inf)
    return UNDECIDED


def is_unsure(contender_set: ContenderSet, n: int, *fastest: Contender) -> bool:
    """Return whether no choice is cheap enough at n. Where the fastest of both sides were timed, one always is."""
    if all(n in contender.points for contender in fastest):
        return False
    return any(low <= n <= high for low, high in contender_set.unsure)


def may_know(contender_set: ContenderSet, n: int, *, two_sides: bool) -> bool:
    """False: `choose` is sure to know nothing at n, or, if `two_sides` are wanted, no second side."""
    if contender_set.shared[0] <= n <= contender_set.shared[1]:
        return True
    return not two_sides and contender_set.spanned[0] <= n <= contender_set.spanned[1]


def split_of(contender_set: ContenderSet, n: int, decision: Decision) -> TimedSplit | None:
    """The fastest split that beats `decision`, the fastest at n alone; None where no such split of this very call is
    recommended.

    A split is recommended over its own two sides: where a third device is faster than both, nothing was compared
    with it.
    """
    best = decision.best
    if best is None:
        return None
    for split in contender_set.splits.get(n, ()):
        if split.seconds >= decision.seconds:
            break
        if best.kind == "cpu" or best.device_id == split.row.case.case.shared_with:
            return split
    return None


def basis(decision: Decision, n: int) -> Basis:
    """Return `measured` if both sides were timed in the very call; see `Advice.basis`."""
    if decision.best is None:
        return "unknown"
    exact = decision.best.measured(n) and (decision.against is None or decision.against.measured(n))
    return "measured" if exact else "interpolated"


def first_to_know(sets: Iterable[ContenderSet], n: int) -> tuple[ContenderSet, Decision] | None:
    """Return the newest set that compares both sides at n, with the decision; else the newest with any time at n; else
    the newest.

    Returns None if `sets` is empty. Sets are consumed only as far as needed.
    """
    best: tuple[ContenderSet, Decision] | None = None
    for contender_set in sets:
        if best is not None and not may_know(contender_set, n, two_sides=best[1].best is not None):
            continue
        decision = choose(contender_set, n)
        better = decision.best is not None and (decision.against is not None or (best and best[1].best is None))
        if best is None or better:
            best = contender_set, decision
        if decision.against is not None:
            break
    return best


def timed(row: CaseResult) -> bool:
    return row.time is not None


def contenders(group: CaseGroup, regime: str) -> Iterator[Contender]:
    """Yield each form of each device that has a time for calls of this regime, with its curve."""
    by_form: dict[tuple[str, Form, DeviceKind], dict[int, dict[str, CaseResult]]] = {}
    for row in filter(timed, group.rows):
        sizes = by_form.setdefault((row.case.device_id, row.case.form, row.device_kind), {})
        sizes.setdefault(row.case.params["n"], {})[row.case.regime_id] = row
    series, points = dict(group.series), {}
    for (device_id, form, kind), sizes in sorted(by_form.items()):
        # A CPU's data is at home: its resident time is the time of every call.
        own = RESIDENT if kind == "cpu" else regime
        calls = {n: point for n in sorted(sizes) if (point := call_time(sizes[n], own)) is not None}
        if not calls:
            continue
        row = next(iter(calls.values())).rows[0]
        key = contender_key(row.case)
        if not all(point.measured for point in calls.values()):
            key = (key[0], device_id, form, regime)
            series[key] = TimedSizes(kind_of(kind, regime), {n: _blocks(point) for n, point in calls.items()})
        points[key] = (device_id, form, kind, calls)
    curves = fit(series, points.__contains__)
    for key, (device_id, form, kind, calls) in points.items():
        yield Contender(device_id, form, kind, calls, curves[key])


def _blocks(point: TimedCall) -> list[Sequence[float]]:
    """The blocks of a call that was timed; else its time, as if it were a single block."""
    return list(point.rows[0].blocks.values()) if point.measured else [[point.time.estimate]]


def _gone_from(rows: Sequence[CaseResult], regime: str = RESIDENT) -> float:
    devices = group_by(rows, lambda row: row.case.device_id)
    return max((_device_gone_from(ours, regime) for ours in devices.values()), default=0)


def _device_gone_from(rows: Sequence[CaseResult], regime: str) -> float:
    """The size from which this device has no room; 0 if nothing ever ran on it; else infinity."""
    if not any(timed(row) for row in rows):
        return 0
    kind = "transfer-once" if calls_of(regime) else regime  # however many calls: the room is the same
    full = [row.case.params["n"] for row in rows if row.reason == NO_ROOM and row.case.regime == kind]
    return min(
        (n for n in full if not any(timed(r) and r.case.params["n"] >= n for r in rows)), default=math.inf
    )


def fastest(contenders: Sequence[Contender], n: int) -> tuple[Contender | None, float]:
    """The contender with the least expected time at n, and that time; None and infinity if none has contender."""
    best, least = None, math.inf
    for contender in contenders:
        seconds = contender.seconds(n)
        if seconds is not None and seconds < least:
            best, least = contender, seconds
    return best, least


def weaker(a: IntervalKind, b: IntervalKind) -> IntervalKind:
    """Return the kind of an interval that is made of two."""
    return "sessions" if a == b == "sessions" else "prior"


RegimeCases = Mapping[str, CaseResult]  # the cases of one device, form and size, by regime id


def calls_of(regime: str) -> int | None:
    """Calls that share a copy, of `transfer-once-N`; None for every other regime."""
    head, _, count = regime.rpartition("-")
    return int(count) if head == "transfer-once" and count.isdecimal() else None


def call_time(regimes: RegimeCases, regime: str) -> TimedCall | None:
    """The time of one call of this regime, by its id: as measured, or where N calls share a copy also by the line.

    With T1 = transfer-always less its allocation and TN = N x transfer-once-N, calls that share a copy cost
    T(calls) = a + b calls, so that the time of one call is a straight line in 1/calls. It is taken between the nearest
    measured of 1/calls = 1 (transfer-always), 1/N and 0 (queued): no number of calls lies outside.
    """
    exact = regimes.get(regime)
    if exact is not None and exact.time is not None:
        return TimedCall(n=exact.case.params["n"], time=exact.time, rows=(exact,))
    calls = calls_of(regime)
    if calls is None:
        return None
    anchors = sorted(_anchors(regimes), key=lambda anchor: anchor[0])
    share = 1 / calls
    below = [anchor for anchor in anchors if anchor[0] < share]
    above = [anchor for anchor in anchors if anchor[0] > share]
    if not below or not above:
        return None
    (u0, t0, first), (u1, t1, second) = below[-1], above[0]
    weight = (share - u0) / (u1 - u0)
    low, middle, high = (
        _mixed(getattr(t0, end), getattr(t1, end), weight) for end in ("low", "estimate", "high")
    )
    time = Interval(low, middle, high, weaker(t0.kind, t1.kind))
    return TimedCall(n=first.case.params["n"], time=time, rows=(first, second))


def _anchors(regimes: RegimeCases) -> Iterable[tuple[float, IntervalLike, CaseResult]]:
    """(1/calls, time of one call, case) of what was measured."""
    for row in regimes.values():
        if row.time is None:
            continue
        if row.case.regime == QUEUED:
            yield 0.0, row.time, row
        elif row.case.regime == "transfer-always":
            parts = row.anatomy
            # Where the parts miss the whole, none of them is taken from it.
            yield 1.0, _less(row.time, parts.alloc_s if parts is not None and not parts.mismatch else 0.0), row
        elif row.case.calls:
            yield 1 / row.case.calls, row.time, row


def _less(time: IntervalLike, seconds: float) -> IntervalLike:
    """`time` without a part of it, as far as that leaves anything."""
    if seconds >= time.low:
        return time
    return Interval(time.low - seconds, time.estimate - seconds, time.high - seconds, time.kind)


def _mixed(a: float, b: float, share: float) -> float:
    return a + (b - a) * share
