"""NVML: what NVIDIA GPUs are, how they run and who is on them, without creating a context.

Each field has its own try: what a card does not tell costs nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from gpubench.detect.probes import ProbeFailure, nvlink
from gpubench.detect.records import Address, address, uuid_key

_WSL_LIBRARY = "/usr/lib/wsl/lib/libnvidia-ml.so.1"
_STATUS = {3: "unsupported", 13: "unsupported", 25: "unsupported", 4: "permission", 18: "mismatch", 10: "timeout",
           9: "absent", 12: "absent", 6: "absent"}  # fmt: skip
_HINTS = {
    9: "the NVIDIA kernel module is not loaded",
    12: "the NVIDIA driver's library libnvidia-ml is not installed",
    18: "reboot, or reload the NVIDIA kernel module: it differs from the library",
}
_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
# Bits of nvmlClocksEventReasons, in the words of nvidia-smi.
_THROTTLE = {
    0x2: "applications_clocks", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake", 0x100: "display_clocks",
}  # fmt: skip
_VGPU_GUEST = 2
_MIG_ON, _ATS = 1, 2


class GpuTarget(Protocol):
    """A device by the driver's own names for it."""

    @property
    def device_id(self) -> str:
        """Its id in the run."""

    @property
    def uuid(self) -> str | None:
        """The GPU's uuid, with or without dashes and prefix."""

    @property
    def pci(self) -> str | None:
        """Its PCI address."""


GpuReader = Callable[[], Mapping[str, Any]]


def probe(nvml: Any = None) -> dict[str, Any]:
    """Records of all GPUs and MIG instances. Raises ProbeFailure if NVML cannot start."""
    nvml = nvml or library()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise _failure(error) from error
    driver = text(_tried(nvml, nvml.nvmlSystemGetDriverVersion).get("value"))
    cuda = _tried(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    served = cuda | {"value": f"{number // 1000}.{number % 1000 // 10}" if (number := cuda["value"]) else None}
    handles = []
    for index in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(nvml.NVMLError):  # one lost card must not hide the others
            handles.append((index, nvml.nvmlDeviceGetHandleByIndex(index)))
    records = []
    paths = _paths(nvml, [handle for _, handle in handles])
    for index, handle in handles:
        record = _device(nvml, handle, index, driver)
        at = address(record["bdf"])
        records.append(record | {"driver.cuda": served, "paths": paths.get(at, []) if at is not None else []})
        records += _instances(nvml, handle, record)
    return {"records": records, "version": driver, "cuda_driver": cuda["value"]}


def library() -> Any:
    """The binding. Raises ProbeFailure where it is not installed."""
    # Under WSL the distribution may carry a library that talks to no driver: take Windows' own first.
    with contextlib.suppress(OSError):
        ctypes.CDLL(_WSL_LIBRARY, mode=ctypes.RTLD_GLOBAL)
    try:
        import pynvml
    except ImportError as error:
        raise ProbeFailure("absent", "ImportError", "install nvidia-ml-py") from error
    return pynvml


def _failure(error: Any) -> ProbeFailure:
    code = getattr(error, "value", -1)
    status: Any = _STATUS.get(code, "invalid")
    return ProbeFailure(status, str(error), _HINTS.get(code, str(error)))


def _tried(nvml: Any, call: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """A fact of one call: its value, or the status behind its error."""
    try:
        return {"value": call(*arguments), "status": "ok"}
    except nvml.NVMLError as error:
        status = _STATUS.get(getattr(error, "value", -1), "invalid")
        return {"value": None, "status": status, "note": str(error)}
    except (AttributeError, TypeError, ValueError):
        return {"value": None, "status": "unsupported"}  # the binding or the library is too old


def _device(nvml: Any, handle: Any, index: int, driver: str | None) -> dict[str, Any]:
    def ask(name: str, change: Callable[[Any], Any] = lambda value: value, *more: Any) -> dict[str, Any]:
        call = getattr(nvml, name, None)
        fact = _tried(nvml, call, handle, *more) if call else {"value": None, "status": "unsupported"}
        if fact["value"] is not None:
            fact["value"] = change(fact["value"])
            fact = fact if fact["value"] is not None else {"value": None, "status": "unsupported"}
        return fact

    pci = ask("nvmlDeviceGetPciInfo")["value"]
    return {
        "source": "nvml", "ordinal": index, "bdf": bdf(nvml, handle), "version": driver,
        "uuid": text(ask("nvmlDeviceGetUUID")["value"]), "name": text(ask("nvmlDeviceGetName")["value"]),
        "vendor_id": f"{pci.pciDeviceId & 0xFFFF:04x}" if pci else "10de",
        "device_id": f"{pci.pciDeviceId >> 16:04x}" if pci else None, "driver.version": _fact(driver),
        "kind": ask("nvmlDeviceGetVirtualizationMode", lambda mode: "vgpu" if mode == _VGPU_GUEST else None),
        "display_attached": ask("nvmlDeviceGetDisplayActive", bool), "throttle": throttle_words(nvml, handle),
        "memory": _memory(nvml, handle),
        "compute": {
            "arch": ask("nvmlDeviceGetCudaComputeCapability", lambda pair: f"sm_{pair[0]}{pair[1]}"),
            "max_hz": ask("nvmlDeviceGetMaxClockInfo", lambda mhz: mhz * 1_000_000 or None, nvml.NVML_CLOCK_SM),
            "ecc": ask("nvmlDeviceGetEccMode", lambda pair: bool(pair[0])),
            "mode": ask("nvmlDeviceGetComputeMode", _COMPUTE_MODES.get),
        },
        "link": {
            "gen_max": ask("nvmlDeviceGetMaxPcieLinkGeneration"), "width_max": ask("nvmlDeviceGetMaxPcieLinkWidth"),
            "gen_now": ask("nvmlDeviceGetCurrPcieLinkGeneration"), "width_now": ask("nvmlDeviceGetCurrPcieLinkWidth"),
        },
        "power": {
            "limit_w": ask("nvmlDeviceGetPowerManagementLimit", lambda mw: mw / 1000),
            "default_limit_w": ask("nvmlDeviceGetPowerManagementDefaultLimit", lambda mw: mw / 1000),
        },
    }  # fmt: skip


def _memory(nvml: Any, handle: Any) -> dict[str, Any]:
    """Total, free and reserved of the v2 call; the older call has no `reserved`. A total of 0 is no answer."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    fact = (
        _tried(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, version) if version is not None else {"value": None}
    )
    if fact["value"] is None and fact.get("status") not in ("permission",):
        fact = _tried(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    if fact["value"] is not None and not fact["value"].total:
        fact = {"value": None, "status": "unsupported", "note": "NVML said 0"}
    memory = fact["value"]
    if memory is None:
        lost = {"value": None, "status": fact["status"]}
        return {"dedicated_bytes": fact, "free_bytes": lost, "reserved_bytes": lost}
    reserved = getattr(memory, "reserved", None)
    return {
        "dedicated_bytes": {"value": int(memory.total), "status": "ok"},
        "free_bytes": {"value": int(memory.free), "status": "ok"},
        "reserved_bytes": _fact(None if reserved is None else int(reserved)),
    }


def throttle_words(nvml: Any, handle: Any) -> list[str]:
    """Why the clocks are lower than they could be, in the words of nvidia-smi."""
    for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        call = getattr(nvml, name, None)
        mask = _tried(nvml, call, handle)["value"] if call is not None else None
        if isinstance(mask, int):
            return [word for bit, word in _THROTTLE.items() if mask & bit]
    return []


def _instances(nvml: Any, handle: Any, parent: dict[str, Any]) -> list[dict[str, Any]]:
    """MIG instances: memory from the instance's own handle."""
    mode = _tried(nvml, nvml.nvmlDeviceGetMigMode, handle)["value"]
    if not mode or mode[0] != 1:
        return []
    found = []
    for index in range(_tried(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle)["value"] or 0):
        instance = _tried(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)["value"]
        if instance is None:
            continue
        attributes = _tried(nvml, nvml.nvmlDeviceGetAttributes, instance)["value"]
        units = getattr(attributes, "multiprocessorCount", None)
        found.append({
            "source": "nvml", "ordinal": f"{parent['ordinal']}:{index}",
            "partition_of": parent["uuid"] or parent["bdf"],
            "uuid": text(_tried(nvml, nvml.nvmlDeviceGetUUID, instance)["value"]),
            "memory": _memory(nvml, instance), "compute": {"units": _fact(units)},
        })  # fmt: skip
    return found


def _paths(nvml: Any, handles: list[Any]) -> Mapping[Address, list[dict[str, Any]]]:
    """The paths between whole GPUs: MIG instances have none."""

    def ask(name: str, *arguments: Any) -> dict[str, Any]:
        call = getattr(nvml, name, None)
        return _tried(nvml, call, *arguments) if call else {"value": None, "status": "unsupported"}

    whole = [(address(bdf(nvml, handle)), handle) for handle in handles if not _partitioned(nvml, handle)]
    return nvlink.paths(ask, [(at, handle) for at, handle in whole if at is not None])


def bdf(nvml: Any, handle: Any) -> str | None:
    """The PCI address as NVML writes it; None where it does not tell."""
    pci = _tried(nvml, nvml.nvmlDeviceGetPciInfo, handle)["value"]
    return text(pci.busId) if pci is not None else None


def _fact(value: Any) -> dict[str, Any]:
    return {"value": value, "status": "unsupported" if value is None else "ok"}


def text(value: Any) -> str | None:
    """Older bindings give bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def gpu_readers(wanted: Iterable[GpuTarget], absent: dict[str, str], nvml: Any = None) -> dict[str, GpuReader]:
    """A function for each device that reads it now; `absent` gets the reason why the others have none."""
    nvml, found = _find_handles(wanted, absent, nvml)
    return {name: partial(_read_gpu, nvml, handle) for name, handle in found.items()}


def _find_handles(
    wanted: Iterable[GpuTarget], absent: dict[str, str], nvml: Any = None
) -> tuple[Any, dict[str, Any]]:
    """The library, and its handle of each device; `absent` gets the reason why the others have none."""
    wanted = list(wanted)
    try:
        nvml = nvml or library()
        nvml.nvmlInit()
        listed = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except ProbeFailure as failure:
        absent.update({target.device_id: failure.hint for target in wanted})
        return nvml, {}
    except Exception as error:
        absent.update({target.device_id: f"NVML: {error}" for target in wanted})
        return nvml, {}
    found: dict[str, Any] = {}
    for target in wanted:
        handle = next((known for known in listed if _is_target(nvml, known, target)), None)
        if handle is None:
            absent[target.device_id] = "NVML lists no such GPU"
        else:
            found[target.device_id] = handle
    return nvml, found


def _is_target(nvml: Any, handle: Any, target: GpuTarget) -> bool:
    """By uuid or by address, never by name. A partition's uuid is none of a GPU's: its address is."""
    own = None
    with contextlib.suppress(nvml.NVMLError):
        own = text(nvml.nvmlDeviceGetUUID(handle))
    if own and target.uuid and uuid_key(own) == uuid_key(target.uuid):
        return True
    return target.pci is not None and address(bdf(nvml, handle)) == address(target.pci)


def _read_gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    def count(name: str) -> int | None:
        found = ask(name, 1.0)
        return None if found is None else int(found)

    def ask(name: str, factor: float, *more: Any) -> float | None:
        try:
            return float(getattr(nvml, name)(handle, *more)) * factor
        except (nvml.NVMLError, AttributeError, TypeError, ValueError):
            return None

    return {
        "clock_hz": ask("nvmlDeviceGetClockInfo", 1e6, nvml.NVML_CLOCK_SM),
        "memory_clock_hz": ask("nvmlDeviceGetClockInfo", 1e6, nvml.NVML_CLOCK_MEM),
        "temperature_c": ask("nvmlDeviceGetTemperature", 1.0, nvml.NVML_TEMPERATURE_GPU),
        "power_w": ask("nvmlDeviceGetPowerUsage", 1e-3),
        "throttle": throttle_words(nvml, handle),
        "pcie_generation": count("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_width": count("nvmlDeviceGetCurrPcieLinkWidth"),
    }


def gpu_users(wanted: Iterable[GpuTarget], nvml: Any = None) -> dict[str, dict[str, int]]:
    """By device id: processes that compute on the GPU, those that draw, and bytes in use, as NVML tells them.

    Processes of other containers are in no list; the memory that they hold is counted. A GPU in partitions is left out:
    who is on another partition disturbs nobody. So is memory that is the system's too, which holds its files.
    """
    nvml, found = _find_handles(wanted, {}, nvml)
    return {name: _users(nvml, handle) for name, handle in found.items() if not _partitioned(nvml, handle)}


def _users(nvml: Any, handle: Any) -> dict[str, int]:
    computing, drawing = (
        {process.pid for process in _asked(nvml, f"nvmlDeviceGet{what}RunningProcesses", handle) or ()}
        for what in ("Compute", "Graphics")
    )
    drawing -= computing
    return {"computing": len(computing), "drawing": len(drawing), "used_bytes": _used_bytes(nvml, handle)}


def _used_bytes(nvml: Any, handle: Any) -> int:
    """Without what the driver reserves; 0 where the driver does not separate it."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    mode = _asked(nvml, "nvmlDeviceGetAddressingMode", handle)
    if version is None or getattr(mode, "value", mode) == _ATS:
        return 0
    memory = _asked(nvml, "nvmlDeviceGetMemoryInfo", handle, version)
    return 0 if memory is None else int(memory.used)


def _partitioned(nvml: Any, handle: Any) -> bool:
    mode = _asked(nvml, "nvmlDeviceGetMigMode", handle)
    return mode is not None and mode[0] == _MIG_ON


def _asked(nvml: Any, name: str, *arguments: Any) -> Any:
    """What the driver says; None where it, or its binding, says nothing: whatever is wrong there is no user."""
    try:
        return getattr(nvml, name)(*arguments)
    except Exception:
        return None
