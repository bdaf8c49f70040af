"""Measurements of equal GPUs beside the cases: all at once, and those that a search leaves out."""

from __future__ import annotations

import time

from gpubench.measure.companion import Companion, Occasion
from gpubench.multi import identical, weak
from gpubench.result.run import Device


class EqualCompanion(Companion):
    """The equal GPUs of a run."""

    @property
    def share(self) -> float:  # type: ignore[override]
        """The part of the budget for the GPUs that a search leaves out."""
        return identical.SHARE if self.devices() else 0.0

    def devices(self) -> list[Device]:
        """Return the GPUs that the search leaves out, where the budget has a share for a look at them."""
        if self.spec.settings.budget_s is None:
            return []
        return [target.device for group in self.spec.left_out for target in group[1:]]

    def follow_session(self, session: Occasion) -> None:
        """Measure weak scaling in each session, and the GPUs that are left out in the first."""
        if self.spec.settings.scales("weak"):
            self._work_together(session)
        if session.first and self.devices():
            budget_s = self.spec.settings.budget_s or 0.0
            until = time.monotonic() + min(session.budget.left_s(), identical.SHARE * budget_s)
            times = identical.check(session.pool, self.spec, session.index, lambda: until - time.monotonic())
            self.recorder.twins(times)

    def _work_together(self, session: Occasion) -> None:
        """Run the largest size of each curve on all equal GPUs, as long as the budget holds a whole case."""
        for group in self.spec.equal:
            for item in weak.largest(session.plan):
                for count in self.spec.settings.ranks or [len(group)]:
                    if count <= len(group) and session.budget.left_s() >= weak.seconds(count):
                        times = weak.weak(
                            session.pool, group[:count], item, self.spec.constraints, session.index
                        )
                        self.recorder.together(times)
