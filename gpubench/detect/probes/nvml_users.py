"""NVML: who is on a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpubench.detect.probes.nvml_readings import Wanted, handles

_MIG_ON, _ATS = 1, 2


def users(wanted: Iterable[Wanted], nvml: Any = None) -> dict[str, dict[str, int]]:
    """By device id: processes that compute on the GPU, those that draw, and bytes in use, as NVML tells them.

    Processes of other containers are in no list; the memory that they hold is counted. A GPU in partitions is left out:
    who is on another partition disturbs nobody. So is memory that is the system's too, which holds its files.
    """
    nvml, found = handles(wanted, {}, nvml)
    return {name: _users(nvml, handle) for name, handle in found.items() if not _partitioned(nvml, handle)}


def _users(nvml: Any, handle: Any) -> dict[str, int]:
    computing = _processes(nvml, handle, "nvmlDeviceGetComputeRunningProcesses")
    drawing = _processes(nvml, handle, "nvmlDeviceGetGraphicsRunningProcesses") - computing
    return {
        "computing": len(computing), "drawing": len(drawing), "used_bytes": _used_bytes(nvml, handle),
    }  # fmt: skip


def _processes(nvml: Any, handle: Any, name: str) -> set[int]:
    return {process.pid for process in _asked(nvml, name, handle) or ()}


def _used_bytes(nvml: Any, handle: Any) -> int:
    """Without what the driver reserves; 0 where that is not told apart."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    mode = _asked(nvml, "nvmlDeviceGetAddressingMode", handle)
    if version is None or getattr(mode, "value", mode) == _ATS:
        return 0
    told = _asked(nvml, "nvmlDeviceGetMemoryInfo", handle, version)
    return 0 if told is None else int(told.used)


def _partitioned(nvml: Any, handle: Any) -> bool:
    mode = _asked(nvml, "nvmlDeviceGetMigMode", handle)
    return mode is not None and mode[0] == _MIG_ON


def _asked(nvml: Any, name: str, *arguments: Any) -> Any:
    """What the driver says; None where it, or its binding, says nothing: whatever is wrong there is no user."""
    try:
        return getattr(nvml, name)(*arguments)
    except Exception:
        return None
