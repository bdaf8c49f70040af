"""Which mode is best: by the static rule, or by measured results once this machine has any.

What a result says is read by the report, which knows how.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpubench.catalogue import DETECTION
from gpubench.detect.pci import ASLEEP
from gpubench.errors import GpubenchError
from gpubench.model.machine import Gpu, Machine, Measured, MeasuredSplit, Mode, Reason, Recommendation, Rejected

if TYPE_CHECKING:
    from gpubench.model.result import Run  # costs start-up, and only measured results need it

Reader = Callable[["Run"], Measured | None]
GIB = 1 << 30
# A 4 GiB card reports 4080 MiB, and ECC takes a sixteenth: sizes are nominal.
NOMINAL = 15 / 16
# About the size from which integrated AMD GPUs have been found worth using (ollama's default admits these).
PROVEN_UNITS = 32
# Outside of these ratios of CPU rate to GPU rate the slower side cannot help even if the split were free.
GPU_DOMINATES, CPU_DOMINATES = 0.1, 4.0
FEWEST_THREADS = 3  # one to feed the GPU and two to compute
MOST_FILES = 20


class UsableGpu(NamedTuple):
    """A GPU that may be recommended, and its usable bytes."""

    gpu: Gpu
    usable: int


def recommend(machine: Machine, override: Mode | None = None) -> Recommendation:
    """Mode, devices and reasons for a machine whose GPUs are known; `override` is the user's choice."""
    late = {provider.name for provider in machine.providers if provider.status == "timeout"}
    candidates, rejected = _sort_out(machine.gpus, late)
    mode, chosen, reasons = _rule(machine, candidates)
    if mode == "cpu" and _hides_a_gpu(machine, late, rejected):
        mode, chosen = "gpu", [UsableGpu(gpu, 0) for gpu, code in rejected if code == "SOURCE_LATE"]
        reasons = [] if chosen else [_reason("SOURCE_LATE")]
    reasons += [Reason(code=code, device_id=gpu.id, text=about(code, gpu)) for gpu, code in rejected]
    reasons += _notes(chosen if mode != "cpu" else [])
    if mode == "cpu" and not machine.gpus:
        reasons.append(_no_gpu(machine))
    if override is not None:
        text = f"The mode {override} was asked for; the rule says {mode}."
        reasons.insert(0, Reason(code="OVERRIDE", text=text))
        mode = override
        chosen = [] if override == "cpu" else chosen or candidates
    return Recommendation(
        mode=mode, confidence="provisional", device_ids=[c.gpu.id for c in chosen],
        cpu_threads=machine.cpu.available.value, reasons=reasons, overrides=[override] if override else [],
        rejected=[
            Rejected(device_id=gpu.id, mode="gpu", code=code)
            for gpu, code in rejected
            if all(gpu is not candidate.gpu for candidate in chosen)
        ],
    )  # fmt: skip


def mark_verified(advice: Recommendation, checked: frozenset[str]) -> Recommendation:
    """The same, with confidence `verified` if a checked kernel ran on every listed device."""
    if advice.device_ids and set(advice.device_ids) <= checked and advice.confidence == "provisional":
        return msgspec.structs.replace(advice, confidence="verified")
    return advice


def at_least(size: int, gib: int) -> bool:
    """Whether a device of `size` bytes counts as one of `gib` GiB."""
    return size >= gib * GIB * NOMINAL


# The probes that tell whether a vendor's GPU can be recommended. Where one is late the GPU stands in files alone.
_SOURCES = {"nvidia": frozenset({"nvml", "cuda"}), "amd": frozenset({"drm"}), "intel": frozenset({"drm"})}


def _is_late(gpu: Gpu, late: AbstractSet[str]) -> bool:
    return not late.isdisjoint(_SOURCES.get(gpu.vendor.value or "", ()))


def _hides_a_gpu(machine: Machine, late: AbstractSet[str], rejected: list[tuple[Gpu, str]]) -> bool:
    """Whether the CPU would be recommended for lateness alone. Where files list no GPU, libraries could: NVML under
    WSL, and wgpu too where there are no such files."""
    lists = {"nvml"} if machine.gpu_count.value is not None else {"nvml", "wgpu"}
    unlisted = not machine.gpus and not late.isdisjoint(lists)
    return unlisted or any(code == "SOURCE_LATE" for _, code in rejected)


def _sort_out(gpus: list[Gpu], late: AbstractSet[str]) -> tuple[list[UsableGpu], list[tuple[Gpu, str]]]:
    candidates, rejected = [], []
    for gpu in gpus:
        code = _objection(gpu, late)
        if code is not None:
            rejected.append((gpu, code))
        elif gpu.memory.usable_bytes.value is not None:
            candidates.append(UsableGpu(gpu, gpu.memory.usable_bytes.value))
    # Largest first; equal ones keep address order, so the answer is stable.
    return sorted(candidates, key=lambda candidate: -candidate.usable), rejected


def _objection(gpu: Gpu, late: AbstractSet[str]) -> str | None:
    """Why a GPU is no candidate: the first rule that holds."""
    usable = gpu.memory.usable_bytes.value
    if gpu.usable.value is False:
        return gpu.why_not[0] if gpu.why_not else "UNUSABLE"
    if gpu.kind.value == "integrated" and not _proven(gpu):
        return "SOURCE_LATE" if gpu.vendor.value == "nvidia" and "cuda" in late else "INTEGRATED_UNMEASURED"
    if usable is None and gpu.power.state.value in ASLEEP:
        return "GPU_ASLEEP"
    if usable is None:
        return "SOURCE_LATE" if _is_late(gpu, late) else "VRAM_UNKNOWN"
    return None if at_least(usable, 2) else "VRAM_LT_2GIB"


def _proven(gpu: Gpu) -> bool:
    listed = any("cuda" in api or "metal" in api for api in gpu.apis)
    return listed or (gpu.vendor.value == "amd" and (gpu.compute.units.value or 0) >= PROVEN_UNITS)


def _rule(machine: Machine, candidates: list[UsableGpu]) -> tuple[Mode, list[UsableGpu], list[Reason]]:
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
    return Reason(code=code, device_id=gpu.id if gpu else None, text=DETECTION.get(code, ""))


def _notes(chosen: list[UsableGpu]) -> list[Reason]:
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


class Verdict(NamedTuple):
    """A mode and why (`text` in place of what the code says), and the GPU's share where the mode is hybrid."""

    mode: Mode
    code: str
    split: float | None = None
    text: str = ""


def apply_results(machine: Machine, advice: Recommendation, results: Path, read: Reader) -> Recommendation:
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
    return list(dict.fromkeys(device.gpu_id or device.id for device in run.devices if device.kind == "gpu"))


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
        reasons=[Reason(code=verdict.code, text=verdict.text or DETECTION.get(verdict.code, "")), *kept],
        measured=msgspec.structs.replace(found, split=verdict.split),
    )


def judge(
    s: float | None, splits: Sequence[MeasuredSplit] = (), *, separate: bool, threads: int | None
) -> Verdict:
    """The mode for a ratio `s` of CPU rate to GPU rate. Splits that were measured overrule what the rates promise: one
    that is recommended means hybrid, none that it is not. `s` is None only beside a recommended split."""
    best = max((one for one in splits if one.reason is None), key=lambda one: one.gain, default=None)
    if best is not None:
        return Verdict("hybrid", "HYBRID_PAYS", best.fraction, _words(best, splits))
    assert s is not None, "there is no evidence without a ratio or a split that pays"
    if s < GPU_DOMINATES:
        return Verdict("gpu", "GPU_DOMINATES")
    if s > CPU_DOMINATES:
        return Verdict("cpu", "CPU_DOMINATES")
    if separate and (threads or 0) >= FEWEST_THREADS and not splits:
        return Verdict("hybrid", "HYBRID_PAYS", round(1 / (1 + s), 4))
    return Verdict("gpu" if s < 1 else "cpu", "FASTER_ALONE")


def _usable(gpu: Gpu) -> bool:
    return gpu.usable.value is not False


def _measured_here(machine: Machine, advice: Recommendation, run: Run) -> list[str]:
    """The GPUs of this machine that the run measured and that can be used now; of a run whose GPUs bear no id of this
    machine, the advised ones."""
    usable = [gpu.id for gpu in machine.gpus if _usable(gpu)]
    known = [one for one in gpus_of(run) if any(gpu.id == one for gpu in machine.gpus)]
    return [one for one in known if one in usable] if known else advice.device_ids or usable[:1]


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
    from gpubench.store.files import machine_name

    own = machine_name(machine, "")
    found = [
        path
        for pattern in ("*.json", "*.json.gz", f"{own}*/*.json", f"{own}*/*.json.gz")
        for path in results.glob(pattern)
        if os.path.isfile(path)  # of a pipe or a device nobody knows when it ends
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


def about(code: str, gpu: Gpu) -> str:
    """What the code means and what helps, with the variable or the device node of this GPU."""
    node, variable = gpu.access.device_node, gpu.access.hidden_by_env.value
    if code == "HIDDEN_BY_ENV" and variable:
        return f"The environment variable {variable} hides it; unset it, or name this GPU in it."
    if code == "NO_PERMISSION" and node.source:
        return f"This user may not open {node.source}; join the group that owns it (render or video)."
    if code == "NOT_EXPOSED" and node.source:
        return f"{node.source} is not here; give the container the device (--gpus all, or --device)."
    return DETECTION.get(code, "")
