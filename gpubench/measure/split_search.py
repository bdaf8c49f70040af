"""Two sides of a case: which cases to try after a search, and a block for each share of a split, or for each
placement of a workload that promises something, in the first session."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from gpubench import backends
from gpubench.curves.stats import median
from gpubench.measure.case_run import LARGEST_BLOCK, CaseRun
from gpubench.measure.plan import Constraints, Purpose, Series, Workload, only, workload
from gpubench.measure.points import Cell, Rows, cells, ratios
from gpubench.result.case import GANG
from gpubench.result.run import Measurement

# Around the optimum of the model: where the sides slow each other down, the best share lies beside it.
STEPS = (0.05, 0.1, 0.2)


def optimum(cpu_s: float, gpu_s: float) -> float:
    """The GPU's share at which both sides end together, from the seconds that each takes for all of the work."""
    return cpu_s / (cpu_s + gpu_s)


def fractions(cpu_s: float, gpu_s: float) -> list[float]:
    """The optimum, then its neighbours from near to far; none of them leaves a side without work."""
    best = optimum(cpu_s, gpu_s)
    around = [best, *(place for step in STEPS for place in (best - step, best + step))]
    return [place for place in around if 0.0 < place < 1.0]


def fastest(times: Mapping[float, float]) -> float | None:
    """The share with the least seconds per launch among those that are a split; None if there is none."""
    split = {share: seconds for share, seconds in times.items() if 0.0 < share < 1.0}
    return min(split, key=split.__getitem__, default=None)


_SEVERAL = (*backends.COMPOSED, GANG)
# Where one side is slower than this many times the other, both rates added up gain less than a tenth.
FARTHEST = 10.0


def alone(constraints: Constraints) -> Constraints:
    """Return the constraints without the composed devices and gangs: a search compares single ones."""
    single = tuple(t for t in constraints.targets if t.device.backend not in _SEVERAL)
    return msgspec.structs.replace(constraints, targets=single)


def asked(constraints: Constraints) -> bool:
    """Whether there is such a device to measure."""
    return any(target.device.backend in _SEVERAL for target in constraints.targets)


def on_gangs(series: Series, rows: Rows, constraints: Constraints) -> Sequence[Workload]:
    """The gangs at each size that the search measured on one of their members, from large to small: what a budget cuts
    off are sizes at which several GPUs gain nothing."""
    inner = {backends.names_of(t.device.id)[1] for t in constraints.targets if t.device.backend == GANG}
    sizes = [n for n, times in rows.items() if any(slot[0].partition(":")[0] in inner for slot in times)]
    workloads: list[Workload] = []
    for n in sorted(sizes, reverse=True):
        workloads += only(workload(series, n, constraints), lambda case: case.backend == GANG)
    return workloads


def worth_trying(
    series: Series, rows: Rows, cpu: Collection[str], constraints: Constraints
) -> Sequence[Workload]:
    """Return for each device and regime the split case at the largest measured size at which both sides are near
    enough."""
    sizes: dict[int, set[Cell]] = {}
    for cell in cells(rows, cpu):
        near = [n for n, ratio in ratios(rows, cell, cpu).items() if 1 / FARTHEST <= ratio <= FARTHEST]
        if near:
            sizes.setdefault(max(near), set()).add(cell)
    workloads: list[Workload] = []
    for n, places in sorted(sizes.items()):
        workloads += only(
            workload(series, n, constraints),
            lambda case, places=places: (case.shared_with, case.regime_id) in places,  # type: ignore[misc]
        )
    return workloads


SWEEP = Purpose("sweep", samples=LARGEST_BLOCK)
# Seconds for the stages of a workload on both sides.
PLACING_S = 0.5


def sweep(run: CaseRun) -> None:
    """Try the cuts and settle on one; each is checked before it is timed. What goes wrong ends the case.

    Each cut has the case's time limit for itself. Out of budget, the best of those tried is taken, or the model's.
    """
    if run.prepared is not None and isinstance(run.prepared.cut, str):
        _sweep_placements(run)
    else:
        _sweep_shares(run)


def _sweep_placements(run: CaseRun) -> None:
    """Both sides alone, and what is predicted to be the best."""
    left_s = run.left_s
    placing = run.place(min(PLACING_S, run.runtime.budget.left_s()))
    if run.over:
        return
    times: dict[str, float] = {}
    predicted = placing.predicted_s if placing is not None else {}
    for placement in predicted:
        _try(run, placement, times)
    if run.over:
        return
    run.left_s = left_s
    seconds = times or predicted
    _settle(run, min(seconds, key=seconds.__getitem__, default=None))


def _sweep_shares(run: CaseRun) -> None:
    left_s = run.left_s
    times: dict[float, float] = {}
    for share in (0.0, 1.0):
        _try(run, share, times)
    if len(times) == 2:
        for share in fractions(times[0.0], times[1.0]):
            _try(run, share, times)
    if run.over:
        return
    run.left_s = left_s
    best = fastest(times)
    if best is None and len(times) == 2:
        best = optimum(times[0.0], times[1.0])
    _settle(run, best)


def _try(run: CaseRun, cut: Any, times: dict[Any, float]) -> None:
    """One block at this cut, unless rounding makes it one that was tried."""
    if run.over or run.runtime.budget.over:
        return
    trial = run.trial(SWEEP, cut)
    trial.prepare(first=False)
    ready = trial.prepared
    place = ready.cut if ready is not None else None
    fresh = place is not None and place not in times and trial.take(len(times), 0)
    if place is not None and fresh and trial.kept:  # the budget may end where all that was taken is throttled
        times[place] = median(trial.kept)
    run.worker = trial.worker
    if trial.over:
        run.over, run.prepared = True, None


def _settle(run: CaseRun, cut: float | str | None) -> None:
    """Prepare the case at its cut (None: what it was prepared at), and enter what was checked there."""
    run.cut = cut if cut is not None or run.prepared is None else run.prepared.cut
    run.prepare(first=True)
    recorder, ready = run.runtime.recorder, run.prepared
    outcome = recorder.outcome(run.case.id)
    if isinstance(outcome, Measurement) and ready is not None:
        recorder.put(
            msgspec.structs.replace(
                outcome, check=ready.check, kernel_hash=ready.kernel_hash, kernel=ready.kernel
            )
        )
