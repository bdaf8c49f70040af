"""The time that is left to a run, and the decision whether a case has enough samples."""

from __future__ import annotations

import math
import time

from gpubench.curves import stats
from gpubench.curves.stats import median
from gpubench.result.run import Settings, StopReason

# What is nearly done when the budget ends may end.
LAST_S = 0.5


class Budget:
    """A limit of `total_s` seconds from the monotonic time `began`. Without `total_s` it never ends.

    Work that is done once on a machine, such as choosing kernels, is not counted, up to `most_once_s` seconds.
    """

    def __init__(self, total_s: float | None = None, began: float = 0.0, most_once_s: float = 0.0) -> None:
        self.total_s = total_s
        self._began, self._most_once_s = began, most_once_s
        self.once_s = 0.0  # spent on what this machine remembers

    @property
    def counted_once_s(self) -> float:
        """Seconds of work done once on this machine that the budget does not count."""
        return min(self.once_s, self._most_once_s)

    @property
    def spent_s(self) -> float:
        """Seconds since the budget began."""
        return time.monotonic() - self._began

    def left_s(self, share: float = 1.0) -> float:
        """Return the seconds until `share` of the budget is used; infinity without a limit."""
        if self.total_s is None:
            return math.inf
        return share * self.total_s - (self.spent_s - self.counted_once_s)

    def forgive(self, share: float) -> None:
        """Count the time spent so far as at most `share` of the budget."""
        if self.total_s is not None:
            self._began = max(self._began, time.monotonic() - share * self.total_s - self.counted_once_s)

    @property
    def patience_s(self) -> float:
        """Seconds to wait for work in which nothing is timed."""
        return max(0.0, self.left_s()) + LAST_S

    @property
    def over(self) -> bool:
        """Whether no time is left."""
        return self.left_s() <= 0


ENDLESS = Budget()

# Fewer blocks do not tell how far blocks lie apart.
LEAST_BLOCKS = 4


def stop_reason(
    blocks: list[list[float]],
    sampling_s: float,
    left_s: float,
    settings: Settings,
    *,
    target: int | None = None,
) -> StopReason | None:
    """Return why sampling stops, or None to go on. `blocks`: the kept samples of each block.

    If `target` is given, only this number of blocks and the time left decide. Otherwise the time left comes first, then
    the number of samples, the precision (from LEAST_BLOCKS blocks on) and the sampling time.
    """
    if target is not None and len(blocks) >= target:
        return "max-samples"
    if left_s <= 0:
        return "timeout"
    count = sum(map(len, blocks))
    if target is not None or count < settings.min_samples:
        return None
    if count >= settings.max_samples:
        return "max-samples"
    if len(blocks) < LEAST_BLOCKS:
        return "max-time" if sampling_s >= settings.max_time_s else None
    precision = estimate([median(block) for block in blocks])[1]
    if precision is not None and precision <= settings.precision:
        return "precision"
    return "max-time" if sampling_s >= settings.max_time_s else None


def estimate(values: list[float]) -> tuple[float, float | None]:
    """Return the typical seconds (geometric mean of `values`, the blocks' medians), and the relative half-width of the
    interval of their median. The half-width is None for fewer than two values."""
    if not values:
        return 0.0, None
    middle = stats.geometric_mean(values)
    low, high = stats.median_interval(values)
    return middle, (high - low) / 2 / middle if middle > 0 and len(values) > 1 else None
