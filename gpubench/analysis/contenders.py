"""Who competes for a call of one op, and who wins it at a size: the decision without its evidence, in microseconds.

A contender's time over the size is a curve, interpolated between measured sizes, never beyond them. Where these lie
more than WIDEST_GAP apart nothing is said of a time, and of the winner only if it is the same side at both. Between two
neighbouring sizes the time follows the straight line through both on logarithmic axes: exact for a power of n. How far
the truth may lie from it, the segments beside it tell, continued to the middle of the gap.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from gpubench.analysis.estimate import CaseResult, case_results
from gpubench.analysis.hybrid import Hybrid, hybrids
from gpubench.analysis.labels import Label
from gpubench.analysis.overheads import CALLS
from gpubench.analysis.placement import Placement, placements
from gpubench.model.case import QUEUED, RESIDENT
from gpubench.model.op import Form
from gpubench.model.result import DeviceKind, Run
from gpubench.stats import Interval, IntervalKind, IntervalLike

# A size at which a device gave up for lack of room: all larger ones are none of its business either.
NO_ROOM = "out-of-memory"


class Key(NamedTuple):
    """One family of curves; `params` are those beside the size, sorted by name."""

    op: str
    dtype: str
    params: tuple[tuple[str, int], ...] = ()


class Contender(NamedTuple):
    """One form on one device: its curve for the call in question."""

    device_id: str
    form: Form
    kind: DeviceKind
    curve: Curve


class CaseGroup(NamedTuple):
    """The cases of one key, and of its splits and placements those that the report recommends."""

    rows: tuple[CaseResult, ...]
    splits: tuple[Hybrid | Placement, ...]


class TimedSplit(NamedTuple):
    """A recommended split of one call, or placement of its stages, and the time of that call."""

    row: Hybrid | Placement
    seconds: float


class ContenderSet(NamedTuple):
    """Who competes for one kind of call. `gone_from`: the size from which no device of that side takes part
    (0: it never did; infinity: it always does, measured or not). `splits`, by size and the fastest first, hold nothing
    between the sizes: what a split gains there nobody knows. Both sides may be known at the sizes `shared`, one that
    has no other side at those `spanned`; outside, `choose` knows nothing and need not be asked. `cpu_wins`: whether the
    CPU does, by size, where both sides are known closely."""

    run: Run
    rows: tuple[CaseResult, ...]
    cpu: tuple[Contender, ...]
    others: tuple[Contender, ...]
    cpu_gone_from: float
    others_gone_from: float
    splits: Mapping[int, tuple[TimedSplit, ...]]
    shared: tuple[float, float]
    spanned: tuple[float, float]
    cpu_wins: tuple[tuple[int, bool], ...]


class Decision(NamedTuple):
    """The fastest contender at one size and the fastest of the other side; both None: unknown. `around`: they are so by
    the two sizes around it alone, and the times are none."""

    best: Contender | None
    seconds: float
    against: Contender | None
    against_s: float
    around: tuple[int, int] | None = None


UNDECIDED = Decision(None, math.inf, None, math.inf)


def case_groups(run: Run) -> dict[Key, CaseGroup]:
    """The cases that can advise, by op, dtype and params; without variants, overheads and adapters."""
    rows = [row for row in case_results(run) if row.case.variant is None and row.case.group not in CALLS]
    found: dict[Key, list[CaseResult]] = {}
    for row in rows:
        if row.case.shared_with is None and row.device_kind != "software":
            found.setdefault(_key(row), []).append(row)
    splits: dict[Key, list[Hybrid | Placement]] = {}
    for split in _recommended(run, rows):
        splits.setdefault(_key(split.case), []).append(split)
    return {
        key: CaseGroup(tuple(ours), tuple(splits.get(key, ())))
        for key, ours in found.items()
        if any(timed(row) for row in ours)
    }


def _key(row: CaseResult) -> Key:
    return Key(*row.case.series)


def _recommended(run: Run, rows: Sequence[CaseResult]) -> Iterator[Hybrid | Placement]:
    yield from (split for split in hybrids(run, rows) if split.recommended)
    yield from (placed for placed in placements(run, rows) if placed.recommended)


def contender_set(run: Run, group: CaseGroup, regime: str) -> ContenderSet:
    """Who competes for a call of this regime, by its id."""
    rows = group.rows
    contenders = [*_contenders(rows, regime)]
    cpu = tuple(one for one in contenders if one.kind == "cpu")
    others = tuple(one for one in contenders if one.kind != "cpu")
    cpu_gone = _gone_from([row for row in rows if row.device_kind == "cpu"])
    others_gone = _gone_from([row for row in rows if row.device_kind != "cpu"], regime)
    ends = [_ends(cpu), _ends(others)]
    low, high = _covered(contenders, {one.device_id for one in contenders if _has_no_room(rows, one, regime)})
    return ContenderSet(
        run, rows, cpu, others, cpu_gone, others_gone, _splits_by_size(group.splits, regime),
        shared=(max(low, *(end[0] for end in ends)), min(high, *(end[1] for end in ends))),
        spanned=(max(min(low for low, _ in ends), min(cpu_gone, others_gone)), max(high for _, high in ends)),
        cpu_wins=_winners(cpu, others),
    )  # fmt: skip


def _has_no_room(rows: Sequence[CaseResult], one: Contender, regime: str) -> bool:
    ours = [row for row in rows if row.case.device_id == one.device_id]
    return math.isfinite(_device_gone_from(ours, regime))


def _covered(contenders: Sequence[Contender], without_room: set[str]) -> tuple[float, float]:
    """The sizes at which no absent contender may be the fastest: one that won where its sizes end, and is not measured
    further, may win there too. What has no room for more is not missed."""
    low, high = -math.inf, math.inf
    for one in contenders:
        first, last = one.curve.sizes[0], one.curve.sizes[-1]
        if fastest(contenders, first)[0] is one:
            low = max(low, first)
        if fastest(contenders, last)[0] is one and one.device_id not in without_room:
            high = min(high, last)
    whole = _ends(contenders)
    return (-math.inf if low == whole[0] else low, math.inf if high == whole[1] else high)


def _winners(cpu: Sequence[Contender], others: Sequence[Contender]) -> tuple[tuple[int, bool], ...]:
    """Each measured size at which both sides are known by sizes that lie close, and whether the CPU wins there."""
    found = []
    for n in sorted({n for one in (*cpu, *others) for n in one.curve.sizes}):
        (ours, ours_s), (theirs, theirs_s) = fastest(cpu, n), fastest(others, n)
        if ours and theirs and max(ours.curve.gap(n), theirs.curve.gap(n)) <= WIDEST_GAP:
            found.append((n, ours_s <= theirs_s))
    return tuple(found)


def _ends(side: Sequence[Contender]) -> tuple[float, float]:
    """The smallest and the largest size of one side; none lies between those of nobody."""
    return (
        min((one.curve.sizes[0] for one in side), default=math.inf),
        max((one.curve.sizes[-1] for one in side), default=-math.inf),
    )


def _splits_by_size(splits: Sequence[Hybrid | Placement], regime_id: str) -> dict[int, tuple[TimedSplit, ...]]:
    found: dict[int, list[TimedSplit]] = {}
    for row in splits:
        if row.case.case.regime_id == regime_id and row.case.time is not None:
            found.setdefault(row.case.case.params["n"], []).append(TimedSplit(row, row.case.time.estimate))
    return {
        n: tuple(sorted(ours, key=lambda split: (split.seconds, split.row.device_id)))
        for n, ours in found.items()
    }


def choose(contender_set: ContenderSet, n: int) -> Decision:
    """The fastest at n. A side without a time at n makes the answer unknown, unless it takes no part there; so does a
    gap wider than WIDEST_GAP with another winner at its other end."""
    cpu, cpu_s = fastest(contender_set.cpu, n)
    other, other_s = fastest(contender_set.others, n)
    if cpu is not None and other is not None:
        if not contender_set.shared[0] <= n <= contender_set.shared[1]:
            return UNDECIDED
        if cpu.curve.gap(n) > WIDEST_GAP or other.curve.gap(n) > WIDEST_GAP:
            return _by_both_ends(contender_set, n, (cpu, other))
        return Decision(other, other_s, cpu, cpu_s) if other_s < cpu_s else Decision(cpu, cpu_s, other, other_s)
    if cpu is not None and n >= contender_set.others_gone_from:
        return _alone(cpu, cpu_s, n)
    if other is not None and n >= contender_set.cpu_gone_from:
        return _alone(other, other_s, n)
    return UNDECIDED


def _alone(one: Contender, seconds: float, n: int) -> Decision:
    if one.curve.gap(n) > WIDEST_GAP:
        return Decision(one, math.inf, None, math.inf, one.curve.around(n))
    return Decision(one, seconds, None, math.inf)


def bracket(contender_set: ContenderSet, n: int) -> tuple[tuple[int, bool], tuple[int, bool]] | None:
    """The sizes around n at which both sides are known closely, each with whether the CPU wins; None: not on both
    sides of n."""
    i = bisect_left(contender_set.cpu_wins, (n, False))
    return (
        (contender_set.cpu_wins[i - 1], contender_set.cpu_wins[i])
        if 0 < i < len(contender_set.cpu_wins)
        else None
    )


def _by_both_ends(contender_set: ContenderSet, n: int, fastest_of: tuple[Contender, Contender]) -> Decision:
    """Which side, if the same one wins on both sides of a wide gap, or if n lies far enough from where the winner
    changes; no time is known inside."""
    ends = bracket(contender_set, n)
    if ends is None:
        return UNDECIDED
    (low, cpu_wins), (high, cpu_wins_above) = ends
    if cpu_wins != cpu_wins_above:
        share = math.log(n / low) / math.log(high / low)
        height = _mixed(_log_ratio(contender_set, low), _log_ratio(contender_set, high), share)
        if abs(height) <= BENDS * share * (1 - share) * LEAST_BEND * math.log(high / low):
            return UNDECIDED
        cpu_wins = height < 0
    cpu, other = fastest_of
    best, against = (cpu, other) if cpu_wins else (other, cpu)
    return Decision(best, math.inf, against, math.inf, (low, high))


def _log_ratio(contender_set: ContenderSet, n: int) -> float:
    """ln(CPU / other), which both have a time there."""
    return math.log(fastest(contender_set.cpu, n)[1] / fastest(contender_set.others, n)[1])


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
    """As `Advice.basis`, without its evidence: measured if both sides were timed in the very call."""
    if decision.best is None:
        return "unknown"
    if decision.around is not None:
        return "bracketed"
    exact = decision.best.curve.measured(n) and (decision.against is None or decision.against.curve.measured(n))
    return "measured" if exact else "interpolated"


def first_to_know(sets: Iterable[ContenderSet], n: int) -> ContenderSet | None:
    """Of those of several files, newest first: the first that compares two sides at n, else the first that knows
    anything there, else the newest; None of none. Looks no further than it has to."""
    best: tuple[int, ContenderSet] | None = None
    for one in sets:
        decision = choose(one, n)
        rank = (decision.best is not None) + (decision.against is not None)
        if best is None or rank > best[0]:
            best = (rank, one)
        if rank == 2:
            break
    return None if best is None else best[1]


def timed(row: CaseResult) -> bool:
    return row.time is not None


def _contenders(rows: Sequence[CaseResult], regime: str) -> Iterable[Contender]:
    by_form: dict[tuple[str, Form, DeviceKind], dict[int, dict[str, CaseResult]]] = {}
    for row in filter(timed, rows):
        sizes = by_form.setdefault((row.case.device_id, row.case.form, row.device_kind), {})
        sizes.setdefault(row.case.params["n"], {})[row.case.regime_id] = row
    for (device_id, form, kind), sizes in sorted(by_form.items()):
        # A CPU's data is at home: its resident time is the time of every call.
        points = [call_time(regimes, RESIDENT if kind == "cpu" else regime) for regimes in sizes.values()]
        found = [point for point in points if point is not None]
        if found:
            yield Contender(device_id, form, kind, curve(found))


def _gone_from(rows: Sequence[CaseResult], regime: str = RESIDENT) -> float:
    devices: dict[str, list[CaseResult]] = {}
    for row in rows:
        devices.setdefault(row.case.device_id, []).append(row)
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
    """The contender with the least expected time at n, and that time; None and infinity if none has one.

    Between measured sizes two lines are often closer than times scatter. There the usual ratio of both counts as much
    as the lines, and a contender that is a little slower by its line may be the one.
    """
    best, least = None, math.inf
    near = []
    for one in contenders:
        seconds = one.curve.seconds(n)
        if seconds is not None and seconds < ALIKE * least:
            near.append((one, seconds))
            if seconds < least:
                best, least = one, seconds
    if best is None or len(near) == 1 or best.curve.gap(n) == 1:
        return best, least
    for one, seconds in near:
        if one is not best and math.log(least / seconds) + best.curve.usual_ratio(one.curve, n) > 0:
            best, least = one, seconds
    return best, least


# Two of one side whose lines are farther apart than this are told apart by them alone.
ALIKE = 2.0
# The width, in ln n, of the weights of the sizes that tell a usual ratio: 1 and 2 do about as well (docs/advice.md).
USUAL = 1.5
# Noise and caches bend a curve even where its neighbours are straight: by 25 % in the middle of a gap of factor 4, as
# leaving out every measured size of the results of an H200 showed (benchmarks/advice.py).
LEAST_BEND = math.log(1.25) / math.log(4)
# Between sizes with different winners: how far a curve bends from its line, which is 4 share (1 - share) of the middle.
BENDS = 4.0
# Sizes that nearly coincide give a line no slope to speak of: from here on an interval says nothing anyway.
MOST_BEND = 20.0
Basis = Literal["measured", "interpolated", "bracketed", "unknown"]
# Two measured sizes farther apart than this tell no time between them, and a winner only where they agree.
WIDEST_GAP = 4.0


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one call at one size. `rows` are the cases behind it; several where calls were interpolated."""

    n: int
    time: IntervalLike
    rows: tuple[CaseResult, ...]

    @property
    def measured(self) -> bool:
        """Whether the very call was timed."""
        return len(self.rows) == 1


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What one call will take. `between` are the measured sizes around it; the same one twice at a measured size."""

    time: IntervalLike
    basis: Basis
    between: tuple[int, int]
    rows: tuple[CaseResult, ...]

    @property
    def labels(self) -> frozenset[Label]:
        """What is wrong with the cases behind it; empty if nothing is."""
        return frozenset(row.label for row in self.rows if row.label is not None and row.label != "ok")


class Curve(msgspec.Struct, frozen=True):
    """Points in ascending size, with their logarithms: `seconds` is asked where every microsecond counts. `log_s` is
    what sizes close by say of a point, too: between two sizes their common trend counts, from which single sizes
    `scatter`, a standard deviation in ln seconds. `measured_log_s`: ln seconds as measured, by size."""

    points: tuple[Point, ...]
    sizes: tuple[int, ...]
    log_n: tuple[float, ...]
    log_s: tuple[float, ...]
    scatter: tuple[float, ...]
    measured_log_s: dict[int, float]

    def seconds(self, n: int) -> float | None:
        """The expected time at n; None outside the measured sizes."""
        i = bisect_left(self.sizes, n)
        if i == len(self.sizes):
            return None
        if self.sizes[i] == n:
            return self.points[i].time.estimate
        if i == 0:
            return None
        return self._between(i, math.log(n))

    def measured(self, n: int) -> bool:
        """Whether the very call was timed at n."""
        i = bisect_left(self.sizes, n)
        return i < len(self.sizes) and self.sizes[i] == n and self.points[i].measured

    def gap(self, n: int) -> float:
        """How many times as large the measured size above n is as the one below it; 1 at a measured size."""
        i = bisect_left(self.sizes, n)
        return 1.0 if self.sizes[i] == n else self.sizes[i] / self.sizes[i - 1]

    def around(self, n: int) -> tuple[int, int]:
        """The measured sizes below and above n, which lies between two."""
        i = bisect_left(self.sizes, n)
        return self.sizes[i - 1], self.sizes[i]

    def usual_ratio(self, other: Curve, n: int) -> float:
        """ln of this time over the other's, in the mean of the sizes that both have, the nearest counting most; 0
        without such a size."""
        x, total, weighted = math.log(n), 0.0, 0.0
        theirs = other.measured_log_s
        for at, (size, seconds) in zip(self.log_n, self.measured_log_s.items(), strict=True):
            if size in theirs:
                weight = math.exp(-(((at - x) / USUAL) ** 2) / 2)
                total += weight
                weighted += weight * (seconds - theirs[size])
        return weighted / total if total else 0.0

    def expected(self, n: int) -> Expected | None:
        """The expected time at n with its interval; None outside the measured sizes."""
        i = bisect_left(self.sizes, n)
        if i == len(self.sizes) or (i == 0 and self.sizes[0] != n):
            return None
        b = self.points[i]
        if b.n == n:
            basis: Basis = "measured" if b.measured else "interpolated"
            return Expected(time=b.time, basis=basis, between=(n, n), rows=b.rows)
        a = self.points[i - 1]
        time = self._interval(i, math.log(n))
        return Expected(time=time, basis="interpolated", between=(a.n, b.n), rows=(*a.rows, *b.rows))

    def _between(self, i: int, x: float) -> float:
        """The line from point i - 1 to point i at ln n = x."""
        return math.exp(_line(self.log_n, self.log_s, i, x))

    def _interval(self, i: int, x: float) -> Interval:
        a, b = self.points[i - 1].time, self.points[i].time
        share = (x - self.log_n[i - 1]) / (self.log_n[i] - self.log_n[i - 1])
        below, above = self.log_s[i - 1], self.log_s[i]
        low = math.exp(_mixed(min(math.log(a.low), below), min(math.log(b.low), above), share))
        high = math.exp(_mixed(max(math.log(a.high), below), max(math.log(b.high), above), share))
        off = 2 * max(self.scatter[i - 1], self.scatter[i])
        bend = math.exp(min(MOST_BEND, off + 4 * share * (1 - share) * self._bend(i)))
        estimate = self._between(i, x)
        return Interval(min(low, estimate) / bend, estimate, max(high, estimate) * bend, weaker(a.kind, b.kind))

    def _bend(self, i: int) -> float:
        """How far, in ln seconds, the truth may lie from the line in the middle between points i - 1 and i.

        Two points alone say nothing about it: then anything between their times is possible.
        """
        middle = (self.log_n[i - 1] + self.log_n[i]) / 2
        least = LEAST_BEND * (self.log_n[i] - self.log_n[i - 1])
        sides = [j for j in (i - 1, i + 1) if 0 < j < len(self.sizes)]
        if not sides:
            return max(least, abs(self.log_s[i] - self.log_s[i - 1]) / 2)
        here = _line(self.log_n, self.log_s, i, middle)
        return max(least, *(abs(_line(self.log_n, self.log_s, j, middle) - here) for j in sides))


def curve(points: Iterable[Point]) -> Curve:
    """The curve through points of different sizes and positive times, given in any order."""
    ordered = tuple(sorted(points, key=lambda point: point.n))
    log_n = tuple(math.log(p.n) for p in ordered)
    log_s = [math.log(p.time.estimate) for p in ordered]
    smooth = [_smoothed(log_n, log_s, i) for i in range(len(ordered))]
    return Curve(
        ordered, tuple(p.n for p in ordered), log_n, tuple(value for value, _ in smooth),
        tuple(scatter for _, scatter in smooth), {p.n: y for p, y in zip(ordered, log_s, strict=True)},
    )  # fmt: skip


# Sizes so close share a trend, and differ by noise and by tiles: their deviations from it tell nothing of a size
# between them. In ln n: the width of the weights, a third of the farthest that counts; a ladder of factor 4 is left as
# it is. No size lies nearer to its trend than times differ from session to session (docs/statistics.md).
NEAR, LEAST_SCATTER = 0.3, 0.05


def _smoothed(x: Sequence[float], y: Sequence[float], i: int) -> tuple[float, float]:
    """The value at x[i] of the straight line through its neighbourhood, the nearest counting most, and the standard
    deviation from it; y[i] itself where it has no neighbours on both sides."""
    near = list(range(bisect_left(x, x[i] - 3 * NEAR), bisect_right(x, x[i] + 3 * NEAR)))
    if not near[0] < i < near[-1]:
        return y[i], LEAST_SCATTER
    weighted = [(math.exp(-(((x[j] - x[i]) / NEAR) ** 2) / 2), x[j] - x[i], y[j]) for j in near]
    total = math.fsum(w for w, _, _ in weighted)
    mean_x = math.fsum(w * dx for w, dx, _ in weighted) / total
    mean_y = math.fsum(w * value for w, _, value in weighted) / total
    square = math.fsum(w * (dx - mean_x) ** 2 for w, dx, _ in weighted)
    slope = math.fsum(w * (dx - mean_x) * (value - mean_y) for w, dx, value in weighted) / square
    off = math.fsum(w * (value - mean_y - slope * (dx - mean_x)) ** 2 for w, dx, value in weighted)
    # The line takes two of the values that the weights amount to.
    free = max(1.0, total**2 / math.fsum(w * w for w, _, _ in weighted) - 2)
    return mean_y - slope * mean_x, max(LEAST_SCATTER, math.sqrt(off / total * (1 + 2 / free)))


def weaker(a: IntervalKind, b: IntervalKind) -> IntervalKind:
    """What an interval made of two may be used for."""
    return "bootstrap" if a == b == "bootstrap" else "prior"


RegimeCases = Mapping[str, CaseResult]  # the cases of one device, form and size, by regime id


def calls_of(regime: str) -> int | None:
    """Calls that share a copy, of `transfer-once-N`; None for every other regime."""
    head, _, count = regime.rpartition("-")
    return int(count) if head == "transfer-once" and count.isdecimal() else None


def call_time(regimes: RegimeCases, regime: str) -> Point | None:
    """The time of one call of this regime, by its id: as measured, or where N calls share a copy also by the line.

    With T1 = transfer-always less its allocation and TN = N x transfer-once-N, calls that share a copy cost
    T(calls) = a + b calls, so that the time of one call is a straight line in 1/calls. It is taken between the nearest
    measured of 1/calls = 1 (transfer-always), 1/N and 0 (queued): no number of calls lies outside.
    """
    exact = regimes.get(regime)
    if exact is not None and exact.time is not None:
        return Point(n=exact.case.params["n"], time=exact.time, rows=(exact,))
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
    return Point(n=first.case.params["n"], time=time, rows=(first, second))


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


def _line(x: Sequence[float], y: Sequence[float], i: int, at: float) -> float:
    return y[i - 1] + (y[i] - y[i - 1]) * (at - x[i - 1]) / (x[i] - x[i - 1])


def _mixed(a: float, b: float, share: float) -> float:
    return a + (b - a) * share
