"""Machine -> Recommendation by the static rule, until this machine has been measured. Pure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from gpubench.detect import remedies
from gpubench.model.machine import Gpu, Machine, Mode, Reason, Recommendation, Rejected

GIB = 1 << 30
# A 4 GiB card reports 4080 MiB, and ECC takes a sixteenth: sizes are nominal.
NOMINAL = 15 / 16
ASLEEP = ("suspended", "suspending")
# About the size from which integrated AMD GPUs have been found worth using (ollama's default admits these).
PROVEN_UNITS = 32


class Candidate(NamedTuple):
    """A GPU that may be recommended, and its usable bytes."""

    gpu: Gpu
    usable: int


def recommend(machine: Machine, override: Mode | None = None) -> Recommendation:
    """Mode, devices and reasons for a machine whose GPUs are known; `override` is the user's choice."""
    candidates, rejected = _judge(machine.gpus)
    mode, chosen, reasons = _rule(machine, candidates)
    reasons += [Reason(code=code, device_id=gpu.id, text=remedies.about(code, gpu)) for gpu, code in rejected]
    reasons += _notes(chosen if mode != "cpu" else [])
    if mode == "cpu" and not machine.gpus:
        reasons.append(_no_gpu(machine))
    overrides: list[str] = []
    if override is not None:
        reasons.insert(
            0, Reason(code="OVERRIDE", text=f"The mode {override} was asked for; the rule says {mode}.")
        )
        overrides, mode = [override], override
        chosen = [] if override == "cpu" else chosen or candidates
    return Recommendation(
        mode=mode, confidence="provisional", device_ids=[c.gpu.id for c in chosen],
        cpu_threads=machine.cpu.available.value, reasons=reasons, overrides=overrides,
        rejected=[Rejected(device_id=gpu.id, mode="gpu", code=code) for gpu, code in rejected],
    )  # fmt: skip


def verified(advice: Recommendation, checked: frozenset[str]) -> Recommendation:
    """The same, with confidence `verified` if a checked kernel ran on every listed device."""
    if advice.device_ids and set(advice.device_ids) <= checked and advice.confidence == "provisional":
        return msgspec.structs.replace(advice, confidence="verified")
    return advice


def at_least(size: int, gib: int) -> bool:
    """Whether a device of `size` bytes counts as one of `gib` GiB."""
    return size >= gib * GIB * NOMINAL


def _judge(gpus: list[Gpu]) -> tuple[list[Candidate], list[tuple[Gpu, str]]]:
    candidates, rejected = [], []
    for gpu in gpus:
        code = _objection(gpu)
        if code is not None:
            rejected.append((gpu, code))
        elif gpu.memory.usable_bytes.value is not None:
            candidates.append(Candidate(gpu, gpu.memory.usable_bytes.value))
    # Largest first; equal ones keep address order, so the answer is stable.
    return sorted(candidates, key=lambda candidate: -candidate.usable), rejected


def _objection(gpu: Gpu) -> str | None:
    """Why a GPU is no candidate: the first rule that holds."""
    usable = gpu.memory.usable_bytes.value
    if gpu.usable.value is False:
        return gpu.why_not[0] if gpu.why_not else "UNUSABLE"
    if gpu.kind.value == "integrated" and not _proven(gpu):
        return "INTEGRATED_UNMEASURED"
    if usable is None:
        return "GPU_ASLEEP" if gpu.power.state.value in ASLEEP else "VRAM_UNKNOWN"
    return None if at_least(usable, 2) else "VRAM_LT_2GIB"


def _proven(gpu: Gpu) -> bool:
    listed = any(api == "cuda" or "metal" in api for api in gpu.apis)
    return listed or (gpu.vendor.value == "amd" and (gpu.compute.units.value or 0) >= PROVEN_UNITS)


def _rule(machine: Machine, candidates: list[Candidate]) -> tuple[Mode, list[Candidate], list[Reason]]:
    if not candidates:
        return "cpu", [], []
    best = candidates[0]
    if at_least(best.usable, 4):
        chosen = [c for c in candidates if at_least(c.usable, 4)]
        return "gpu", chosen, [_reason("VRAM_GE_4GIB", best.gpu)]
    reasons = [_reason("VRAM_2_TO_4GIB", best.gpu)]
    threads = machine.cpu.available.value
    if best.gpu.memory.unified.value:
        return "gpu", [best], [*reasons, _reason("SHARED_BANDWIDTH", best.gpu)]
    if threads is not None and threads < 2:
        return "gpu", [best], [*reasons, _reason("FEW_CPU_THREADS", best.gpu)]
    return "hybrid", [best], reasons


def _reason(code: str, gpu: Gpu | None = None) -> Reason:
    return Reason(code=code, device_id=gpu.id if gpu else None, text=remedies.text(code))


def _notes(chosen: list[Candidate]) -> list[Reason]:
    """What does not change the mode but should be known."""
    notes = []
    for candidate in chosen:
        free = candidate.gpu.memory.free_bytes.value
        if candidate.gpu.power.state.value in ASLEEP:
            notes.append(_reason("WILL_WAKE", candidate.gpu))
        if free is not None and free < candidate.usable / 2:
            notes.append(_reason("MEMORY_BUSY", candidate.gpu))
    return notes


def _no_gpu(machine: Machine) -> Reason:
    if machine.software_renderers:
        return _reason("SOFTWARE_ONLY")
    if machine.display_adapters:
        return _reason("DISPLAY_ONLY")
    return _reason("NO_GPU" if machine.gpu_count.value is not None else "GPU_UNKNOWN")
