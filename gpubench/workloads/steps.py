"""Seconds of the steps of a chain, from readings that the clock itself made longer."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.curves.stats import median
from gpubench.result.run import Placing

# Share of what was read of the stages that remains when a launch and its wait take all of a short chain.
LEAST = 0.1


def adding_up(steps_s: Sequence[float], whole_s: float) -> list[float]:
    """Seconds of the steps of a chain that add up to those of the whole, which ran without clock readings.

    A reading costs the same behind every step, so each loses the same; if that leaves less than nothing of one, or the
    readings cost nothing, the rest is in proportion.
    """
    extra = max(0.0, sum(steps_s) - whole_s) / max(1, len(steps_s))
    left = [max(0.0, seconds - extra) for seconds in steps_s]
    total = sum(left)
    return [seconds * whole_s / total for seconds in left] if total else left


def stage_seconds(placing: Placing) -> tuple[list[float], list[float | None]]:
    """What a prediction takes for each stage on the CPU, and on the GPU (None: the host does it).

    The stages of a side, and on a GPU with a clock of its own one launch and its wait, add up to that side alone.
    """
    enter_s = median(placing.enter_s) if placing.clock != "waited" else 0.0
    on_gpu = [median(one) for one in placing.gpu_s if one]
    left_s = max(median(placing.gpu_whole_s) - enter_s, LEAST * sum(on_gpu))
    gpu_s = iter(adding_up(on_gpu, left_s))
    return (
        adding_up([median(one) for one in placing.cpu_s], median(placing.cpu_whole_s)),
        [next(gpu_s) if one else None for one in placing.gpu_s],
    )
