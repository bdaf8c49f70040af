"""Why a split is not recommended; None: it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpubench.report.analysis.types import NO_HEADLINE, CaseResult, HybridReason
from gpubench.stats import Interval

# A split that may gain less than this is not worth its trouble; a model that promises less is not worth a look.
LEAST_GAIN, LEAST_IDEAL = 1.05, 1.10
# The CPU's part may take this much longer while the GPU works before the GPU's side is to blame.
SLOWED = 1.10
# Below so many operations per byte today's CPUs wait for memory: what slows them down is shared bandwidth. Above it
# they compute, and what slows them down took their cores.
COMPUTING = 10.0


class Evidence(NamedTuple):
    """The gain, both sides' seconds alone, and what was timed beside: `sides` as in `Divides.sides`, `resident_s` the
    GPU's seconds without transfers."""

    row: CaseResult
    gain: Interval
    cpu_s: float
    gpu_s: float
    in_sample: bool
    sides: Mapping[str, float]
    resident_s: float | None


def reason(found: Evidence) -> HybridReason | None:
    """The first that holds: what forbids a verdict, what the model says, then where the time went."""
    row, gain = found.row, found.gain
    if row.device_kind == "software":
        return "software"
    if row.label in NO_HEADLINE:
        return "throttled" if row.label == "throttled" else "noise"
    if gain.low > LEAST_GAIN:
        return "selected-in-sample" if found.in_sample else None
    if 1 + min(found.cpu_s, found.gpu_s) / max(found.cpu_s, found.gpu_s) < LEAST_IDEAL:
        return "gpu-dominates" if found.gpu_s < found.cpu_s else "cpu-dominates"
    if gain.high > LEAST_GAIN:
        return "noise"
    return _loss(found)


def _loss(found: Evidence) -> HybridReason:
    """The model promised a gain that did not come."""
    row, sides = found.row, found.sides
    alone_s, beside_s = sides.get("cpu_alone_s"), sides.get("cpu_beside_s")
    if alone_s and beside_s and beside_s > SLOWED * alone_s:
        return "cpu-starved" if row.bytes and row.flops / row.bytes >= COMPUTING else "shared-bandwidth"
    if row.case.regime != "resident" and found.resident_s is not None and found.resident_s < found.gpu_s / 2:
        return "transfer-bound"
    return "overhead-bound"
