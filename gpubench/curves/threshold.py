"""The size from which one side is faster than the other, how sure that size is, and the expected cost of
choosing one curve.

A side is a set of curves, of which the fastest at a size counts. x is ln(n).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property, partial
from typing import Literal, NamedTuple, Protocol, TypeVar

from gpubench.curves.time_curve import Height, TimeCurve

# The probability that the interval of a break-even leaves out at either end.
TAIL = 0.025
# The distance in ln(n) between two sizes at which both sides are compared.
STEP = math.log(1.12)

State = Literal["at", "always", "never", "unsure"]


class Margin(NamedTuple):
    """The comparison of the sides `case` and `other` at one size."""

    x: float  # ln n
    log_ratio: float  # ln(time of other / time of case); above 0 the case is faster
    deviation: float  # the standard deviation of `log_ratio`
    wins: float  # the probability that the case is faster


class Threshold(NamedTuple):
    """The size from which the side `case` is faster than the side `other`. "Surely" means with a probability
    above 97.5 %."""

    # at: the case surely loses at some size and wins at the largest; always: it surely wins at all sizes; never:
    # it surely loses at the largest size; unsure: none of these
    state: State
    n: float  # the size from which the case more likely wins; 0: at all sizes, infinity: at none
    low: float  # the low end of its 95 % interval; 0 if the end is open
    high: float  # the high end of its 95 % interval; infinity if the end is open
    first: float  # the smallest size that both sides share
    last: float  # the largest size that both sides share
    mixed: bool  # whether both sides win by turns below the size
    margins: tuple[Margin, ...]  # the comparisons, by ascending size


def normal(z: float) -> float:
    """Return the standard normal distribution function at z."""
    return math.erfc(-z / math.sqrt(2)) / 2


class Side(tuple[TimeCurve, ...]):
    """The curves of one side of a comparison."""

    @cached_property
    def fastest(self) -> Callable[[float], Height]:
        """The function `fastest_at` of these curves, which computes each x once."""
        # cached, because each device and situation needs the CPU's times again
        return cache(partial(fastest_at, self))


def compare(case: Sequence[TimeCurve], other: Sequence[TimeCurve], step: float = STEP) -> Threshold | None:
    """Return the size from which the fastest curve of `case` beats the fastest curve of `other`. Returns None
    if the sides were timed over separate sizes. The sides are compared at steps of at most `step` in ln(n)."""
    if not case or not other:
        return None
    case, other = (side if isinstance(side, Side) else Side(side) for side in (case, other))
    low, high = _common_sizes(case, other)
    if low > high + 1e-9:
        return None
    steps = max(1, math.ceil((high - low) / step))
    places = {low + (high - low) * i / steps for i in range(steps + 1)} if high > low else {low}
    return threshold_of([margin_at(case, other, x) for x in sorted(places)])


def speedup_at(threshold: Threshold | None, n: int) -> float | None:
    """Return the time of `other` / the time of `case` at size `n`, interpolated between the sizes that
    `threshold` compared. Returns None outside these sizes, or if `threshold` is None."""
    places = threshold.margins if threshold is not None else ()
    x = math.log(n) if n > 0 else -math.inf
    if not places or not places[0].x - 1e-6 <= x <= places[-1].x + 1e-6:
        return None
    low, high = next((pair for pair in itertools.pairwise(places) if x <= pair[1].x), (places[-1],) * 2)
    share = (x - low.x) / (high.x - low.x) if high.x > low.x else 0.0
    return math.exp(low.log_ratio + min(max(share, 0.0), 1.0) * (high.log_ratio - low.log_ratio))


def _common_sizes(case: Sequence[TimeCurve], other: Sequence[TimeCurve]) -> tuple[float, float]:
    """Return (low, high): the range of ln(n) over which both sides were timed. It is empty if low > high."""
    return (
        max(min(curve.first for curve in side) for side in (case, other)),
        min(max(curve.last for curve in side) for side in (case, other)),
    )


def margin_at(case: Side, other: Side, x: float) -> Margin:
    """Return the comparison of both sides at x = ln(n)."""
    own, others = (_settle(height, case, other) for height in (case.fastest(x), other.fastest(x)))
    offsets = offset_apart(case, other)
    log_ratio, deviation = others.mean - own.mean, math.sqrt(own.variance + others.variance + offsets)
    wins = sum(chance * normal(mean / deviation) for chance, mean in differences(own, others))
    return Margin(x, log_ratio, deviation, wins)


def offset_apart(case: Sequence[TimeCurve], other: Sequence[TimeCurve]) -> float:
    """Return the variance of the log ratio of both sides from one run to another, because whole curves shift."""
    own, others = (max(curve.offset for curve in side) for side in (case, other))
    return own + others - 2 * OFFSETS_TOGETHER * math.sqrt(own * others)


# The correlation between the offsets of a CPU and a GPU in one run, because the same CPU launches both and the
# same neighbours slow them down (docs/statistics.md).
OFFSETS_TOGETHER = 0.4


def _settle(height: Height, case: Side, other: Side) -> Height:
    """Remove the step from `height` if one side clearly wins at both ends of its gap."""
    if not height.jump:
        return height
    low, high = _common_sizes(case, other)
    places = [min(max(x, low), high) for x in height.gap]
    ends = [other.fastest(x).mean - case.fastest(x).mean for x in places]
    deviation = math.sqrt(height.variance)
    return height if min(ends) < deviation and max(ends) > -deviation else height._replace(jump=0.0)


def differences(own: Height, others: Height) -> list[tuple[float, float]]:
    """Return pairs (probability, mean of ln(other / own)): one for each pair of branches of the two heights."""
    return [
        (our_chance * their_chance, their_mean - our_mean)
        for our_chance, our_mean in own.branches()
        for their_chance, their_mean in others.branches()
    ]


def fastest_at(curves: Sequence[TimeCurve], x: float) -> Height:
    """Return the distribution of ln(seconds) of the fastest curve at x (Clark 1961). At least one curve is
    needed. The curves whose shape is known around x count; else those timed on both sides of x; else the
    nearest end of a curve."""
    near = [curve for curve in curves if curve.knows(x)]
    inside = sorted(curve.at(x) for curve in near or curves if curve.first - 1e-9 <= x <= curve.last + 1e-9)
    if not inside:  # between the sizes of one contender and those of another
        nearest = min(curves, key=lambda curve: max(curve.first - x, x - curve.last))
        inside = [nearest.at(min(max(x, nearest.first), nearest.last))]
    least = inside[0]
    for other in inside[1:]:
        spread = math.sqrt(least.variance + other.variance)
        z = (other.mean - least.mean) / spread
        first, density = normal(z), math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        mean = least.mean * first + other.mean * (1 - first) - spread * density
        square = (
            (least.mean**2 + least.variance) * first
            + (other.mean**2 + other.variance) * (1 - first)
            - (least.mean + other.mean) * spread * density
        )
        least = least._replace(mean=mean, variance=max(square - mean**2, LEAST_VARIANCE))
    return least


LEAST_VARIANCE = 1e-9


def threshold_of(margins: Sequence[Margin]) -> Threshold:
    """Return the break-even that follows from the margins between two sides, by ascending size."""
    wins = [margin.wins for margin in margins]
    begin, mixed = _last_rise(wins)
    x = [margin.x for margin in margins]
    rising = isotonic(wins[begin:])
    low, n, high = (_crosses(x[begin:], rising, share) for share in (TAIL, 0.5, 1 - TAIL))
    first, last = math.exp(x[0]), math.exp(x[-1])
    state: State = "at"
    if wins[-1] < TAIL:
        state = "never"
    elif begin == 0 and rising[0] > 1 - TAIL:
        state = "always"
    elif rising[-1] < 1 - TAIL or rising[0] > TAIL:
        state = "unsure"
    return Threshold(state, _size(n), _size(low), _size(high), first, last, mixed, tuple(margins))


def _size(x: float) -> float:
    return math.exp(x) if math.isfinite(x) else (0.0 if x < 0 else math.inf)


def _last_rise(wins: Sequence[float]) -> tuple[int, bool]:
    """Return the index where the last rise from loss to win begins, and whether a sure win precedes a
    sure loss."""
    sure_loss = max((i for i, share in enumerate(wins) if share < TAIL), default=None)
    if sure_loss is None:
        return 0, False
    below = [i for i, share in enumerate(wins[:sure_loss]) if share > 1 - TAIL]
    if not below:
        return 0, False
    return min(range(below[-1], len(wins)), key=lambda i: wins[i]), True


def isotonic(values: Sequence[float]) -> list[float]:
    """Return the nearest sequence that never falls, by least squares (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while blocks and blocks[-1][0] >= mean:
            before, size = blocks.pop()
            mean, count = (before * size + mean * count) / (size + count), size + count
        blocks.append((mean, count))
    return [mean for mean, count in blocks for _ in range(count)]


def _crosses(x: Sequence[float], rising: Sequence[float], share: float) -> float:
    """Return the x at which `rising` passes `share`; -infinity if all of it lies above, infinity if none does."""
    if rising[0] > share:
        return -math.inf
    for (a, low), (b, high) in itertools.pairwise(zip(x, rising, strict=True)):
        if high > share:
            return a + (b - a) * (share - low) / (high - low)
    return math.inf


# A choice is wrong if another one takes less time by more than this share.
WRONG = 0.05
# The half-width of a 95 % interval, in standard deviations.
Z = 1.96


# If the best choice is expected to lose more than this share of the time, no choice is made.
HIGHEST_COST = 0.10
# The distance in ln(n) between two sizes at which the cost of a choice is computed.
COST_STEP = math.log(1.5)


class HasTimes(Protocol):
    """A contender with an expected time at each size."""

    def seconds(self, n: int) -> float | None:
        """Return the expected time at size `n` in seconds, or None if it is unknown."""


T = TypeVar("T", bound=HasTimes)


def fastest(contenders: Iterable[T], n: int) -> tuple[T | None, float]:
    """Return the contender with the least expected time at size `n`, and this time in seconds. Returns None and
    infinity if no contender has a time there."""
    best, least = None, math.inf
    for contender in contenders:
        seconds = contender.seconds(n)
        if seconds is not None and seconds < least:
            best, least = contender, seconds
    return best, least


class Doubt(NamedTuple):
    """The risk of a choice."""

    wrong: float  # an upper bound of the probability that a rival is faster by more than WRONG
    cost: float  # the largest expected loss of time against a rival, as a share of the rival's time


def doubt(choice: TimeCurve, rivals: Iterable[TimeCurve], x: float) -> Doubt:
    """Return the risk of `choice` against all `rivals`, for a call at x = ln(n) in another run. Raises
    ValueError if x lies outside the timed sizes of a curve."""
    height, own_variance = choice.at(x), variance(choice, x)
    wrong = cost = 0.0
    for rival in rivals:
        its_variance = variance(rival, x)
        shared = TOGETHER if (choice.kind == "cpu") == (rival.kind == "cpu") else 0.0
        deviation = math.sqrt(own_variance + its_variance - 2 * shared * math.sqrt(own_variance * its_variance))
        lost = 0.0
        for chance, mean in differences(height, rival.at(x)):
            wrong += chance * normal((-LOG_WRONG - mean) / deviation)
            lost += chance * expected_loss(-mean, deviation)
        cost = max(cost, lost)
    return Doubt(min(wrong, 1.0), cost)


def unsure(curves: Sequence[TimeCurve], low: float, high: float) -> tuple[tuple[float, float], ...]:
    """Return the ranges (first size, last size) in which the expected loss of the fastest curve exceeds
    HIGHEST_COST. Sizes from `low` to `high` are tried in steps of at most COST_STEP. The result is empty unless
    0 < `low` < `high` < infinity."""
    if not curves or not 0 < low < high < math.inf:
        return ()
    steps = math.ceil(math.log(high / low) / COST_STEP)
    step = math.log(high / low) / steps
    stretches: list[tuple[float, float]] = []
    for i in range(steps + 1):
        x = math.log(low) + step * i
        if _cost(curves, x) > HIGHEST_COST:
            begin = math.exp(x - step / 2)
            if stretches and stretches[-1][1] > begin * (1 - 1e-9):
                begin = stretches.pop()[0]
            stretches.append((begin, math.exp(x + step / 2)))
    return tuple(stretches)


def _cost(curves: Sequence[TimeCurve], x: float) -> float:
    """Return the expected loss, as a share of the time, of the curve that seems the fastest at x = ln(n)."""
    there = [curve for curve in curves if curve.first - 1e-9 <= x <= curve.last + 1e-9]
    best = min(there, key=lambda curve: curve.mean(x), default=None)
    return 0.0 if best is None else doubt(best, [curve for curve in there if curve is not best], x).cost


LOG_WRONG = math.log1p(WRONG)
# The correlation between the deviations of two contenders that are both on the CPU or both on GPUs, because
# they share caches, clocks and neighbours (docs/statistics.md).
TOGETHER = 0.3


def variance(curve: TimeCurve, x: float) -> float:
    """Return the variance of ln(seconds) of a single call at x = ln(n) in another run. It does not include the
    uncertain place of a step."""
    shape = 0.0 if curve.knows(x) else WIDE_GAP
    return curve.at(x).variance + shape + curve.offset + curve.case_variance(x)


# The additional variance where `TimeCurve.knows` is false, because caches may bend the curve in a wide gap.
WIDE_GAP = 0.03


def expected_loss(mean: float, deviation: float) -> float:
    """Return the mean of max(0, exp(d) - 1) for a normal d with this mean and standard deviation."""
    shifted = mean + deviation**2
    return math.exp(mean + deviation**2 / 2) * normal(shifted / deviation) - normal(mean / deviation)


def interval(curve: TimeCurve, x: float) -> tuple[float, float, float]:
    """Return the seconds of a single call at x = ln(n): the low end of the 95 % interval, the expected value,
    the high end."""
    height, reach = curve.at(x), Z * math.sqrt(variance(curve, x))
    means = [mean for _, mean in height.branches()]
    return math.exp(min(means) - reach), math.exp(height.mean), math.exp(max(means) + reach)
