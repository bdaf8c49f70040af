"""Queries on render nodes: AMD's APU flag and memory, Intel's memory regions. Opening a node wakes its GPU."""

from __future__ import annotations

import array
import os
import struct
import threading
import time
from typing import Any

from gpubench.detect.probes import ProbeFailure, fact

# Layouts of the kernel's include/uapi/drm: amdgpu_drm.h, i915_drm.h, xe_drm.h (stable interfaces).
_WRITE, _READ_WRITE = 1, 3
_COMMAND = 0x40  # DRM_COMMAND_BASE
_AMD_DEV_INFO, _AMD_MEMORY = 0x16, 0x19
_AMD_FUSION = 1
_I915_MEMORY_REGIONS, _XE_MEMORY_REGIONS = 4, 1
_REGION_BYTES = 88  # of i915 and of xe alike
_DEVICE_MEMORY = 1
_MOST_BYTES = 1 << 16


def probe(nodes: list[dict[str, str]], limit_s: float = 20.0) -> dict[str, Any]:
    """One record per node: `nodes` name a render node, its address and its driver. They are asked side by side, and one
    that has not answered within `limit_s`, or that refuses, costs its own record and stands in the hint."""
    try:
        import fcntl
    except ImportError as error:
        raise ProbeFailure("unsupported", "ImportError", "there are no render nodes on this system") from error
    answers: dict[str, dict[str, Any] | Exception] = {}

    def ask(node: dict[str, str]) -> None:
        try:
            answers[node["node"]] = _record(fcntl.ioctl, node)
        except Exception as error:  # what goes wrong with a node is told by its name
            answers[node["node"]] = error

    threads = [threading.Thread(target=ask, args=(node,), daemon=True) for node in nodes]
    for thread in threads:
        thread.start()
    until = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    outcomes = [(node["node"], answers.get(node["node"])) for node in nodes]
    records = [answer for _, answer in outcomes if isinstance(answer, dict)]
    errors = [
        (name, answer)
        for name, answer in sorted(outcomes, key=lambda entry: entry[0])
        if isinstance(answer, Exception)
    ]
    late = [name for name, answer in outcomes if answer is None]
    refused = [error for _, error in errors if isinstance(error, PermissionError)]
    if refused and not records and not late:
        raise ProbeFailure("permission", str(refused[0].strerror), "join the groups render and video")
    result: dict[str, Any] = {"records": records}
    if late:
        result |= {"status": "timeout", "error_code": f"no answer in {limit_s:.3g} s"}
    notes = [*(f"{name}: {error}" for name, error in errors), *(f"{name}: no answer" for name in late)]
    return result | ({"hint": "; ".join(notes)} if notes else {})


def _record(ioctl: Any, node: dict[str, str]) -> dict[str, Any]:
    """Ask one node. Raises OSError, struct.error and KeyError."""
    handle = os.open(f"/dev/dri/{node['node']}", os.O_RDWR | os.O_CLOEXEC)
    try:
        asks = {"amdgpu": ask_amdgpu, "i915": ask_i915, "xe": ask_xe}
        return {"source": "drm-ioctl", "bdf": node["bdf"]} | asks[node["driver"]](ioctl, handle)
    finally:
        os.close(handle)


def amd_facts(info: bytes, memory: bytes) -> dict[str, Any]:
    """Facts of struct drm_amdgpu_info_device and struct drm_amdgpu_memory_info. Raises struct.error."""
    units, flags = struct.unpack_from("=I", info, 48)[0], struct.unpack_from("=Q", info, 136)[0]
    vram = struct.unpack_from("=Q", memory, 0)[0]
    fused = bool(flags & _AMD_FUSION)
    return {
        "kind": "integrated" if fused else "discrete", "memory.unified": fused,
        "compute.units": fact(units or None, "absent"), "memory.dedicated_bytes": fact(vram or None, "absent"),
    }  # fmt: skip


def region_bytes(data: bytes, header: int, size_at: int) -> int | None:
    """Sum of the regions that are the device's own; None if there is none. Raises struct.error."""
    count = struct.unpack_from("=I", data, 0)[0]
    total = 0
    for number in range(count):
        start = header + number * _REGION_BYTES
        if struct.unpack_from("=H", data, start)[0] == _DEVICE_MEMORY:
            total += struct.unpack_from("=Q", data, start + size_at)[0]
    return total or None


def intel_facts(size: int | None) -> dict[str, Any]:
    """Facts of the memory regions of Intel's drivers; `size` is None where all of them are the system's."""
    return {
        "kind": "discrete" if size else "integrated", "memory.unified": not size,
        "memory.dedicated_bytes": fact(size, "absent"),
    }  # fmt: skip


def request(direction: int, number: int, size: int) -> int:
    """The ioctl number of a DRM command."""
    return direction << 30 | size << 16 | ord("d") << 8 | _COMMAND + number


def ask_amdgpu(ioctl: Any, handle: int) -> dict[str, Any]:
    """Two queries of DRM_IOCTL_AMDGPU_INFO."""

    def ask(query: int) -> bytes:
        answer = array.array("B", bytes(1024))
        command = struct.pack("=QII16x", answer.buffer_info()[0], len(answer), query)
        ioctl(handle, request(_WRITE, 0x05, len(command)), command)
        return answer.tobytes()

    return amd_facts(ask(_AMD_DEV_INFO), ask(_AMD_MEMORY))


def ask_i915(ioctl: Any, handle: int) -> dict[str, Any]:
    """Asked twice: with length 0 the kernel fills in the length."""
    answer = array.array("B")
    for _ in range(2):
        item = array.array("B", struct.pack("=QiIQ", _I915_MEMORY_REGIONS, len(answer), 0, _at(answer)))
        ioctl(handle, request(_READ_WRITE, 0x39, 16), struct.pack("=IIQ", 1, 0, _at(item)))
        length = struct.unpack_from("=i", item.tobytes(), 8)[0]
        if not 0 < length <= _MOST_BYTES:
            raise OSError(f"the query answered {length}")
        answer = answer if len(answer) == length else array.array("B", bytes(length))
    return intel_facts(region_bytes(answer.tobytes(), 16, 8))


def ask_xe(ioctl: Any, handle: int) -> dict[str, Any]:
    """Asked twice, as i915 is."""
    answer = array.array("B")
    for _ in range(2):
        command = array.array("B", struct.pack("=QIIQ16x", 0, _XE_MEMORY_REGIONS, len(answer), _at(answer)))
        ioctl(handle, request(_READ_WRITE, 0x00, len(command)), command, True)
        length = struct.unpack_from("=I", command.tobytes(), 12)[0]
        if not 0 < length <= _MOST_BYTES:
            raise OSError(f"the query answered {length}")
        answer = answer if len(answer) == length else array.array("B", bytes(length))
    return intel_facts(region_bytes(answer.tobytes(), 8, 8))


def _at(buffer: array.array[int]) -> int:
    return buffer.buffer_info()[0] if len(buffer) else 0
