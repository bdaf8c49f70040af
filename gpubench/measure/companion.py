"""Measurements of a wing beside the cases of a run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpubench.base.plugins import wings
from gpubench.measure.budget import Budget
from gpubench.measure.case_run import CaseRun, Runtime
from gpubench.measure.plan import Workload
from gpubench.measure.recorder import Recorder
from gpubench.measure.schedule import RunSpec
from gpubench.measure.worker_pool import WorkerPool
from gpubench.result.run import Device


class Occasion(msgspec.Struct, frozen=True):
    """A session whose cases are measured."""

    pool: WorkerPool
    index: int
    first: bool  # of this run
    plan: Sequence[Workload]
    budget: Budget


class Companion:
    """Base of what a wing measures beside the cases of one run: as it stands, nothing."""

    # The part of the budget that the search leaves.
    share = 0.0

    def __init__(self, spec: RunSpec, recorder: Recorder) -> None:
        self.spec, self.recorder = spec, recorder

    def devices(self) -> list[Device]:
        """Return the devices that are measured beside those of the cases."""
        return []

    def follow_cases(self, runtime: Runtime, workload: Workload, runs: Sequence[CaseRun]) -> None:
        """Measure what belongs to a workload, while its cases are prepared."""

    def follow_session(self, session: Occasion) -> None:
        """Measure what belongs to a session, before its workers end."""


def companions(spec: RunSpec, recorder: Recorder) -> list[Companion]:
    """Return those of all wings. A check measures none."""
    if spec.check_only:
        return []
    return [make(spec, recorder) for make in wings.find_all(wings.brought("companions")).values()]
