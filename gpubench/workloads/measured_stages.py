"""The companion that times the stages of workloads at small and large sizes, once for each device and session."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.measure.case_run import CaseRun, Runtime
from gpubench.measure.plan import Workload
from gpubench.measure.schedule import Companion
from gpubench.result.case import QUEUED, RESIDENT, WAITED

# Most seconds for timing the stages of one case.
LIMIT_S = 0.25
# If a run chooses its sizes, those from 1/FALL of the largest one on are large, because a slow machine may stop there.
FALL = 4


class StageCompanion(Companion):
    """The companion that times the stages of workloads."""

    def follow_cases(self, runtime: Runtime, workload: Workload, runs: Sequence[CaseRun]) -> None:
        """Time the stages of the workload once on each device that measured a tuned case with resident data. Does
        nothing for an op without stages, at sizes that are neither small nor large, and when no time is left."""
        sizes = runtime.recorder.run.selection.sizes.get(workload.op.name)
        ladder = workload.series.ladder
        low, high = (min(sizes), max(sizes)) if sizes else (ladder.rungs()[0], ladder.high // FALL)
        if not workload.op.stages or low < workload.n < high:
            return
        # The first regime that was measured is used. Its calls are most like those of a user.
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
