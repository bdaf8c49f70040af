"""The cases of a workload whose stages are timed: few sizes, once for each device and session."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.curves.stats import median
from gpubench.kernels.contract.op import Ladder
from gpubench.measure.case_run import CaseRun, Runtime
from gpubench.measure.plan import Workload
from gpubench.measure.schedule import Companion
from gpubench.result.case import QUEUED, RESIDENT, WAITED
from gpubench.result.run import Measurement

# Seconds for the stages of one case, and how near to each other both sides are near their break-even.
LIMIT_S = 0.25
NEAR = 1.5
# A slow machine leaves out a top: the rung below is at most so much smaller.
FALL = 4


class StageCompanion(Companion):
    """The stages of workloads, timed at the ends of the sizes, and where both sides are about equal."""

    def follow_cases(self, runtime: Runtime, workload: Workload, runs: Sequence[CaseRun]) -> None:
        """Time the stages once for each device."""
        if not workload.op.stages or not _telling(runtime, workload, runs):
            return
        for run in _one_a_device(workload, runs):
            if not runtime.budget.over:
                run.time_stages(min(LIMIT_S, runtime.budget.left_s()))


def _one_a_device(workload: Workload, runs: Sequence[CaseRun]) -> list[CaseRun]:
    """A call that is waited for tells most of what a user of the chain sees."""
    chosen: dict[str, CaseRun] = {}
    for regime in (RESIDENT, WAITED, QUEUED):
        for run in runs:
            case = run.case
            if (
                case.workload == workload.key
                and case.regime == regime
                and case.implementation == "tuned"
                and run.measured
            ):
                chosen.setdefault(case.device_id, run)
    return list(chosen.values())


def _telling(runtime: Runtime, workload: Workload, runs: Sequence[CaseRun]) -> bool:
    low, high = _ends(runtime, workload)
    return workload.n <= low or workload.n >= high or _about_equal(runtime, workload, runs)


def _ends(runtime: Runtime, workload: Workload) -> tuple[int, int]:
    """The smallest size, and the first of the largest ones."""
    sizes = runtime.recorder.run.selection.sizes.get(workload.op.name)
    ladder: Ladder = workload.series.ladder
    return (min(sizes), max(sizes)) if sizes else (ladder.rungs()[0], ladder.high // FALL)


def _about_equal(runtime: Runtime, workload: Workload, runs: Sequence[CaseRun]) -> bool:
    """Whether a GPU takes about the time of the CPU here, and the stages of no size between the ends were timed yet."""
    cpu: list[float] = []
    gpu: list[float] = []
    for run in runs:
        on_cpu = runtime.kinds[run.case.device_id] == "cpu"
        if run.case.workload == workload.key and run.kept and (on_cpu or run.case.regime == WAITED):
            (cpu if on_cpu else gpu).append(median(run.kept))
    if not cpu or not gpu or _timed_between(runtime, workload):
        return False
    return min(cpu) <= NEAR * min(gpu) and min(gpu) <= NEAR * min(cpu)


def _timed_between(runtime: Runtime, workload: Workload) -> bool:
    """Whether the stages of such a size were timed in this session."""
    low, high = _ends(runtime, workload)
    return any(
        isinstance(outcome, Measurement)
        and outcome.case.op == workload.op.name
        and outcome.case.dtype == workload.dtype
        and low < outcome.case.params["n"] < high
        and any(times.session == runtime.session for times in outcome.stages)
        for outcome in runtime.recorder.outcomes
    )
