"""NVML: what NVIDIA GPUs are, how they run and who is on them, without creating a context.

Each field has its own try: what a card does not tell costs nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from gpubench.base.installation import install_command
from gpubench.detect.probes import ProbeFailure, last, nvlink
from gpubench.detect.records import Address, address, uuid_key

_WSL_LIBRARY = "/usr/lib/wsl/lib/libnvidia-ml.so.1"
_STATUS = {3: "unsupported", 13: "unsupported", 25: "unsupported", 4: "permission", 18: "mismatch", 10: "timeout",
           9: "absent", 12: "absent", 6: "absent", 15: "crashed", 16: "crashed"}  # fmt: skip
# Errors that are about a GPU as a whole: no permission for it, it is lost, it has to be reset. Of a single field, no
# permission is none for the field.
_LOST = {15: "GPU_LOST", 16: "GPU_LOST"}
_WHY_NOT = {4: "NO_PERMISSION", **_LOST}
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


def probe(nvml: Any = None, addresses: Sequence[str] = ()) -> dict[str, Any]:
    """Return records of all GPUs and MIG instances. Raises ProbeFailure if NVML cannot start."""
    return last(steps(nvml, addresses))


def steps(nvml: Any = None, addresses: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the records after each GPU, then all of them with their links: a call on a sick GPU may never return.

    `addresses`: PCI addresses of the GPUs that files show bound to the driver. The `why_not` of a GPU that NVML counts
    and cannot reach says so. Raises ProbeFailure if NVML cannot start.
    """
    nvml = nvml or library()
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        raise _failure(error) from error
    driver = text(_tried(nvml, "nvmlSystemGetDriverVersion").get("value"))
    cuda = _tried(nvml, "nvmlSystemGetCudaDriverVersion_v2")
    served = cuda | {"value": f"{number // 1000}.{number % 1000 // 10}" if (number := cuda["value"]) else None}
    answer: dict[str, Any] = {"records": [], "version": driver, "cuda_driver": cuda["value"], "partial": True}
    handles, lost = _handles(nvml, count)
    devices = []
    for index, handle in handles:
        try:
            record = _device(nvml, handle, index, driver) | {"driver.cuda": served, "paths": []}
            instances = _instances(nvml, handle, record)
        except Exception as error:  # a binding that does not fit one GPU must not hide the others
            lost.append((index, error))
            continue
        devices.append((handle, record))
        answer["records"] += [record, *instances]
        yield answer
    unreachable = [_unreachable(index, error) for index, error in lost]
    _place([*(record for _, record in devices), *unreachable], addresses)
    answer["records"] += unreachable
    yield answer
    paths: Mapping[Address, list[dict[str, Any]]] = {}
    with contextlib.suppress(Exception):  # links tell less than the GPUs
        paths = _paths(nvml, [handle for handle, _ in devices])
    for _, record in devices:
        at = address(record["bdf"])
        record["paths"] = paths.get(at, []) if at is not None else []
    yield answer | {"partial": False}


def _handles(nvml: Any, count: int) -> tuple[list[tuple[int, Any]], list[tuple[int, Exception]]]:
    """The GPUs by index: handles, and the errors of those that refuse theirs."""
    handles, refused = [], []
    for index in range(count):
        try:
            handles.append((index, nvml.nvmlDeviceGetHandleByIndex(index)))
        except Exception as error:
            refused.append((index, error))
    return handles, refused


def _unreachable(index: int, error: Exception) -> dict[str, Any]:
    """The record of a GPU that NVML counts and cannot reach."""
    code = getattr(error, "value", -1)
    size = {"value": None, "status": _STATUS.get(code, "invalid"), "note": str(error)}
    return {
        "source": "nvml", "ordinal": index, "bdf": None, "uuid": None, "vendor_id": "10de",
        "memory": {"dedicated_bytes": size},
        "why_not": [_WHY_NOT.get(code, "UNUSABLE")] if hasattr(error, "value") else [],
    }  # fmt: skip


def _place(records: Sequence[dict[str, Any]], addresses: Sequence[str]) -> None:
    """Give the records that say neither address nor uuid the addresses that no record has, if they are as many."""
    reached = {address(record["bdf"]) for record in records}
    free = [bdf for bdf in addresses if address(bdf) not in reached]
    nameless = [record for record in records if not record["bdf"] and not record["uuid"]]
    if len(free) == len(nameless):
        for record, bdf in zip(nameless, free, strict=True):
            record["bdf"] = bdf


def library() -> Any:
    """The binding. Raises ProbeFailure where it is not installed."""
    # Under WSL the distribution may carry a library that talks to no driver: take Windows' own first.
    with contextlib.suppress(OSError):
        ctypes.CDLL(_WSL_LIBRARY, mode=ctypes.RTLD_GLOBAL)
    try:
        import pynvml
    except ImportError as error:
        raise ProbeFailure(
            "absent", "ImportError", f"nvidia-ml-py is not installed: {install_command()}"
        ) from error
    return pynvml


def _failure(error: Any) -> ProbeFailure:
    code = getattr(error, "value", -1)
    status: Any = _STATUS.get(code, "invalid")
    return ProbeFailure(status, str(error), _HINTS.get(code, str(error)))


def _tried(nvml: Any, name: str, *arguments: Any, errors: dict[int, Exception] | None = None) -> dict[str, Any]:
    """The fact of one call: its value, or the status behind its error, which `errors` gets by its code."""
    try:
        return _fact(getattr(nvml, name)(*arguments))
    except nvml.NVMLError as error:
        code = getattr(error, "value", -1)
        if errors is not None:
            errors[code] = error
        return {"value": None, "status": _STATUS.get(code, "invalid"), "note": str(error)}
    except Exception:  # the binding or the library is too old, or cannot read what the driver says
        return _fact(None)


def _device(nvml: Any, handle: Any, index: int, driver: str | None) -> dict[str, Any]:
    """The record of one GPU. Raises the driver's error where it does not even tell which GPU this is."""
    errors: dict[int, Exception] = {}

    def ask(name: str, change: Callable[[Any], Any] = lambda value: value, *more: Any) -> dict[str, Any]:
        fact = _tried(nvml, name, handle, *more, errors=errors)
        if fact["value"] is None:
            return fact
        try:
            return _fact(change(fact["value"]))
        except Exception:  # an answer of another form than the documented one
            return _fact(None)

    pci = ask("nvmlDeviceGetPciInfo")["value"]
    record = {
        "source": "nvml", "ordinal": index, "bdf": bdf(nvml, handle), "version": driver,
        "uuid": text(ask("nvmlDeviceGetUUID")["value"]), "name": text(ask("nvmlDeviceGetName")["value"]),
        "vendor_id": f"{pci.pciDeviceId & 0xFFFF:04x}" if pci else "10de",
        "device_id": f"{pci.pciDeviceId >> 16:04x}" if pci else None, "driver.version": _fact(driver),
        "kind": ask("nvmlDeviceGetVirtualizationMode", lambda mode: "vgpu" if mode == _VGPU_GUEST else None),
        "display_attached": ask("nvmlDeviceGetDisplayActive", bool), "throttle": throttle_words(nvml, handle),
        "memory": _memory(nvml, handle, errors),
        "compute": {
            "arch": ask("nvmlDeviceGetCudaComputeCapability", lambda pair: f"sm_{pair[0]}{pair[1]}"),
            "max_hz": ask("nvmlDeviceGetMaxClockInfo", lambda mhz: mhz * 1_000_000 or None, nvml.NVML_CLOCK_SM),
            "now_hz": ask("nvmlDeviceGetClockInfo", lambda mhz: mhz * 1_000_000 or None, nvml.NVML_CLOCK_SM),
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
        "why_not": sorted({_LOST[code] for code in errors if code in _LOST}),
    }  # fmt: skip
    if errors and not record["uuid"] and not record["bdf"]:
        raise next(iter(errors.values()))
    return record


def _memory(nvml: Any, handle: Any, errors: dict[int, Exception] | None = None) -> dict[str, Any]:
    """Total, free and reserved of the v2 call; the older call has no `reserved`. A total of 0 is no answer."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    fact = _fact(None)
    if version is not None:
        fact = _tried(nvml, "nvmlDeviceGetMemoryInfo", handle, version, errors=errors)
    if fact["value"] is None and fact["status"] != "permission":
        fact = _tried(nvml, "nvmlDeviceGetMemoryInfo", handle, errors=errors)
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
        mask = _tried(nvml, name, handle)["value"]
        if isinstance(mask, int):
            return [word for bit, word in _THROTTLE.items() if mask & bit]
    return []


def _instances(nvml: Any, handle: Any, parent: dict[str, Any]) -> list[dict[str, Any]]:
    """MIG instances: memory from the instance's own handle."""
    mode = _tried(nvml, "nvmlDeviceGetMigMode", handle)["value"]
    if not mode or mode[0] != 1:
        return []
    found = []
    for index in range(_tried(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle)["value"] or 0):
        instance = _tried(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index)["value"]
        if instance is None:
            continue
        attributes = _tried(nvml, "nvmlDeviceGetAttributes", instance)["value"]
        units = getattr(attributes, "multiprocessorCount", None)
        found.append({
            "source": "nvml", "ordinal": f"{parent['ordinal']}:{index}",
            "partition_of": parent["uuid"] or parent["bdf"],
            "uuid": text(_tried(nvml, "nvmlDeviceGetUUID", instance)["value"]),
            "memory": _memory(nvml, instance), "compute": {"units": _fact(units)},
        })  # fmt: skip
    return found


def _paths(nvml: Any, handles: list[Any]) -> Mapping[Address, list[dict[str, Any]]]:
    """The paths between whole GPUs: MIG instances have none."""
    ask = partial(_tried, nvml)
    whole = [(address(bdf(nvml, handle)), handle) for handle in handles if not _partitioned(nvml, handle)]
    return nvlink.paths(ask, [(at, handle) for at, handle in whole if at is not None])


def bdf(nvml: Any, handle: Any) -> str | None:
    """The PCI address as NVML writes it; None where it does not tell."""
    pci = _tried(nvml, "nvmlDeviceGetPciInfo", handle)["value"]
    return text(getattr(pci, "busId", None))


def _fact(value: Any) -> dict[str, Any]:
    return {"value": value, "status": "unsupported" if value is None else "ok"}


def text(value: Any) -> str | None:
    """Older bindings give bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def gpu_readers(targets: Iterable[GpuTarget], absent: dict[str, str], nvml: Any = None) -> dict[str, GpuReader]:
    """A function for each device that reads it now; `absent` gets the reason why the others have none."""
    nvml, handles = _find_handles(targets, absent, nvml)
    return {name: partial(_read_gpu, nvml, handle) for name, handle in handles.items()}


def _find_handles(
    targets: Iterable[GpuTarget], absent: dict[str, str], nvml: Any = None
) -> tuple[Any, dict[str, Any]]:
    """The library, and its handle of each device; `absent` gets the reason why the others have none."""
    targets = list(targets)
    try:
        nvml = nvml or library()
        nvml.nvmlInit()
        listed, refused = _handles(nvml, nvml.nvmlDeviceGetCount())
    except ProbeFailure as failure:
        absent.update({target.device_id: failure.hint for target in targets})
        return nvml, {}
    except Exception as error:
        absent.update({target.device_id: f"NVML: {error}" for target in targets})
        return nvml, {}
    handles: dict[str, Any] = {}
    for target in targets:
        handle = next((handle for _, handle in listed if _is_target(nvml, handle, target)), None)
        if handle is not None:
            handles[target.device_id] = handle
        else:
            absent[target.device_id] = f"NVML: {refused[0][1]}" if refused else "NVML lists no such GPU"
    return nvml, handles


def _is_target(nvml: Any, handle: Any, target: GpuTarget) -> bool:
    """By uuid or by address, never by name. A partition's uuid is none of a GPU's: its address is."""
    own = text(_tried(nvml, "nvmlDeviceGetUUID", handle)["value"])
    if own and target.uuid and uuid_key(own) == uuid_key(target.uuid):
        return True
    return target.pci is not None and address(bdf(nvml, handle)) == address(target.pci)


def _read_gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    def count(name: str) -> int | None:
        number = ask(name, 1.0)
        return None if number is None else int(number)

    def ask(name: str, factor: float, *more: Any) -> float | None:
        try:
            return float(getattr(nvml, name)(handle, *more)) * factor
        except Exception:  # the driver, or its binding, does not tell
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


def gpu_users(targets: Iterable[GpuTarget], nvml: Any = None) -> dict[str, dict[str, int]]:
    """By device id: processes that compute on the GPU, those that draw, and bytes in use, as NVML tells them.

    Processes of other containers are in no list; the memory that they hold is counted. A GPU in partitions is left out:
    who is on another partition disturbs nobody. So is memory that is the system's too, which holds its files.
    """
    nvml, handles = _find_handles(targets, {}, nvml)
    users = {}
    for name, handle in handles.items():
        with contextlib.suppress(Exception):  # an answer of another form costs its GPU alone
            if not _partitioned(nvml, handle):
                users[name] = _users(nvml, handle)
    return users


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
