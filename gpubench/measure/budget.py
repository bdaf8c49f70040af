"""The time that a run may take, and what is left of it."""

from __future__ import annotations

import math
import time

# What is nearly done when the budget ends may end.
LAST_S = 0.5


class Budget:
    """`total_s` seconds from the monotonic time `began` on; None: no end.

    What is done once on a machine, such as choosing kernels, takes nothing of it up to `most_once_s`.
    """

    def __init__(self, total_s: float | None = None, began: float = 0.0, most_once_s: float = 0.0) -> None:
        self.total_s = total_s
        self._began, self._most_once_s = began, most_once_s
        self.once_s = 0.0  # spent on what this machine remembers

    @property
    def counted_once_s(self) -> float:
        """Seconds that were spent once on this machine, as far as the budget grows with them."""
        return min(self.once_s, self._most_once_s)

    @property
    def spent_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    def left_s(self, share: float = 1.0) -> float:
        """Return the seconds until that share of the budget is used."""
        if self.total_s is None:
            return math.inf
        return share * self.total_s - (self.spent_s - self.counted_once_s)

    def forgive(self, share: float) -> None:
        """Let what was spent so far count as that share of the budget at most."""
        if self.total_s is not None:
            self._began = max(self._began, time.monotonic() - share * self.total_s - self.counted_once_s)

    @property
    def patience_s(self) -> float:
        """Seconds to wait for work in which nothing is timed."""
        return max(0.0, self.left_s()) + LAST_S

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self.left_s() <= 0


ENDLESS = Budget()
