"""CUDA, or HIP, through CuPy: what compute can use. It creates a context and obeys CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from gpubench.detect.probes import ProbeFailure, ask_each, require

_NO_DEVICE, _OLD_DRIVER = 100, 35


def steps(cupy: Any = None, check: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the records, then again after each check: a kernel on a sick device may never return."""
    cupy = cupy or _library()
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        if error.status == _NO_DEVICE:
            yield {"records": [], "version": cupy.__version__}
            return
        if error.status != _OLD_DRIVER:
            raise ProbeFailure("invalid", str(error), str(error)) from error
        hint = f"the {'AMD' if _is_hip(cupy) else 'NVIDIA'} driver is too old for this CuPy"
        raise ProbeFailure("mismatch", str(error), hint) from error
    checked = (lambda index: _check(cupy, index)) if check else None
    yield from ask_each(cupy.__version__, "cuda:", range(count), lambda _, index: _device(cupy, index), checked)


def _is_hip(cupy: Any) -> bool:
    """Whether this CuPy was built for ROCm."""
    return bool(getattr(cupy.cuda.runtime, "is_hip", False))


def _library() -> Any:
    with require("CuPy is not installed (for CUDA 12 the extra is cuda12)", "cuda13"):
        import cupy
    return cupy


def _device(cupy: Any, index: int) -> dict[str, Any]:
    table = cupy.cuda.runtime.getDeviceProperties(index)
    identity = table.get("uuid")
    bdf = f"{table['pciDomainID']:04x}:{table['pciBusID']:02x}:{table['pciDeviceID']:02x}.0"
    hip = _is_hip(cupy)
    # `gfx90a:sramecc+:xnack-`: the chip, and how it is set up.
    arch = _text(table.get("gcnArchName")).partition(":")[0] if hip else f"sm_{table['major']}{table['minor']}"
    record: dict[str, Any] = {
        "source": "hip" if hip else "cuda", "ordinal": index, "bdf": bdf, "vendor_id": "1002" if hip else "10de",
        "version": str(cupy.cuda.runtime.runtimeGetVersion()),
        "name": _text(table.get("name")) or None,
        "memory_bytes": int(table["totalGlobalMem"]),
        "adapter_type": "integrated" if table.get("integrated") else "discrete",
        "compute.units": int(table["multiProcessorCount"]), **({"compute.arch": arch} if arch else {}),
        "memory.unified": bool(table.get("integrated")),
    }  # fmt: skip
    if not hip and isinstance(identity, bytes) and len(identity) == 16 and any(identity):
        record["uuid"] = f"GPU-{uuid.UUID(bytes=identity)}"
    if not hip and _too_old(cupy, 10 * table["major"] + table["minor"]):
        record["why_not"] = ["TOO_OLD"]
    return record


def _text(raw: object) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw or "")


def _too_old(cupy: Any, capability: int) -> bool:
    """Whether the compiler that CuPy uses says itself that it no longer serves such a device."""
    try:
        served = [int(arch) for arch in cupy.cuda.nvrtc.getSupportedArchs()]
    except Exception as error:  # a CuPy or CUDA without the call says nothing
        print(f"nvrtc: {error}")
        return False
    return bool(served) and capability < min(served)


def _check(cupy: Any, index: int) -> bool:
    """2 x + 1 over 0..999, compared element by element on the host."""
    try:
        with cupy.cuda.Device(index):
            got = (cupy.arange(1000, dtype=cupy.float32) * 2 + 1).tolist()
        return bool(got == [2.0 * x + 1.0 for x in range(1000)])
    except Exception as error:  # any failure of the device means: not checked
        print(f"cuda:{index}: {error}")
        return False
