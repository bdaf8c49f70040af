"""What launches took, to know how many of the next size make a sample."""

from __future__ import annotations

import math

from gpubench.model.case import Case


class Pace:
    """Seconds of a launch by case and size."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[object, ...], dict[int, float]] = {}

    def note(self, case: Case, seconds: float) -> None:
        """Keep what a launch of the case took."""
        self._seconds.setdefault(self._curve(case), {})[case.params["n"]] = seconds

    def expected_s(self, case: Case) -> float | None:
        """Return what a launch takes by the straight line between the measured sizes around it, on logarithmic axes.
        Returns None beyond them."""
        known = self._seconds.get(self._curve(case), {})
        n = case.params["n"]
        below, above = (
            max((m for m in known if m <= n), default=None),
            min((m for m in known if m >= n), default=None),
        )
        if below is None or above is None:
            return None
        share = math.log(n / below) / math.log(above / below) if above > below else 0.0
        return math.exp((1 - share) * math.log(known[below]) + share * math.log(known[above]))

    @staticmethod
    def _curve(case: Case) -> tuple[object, ...]:
        return (*case.series, case.form_id, case.regime_id, case.device_id)
