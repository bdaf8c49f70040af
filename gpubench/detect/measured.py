"""Measured results of this machine in place of the static rule."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpubench.crossing import fresh_crossing
from gpubench.detect import remedies
from gpubench.detect._breakeven import Key, Times, break_evens
from gpubench.errors import GpubenchError
from gpubench.model.case import Case
from gpubench.model.machine import Machine, Measured, MeasuredBreakEven, Mode, Reason, Recommendation
from gpubench.model.result import Measurement, Run

# Outside of these ratios of CPU rate to GPU rate the slower side cannot help even if the split were free.
GPU_DOMINATES, CPU_DOMINATES = 0.1, 4.0
WIDEST = 4.0  # an interval wider than this factor settles nothing
FEWEST_THREADS = 3  # one to feed the GPU and two to compute
MOST_FILES = 20


class Verdict(NamedTuple):
    """A mode with its code."""

    mode: Mode
    code: str
    split: float | None = None


def apply(machine: Machine, advice: Recommendation, results: Path) -> Recommendation:
    """The recommendation from the newest result of this machine below `results`, or `advice` where none fits."""
    for path in _candidates(machine, results):
        run = _load(path)
        if run is None or not same_machine(machine, run.machine):
            continue
        table = times(run)
        s = ratio(table)
        if s is not None:
            return _measured(machine, advice, run, path, table, s)
    return advice


def same_machine(here: Machine, there: Machine) -> bool:
    """Whether CPU model, GPU device ids and driver versions agree."""
    return _marks(here) == _marks(there) and here.cpu.model.value is not None


def times(run: Run) -> dict[Key, Times]:
    """The best time of each side by op, dtype, regime and size; software devices take no part."""
    kinds = {device.id: device.kind for device in run.devices}
    best: dict[Key, dict[str, tuple[float, str]]] = {}
    for outcome in run.outcomes:
        if not isinstance(outcome, Measurement) or not outcome.check.ok or outcome.case.variant is not None:
            continue
        side, seconds = kinds.get(outcome.case.device_id, ""), _median(run, outcome)
        if side not in ("cpu", "gpu", "hybrid") or seconds is None:
            continue
        case = outcome.case
        table = best.setdefault(_key(case), {})
        table[side] = min(table.get(side, (math.inf, "")), (seconds, case.backend))
    for key, table in best.items():  # the CPU copies nothing: its time is one in every regime
        resident = best.get(key._replace(regime="resident"), {}).get("cpu")
        if resident is not None:
            table.setdefault("cpu", resident)
    none = (None, "")
    return {
        key: Times(found.get("cpu", none)[0], found.get("gpu", none)[0], found.get("hybrid", none)[0],
                   found.get("gpu", none)[1])
        for key, found in best.items()
    }  # fmt: skip


def _key(case: Case) -> Key:
    others = (f"{name}={value}" for name, value in sorted(case.params.items()) if name != "n")
    return Key(case.op, ",".join(others), case.dtype, case.regime_id, case.params["n"])


def ratio(table: Mapping[Key, Times]) -> float | None:
    """CPU rate / GPU rate: geometric mean over the ops at their largest common size, data resident."""
    largest: dict[tuple[str, str], tuple[int, float]] = {}
    for key, found in table.items():
        if (
            key.regime == "resident"
            and found.cpu_s
            and found.gpu_s
            and key.n > largest.get((key.op, key.params), (0, 0.0))[0]
        ):
            largest[key.op, key.params] = (key.n, found.gpu_s / found.cpu_s)
    return statistics.geometric_mean(value for _, value in largest.values()) if largest else None


def judge(s: float, *, separate: bool, threads: int | None, hybrid_gain: float | None = None) -> Verdict:
    """The mode for a ratio `s`; a measured hybrid run (gain over the best single side) overrules the estimate."""
    if hybrid_gain is not None and hybrid_gain > 1:
        return Verdict("hybrid", "HYBRID_PAYS", 1 / (1 + s))
    if s < GPU_DOMINATES:
        return Verdict("gpu", "GPU_DOMINATES")
    if s > CPU_DOMINATES:
        return Verdict("cpu", "CPU_DOMINATES")
    if separate and (threads or 0) >= FEWEST_THREADS and hybrid_gain is None:
        return Verdict("hybrid", "HYBRID_PAYS", 1 / (1 + s))
    return Verdict("gpu" if s < 1 else "cpu", "FASTER_ALONE")


def _measured(
    machine: Machine, advice: Recommendation, run: Run, path: Path, table: dict[Key, Times], s: float
) -> Recommendation:
    gpus = [gpu for gpu in machine.gpus if gpu.usable.value is not False]
    if not gpus:
        return advice
    separate = not any(gpu.memory.unified.value for gpu in gpus)
    verdict = judge(s, separate=separate, threads=machine.cpu.available.value, hybrid_gain=_hybrid_gain(table))
    points = [_closer(run, point) for point in break_evens(table)]
    kept = [r for r in advice.reasons if r.device_id is not None and not r.code.startswith("VRAM_")]
    ids = [] if verdict.mode == "cpu" else advice.device_ids or [gpus[0].id]
    found = Measured(
        file=path.name, date=run.started_at, s=round(s, 6), split=_rounded(verdict.split), break_even=points
    )
    reason = Reason(code=verdict.code, text=remedies.text(verdict.code))
    return msgspec.structs.replace(
        advice,
        mode=verdict.mode,
        confidence="measured",
        device_ids=ids,
        reasons=[reason, *kept],
        measured=found,
    )


def _closer(run: Run, point: MeasuredBreakEven) -> MeasuredBreakEven:
    """The break-even by the fresh timings around it, as the report takes it, where they settle it."""
    kinds = {device.id: device.kind for device in run.devices}
    fresh: dict[str, Case] = {}
    for outcome in run.outcomes:
        case = outcome.case
        ours = isinstance(outcome, Measurement) and any(block.phase == "estimate" for block in outcome.blocks)
        side = kinds.get(case.device_id, "")
        key = _key(case)
        same = (key.op, key.params, key.dtype) == (point.op, point.params, point.dtype)
        on_curve = side == "cpu" or (key.regime, case.backend) == (point.regime, point.backend)
        if ours and same and on_curve and side in ("cpu", "gpu"):
            fresh.setdefault(side, case)
    if point.size is None or len(fresh) < 2:
        return point
    found = fresh_crossing(run, fresh["cpu"], fresh["gpu"])
    if found is None or found.low is None or found.high is None or found.high > found.low * WIDEST:
        return point
    return msgspec.structs.replace(point, size=round(found.n))


def _hybrid_gain(table: Mapping[Key, Times]) -> float | None:
    gains = [min(t.cpu_s, t.gpu_s) / t.hybrid_s for t in table.values() if t.hybrid_s and t.cpu_s and t.gpu_s]
    return statistics.geometric_mean(gains) if gains else None


def _median(run: Run, outcome: Measurement) -> float | None:
    superseded = {session.index for session in run.sessions if session.superseded}
    samples = [
        wall for block in outcome.blocks for n, wall in enumerate(block.wall_s)
        if block.phase in ("main", "search") and block.session not in superseded
        and n >= block.warmup and str(n) not in block.discarded
    ]  # fmt: skip
    return statistics.median(samples) if samples and min(samples) > 0 else None


def _candidates(machine: Machine, results: Path) -> list[Path]:
    """Result files that may be of this machine, newest name first."""
    if results.is_file():
        return [results]
    from gpubench.store.folders import machine_name

    own = machine_name(machine, "")
    found = [
        path
        for pattern in ("*.json", "*.json.gz", f"{own}*/*.json", f"{own}*/*.json.gz")
        for path in results.glob(pattern)
    ]
    return sorted(found, key=lambda path: path.name, reverse=True)[:MOST_FILES]


def _load(path: Path) -> Run | None:
    from gpubench import store

    try:
        return store.load(path)
    except GpubenchError:  # somebody else's JSON beside our results
        return None


def _marks(machine: Machine) -> tuple[object, ...]:
    gpus = sorted(
        (gpu.vendor_id.value or "", gpu.device_id.value or "", gpu.driver.version.value or "")
        for gpu in machine.gpus
    )
    return (machine.cpu.model.value, gpus)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
