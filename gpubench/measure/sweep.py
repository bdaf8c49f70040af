"""Which shares of a split to try, and which one is kept (measurement.md, section 11): pure functions."""

from __future__ import annotations

from collections.abc import Mapping

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
