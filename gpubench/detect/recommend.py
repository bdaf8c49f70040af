"""The recommended mode: by a fixed rule, or by measured results of this machine if there are any.

`analysis.winners` turns a result into evidence, and this module turns the evidence into a mode.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from gpubench.base.errors import GpubenchError, suggest
from gpubench.base.messages import DETECTION
from gpubench.base.units import list_words
from gpubench.detect.pci import ASLEEP, CHIP_NODE, FREE_DRIVERS
from gpubench.result.case import MAPPED, QUEUED, WAITED
from gpubench.result.identity import Likeness, compare, measured_gpus
from gpubench.result.machine import (
    Gpu,
    Machine,
    Measured,
    MeasuredSituation,
    MeasuredSplit,
    Mode,
    Provider,
    Reason,
    Recommendation,
    Rejected,
)

if TYPE_CHECKING:
    from gpubench.result.run import Run  # costs start-up, and only measured results need it

# A function that returns the evidence of a run for a mode, or the reason why there is none.
Reader = Callable[["Run"], Measured | str]
GIB = 1 << 30
# Sizes are nominal: a 4 GiB card reports 4080 MiB, and ECC takes a sixteenth of the memory.
NOMINAL = 15 / 16
# The number of units from which on integrated AMD GPUs have been found worth using (ollama's default admits
# these).
PROVEN_UNITS = 32
MOST_FILES = 20  # the newest files of this machine that are read
ALWAYS = "transfer-always"
# The codes of reasons that only rest on the size of the memory.
_BY_SIZE = ("VRAM_GE_4GIB", "VRAM_2_TO_4GIB", "VRAM_LT_2GIB")
UNMEASURED = "By VRAM alone, nothing was measured: `gpubench run`."
UNDECIDED = "By VRAM alone, as what was measured does not decide."


def recommend(machine: Machine, override: Mode | None = None) -> Recommendation:
    """Return the mode, the devices and the reasons that the fixed rule gives. `override` is the mode that the
    user chose instead, or None."""
    late = {provider.name for provider in machine.providers if provider.status == "timeout"}
    apple = machine.platform.arch.value != "x86_64"
    objections = [(gpu, _objection(gpu, late, apple=apple)) for gpu in machine.gpus]
    rejected = [(gpu, code) for gpu, code in objections if code is not None]
    # Largest first; equal ones keep address order, so the answer is stable.
    candidates = sorted((gpu for gpu, code in objections if code is None), key=_size, reverse=True)
    mode, chosen, reasons = _rule(machine, candidates)
    # Where files list no GPU, NVML may; where no file can tell, as in WSL, each library may.
    listing = {"nvml"} if machine.gpu_count.value is not None else {"nvml", "cuda", "wgpu"}
    late_gpus = [gpu for gpu, code in rejected if code == "SOURCE_LATE"]
    if mode == "cpu" and (late_gpus or (not machine.gpus and late & listing)):
        # The mode is never `cpu` for lateness.
        mode, chosen, reasons = "gpu", late_gpus, [] if late_gpus else [_reason("SOURCE_LATE")]
    reasons += [Reason(code=code, device_id=gpu.id, text=about(code, gpu)) for gpu, code in rejected]
    for gpu in chosen:
        free = gpu.memory.free_bytes.value
        if gpu.power.state.value in ASLEEP:
            reasons.append(_reason("WILL_WAKE", gpu))
        if gpu.access.hidden_by_env.value:
            reasons.append(Reason(code="HIDDEN_BY_ENV", device_id=gpu.id, text=about("HIDDEN_BY_ENV", gpu)))
        if free is not None and free < _size(gpu) / 2 and not gpu.memory.unified.value:
            reasons.append(_reason("MEMORY_BUSY", gpu))
    if reasons and reasons[0].code in _BY_SIZE:
        reasons[0] = replace(reasons[0], text=f"{reasons[0].text} {UNMEASURED}")
    if mode == "cpu" and not machine.gpus:
        reasons.append(no_gpu(machine))
    if override is not None:
        text = f"The mode {override} was asked for; the rule says {mode}."
        reasons.insert(0, Reason(code="OVERRIDE", text=text))
        mode = override
        chosen = [] if override == "cpu" else chosen or candidates
    ids = [gpu.id for gpu in chosen]
    return Recommendation(
        mode=mode, confidence="provisional", device_ids=ids, cpu_threads=machine.cpu.available.value, reasons=reasons,
        overrides=[override] if override else [],
        rejected=[Rejected(device_id=gpu.id, mode="gpu", code=code) for gpu, code in rejected if gpu.id not in ids],
    )  # fmt: skip


def verify(advice: Recommendation, checked: AbstractSet[str | None]) -> Recommendation:
    """Return the recommendation, `verified` instead of `provisional` if `checked` holds all recommended
    devices. `checked` holds the ids of devices on which a test kernel gave the right result."""
    if advice.device_ids and set(advice.device_ids) <= checked:
        return replace(advice, confidence="verified")
    return advice


def at_least(size: int, gib: int) -> bool:
    """Tell whether a device with `size` bytes of memory counts as one with `gib` GiB: it has at least NOMINAL
    times that."""
    return size >= gib * GIB * NOMINAL


def _size(gpu: Gpu) -> int:
    return gpu.memory.usable_bytes.value or 0


# The probes that show whether a vendor's GPU can be recommended. If one is late, only files describe the GPU.
_SOURCES = {"nvidia": {"nvml", "cuda"}, "amd": {"drm", "cuda"}, "intel": {"drm"}}


def _objection(gpu: Gpu, late: AbstractSet[str], *, apple: bool) -> str | None:
    """Return the code of the first reason not to compute on this GPU, or None. `late` holds the probes that did
    not answer in time, and `apple` tells that GPUs of Metal are Apple's."""
    if gpu.usable.value is False:
        return gpu.why_not[0] if gpu.why_not else "UNUSABLE"
    vendor, units = gpu.vendor.value or "", gpu.compute.units.value
    late = late & _SOURCES.get(vendor, set())
    # beside a CPU of x86, a GPU of Metal may be Intel's
    listed = any("cuda" in api or ("metal" in api and apple) for api in gpu.apis)
    proven = listed or (vendor == "amd" and (units or 0) >= PROVEN_UNITS)
    if gpu.kind.value == "integrated" and not proven:
        return "SOURCE_LATE" if units is None and "cuda" in late else "INTEGRATED_UNMEASURED"
    if gpu.memory.usable_bytes.value is not None:
        return None if at_least(_size(gpu), 2) else "VRAM_LT_2GIB"
    if gpu.power.state.value in ASLEEP:
        return "GPU_ASLEEP"
    return "SOURCE_LATE" if late else "VRAM_UNKNOWN"


def _rule(machine: Machine, candidates: list[Gpu]) -> tuple[Mode, list[Gpu], list[Reason]]:
    if not candidates:
        return "cpu", [], []
    best = candidates[0]
    if at_least(_size(best), 4):
        return "gpu", [gpu for gpu in candidates if at_least(_size(gpu), 4)], [_reason("VRAM_GE_4GIB", best)]
    reasons = [_reason("VRAM_2_TO_4GIB", best)]
    threads = machine.cpu.available.value
    if best.memory.unified.value:
        return "gpu", [best], [*reasons, _reason("SHARED_BANDWIDTH", best)]
    if threads is not None and threads < 2:
        return "gpu", [best], [*reasons, _reason("FEW_CPU_THREADS", best)]
    return "hybrid", [best], reasons


def _reason(code: str, gpu: Gpu | None = None) -> Reason:
    return Reason(code=code, device_id=gpu.id if gpu else None, text=DETECTION.get(code, ""))


_WSL = "update Windows' driver for a GPU of NVIDIA; for others try --deep, or run gpubench in Windows."


def no_gpu(machine: Machine) -> Reason:
    """Return the reason for the mode cpu on a machine on which no GPU was found, and what would show one."""
    unknown = machine.gpu_count.value is None
    wsl = unknown and machine.platform.wsl.value
    if machine.software_renderers:
        reason = _reason("SOFTWARE_ONLY")
    elif machine.display_adapters and not wsl:
        reason = _reason("DISPLAY_ONLY")
    else:
        reason = _reason("GPU_UNKNOWN" if unknown else "NO_GPU")
    remedy = f" In WSL, {_WSL}" if wsl else " A GPU without its driver is not listed." if unknown else ""
    return replace(reason, text=reason.text + remedy)


class Verdict(NamedTuple):
    """The mode that follows from the measurements."""

    mode: Mode  # where to compute
    code: str  # the code of the reason
    gpu_share: float | None = None  # the GPU's share from 0 to 1, if the mode is hybrid because of a split


def apply_results(machine: Machine, advice: Recommendation, results: Path, read: Reader) -> Recommendation:
    """Return the recommendation by the newest result of this machine that decides the mode, or else `advice`.
    Newer results that do not decide it add notes. `results` is a file, or a folder of which MOST_FILES are
    read. `read` returns a run's evidence for a mode."""
    usable = [gpu.id for gpu in machine.gpus if gpu.usable.value is not False]
    if not usable:
        return advice
    from gpubench.result.store import newest_first
    from gpubench.result.store.files import load_head

    notes: dict[str, Reason] = {}  # by code, of the newest file each
    looked_at = 0
    for path in [results] if os.path.isfile(results) else newest_first([results]):
        if looked_at == MOST_FILES:
            break
        head = load_head(path)
        if head is None:
            continue
        likeness = compare(machine, head.machine, measured_gpus(head.devices))
        foreign = _foreign(path, likeness, named=path == results)
        if foreign is not None:
            notes.setdefault(foreign.code, foreign)
        if not likeness.same or likeness.drivers:
            continue
        looked_at += 1
        paired = [likeness.gpus[gpu_id] for gpu_id in measured_gpus(head.devices) if gpu_id in likeness.gpus]
        # Of a run whose devices bear no ids the advised GPUs are taken.
        gpus = [name for name in paired if name in usable] if paired else advice.device_ids or usable[:1]
        evidence = (_lacking(head) or _read(path, read)) if gpus else "its GPU cannot be used now"
        decided = None if isinstance(evidence, str) else decide(machine, advice, evidence, gpus)
        if decided is not None and decided.measured is not None:
            measured = replace(decided.measured, file=path.name)
            first, *others = decided.reasons
            return replace(decided, measured=measured, reasons=[first, *notes.values(), *others])
        why = evidence if isinstance(evidence, str) else _say_what_is_missing(evidence)
        text = f"{path.name} does not tell the mode: {why}."
        notes.setdefault("RESULT_SILENT", Reason(code="RESULT_SILENT", text=text))
    if not notes:
        return advice
    leading = advice.reasons[:1]
    if "RESULT_SILENT" in notes and leading:
        text = leading[0].text.replace(UNMEASURED, UNDECIDED)
        leading = [replace(leading[0], text=text)]
    return replace(advice, reasons=[*leading, *notes.values(), *advice.reasons[1:]])


def decide(
    machine: Machine, advice: Recommendation, evidence: Measured, gpus: Sequence[str]
) -> Recommendation | None:
    """Return `advice` with the mode that `evidence` gives, or None if that does not decide. The devices are
    `gpus`, or none if the mode is cpu."""
    verdict = judge(evidence, advice.mode)
    if verdict is None:
        return None
    others = [r for r in advice.reasons if r.device_id is not None and not r.code.startswith("VRAM_")]
    return replace(
        advice,
        mode=verdict.mode,
        confidence="measured",
        device_ids=[] if verdict.mode == "cpu" else list(gpus),
        reasons=[Reason(code=verdict.code, text=_verdict_words(evidence, verdict)), *others],
        measured=replace(evidence, gpu_share=verdict.gpu_share),
    )


def judge(evidence: Measured, static: Mode) -> Verdict | None:
    """Return the mode that the measured evidence gives, or None if it does not decide. `static` is the mode by
    the fixed rule."""
    best = _best_split(evidence.splits)
    if best is not None:
        return Verdict("hybrid", "HYBRID_PAYS", best.gpu_share)
    winners = _winners(evidence)
    # Queued calls alone do not decide for the GPU: few programs queue many calls before they wait.
    waited, copied, queued = map(winners.get, (WAITED, _from_host(winners), QUEUED))
    if waited == "gpu":
        return Verdict("gpu", "GPU_WHERE_DATA_STAYS" if copied in ("cpu", "mixed") else "GPU_DOMINATES")
    if waited == "cpu":
        return Verdict("cpu", "CPU_DOMINATES" if copied == "cpu" and queued != "gpu" else "FASTER_ALONE")
    if copied == "gpu":  # data that stays is no slower
        return Verdict("gpu", "FASTER_ALONE")
    if waited == "equal" and copied == "cpu":  # the GPU gains nothing in either situation
        return Verdict("cpu", "FASTER_ALONE")
    if static == "hybrid" and _lost(evidence.splits):
        return Verdict("cpu" if copied == "cpu" else "gpu", "FASTER_ALONE")
    return None


# Reasons against a split that do not show whether it pays.
_UNSURE = ("noise", "selected-in-sample", "throttled", "software")


def _lost(splits: Sequence[MeasuredSplit]) -> bool:
    """Tell whether a split surely gained nothing."""
    return any(split.reason is not None and split.reason not in _UNSURE for split in splits)


def _best_split(splits: Sequence[MeasuredSplit]) -> MeasuredSplit | None:
    return max((split for split in splits if split.reason is None), key=lambda split: split.gain, default=None)


def _situations(evidence: Measured) -> dict[str, MeasuredSituation]:
    return {situation.regime: situation for situation in evidence.situations}


def _from_host(regimes: Container[str]) -> str:
    """Return the regime for data in host memory, among the measured `regimes`."""
    return MAPPED if MAPPED in regimes and ALWAYS not in regimes else ALWAYS


def _winners(evidence: Measured) -> dict[str, str | None]:
    """Return the faster side by the id of each measured regime: gpu, cpu, equal, mixed or None."""
    return {situation.regime: situation.winner for situation in evidence.situations}


# ---------------------------------------------------------------- the words of a verdict

_MOST_NAMES = 3
_WHERE = {
    WAITED: "data that stays {}",
    ALWAYS: "calls that copy",
    MAPPED: "calls in place, on data in host memory",
    QUEUED: "calls that are queued, with one wait for many",
}


def _verdict_words(evidence: Measured, verdict: Verdict) -> str:
    best, alone = _best_split(evidence.splits), _both_situations(evidence)
    if best is not None:
        return _split_words(best, evidence.splits) + (f" Alone: {alone}." if alone else "")
    lost = "no split that was measured pays" if _lost(evidence.splits) else ""
    return f"Measured here: {'; '.join(filter(None, (alone, lost)))}."


def _both_situations(evidence: Measured) -> str:
    """Return a text on waited calls and on calls that copy, or "" if neither was measured."""
    measured, winners = _situations(evidence), _winners(evidence)
    host = _from_host(measured)
    regimes = [regime for regime in (WAITED, host) if regime in measured]
    clauses = [_situation_words(measured[regime]) for regime in regimes]
    clauses += [_UNMEASURED[regime] for regime in (WAITED, host) if regimes and regime not in measured]
    if winners.get(QUEUED) == "gpu" and winners.get(WAITED) != "gpu":
        clauses.append(f"only {_WHERE[QUEUED]}, are faster on the GPU")
    return "; ".join(clauses).removeprefix("the ")


_UNMEASURED = {
    WAITED: "calls on data that stays on the GPU, each waited for, were not measured",
    ALWAYS: "calls that copy were not measured",
}  # fmt: skip
_SIDES = {"gpu": "the GPU", "cpu": "the CPU", "equal": "about equal", "mixed": "by the op, the GPU or the CPU"}


def _situation_words(situation: MeasuredSituation) -> str:
    where = _WHERE[situation.regime].format("there" if situation.winner == "gpu" else "on the GPU")
    if situation.winner is None:
        return f"not known for {where} ({situation.note})"
    names = situation.exceptions
    if len(names) > _MOST_NAMES:
        names = [*names[:_MOST_NAMES], f"{len(names) - _MOST_NAMES} more ops"]
    but = f", but for {list_words(names)}" if names else ""
    return f"{_SIDES[situation.winner]} for {where}{but}"


def _split_words(best: MeasuredSplit, splits: Sequence[MeasuredSplit]) -> str:
    what = " ".join(part for part in (best.op, best.params, best.dtype) if part)
    paying = sum(split.reason is None for split in splits)
    how = f"stages {best.assignment}" if best.gpu_share is None else f"{best.gpu_share:.0%} on the GPU"
    return (
        f"Measured here: {what} shared by CPU and GPU is {best.gain:.2f}x as fast as on the better of the two "
        f"(n = {best.n}, {best.regime}, {how}); {paying} of {len(splits)} measured splits pay."
    )


_NONE_WAITED = "no call that is waited for was measured with the data on the GPU"


def _say_what_is_missing(evidence: Measured) -> str:
    """Return the reason why a file that compares a CPU with a GPU does not decide the mode."""
    waited = _situations(evidence).get(WAITED)
    if waited is not None and waited.note:
        return f"of calls that are waited for, with the data on the GPU, {waited.note}"
    if waited is not None:
        equal = waited.winner == "equal"
        sides = "are about equal" if equal else f"share the ops ({waited.gpu} and {waited.cpu})"
        return f"GPU and CPU {sides} where the data stays on the GPU"
    return _NONE_WAITED


# ---------------------------------------------------------------- results of this machine


def _foreign(path: Path, likeness: Likeness, *, named: bool) -> Reason | None:
    """Return a note on a file with another driver, or on another machine's file that the user `named`,
    or None."""
    if likeness.same and likeness.drivers:
        what = "; ".join(dict.fromkeys(likeness.drivers.values()))
        text = f"{path.name} was measured with another driver ({what}): measure again with `gpubench run`."
        return Reason(code="RESULT_OTHER_DRIVER", text=text)
    if named and not likeness.same:
        words = [f"{name}: {difference}" for name, difference in likeness.differences.items()]
        what = "; ".join(words) or "nothing in it identifies this machine"
        return Reason(code="RESULT_OTHER_MACHINE", text=f"{path.name} is of another machine ({what}).")
    return None


def _lacking(head: Run) -> str | None:
    """Return the reason why a run cannot decide the mode, as far as its head shows one, or None."""
    kinds, regimes = {device.kind for device in head.devices}, set(head.selection.regimes)
    if not {"cpu", "gpu"} <= kinds:
        return "it compares no GPU with a CPU"
    if regimes and not regimes & {WAITED, ALWAYS, MAPPED} and "hybrid" not in kinds:
        return _NONE_WAITED
    return None


def _read(path: Path, read: Reader) -> Measured | str:
    from gpubench.result import store

    try:
        return read(store.load(path))
    except GpubenchError as error:
        return str(error.why or error)


# The remedies that differ by vendor: how a container is given the devices, and how a missing driver is.
_GIVE = {
    "nvidia": "--gpus all of Docker, --nv of Apptainer", "amd": "--device /dev/dri --device /dev/kfd",
    CHIP_NODE: "--runtime nvidia of Docker",
}  # fmt: skip
_FROM_KERNEL = "it comes with the kernel: a newer one, linux-firmware and a boot without nomodeset bring it"
_DRIVERS = {
    "nvidia": "install NVIDIA's; if it is, `sudo modprobe nvidia` says why it does not load (Secure Boot)",
    "amd": _FROM_KERNEL, "intel": _FROM_KERNEL,
}  # fmt: skip


def about(code: str, gpu: Gpu) -> str:
    """Return a sentence that explains a code of `why_not` or of a reason for this GPU. It is "" for an
    unknown code."""
    node, variable, vendor = gpu.access.device_node, gpu.access.hidden_by_env.value, gpu.vendor.value or ""
    path = node.source or ""
    if code == "HIDDEN_BY_ENV" and variable:
        return f"{variable} hides it from CUDA or ROCm; unset it, name this GPU in it, or use WebGPU (--deep)."
    if code == "NO_PERMISSION" and node.value == "no_permission":
        remedy = "join the group that owns it (render or video; --group-add for a container), then log in again"
        if path.startswith("/dev/nvidia"):
            remedy = "ask for the GPU (--gpus 1 of Slurm, --gpus all of Docker), or restart its container"
        return f"This process may not open {path}: {remedy}."
    if code == "NOT_EXPOSED" and path.startswith("/dev/"):
        more = (
            "; outside of one, `sudo nvidia-modprobe -u -c 0` makes it"
            if path.startswith("/dev/nvidia")
            else ""
        )
        give = _GIVE.get(path) or _GIVE.get(vendor, "--device /dev/dri")
        return f"{path} is not here; give the container the device ({give}){more}."
    if code == "NO_DRIVER" and vendor in _DRIVERS:
        return f"No driver that computes is bound to it; {_DRIVERS[vendor]}."
    if code == "UNUSABLE" and (note := gpu.memory.dedicated_bytes.note):
        return f"A source says that it cannot be used: {note}."
    return DETECTION.get(code, "")


def is_relevant(provider: Provider, machine: Machine) -> bool:
    """Tell whether the provider's result is of use on this machine."""
    failed = (provider.name, provider.status) == ("nvml", "absent") and provider.error_code != "ImportError"
    cuda = provider.name == "cuda" and provider.status != "ok"
    # Older chips with a GPU of NVIDIA have no NVML.
    cards = (gpu for gpu in machine.gpus if cuda or gpu.kind.value != "integrated")
    # without a known NVIDIA GPU, NVML and CUDA may be probed nevertheless
    return not (failed or cuda) or any(gpu.vendor.value == "nvidia" for gpu in cards)


# ---------------------------------------------------------------- what is required and is not there

# The backends whose devices are known from the facts of a machine.
PROBED = ("numpy", "cupy", "wgpu")


class Lack(NamedTuple):
    """The reason why a requested device is missing or unusable."""

    reason: str  # the reason in words
    hint: str  # the remedy


def lacks(machine: Machine, target: str) -> Lack | None:
    """Return why the device `target` is missing or unusable, and a remedy, or None if nothing is against it.
    `target` is cpu, gpu, a backend in PROBED, `BACKEND:N`, or the id, uuid or PCI address of a GPU."""
    backend, _, number = target.partition(":")
    if target == "cpu" or backend == "numpy":
        return None
    if re.fullmatch(r"gpu|(cupy|wgpu)(:\d{1,9})?", target):
        cupy = backend == "cupy"
        fit = [gpu for gpu in machine.gpus if not cupy or gpu.vendor.value == "nvidia" or "hip" in gpu.apis]
        blocked = [lack for gpu in fit if (lack := _explain_block(machine, gpu, cupy=cupy))]
        if len(fit) - len(blocked) > int(number or 0):
            return None
        if blocked:
            return blocked[0]
        if machine.gpus:
            return Lack("no GPU here has this number or vendor", "`gpubench detect` lists the GPUs")
        reason = no_gpu(machine)
        return Lack(f"{reason.code}: {reason.text}", "run on a machine with a GPU and its driver")
    for gpu in machine.gpus:
        if target in (gpu.id, gpu.bdf.value, gpu.uuid.value):
            return _explain_block(machine, gpu)
    ids = [gpu.id for gpu in machine.gpus]
    hint = suggest(target, ids) or "see gpus[].id of `gpubench detect --json`"
    return Lack(f"no device has this id; there are: {', '.join(ids) or 'none'}", hint)


def _explain_block(machine: Machine, gpu: Gpu, *, cupy: bool = False) -> Lack | None:
    """Return the reason why the GPU is not usable, by CuPy if `cupy` is True, or None."""
    code = (*gpu.why_not, "UNUSABLE")[0] if gpu.usable.value is False else None
    # a GPU that WebGPU alone lists may be usable without being one of CuPy's
    if code is None and cupy and {"cuda", "hip"}.isdisjoint(gpu.apis):
        status = {provider.name: provider.status for provider in machine.providers}.get("cuda")
        missing = status == "absent" or any("cupy" in warning.refs for warning in machine.warnings)
        objections = {
            "HIDDEN_BY_ENV": gpu.access.hidden_by_env.value, "NO_DRIVER": gpu.driver.name.value in FREE_DRIVERS,
            "RUNTIME_MISSING": missing, "UNUSABLE": status in ("ok", "mismatch", "invalid"),
        }  # fmt: skip
        code = next((code for code, holds in objections.items() if holds), None)
    if code is None:
        return None
    name = gpu.name.value or gpu.vendor.value or "a GPU"
    return Lack(f"{name} ({gpu.id}) is there but not usable: {code}", about(code, gpu))
