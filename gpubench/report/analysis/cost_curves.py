"""Cost curves: the time of one device and form over the size, interpolated between measured sizes, never beyond them.

Between two neighbouring sizes the time follows the straight line through both on logarithmic axes: exact for a power
of n. How far the truth may lie from it, the segments beside it tell, continued to the middle of the gap.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from gpubench.report.analysis.types import CaseResult, Derived, Label
from gpubench.stats import Interval, IntervalKind

# Noise and caches bend a curve even where its neighbours are straight: by 25 % in the middle of a gap of factor 4, as
# leaving out every measured size of the results of an H200 showed (benchmarks/policy.py).
LEAST_BEND = math.log(1.25) / math.log(4)
# Sizes that nearly coincide give a line no slope to speak of: from here on an interval says nothing anyway.
MOST_BEND = 20.0
Basis = Literal["measured", "interpolated", "unknown"]


class Point(Derived, frozen=True, kw_only=True):
    """The time of one call at one size. `rows` are the cases behind it; several where calls were interpolated."""

    n: int
    time: Interval
    rows: tuple[CaseResult, ...]

    @property
    def measured(self) -> bool:
        """Whether the very call was timed."""
        return len(self.rows) == 1


class Expected(Derived, frozen=True, kw_only=True):
    """What one call will take. `between` are the measured sizes around it; the same one twice at a measured size."""

    time: Interval
    basis: Basis
    between: tuple[int, int]
    rows: tuple[CaseResult, ...]

    @property
    def labels(self) -> frozenset[Label]:
        """What is wrong with the cases behind it; empty if nothing is."""
        return frozenset(row.label for row in self.rows if row.label != "ok")


class Curve(Derived, frozen=True):
    """Points in ascending size, with their logarithms: `seconds` is asked where every microsecond counts."""

    points: tuple[Point, ...]
    sizes: tuple[int, ...]
    log_n: tuple[float, ...]
    log_s: tuple[float, ...]

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
        """The line from point i - 1 to point i at ln n = x; rounding does not carry it past either end."""
        ends = (self.points[i - 1].time.estimate, self.points[i].time.estimate)
        return max(min(ends), min(max(ends), math.exp(_line(self.log_n, self.log_s, i, x))))

    def _interval(self, i: int, x: float) -> Interval:
        a, b = self.points[i - 1].time, self.points[i].time
        share = (x - self.log_n[i - 1]) / (self.log_n[i] - self.log_n[i - 1])
        low = math.exp(_mixed(math.log(a.low), math.log(b.low), share))
        high = math.exp(_mixed(math.log(a.high), math.log(b.high), share))
        bend = math.exp(min(MOST_BEND, 4 * share * (1 - share) * self._bend(i)))
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
    return Curve(
        ordered, tuple(p.n for p in ordered), tuple(math.log(p.n) for p in ordered),
        tuple(math.log(p.time.estimate) for p in ordered),
    )  # fmt: skip


def weaker(a: IntervalKind, b: IntervalKind) -> IntervalKind:
    """What an interval made of two may be used for."""
    return "bootstrap" if a == b == "bootstrap" else "within-session"


Regimes = Mapping[str, CaseResult]  # the cases of one device, form and size, by regime id


def regime_of(calls: int | None) -> str:
    """The regime id of a call whose data is resident (None), copied at every call (1), or once for `calls` calls."""
    return "resident" if calls is None else "transfer-always" if calls == 1 else f"transfer-once-{calls}"


def call_time(regimes: Regimes, calls: int | None) -> Point | None:
    """The time of one call: data resident (`calls` None), copied at every call (1), or once for `calls` calls.

    With T1 = transfer-always less its allocation and TN = N x transfer-once-N, measurement.md 10 has
    T(calls) = a + b calls, so that the time of one call is a straight line in 1/calls. It is taken between the nearest
    measured of 1/calls = 1 (transfer-always), 1/N and 0 (resident): no number of calls lies outside.
    """
    exact = regimes.get(regime_of(calls))
    if exact is not None and exact.time is not None:
        return Point(n=exact.case.params["n"], time=exact.time, rows=(exact,))
    if calls is None or calls == 1:
        return None
    anchors = sorted(_anchors(regimes), key=lambda anchor: anchor[0])
    share = 1 / calls
    below = [anchor for anchor in anchors if anchor[0] < share]
    above = [anchor for anchor in anchors if anchor[0] > share]
    if not below or not above:
        return None
    (u0, t0, first), (u1, t1, second) = below[-1], above[0]
    weight = (share - u0) / (u1 - u0)
    low, middle, high = (_mixed(a, b, weight) for a, b in zip(t0[:3], t1[:3], strict=True))
    time = Interval(low, middle, high, weaker(t0.kind, t1.kind))
    return Point(n=first.case.params["n"], time=time, rows=(first, second))


def _anchors(regimes: Regimes) -> Iterable[tuple[float, Interval, CaseResult]]:
    """(1/calls, time of one call, case) of what was measured."""
    for row in regimes.values():
        if row.time is None:
            continue
        if row.case.regime == "resident":
            yield 0.0, row.time, row
        elif row.case.regime == "transfer-always":
            parts = row.anatomy
            # Where the parts miss the whole, none of them is taken from it.
            yield 1.0, _less(row.time, parts.alloc_s if parts is not None and not parts.mismatch else 0.0), row
        elif row.case.calls:
            yield 1 / row.case.calls, row.time, row


def _less(time: Interval, seconds: float) -> Interval:
    """`time` without a part of it, as far as that leaves anything."""
    if seconds >= time.low:
        return time
    return Interval(time.low - seconds, time.estimate - seconds, time.high - seconds, time.kind)


def _line(x: Sequence[float], y: Sequence[float], i: int, at: float) -> float:
    return y[i - 1] + (y[i] - y[i - 1]) * (at - x[i - 1]) / (x[i] - x[i - 1])


def _mixed(a: float, b: float, share: float) -> float:
    return a + (b - a) * share
