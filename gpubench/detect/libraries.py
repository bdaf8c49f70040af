"""What libraries tell where no file does: CPU and memory of a system without /proc and /sys (Windows, macOS) by psutil
and py-cpuinfo, and whether a PyTorch for the GPUs is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpubench.base.installation import torch_command
from gpubench.detect import cpuinfo
from gpubench.detect.records import derived, known, missing
from gpubench.detect.root import list_form
from gpubench.detect.topology import CpuSet
from gpubench.result.identity import is_placeholder
from gpubench.result.machine import Cache, Cpu, Fact, Gpu, Machine, MachineWarning, Memory, Provider

_PSUTIL, _CPUINFO = "psutil", "cpuinfo"


def read_psutil(cpu: Cpu, memory: Memory, allowed: Fact[CpuSet]) -> tuple[Cpu, Memory]:
    """Return CPU and memory with the facts of psutil; without them if it is missing or broken."""
    try:
        import psutil

        ram, logical, cores = psutil.virtual_memory(), psutil.cpu_count(), psutil.cpu_count(logical=False)
        total, free = known(ram.total, _PSUTIL), known(ram.available, _PSUTIL)
    except Exception:  # a psutil that is broken must not end detection
        return cpu, memory
    count = _positive(logical)
    usable = derived(allowed, len) if allowed.value is not None else count
    bound = "affinity" if usable is not count and usable.value != count.value else "online"
    now, highest = _clocks(psutil)
    cpu = msgspec.structs.replace(
        cpu, logical=count, cores=_positive(cores), available=usable, limited_by=known(bound, _PSUTIL),
        online_cpus=derived(count, lambda number: list_form(range(number))), now_hz=now, max_hz=highest,
        smt=known("on" if logical > cores else "off", _PSUTIL) if logical and cores else missing("absent", _PSUTIL),
    )  # fmt: skip
    memory = msgspec.structs.replace(
        memory, total_bytes=total, os_total_bytes=total, available_bytes=free, usable_bytes=free,
        limited_by=known("host", _PSUTIL), swap_total_bytes=_swap(psutil),
    )  # fmt: skip
    return cpu, memory


def _clocks(psutil: Any) -> tuple[Fact[int], Fact[int]]:
    """The current and the highest clock. Windows tells the nominal one as the current; some Macs tell none."""
    frequency = None
    with contextlib.suppress(Exception):
        frequency = psutil.cpu_freq()
    if frequency is None:
        return missing("unsupported", _PSUTIL), missing("unsupported", _PSUTIL)
    return _positive(_hertz(frequency.current)), _positive(_hertz(frequency.max))


def _hertz(megahertz: object) -> int | None:
    """An old psutil gave GHz or kHz on some Macs: a clock below 100 MHz or above 100 GHz is none."""
    if not isinstance(megahertz, int | float) or not 100 <= megahertz <= 100_000:
        return None
    return round(megahertz * 1e6)


def _swap(psutil: Any) -> Fact[int]:
    with contextlib.suppress(Exception):
        return known(psutil.swap_memory().total, _PSUTIL)
    return missing("unsupported", _PSUTIL)


def _positive(value: int | None) -> Fact[int]:
    return known(value, _PSUTIL) if value else missing("absent", _PSUTIL)


def read_cpuinfo(cpu: Cpu, answer: Mapping[str, Any]) -> Cpu:
    """Return the CPU with the facts that the probe `cpuinfo` sent; what files or psutil told stays."""
    facts: dict[str, Fact[Any]] = {}
    for name in ("model", "vendor"):
        text = answer.get(name)
        if isinstance(text, str) and not is_placeholder(text):
            facts[name] = known(" ".join(text.split()), _CPUINFO)
    flags = answer.get("flags")
    if isinstance(flags, list) and flags:
        facts["isa"] = known(cpuinfo.kept(flag for flag in flags if isinstance(flag, str)), _CPUINFO)
    clock = answer.get("base_hz")
    if isinstance(clock, int) and not isinstance(clock, bool) and clock > 0:
        facts["base_hz"] = known(clock, _CPUINFO)
    with contextlib.suppress(msgspec.ValidationError):
        if caches := msgspec.convert(answer.get("caches"), list[Cache]):
            facts["caches"] = known(caches, _CPUINFO, "a size for each level, counted once")
    changes = {name: fact for name, fact in facts.items() if getattr(cpu, name).value is None}
    return msgspec.structs.replace(cpu, **changes)


# The maker's name for what its wheels of PyTorch drive, and the mark of these wheels in their version.
_TORCH = {"amd": ("ROCm", "+rocm"), "intel": ("XPU", "+xpu")}


def torch_warnings(gpus: Sequence[Gpu]) -> list[MachineWarning]:
    """A GPU of AMD or Intel without the PyTorch that drives it: named with the command that installs it.

    An integrated GPU may be one that no such PyTorch drives.
    """
    vendors = {
        gpu.vendor.value for gpu in gpus if gpu.kind.value == "discrete" and gpu.usable.value is not False
    } & _TORCH.keys()
    version = _torch_version() if vendors else ""
    warnings = []
    for vendor, (name, mark) in _TORCH.items():
        if vendor in vendors and mark not in version:
            text = (
                f"PyTorch for {name} is not installed, so WebGPU alone measures there: {torch_command(vendor)}"
            )
            warnings.append(MachineWarning(code="RUNTIME_MISSING", text=text, refs=["torch"]))
    return warnings


def _torch_version() -> str:
    """The version of the installed PyTorch, read without importing it; empty without one."""
    from importlib import metadata

    with contextlib.suppress(Exception):  # spoiled metadata is no reason to fail
        return str(metadata.version("torch"))
    return ""


def is_needed(provider: Provider, machine: Machine) -> bool:
    """Return False for NVML that found no driver where there is no NVIDIA GPU: it is asked without evidence."""
    no_driver = (provider.name, provider.status) == ("nvml", "absent") and provider.error_code != "ImportError"
    return not no_driver or any(gpu.vendor.value == "nvidia" for gpu in machine.gpus)
