"""Measured results of a machine in place of the static rule. What a result says is read by who knows: the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpubench.detect import remedies
from gpubench.errors import GpubenchError
from gpubench.model.machine import Gpu, Machine, Measured, MeasuredSplit, Mode, Reason, Recommendation
from gpubench.model.result import GPUS, Run

# Outside of these ratios of CPU rate to GPU rate the slower side cannot help even if the split were free.
GPU_DOMINATES, CPU_DOMINATES = 0.1, 4.0
FEWEST_THREADS = 3  # one to feed the GPU and two to compute
MOST_FILES = 20
Reader = Callable[[Run], Measured | None]


class Verdict(NamedTuple):
    """A mode with its code and text, and the GPU's share where the mode is hybrid."""

    mode: Mode
    code: str
    text: str
    split: float | None = None


def apply(machine: Machine, advice: Recommendation, results: Path, read: Reader) -> Recommendation:
    """The recommendation from the newest result of this machine below `results` of which `read` says something, or
    `advice` where none fits."""
    for path in _candidates(machine, results) if any(map(_usable, machine.gpus)) else ():
        run = _load(path)
        gpus = _measured_here(machine, advice, run) if run and same_machine(machine, run.machine) else []
        found = read(run) if run and gpus else None
        if found is not None:
            return decide(machine, advice, msgspec.structs.replace(found, file=path.name), gpus)
    return advice


def same_machine(here: Machine, there: Machine) -> bool:
    """Whether CPU model, GPU device ids and driver versions agree."""
    return _marks(here) == _marks(there) and here.cpu.model.value is not None


def gpus_of(run: Run) -> list[str]:
    """The GPUs that a run measured: ids of its `machine.gpus`, or of the device where detection did not know it."""
    return list(dict.fromkeys(device.gpu_id or device.id for device in run.devices if device.kind in GPUS))


def decide(machine: Machine, advice: Recommendation, found: Measured, gpus: Sequence[str]) -> Recommendation:
    """`advice` with the mode that the evidence of `gpus` gives, on these unless it is the CPU."""
    # Devices that detection did not know may be any that can be used.
    ours = [gpu for gpu in machine.gpus if gpu.id in gpus] or [gpu for gpu in machine.gpus if _usable(gpu)]
    separate = not any(gpu.memory.unified.value for gpu in ours)
    verdict = judge(found.s, found.splits, separate=separate, threads=machine.cpu.available.value)
    kept = [r for r in advice.reasons if r.device_id is not None and not r.code.startswith("VRAM_")]
    return msgspec.structs.replace(
        advice,
        mode=verdict.mode,
        confidence="measured",
        device_ids=[] if verdict.mode == "cpu" else list(gpus),
        reasons=[Reason(code=verdict.code, text=verdict.text), *kept],
        measured=msgspec.structs.replace(found, split=verdict.split),
    )


def judge(
    s: float | None, splits: Sequence[MeasuredSplit] = (), *, separate: bool, threads: int | None
) -> Verdict:
    """The mode for a ratio `s` of CPU rate to GPU rate. Splits that were measured overrule what the rates promise: one
    that is recommended means hybrid, none that it is not. `s` is None only beside a recommended split."""
    best = max((one for one in splits if one.reason is None), key=lambda one: one.gain, default=None)
    if best is not None:
        return Verdict("hybrid", "HYBRID_PAYS", _words(best, splits), best.fraction)
    assert s is not None, "there is no evidence without a ratio or a split that pays"
    if s < GPU_DOMINATES:
        return _verdict("gpu", "GPU_DOMINATES")
    if s > CPU_DOMINATES:
        return _verdict("cpu", "CPU_DOMINATES")
    if separate and (threads or 0) >= FEWEST_THREADS and not splits:
        return _verdict("hybrid", "HYBRID_PAYS", round(1 / (1 + s), 4))
    return _verdict("gpu" if s < 1 else "cpu", "FASTER_ALONE")


def _usable(gpu: Gpu) -> bool:
    return gpu.usable.value is not False


def _measured_here(machine: Machine, advice: Recommendation, run: Run) -> list[str]:
    """The GPUs of this machine that the run measured and that can be used now; of a run whose GPUs bear no id of this
    machine, the advised ones."""
    usable = [gpu.id for gpu in machine.gpus if _usable(gpu)]
    known = [one for one in gpus_of(run) if any(gpu.id == one for gpu in machine.gpus)]
    return [one for one in known if one in usable] if known else advice.device_ids or usable[:1]


def _verdict(mode: Mode, code: str, split: float | None = None) -> Verdict:
    return Verdict(mode, code, remedies.text(code), split)


def _words(best: MeasuredSplit, splits: Sequence[MeasuredSplit]) -> str:
    what = " ".join(part for part in (best.op, best.params, best.dtype) if part)
    paying = sum(one.reason is None for one in splits)
    return (
        f"Measured on this machine: {what} split over CPU and GPU is {best.gain:.2f}x as fast as on the better of the "
        f"two (n = {best.n}, {best.regime}, {best.fraction:.0%} on the GPU); {paying} of {len(splits)} measured splits "
        "pay."
    )


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
