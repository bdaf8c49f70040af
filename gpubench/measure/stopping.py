"""When sampling of a case ends, and which of its samples count (measurement.md sections 5 and 6): pure functions."""

from __future__ import annotations

from gpubench import stats
from gpubench.model.result import Block, Measurement, Settings, StopReason


def kept_samples(block: Block) -> list[float]:
    """Samples that count: not warm-up, not discarded; all of them if discarding left too few."""
    used = list(enumerate(block.wall_s))[block.warmup :]
    kept = [value for i, value in used if str(i) not in block.discarded]
    return kept if kept or not used else [value for _, value in used]


def settled_block(known: Measurement) -> Block | None:
    """The block whose repeat counts, and whose share of a split, the case keeps; those of a sweep all differ."""
    return next((block for block in known.blocks if block.phase != "sweep"), None)


def stop_reason(
    kept: list[float], sampling_s: float, left_s: float, settings: Settings, *, wanted: int | None = None
) -> StopReason | None:
    """Precision first, then the limits (measurement.md section 5, step 7); None: go on.

    Where a number of samples is `wanted`, it alone decides, and the time that is left.
    """
    if wanted is not None and len(kept) >= wanted:
        return "max-samples"
    if left_s <= 0:
        return "timeout"
    if wanted is not None:
        return None
    if len(kept) < settings.min_samples:
        return None
    precision = estimate(kept)[1]
    if precision is not None and precision <= settings.precision:
        return "precision"
    if len(kept) >= settings.max_samples:
        return "max-samples"
    return "max-time" if sampling_s >= settings.max_time_s else None


def estimate(kept: list[float]) -> tuple[float, float | None]:
    """(median seconds, relative half-width of its interval); no width from fewer than two samples."""
    if not kept:
        return 0.0, None
    middle = stats.median(kept)
    low, high = stats.median_interval(kept)
    return middle, (high - low) / 2 / middle if middle > 0 and len(kept) > 1 else None
