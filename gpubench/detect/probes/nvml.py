"""NVML: identity, links, state and users of NVIDIA GPUs. No context is created.

Each field is read on its own, so that the other fields are read even if a card does not report one of them.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from gpubench.base import NVIDIA
from gpubench.detect.facts import Address, address, uuid_key
from gpubench.detect.probes import FactJson, ProbeFailure, fact, require, text

# The folders of the driver's libraries that the loader may not know: those of WSL and of NixOS.
_FOLDERS = ("/usr/lib/wsl/lib", "/run/opengl-driver/lib")
_STATUS = {3: "unsupported", 13: "unsupported", 25: "unsupported", 4: "permission", 18: "mismatch", 10: "timeout",
           9: "absent", 12: "absent", 6: "absent", 15: "crashed", 16: "crashed"}  # fmt: skip
# Errors that concern a GPU as a whole: no permission for it, it is lost, it has to be reset. If a single field
# has no permission, only that field is missing.
_LOST = {15: "GPU_LOST", 16: "GPU_LOST"}
_WHY_NOT = {4: "NO_PERMISSION", **_LOST}
# Errors of an NVML that may not talk to the driver: no permission, blocked by the system, unknown.
_BLOCKED = (4, 17, 999)
_HINTS = {
    9: "the NVIDIA kernel module is not loaded (sudo modprobe nvidia says why), or its device nodes are not here",
    12: "the NVIDIA driver's library libnvidia-ml is not installed: give it to the container (--gpus all, --nv of "
    "Apptainer, NVIDIA_DRIVER_CAPABILITIES=compute,utility), or install it in the driver's version",
    18: "reboot, or reload the NVIDIA kernel module: it differs from the library",
    **dict.fromkeys(_LOST, "restart the machine: the driver does not reach a GPU, dmesg names it and says why"),
    **dict.fromkeys(
        _BLOCKED,
        "the driver refuses this process: restart the container, which may have lost its devices, or the machine",
    ),
}
_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
# The bits of nvmlClocksEventReasons, with the names that nvidia-smi uses.
_THROTTLE = {
    0x2: "applications_clocks", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake", 0x100: "display_clocks",
}  # fmt: skip
_VGPU_GUEST = 2
_INSTANCE_ABSENT = 6
_MIG_ON, _ATS = 1, 2


class GpuTarget(Protocol):
    """A device to be found by NVML."""

    @property
    def device_id(self) -> str:
        """The id of the device in the run."""

    @property
    def uuid(self) -> str | None:
        """The uuid of the GPU, with or without dashes and prefix, or None if it is unknown."""

    @property
    def pci(self) -> str | None:
        """The PCI address of the device, or None if it is unknown."""


GpuReader = Callable[[], Mapping[str, Any]]


class Handle:
    """The first arguments of NVML calls: a GPU, a MIG instance, or nothing for calls about the system."""

    def __init__(self, nvml: Any, *first: Any) -> None:
        self.nvml = nvml
        self.first = first
        self.errors: dict[int, Exception] = {}  # by NVML's code

    def ask(self, name: str, *more: Any, read: Callable[[Any], Any] = lambda value: value) -> FactJson:
        """Return the fact of one NVML call with the arguments `first` of the handle and then `more`. `read`
        turns the answer into a value. An error of NVML becomes the status of the fact."""
        try:
            answer = getattr(self.nvml, name)(*self.first, *more)
            return fact(None if answer is None else read(answer))
        except self.nvml.NVMLError as error:
            code = _code(error)
            self.errors[code] = error
            return {"value": None, "status": _STATUS.get(code, "invalid"), "note": str(error)}
        except Exception:  # the binding or the library is too old, or the answer has another form
            return fact(None)

    def value(self, name: str, *more: Any, read: Callable[[Any], Any] = lambda value: value) -> Any:
        """Return the value that `ask` reads, or None if there is none."""
        return self.ask(name, *more, read=read)["value"]

    @property
    def uuid(self) -> str | None:
        """The uuid with its prefix, or None if NVML does not give it."""
        return text(self.value("nvmlDeviceGetUUID"))

    @property
    def bdf(self) -> str | None:
        """The PCI address as NVML writes it, or None if NVML does not give it."""
        return text(getattr(self.value("nvmlDeviceGetPciInfo"), "busId", None))

    @property
    def partitioned(self) -> bool:
        """Whether the GPU is divided into MIG instances."""
        return bool(self.value("nvmlDeviceGetMigMode", read=lambda mode: mode[0] == _MIG_ON))


def _code(error: Exception) -> Any:
    """Return NVML's number of the error, or None for other errors."""
    return getattr(error, "value", None)


def probe_nvml(nvml: Any = None, addresses: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the records found so far after each GPU, and at the end all records with their links. `nvml` is the
    binding, or None to import it. `addresses` are those of the GPUs bound to the driver. Raises ProbeFailure if
    NVML cannot start."""
    nvml = nvml or library()
    try:
        handles, lost = _start(nvml)
    except nvml.NVMLError as error:
        code = _code(error)
        status: Any = "permission" if code in _BLOCKED else _STATUS.get(code, "invalid")
        raise ProbeFailure(status, str(error), _HINTS.get(code, str(error))) from error
    system = Handle(nvml)
    driver = system.value("nvmlSystemGetDriverVersion", read=text)
    cuda = system.ask("nvmlSystemGetCudaDriverVersion_v2")
    served = cuda | {"value": f"{number // 1000}.{number % 1000 // 10}" if (number := cuda["value"]) else None}
    answer: dict[str, Any] = {"records": [], "version": driver, "cuda_driver": cuda["value"], "partial": True}
    devices = []
    # A call on a broken GPU may never return: the records before it are out by then.
    for index, handle in handles.items():
        try:
            record = _device(handle, index, driver) | {"driver.cuda": served, "paths": []}
            instances = _instances(handle, record)
            if handle.partitioned and not instances and _INSTANCE_ABSENT in handle.errors:
                record["why_not"] = [*record["why_not"], "NO_INSTANCE"]
        except Exception as error:  # a binding that does not fit one GPU must not hide the others
            lost[index] = error
            continue
        devices.append((handle, record))
        answer["records"] += [record, *instances]
        yield answer
    unreachable = [_unreachable(index, error) for index, error in lost.items()]
    _place([*(record for _, record in devices), *unreachable], addresses)
    answer["records"] += unreachable
    yield answer
    paths: Mapping[Address, list[dict[str, Any]]] = {}
    with contextlib.suppress(Exception):  # links tell less than the GPUs
        paths = _paths([handle for handle, _ in devices])
    for _, record in devices:
        at = address(record["bdf"])
        record["paths"] = paths.get(at, []) if at is not None else []
    yield answer | {"partial": False}


def library() -> Any:
    """Return the module of the NVML binding. Raises ProbeFailure if it is not installed."""
    # Under WSL the distribution may carry a library that talks to no driver: take Windows' own first.
    for folder in _FOLDERS:
        with contextlib.suppress(OSError):
            ctypes.CDLL(f"{folder}/libnvidia-ml.so.1", mode=ctypes.RTLD_GLOBAL)
    with require("nvidia-ml-py"):
        import pynvml
    return pynvml


def _start(nvml: Any) -> tuple[dict[int, Handle], dict[int, Exception]]:
    """Start NVML, and return the GPUs' handles, and the errors of those without one, by index."""
    nvml.nvmlInit()
    handles: dict[int, Handle] = {}
    refused: dict[int, Exception] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handles[index] = Handle(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
        except Exception as error:
            refused[index] = error
    return handles, refused


def _unreachable(index: int, error: Exception) -> dict[str, Any]:
    """Return the record of a GPU that NVML counts but cannot reach."""
    code = _code(error)
    size = {"value": None, "status": _STATUS.get(code, "invalid"), "note": str(error)}
    return {
        "source": "nvml", "ordinal": index, "bdf": None, "uuid": None, "vendor_id": NVIDIA,
        "memory": {"dedicated_bytes": size},
        "why_not": [_WHY_NOT.get(code, "UNUSABLE")] if code is not None else [],
    }  # fmt: skip


def _place(records: Sequence[dict[str, Any]], addresses: Sequence[str]) -> None:
    """Assign the unused addresses, in order, to the records without address and uuid, if they are as many."""
    reached = {address(record["bdf"]) for record in records}
    free = [bdf for bdf in addresses if address(bdf) not in reached]
    nameless = [record for record in records if not record["bdf"] and not record["uuid"]]
    if len(free) == len(nameless):
        for record, bdf in zip(nameless, free, strict=True):
            record["bdf"] = bdf


def _hertz(megahertz: int) -> int | None:
    return megahertz * 1_000_000 or None


def _watts(milliwatts: int) -> float:
    return milliwatts / 1000


def _device(handle: Handle, index: int, driver: str | None) -> dict[str, Any]:
    """Return the record of the GPU with this `index` in NVML's list."""
    ask, nvml = handle.ask, handle.nvml
    record = {
        "source": "nvml", "ordinal": index, "bdf": handle.bdf, "version": driver, "uuid": handle.uuid,
        "name": handle.value("nvmlDeviceGetName", read=text),
        "vendor_id": NVIDIA, "driver.version": fact(driver),
        "device_id": handle.value("nvmlDeviceGetPciInfo", read=lambda pci: pci.pciDeviceId >> 16),
        "kind": ask("nvmlDeviceGetVirtualizationMode", read=lambda mode: "vgpu" if mode == _VGPU_GUEST else None),
        "display_attached": ask("nvmlDeviceGetDisplayActive", read=bool), "throttle": throttle_words(handle),
        "memory": _memory(handle),
        "compute": {
            "arch": ask("nvmlDeviceGetCudaComputeCapability", read=lambda pair: f"sm_{pair[0]}{pair[1]}"),
            "max_hz": ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM, read=_hertz),
            "now_hz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM, read=_hertz),
            "ecc": ask("nvmlDeviceGetEccMode", read=lambda pair: bool(pair[0])),
            "mode": ask("nvmlDeviceGetComputeMode", read=_COMPUTE_MODES.get),
        },
        "link": {
            "gen_max": ask("nvmlDeviceGetMaxPcieLinkGeneration"), "width_max": ask("nvmlDeviceGetMaxPcieLinkWidth"),
            "gen_now": ask("nvmlDeviceGetCurrPcieLinkGeneration"), "width_now": ask("nvmlDeviceGetCurrPcieLinkWidth"),
        },
        "power": {
            "limit_w": ask("nvmlDeviceGetPowerManagementLimit", read=_watts),
            "default_limit_w": ask("nvmlDeviceGetPowerManagementDefaultLimit", read=_watts),
        },
        "why_not": sorted({_LOST[code] for code in handle.errors if code in _LOST}),
    }  # fmt: skip
    if handle.errors and not record["uuid"] and not record["bdf"]:
        raise next(iter(handle.errors.values()))
    return record


def _memory(handle: Handle) -> dict[str, Any]:
    """Return the total, free and reserved bytes."""
    version = getattr(handle.nvml, "nvmlMemory_v2", None)
    total = fact(None)
    # the older call does not report the reserved bytes
    if version is not None:
        total = handle.ask("nvmlDeviceGetMemoryInfo", version)
    if total["value"] is None and total["status"] != "permission":
        total = handle.ask("nvmlDeviceGetMemoryInfo")
    memory = total["value"]
    if memory is not None and not memory.total:
        total = fact(None) | {"note": "NVML said 0"}
    if total["value"] is None:
        lost = {"value": None, "status": total["status"]}
        return {"dedicated_bytes": total, "free_bytes": lost, "reserved_bytes": lost}
    reserved = fact(getattr(memory, "reserved", None))
    return {"dedicated_bytes": memory.total, "free_bytes": memory.free, "reserved_bytes": reserved}


def throttle_words(handle: Handle) -> list[str]:
    """Return the reasons why the clocks are lowered at present, with the names that nvidia-smi uses."""
    for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        mask = handle.value(name)
        if isinstance(mask, int):
            return [word for bit, word in _THROTTLE.items() if mask & bit]
    return []


def _instances(handle: Handle, parent: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the records of the MIG instances of a GPU, whose own record is `parent`."""
    records = []
    count = handle.value("nvmlDeviceGetMaxMigDeviceCount") if handle.partitioned else 0
    for index in range(count or 0):
        own = handle.value("nvmlDeviceGetMigDeviceHandleByIndex", index)
        if own is None:
            continue
        instance = Handle(handle.nvml, own)
        units = instance.ask("nvmlDeviceGetAttributes", read=lambda attributes: attributes.multiprocessorCount)
        records.append({
            "source": "nvml", "ordinal": f"{parent['ordinal']}:{index}",
            "partition_of": parent["uuid"] or parent["bdf"], "uuid": instance.uuid,
            "memory": _memory(instance), "compute": {"units": fact(units["value"])},
        })  # fmt: skip
    return records


# ---------------------------------------------------------------- links between GPUs

MOST_LINKS = 36
_ACTIVE, _REMOTE_SWITCH = 1, 2
_COMMON = {0: "switch", 10: "switch", 20: "switch", 30: "host-bridge", 40: "numa-node", 50: "system"}
_P2P_READ, _P2P_WRITE, _P2P_NVLINK, _P2P_ATOMICS, _P2P_OK = 0, 1, 2, 3, 0
_LINK_MBPS = 90  # the field NVLINK_SPEED_MBPS_COMMON


class CardLinks(NamedTuple):
    """The active links of one GPU."""

    to: Mapping[Address, int]  # the number of direct links to each address
    to_switch: int  # the number of links to switches
    version: FactJson  # the version of NVLink, of the first active link
    mbps: int | None  # the rate of one link, in 10^6 bytes per second; None: unknown
    asked: FactJson  # the state of the first link as a fact, or the reason why that is unknown


def _links(handle: Handle) -> CardLinks:
    """Return the active links of a GPU."""
    to: dict[Address, int] = {}
    switched, version, first_state = 0, fact(None, "absent"), fact(None, "absent")
    for link in range(MOST_LINKS):
        state = handle.ask("nvmlDeviceGetNvLinkState", link)
        first_state = state if link == 0 else first_state
        if state["value"] is None:
            break  # there is no such link, nor a higher one
        if state["value"] != _ACTIVE:
            continue
        if version["value"] is None:
            version = handle.ask("nvmlDeviceGetNvLinkVersion", link)
        if handle.value("nvmlDeviceGetNvLinkRemoteDeviceType", link) == _REMOTE_SWITCH:
            switched += 1
            continue
        end = handle.value("nvmlDeviceGetNvLinkRemotePciInfo", link, read=lambda pci: address(text(pci.busId)))
        if end is not None:
            to[end] = to.get(end, 0) + 1
    rates = handle.value("nvmlDeviceGetFieldValues", [_LINK_MBPS]) if to or switched else None
    mbps = int(rates[0].value.uiVal) or None if rates and rates[0].nvmlReturn == 0 else None
    return CardLinks(to, switched, version, mbps, first_state)


def _paths(handles: Iterable[Handle]) -> Mapping[Address, list[dict[str, Any]]]:
    """Return the paths between GPUs that are not divided into MIG instances, by the address of the first."""
    placed = {
        at: (handle, _links(handle))
        for handle in handles
        if not handle.partitioned and (at := address(handle.bdf)) is not None
    }
    return {
        at: [_path(*own, *peer, to) for to, peer in placed.items() if to != at] for at, own in placed.items()
    }


def _path(own: Handle, mine: CardLinks, peer: Handle, yours: CardLinks, to: Address) -> dict[str, Any]:
    (other,) = peer.first
    lanes = mine.to.get(to, 0) or min(mine.to_switch, yours.to_switch)
    path: dict[str, Any] = {
        "to": str(to), "common": own.ask("nvmlDeviceGetTopologyCommonAncestor", other, read=_COMMON.get),
    } | {
        name: own.ask("nvmlDeviceGetP2PStatus", other, index, read=lambda status: status == _P2P_OK)
        for name, index in (("read", _P2P_READ), ("write", _P2P_WRITE), ("atomics", _P2P_ATOMICS))
    }  # fmt: skip
    if lanes:
        path |= {
            "kind": "nvlink", "lanes": lanes, "version": mine.version, "via": "direct" if to in mine.to else "switch",
            "max_bytes_per_s": fact(lanes * mine.mbps * 1_000_000 if mine.mbps else None),
        }  # fmt: skip
    elif own.value("nvmlDeviceGetP2PStatus", other, _P2P_NVLINK) == _P2P_OK:
        # The driver says that a link is there, and no more: a guest sees none of its lanes.
        status = mine.asked["status"]
        path |= {"kind": "nvlink", "lanes": fact(None, "unsupported" if status == "ok" else status)}
    return path


# ---------------------------------------------------------------- while a run goes on


def gpu_readers(targets: Iterable[GpuTarget], absent: dict[str, str], nvml: Any = None) -> dict[str, GpuReader]:
    """Return, by device id, a function that reads the present state of the target's GPU, in the fields of
    `measure.monitor.Reading`. Why a device is not found goes into `absent`, by its id. `nvml` is the binding,
    or None to import it."""
    return {name: partial(_read_gpu, handle) for name, handle in _find_handles(targets, absent, nvml).items()}


def _find_handles(targets: Iterable[GpuTarget], absent: dict[str, str], nvml: Any) -> dict[str, Handle]:
    """Return the GPUs' handles by the target's device id, and tell in `absent` why others have none."""
    handles: dict[int, Handle] = {}
    try:
        handles, refused = _start(nvml or library())
        why = f"NVML: {next(iter(refused.values()))}" if refused else "NVML lists no such GPU"
    except ProbeFailure as failure:
        why = failure.hint
    except Exception as error:
        why = f"NVML: {error}"
    names = {}
    for target in targets:
        handle = next((handle for handle in handles.values() if _is_target(handle, target)), None)
        if handle is not None:
            names[target.device_id] = handle
        else:
            absent[target.device_id] = why
    return names


def _is_target(handle: Handle, target: GpuTarget) -> bool:
    """Tell whether the handle is the target, by uuid or by address."""
    own = handle.uuid
    if own and target.uuid and uuid_key(own) == uuid_key(target.uuid):
        return True
    # the uuid of a partition matches no GPU, but its address does
    return target.pci is not None and address(handle.bdf) == address(target.pci)


def _read_gpu(handle: Handle) -> dict[str, Any]:
    nvml, value = handle.nvml, handle.value
    return {
        "clock_hz": value("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM, read=lambda mhz: mhz * 1e6),
        "memory_clock_hz": value("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM, read=lambda mhz: mhz * 1e6),
        "temperature_c": value("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU, read=float),
        "power_w": value("nvmlDeviceGetPowerUsage", read=lambda milliwatts: milliwatts * 1e-3),
        "energy_j": value("nvmlDeviceGetTotalEnergyConsumption", read=lambda millijoules: millijoules * 1e-3),
        "throttle": throttle_words(handle),
        "pcie_generation": value("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_width": value("nvmlDeviceGetCurrPcieLinkWidth"),
    }


def gpu_users(
    targets: Iterable[GpuTarget], nvml: Any = None, *, own: Collection[int] = ()
) -> dict[str, dict[str, int]]:
    """Return who uses the GPU of each target, by device id, without GPUs that are divided into partitions.
    `computing` is the number of processes that compute, and `drawing` of those that only draw, without those in
    `own`. `used_bytes` is the used memory, 0 if it is unknown."""
    users = {}
    for name, handle in _find_handles(targets, {}, nvml).items():
        # users of another partition do not disturb
        if handle.partitioned:
            continue
        computing, drawing = (
            handle.value(
                f"nvmlDeviceGet{what}RunningProcesses",
                read=lambda running: {process.pid for process in running}.difference(own),
            )
            or set()
            for what in ("Compute", "Graphics")
        )
        # NVML lists no processes of other containers, but counts their memory. It is unknown where the GPU
        # shares the system's memory, or where NVML counts what the driver reserves.
        used = None
        version = getattr(handle.nvml, "nvmlMemory_v2", None)  # which separates what the driver reserves
        mode = handle.value("nvmlDeviceGetAddressingMode")
        if version is not None and getattr(mode, "value", mode) != _ATS:
            used = handle.value("nvmlDeviceGetMemoryInfo", version, read=lambda memory: int(memory.used))
        users[name] = {
            "computing": len(computing),
            "drawing": len(drawing - computing),
            "used_bytes": used or 0,
        }
    return users
