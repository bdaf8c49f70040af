"""Timing of the stages of workloads at the smallest and the largest sizes, once for each device and session."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.measure.case_run import CaseRun, Runtime
from gpubench.measure.plan import Workload
from gpubench.measure.schedule import Companion
from gpubench.result.case import QUEUED, RESIDENT, WAITED

# The time limit, in seconds, for timing the stages of one case.
LIMIT_S = 0.25
# A slow machine may not reach the largest size, so sizes down to this fraction of it also count as largest.
FALL = 4


class StageCompanion(Companion):
    """The companion that times the stages of workloads at the smallest size and at the largest sizes."""

    def follow_cases(self, runtime: Runtime, workload: Workload, runs: Sequence[CaseRun]) -> None:
        """Time the stages of the workload once on each device that measured a tuned case with resident data.
        This is done only at small and at large sizes of an op with stages, and only while there is time
        left."""
        sizes = runtime.recorder.run.selection.sizes.get(workload.op.name)
        ladder = workload.series.ladder
        low, high = (min(sizes), max(sizes)) if sizes else (ladder.rungs()[0], ladder.high // FALL)
        if not workload.op.stages or low < workload.n < high:
            return
        # Resident calls come first: they show most of what a user of the chain sees.
        chosen: dict[str, CaseRun] = {}
        for regime in (RESIDENT, WAITED, QUEUED):
            for run in runs:
                case = run.case
                same = (case.workload, case.regime, case.implementation) == (workload.key, regime, "tuned")
                if same and run.measured:
                    chosen.setdefault(case.device_id, run)
        for run in chosen.values():
            if not runtime.budget.over:
                run.time_stages(min(LIMIT_S, runtime.budget.left_s()))
