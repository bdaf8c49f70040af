"""Facts of libraries where no file tells any: CPU and memory without /proc and /sys (Windows, macOS) by psutil and
py-cpuinfo, adapters by Windows' registry, and which libraries are missing."""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gpubench.base.installation import install_command, torch_command
from gpubench.detect import cpuinfo
from gpubench.detect.records import DeviceRecord, derive, make_fact, missing
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
        total, free = make_fact(ram.total, _PSUTIL), make_fact(ram.available, _PSUTIL)
    except Exception:  # a psutil that is broken must not end detection
        return cpu, memory
    count = _positive(logical)
    usable = derive(allowed, len) if allowed.value is not None else count
    bound = "affinity" if usable is not count and usable.value != count.value else "online"
    now, highest = _clocks(psutil)
    cpu = msgspec.structs.replace(
        cpu, logical=count, cores=_positive(cores), available=usable, limited_by=make_fact(bound, _PSUTIL),
        online_cpus=derive(count, lambda number: list_form(range(number))), now_hz=now, max_hz=highest,
        smt=make_fact(("on" if logical > cores else "off") if logical and cores else None, _PSUTIL),
    )  # fmt: skip
    memory = msgspec.structs.replace(
        memory, total_bytes=total, os_total_bytes=total, available_bytes=free, usable_bytes=free,
        limited_by=make_fact("host", _PSUTIL), swap_total_bytes=_swap(psutil),
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
        return make_fact(psutil.swap_memory().total, _PSUTIL)
    return missing("unsupported", _PSUTIL)


def _positive(value: int | None) -> Fact[int]:
    return make_fact(value or None, _PSUTIL)


class CpuinfoFacts(msgspec.Struct):
    """The answer of the probe `cpuinfo`."""

    model: str | None = None
    vendor: str | None = None
    flags: list[str] = []
    base_hz: int | None = None
    caches: list[Cache] = []


def read_cpuinfo(cpu: Cpu, answer: CpuinfoFacts) -> Cpu:
    """Return the CPU with the facts of py-cpuinfo; what files or psutil answer stays."""
    model, vendor = (
        " ".join(text.split()) if text and not is_placeholder(text) else None
        for text in (answer.model, answer.vendor)
    )
    isa = cpuinfo.keep_flags(answer.flags) if answer.flags else None
    values = {"model": model, "vendor": vendor, "isa": isa, "base_hz": answer.base_hz}
    facts: dict[str, Fact[Any]] = {
        name: make_fact(value, _CPUINFO) for name, value in values.items() if value is not None
    }
    if answer.caches:
        facts["caches"] = make_fact(answer.caches, _CPUINFO, "a size for each level, counted once")
    changes = {name: fact for name, fact in facts.items() if getattr(cpu, name).value is None}
    return msgspec.structs.replace(cpu, **changes)


def runtime_warnings(nvidia: bool, cuda: int | None) -> list[MachineWarning]:
    """Warn of what measuring needs and is not installed: Numba, and CuPy where there is NVIDIA's driver, with the extra
    for the newest CUDA that it serves."""
    lacking = []
    if importlib.util.find_spec("numba") is None:
        text = f"Numba is not installed, so the CPU's kernels are not compiled: {install_command()}"
        lacking.append(MachineWarning(code="RUNTIME_MISSING", text=text, refs=["numba"]))
    if nvidia and importlib.util.find_spec("cupy") is None:
        remedy = f"{install_command('cuda13')}; for CUDA 12 the extra cuda12"
        if cuda is not None:
            remedy = install_command("cuda13" if cuda >= 13000 else "cuda12")
        text = f"CuPy is not installed, so nothing can be measured through CUDA: {remedy}"
        lacking.append(MachineWarning(code="RUNTIME_MISSING", text=text, refs=["cupy"]))
    return lacking


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


def is_relevant(provider: Provider, machine: Machine) -> bool:
    """Return False for NVML that found no driver where there is no NVIDIA GPU: it is asked without evidence."""
    no_driver = (provider.name, provider.status) == ("nvml", "absent") and provider.error_code != "ImportError"
    return not no_driver or any(gpu.vendor.value == "nvidia" for gpu in machine.gpus)


# Windows' registry keeps memory and driver version for each driver of a display adapter. The entry of a card that was
# taken out stays: an entry describes a GPU that a library lists, and is none by itself.
_ADAPTERS = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"
_IDS = re.compile(r"PCI\\VEN_([0-9A-F]{4})&DEV_([0-9A-F]{4})", re.IGNORECASE)
_SIZE, _SOURCE = "HardwareInformation.qwMemorySize", "registry"


def describe(records: Sequence[DeviceRecord]) -> list[DeviceRecord]:
    """Return the records of adapters with the facts of their entry. Other systems have no registry: none there."""
    entries = read_entries()
    return [
        msgspec.structs.replace(record, facts=entries[ids] | record.facts)
        if (ids := (record.vendor_id, record.device_id)) in entries and record.source.startswith("wgpu")
        else record
        for record in records
    ]


def read_entries() -> Mapping[tuple[int | None, int | None], dict[str, Fact[Any]]]:
    """Return the facts of each model by its vendor and device id. Two entries of one model that differ tell nothing."""
    entries: dict[tuple[int | None, int | None], dict[str, Fact[Any]]] = {}
    for values in _adapters():
        match = _IDS.match(str(values.get("MatchingDeviceId", "")))
        if match is None:
            continue
        ids, facts = (int(match[1], 16), int(match[2], 16)), _facts(values)
        other = entries.get(ids, facts)
        entries[ids] = {path: fact for path, fact in facts.items() if other.get(path) == fact}
    return entries


def _facts(values: Mapping[str, Any]) -> dict[str, Fact[Any]]:
    size, version = values.get(_SIZE), values.get("DriverVersion")
    if isinstance(size, bytes):  # by the driver a number or its bytes
        size = int.from_bytes(size, "little")
    facts: dict[str, Fact[Any]] = {}
    if isinstance(size, int) and size > 0:
        facts["memory.dedicated_bytes"] = make_fact(size, _SOURCE)
    if isinstance(version, str) and version:
        facts["driver.version"] = make_fact(version, _SOURCE)
    return facts


def _adapters() -> Iterator[dict[str, Any]]:
    """The values of each entry, by their names."""
    try:
        import winreg
    except ImportError:
        return
    registry: Any = winreg  # typeshed has its names for Windows alone
    try:
        with registry.OpenKey(registry.HKEY_LOCAL_MACHINE, _ADAPTERS) as adapters:
            for number in range(registry.QueryInfoKey(adapters)[0]):
                name = registry.EnumKey(adapters, number)
                if not re.fullmatch(r"\d{4}", name):
                    continue
                try:
                    with registry.OpenKey(adapters, name) as key:
                        count = registry.QueryInfoKey(key)[1]
                        yield {
                            value[0]: value[1] for value in (registry.EnumValue(key, i) for i in range(count))
                        }
                except OSError:  # one that may not be read
                    continue
    except OSError:
        return
