"""The choice of one of several curves at a size: what it may cost, and what a single call will take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from gpubench.curves.threshold import differences, normal
from gpubench.curves.time_curve import TimeCurve

# A choice is wrong if another one takes less time by more than this share.
WRONG = 0.05
# Standard deviations on either side of an interval of 95 %.
Z = 1.96


# Where the best choice is expected to lose more than this share of the time, none is made.
HIGHEST_COST = 0.10
# ln(n) between two places at which the cost of a choice is looked at.
STEP = math.log(1.5)


class HasTimes(Protocol):
    """A contender that tells its expected time at a size."""

    def seconds(self, n: int) -> float | None:
        """Return None at sizes that it knows nothing of."""


T = TypeVar("T", bound=HasTimes)


def fastest(contenders: Iterable[T], n: int) -> tuple[T | None, float]:
    """Return the contender with the least expected time at n, and that time; None and infinity if none knows n."""
    best, least = None, math.inf
    for contender in contenders:
        seconds = contender.seconds(n)
        if seconds is not None and seconds < least:
            best, least = contender, seconds
    return best, least


class Doubt(NamedTuple):
    """How likely a choice is wrong, and the time that it is expected to lose, as a share."""

    wrong: float
    cost: float


def doubt(choice: TimeCurve, rivals: Iterable[TimeCurve], x: float) -> Doubt:
    """Return the doubt of `choice` at x = ln(n), beside rivals that were timed on both sides of x.

    It is that of a call in another run: the offsets of whole curves and the scatter of single sizes count.
    """
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
    """Return the stretches of sizes between `low` and `high` in which the fastest curve is expected to lose more than
    HIGHEST_COST."""
    if not curves or not 0 < low < high < math.inf:
        return ()
    steps = math.ceil(math.log(high / low) / STEP)
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
    """Return the share of time that the fastest curve is expected to lose at x = ln(n)."""
    there = [curve for curve in curves if curve.first - 1e-9 <= x <= curve.last + 1e-9]
    best = min(there, key=lambda curve: curve.mean(x), default=None)
    return 0.0 if best is None else doubt(best, [curve for curve in there if curve is not best], x).cost


LOG_WRONG = math.log1p(WRONG)
# Contenders of a CPU, or of GPUs, meet the same caches, clocks and neighbours, and lie off their curves together: so
# much of it is in common (docs/statistics.md).
TOGETHER = 0.3


def variance(curve: TimeCurve, x: float) -> float:
    """Return the variance of ln(seconds) of a single call in another run, without a step."""
    shape = 0.0 if curve.knows(x) else WIDE_GAP
    return curve.at(x).variance + shape + curve.offset + curve.case_variance(x)


# In a gap wider than `TimeCurve.knows` accepts, caches bend a curve by this variance more than its shape says.
WIDE_GAP = 0.03


def expected_loss(mean: float, deviation: float) -> float:
    """Return the mean of max(0, exp(d) - 1) for a normal d."""
    shifted = mean + deviation**2
    return math.exp(mean + deviation**2 / 2) * normal(shifted / deviation) - normal(mean / deviation)


def interval(curve: TimeCurve, x: float) -> tuple[float, float, float]:
    """Return the low end, the expected value and the high end of the seconds of a single call (95 %)."""
    height, reach = curve.at(x), Z * math.sqrt(variance(curve, x))
    means = [mean for _, mean in height.branches()]
    return math.exp(min(means) - reach), math.exp(height.mean), math.exp(max(means) + reach)
