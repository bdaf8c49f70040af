"""Reason codes: what each one means and what to do about it. Every code of a report stands here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpubench.model.machine import Gpu

_TEXTS = {
    "VRAM_GE_4GIB": "At least 4 GiB of usable GPU memory. Not measured yet: `gpubench run` does.",
    "VRAM_2_TO_4GIB": "2 to 4 GiB of usable GPU memory: share the work. Not measured yet: `gpubench run` does.",
    "VRAM_LT_2GIB": "Less than 2 GiB of usable GPU memory.",
    "VRAM_UNKNOWN": "No source tells the size of its memory; install the vendor's driver, or try --deep.",
    "SHARED_BANDWIDTH": "It shares the CPU's memory, so splitting the work gains nothing.",
    "FEW_CPU_THREADS": "Fewer than two usable CPUs: they have enough to do with feeding the GPU.",
    "INTEGRATED_UNMEASURED": "An integrated GPU may be slower than the CPU: `gpubench run` tells.",
    "GPU_ASLEEP": "It sleeps, and asking for its memory would wake it; `gpubench detect --wake` may.",
    "WILL_WAKE": "It sleeps now and will wake when it is used.",
    "MEMORY_BUSY": "More than half of its memory is in use by other programs.",
    "NO_DRIVER": "No driver is bound to it; install the vendor's driver, then check `lspci -k`.",
    "PASSED_THROUGH": "It is reserved for a virtual machine (vfio-pci).",
    "NOT_EXPOSED": "Its device node is not here; give the container the device (--gpus all, or --device).",
    "NO_PERMISSION": "This user may not open its device node; join the groups render and video.",
    "DRIVER_MISMATCH": "The driver's library and kernel module differ; reboot or reload the module.",
    "HIDDEN_BY_ENV": "An environment variable hides it; unset the variable that access.hidden_by_env names.",
    "COMPUTE_PROHIBITED": "Its compute mode forbids computing; `nvidia-smi -c DEFAULT` as root allows it.",
    "RUNTIME_MISSING": "The Python library that drives it is missing; install gpubench[cuda12] or gpubench[cuda13].",
    "TOO_OLD": "CuPy's compiler no longer serves this model; gpubench[cuda12] serves older ones than gpubench[cuda13].",
    "SOFTWARE_ONLY": "Only a software renderer was found: it runs on the CPU and gains nothing.",
    "DISPLAY_ONLY": "Only adapters that drive a display were found; none of them computes.",
    "GPU_UNKNOWN": "Nothing on this system could list GPUs, so their number is unknown.",
    "NO_GPU": "There is no GPU.",
    "UNUSABLE": "A source says that it cannot be used.",
    "OVERRIDE": "The user's choice.",
    "GPU_DOMINATES": "Measured on this machine: the GPU is more than ten times as fast.",
    "CPU_DOMINATES": "Measured on this machine: the CPU is more than four times as fast.",
    "HYBRID_PAYS": "By the rates measured on this machine sharing the work pays: `gpubench run --mode hybrid` tells.",
    "FASTER_ALONE": "Measured on this machine: the faster side alone is best.",
}


def text(code: str) -> str:
    """One sentence that says what the code means and what helps."""
    return _TEXTS.get(code, "")


def about(code: str, gpu: Gpu) -> str:
    """As `text`, with the variable or the device node of this GPU."""
    node, variable = gpu.access.device_node, gpu.access.hidden_by_env.value
    if code == "HIDDEN_BY_ENV" and variable:
        return f"The environment variable {variable} hides it; unset it, or name this GPU in it."
    if code == "NO_PERMISSION" and node.source:
        return f"This user may not open {node.source}; join the group that owns it (render or video)."
    if code == "NOT_EXPOSED" and node.source:
        return f"{node.source} is not here; give the container the device (--gpus all, or --device)."
    return text(code)


def codes() -> list[str]:
    """All codes, in the order of the documentation."""
    return list(_TEXTS)
