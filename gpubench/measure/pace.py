"""Times of launches, from which the repeat counts of the next size are predicted."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gpubench.result.case import Case

# A time grows no faster with the size than this power of it: matmul's, whose size is a side.
STEEPEST = 3.0


# No TimeCurve: after each new time one takes 0.3 to 2.5 ms to fit, some 2 s of a default run, and it says nothing of
# larger sizes, which the ladder asks for.
def between(times: Mapping[int, float], n: int) -> float | None:
    """Return the seconds at size `n` by the straight line, on logarithmic axes, between the measured sizes around it.
    Returns None beyond them."""
    below, above = (
        max((m for m in times if m <= n), default=None),
        min((m for m in times if m >= n), default=None),
    )
    if below is None or above is None:
        return None
    return times[below] * math.pow(n / below, _power(times, below, above))


def _power(times: Mapping[int, float], low: int, high: int) -> float:
    """Return the slope of the line through two sizes."""
    return math.log(times[high] / times[low]) / math.log(high / low) if high > low else 0.0


class Pace:
    """Seconds of a launch by case and size."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[object, ...], dict[int, float]] = {}

    def note(self, case: Case, seconds: float) -> None:
        """Keep what a launch of the case took."""
        if seconds > 0:
            self._seconds.setdefault(self._curve(case), {})[case.params["n"]] = seconds

    def expected_s(self, case: Case) -> float | None:
        """Return about what a launch takes, and rather more: too few launches for a sample are seen at little cost.

        Between two measured sizes that is the straight line on logarithmic axes. Below all of them it is the time of
        the smallest, above them that of the largest, which grows with the size or as the last two sizes tell. Returns
        None where no size was measured.
        """
        times = self._seconds.get(self._curve(case))
        if not times:
            return None
        n, sizes = case.params["n"], sorted(times)
        if n < sizes[0]:
            return times[sizes[0]]
        if (seconds := between(times, n)) is not None:
            return seconds
        power = min(max(_power(times, *sizes[-2:]), 1.0), STEEPEST) if len(sizes) > 1 else 1.0
        return times[sizes[-1]] * math.pow(n / sizes[-1], power)

    def least_s(self, case: Case) -> float:
        """Return about what a launch takes, and rather less: in proportion to the nearest size. Returns 0 where no size
        was measured."""
        n, times = case.params["n"], self._seconds.get(self._curve(case), {})
        nearest = min(times, key=lambda m: abs(math.log(m / n)), default=n)
        return times.get(nearest, 0.0) * n / nearest

    @staticmethod
    def _curve(case: Case) -> tuple[object, ...]:
        return (*case.series, case.form_id, case.regime_id, case.device_id)
