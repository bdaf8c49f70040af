"""The time budget of a run, and the decision whether a case has enough samples."""

from __future__ import annotations

import math
import time

import msgspec

from gpubench.curves import stats
from gpubench.curves.stats import median
from gpubench.result.run import Settings, StopReason

# The search may use this share of the budget. The rest is for peaks, saving, closing workers and the report.
SEARCH_SHARE = 0.9
# The search leaves this share to overheads and splits if there are any. They come after it, and it can be cut
# short.
SHARE_BESIDE_OVERHEADS = 0.5
# Finding devices, trying a user's functions and starting workers counts as at most this share of the budget,
# since an answer needs times even if the libraries take longer to import than the whole budget.
START_SHARE = 0.5
# Work that is nearly done when the budget ends gets this much longer.
LAST_S = 0.5


class Budget(msgspec.Struct):
    """The time limit of a run. Work that a machine does only once, such as choosing kernels, does not count."""

    total_s: float | None = None  # the seconds of the limit; None: no limit
    began: float = 0.0  # the time by `monotonic` from which the seconds count
    most_once_s: float = 0.0  # the most seconds of once-only work that do not count
    once_s: float = 0.0  # the seconds of once-only work so far

    @property
    def uncounted_s(self) -> float:
        """The seconds that do not count: those of once-only work, but at most `most_once_s`."""
        return min(self.once_s, self.most_once_s)

    @property
    def spent_s(self) -> float:
        """The seconds since the budget began."""
        return time.monotonic() - self.began

    def left_s(self, share: float = 1.0) -> float:
        """Return the seconds until `share` of the budget is used: below 0 afterwards, infinity without a
        limit."""
        if self.total_s is None:
            return math.inf
        return share * self.total_s - (self.spent_s - self.uncounted_s)

    def forgive(self, share: float) -> None:
        """Shift the begin of the budget, so that the time spent so far counts as at most `share` of it."""
        if self.total_s is not None:
            self.began = max(self.began, time.monotonic() - share * self.total_s - self.uncounted_s)

    @property
    def patience_s(self) -> float:
        """The seconds to wait for a worker that times nothing: the time left plus LAST_S."""
        return max(0.0, self.left_s()) + LAST_S

    @property
    def longest(self) -> Budget:
        """A copy of the budget that is `most_once_s` longer and counts all work."""
        return Budget(None if self.total_s is None else self.total_s + self.most_once_s, self.began)

    @property
    def over(self) -> bool:
        """Whether no time is left."""
        return self.left_s() <= 0


ENDLESS = Budget()

# Fewer blocks do not show how much blocks differ.
LEAST_BLOCKS = 4


def stop_reason(
    blocks: list[list[float]],
    sampling_s: float,
    left_s: float,
    settings: Settings,
    *,
    target: int | None = None,
) -> StopReason | None:
    """Return the reason to stop sampling a case, or None to go on. `blocks` holds the samples of each block
    that count. Sampling took `sampling_s` seconds so far, and `left_s` are left. If `target` is given, only
    that number of blocks and the time left decide."""
    if target is not None and len(blocks) >= target:
        return "max-samples"
    if left_s <= 0:
        return "timeout"
    count = sum(map(len, blocks))
    # Below the least number of samples, only the time left can stop a case.
    if target is not None or count < settings.min_samples:
        return None
    if count >= settings.max_samples:
        return "max-samples"
    if len(blocks) >= LEAST_BLOCKS:
        precision = estimate([median(block) for block in blocks])[1]
        if precision is not None and precision <= settings.precision:
            return "precision"
    return "max-time" if sampling_s >= settings.max_time_s else None


def estimate(values: list[float]) -> tuple[float, float | None]:
    """Return the geometric mean of `values`, and the relative half-width of the interval of their median.
    `values` are medians of blocks in seconds. Without values the mean is 0. The half-width is None for fewer
    than two values or a mean of 0."""
    if not values:
        return 0.0, None
    middle = stats.geometric_mean(values)
    low, high = stats.median_interval(values)
    return middle, (high - low) / 2 / middle if middle > 0 and len(values) > 1 else None
