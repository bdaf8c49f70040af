"""CUDA through CuPy: what compute can use. It creates a context and obeys CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from gpubench.detect.probes import ProbeFailure, last
from gpubench.installation import install_command

_NO_DEVICE, _OLD_DRIVER = 100, 35


def probe(cupy: Any = None, check: bool = True) -> dict[str, Any]:
    """Records of all visible devices; with `check` each runs one kernel whose result is compared."""
    return last(steps(cupy, check))


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
        hint = "the NVIDIA driver is too old for this CuPy"
        raise ProbeFailure("mismatch", str(error), hint) from error
    answer: dict[str, Any] = {"records": [], "version": cupy.__version__, "partial": True}
    lost = []
    for index in range(count):
        try:
            answer["records"].append(_device(cupy, index))
        except Exception as error:  # one device that does not answer must not hide the others
            lost.append(f"cuda:{index}: {error}")
    if lost:
        answer["hint"] = "; ".join(lost)
    for record in answer["records"]:
        yield answer
        if check and "why_not" not in record:
            record["checked"] = _checked(cupy, record["ordinal"])
    yield answer | {"partial": False}


def _library() -> Any:
    try:
        import cupy
    except ImportError as error:
        hint = f"install CuPy: {install_command('cuda13')}; for CUDA 12 the extra cuda12"
        raise ProbeFailure("absent", type(error).__name__, hint) from error
    return cupy


def _device(cupy: Any, index: int) -> dict[str, Any]:
    table = cupy.cuda.runtime.getDeviceProperties(index)
    identity = table.get("uuid")
    bdf = f"{table['pciDomainID']:04x}:{table['pciBusID']:02x}:{table['pciDeviceID']:02x}.0"
    name = table.get("name")
    record: dict[str, Any] = {
        "source": "cuda", "ordinal": index, "bdf": bdf, "vendor_id": "10de",
        "version": str(cupy.cuda.runtime.runtimeGetVersion()),
        "name": name.decode("utf-8", "replace") if isinstance(name, bytes) else name,
        "memory_bytes": int(table["totalGlobalMem"]),
        "adapter_type": "integrated" if table.get("integrated") else "discrete",
        "compute.units": {"value": int(table["multiProcessorCount"]), "status": "ok"},
        "compute.arch": {"value": f"sm_{table['major']}{table['minor']}", "status": "ok"},
        "memory.unified": {"value": bool(table.get("integrated")), "status": "ok"},
    }  # fmt: skip
    if isinstance(identity, bytes) and len(identity) == 16 and any(identity):
        record["uuid"] = f"GPU-{uuid.UUID(bytes=identity)}"
    if _too_old(cupy, 10 * table["major"] + table["minor"]):
        record["why_not"] = ["TOO_OLD"]
    return record


def _too_old(cupy: Any, capability: int) -> bool:
    """Whether the compiler that CuPy uses says itself that it no longer serves such a device."""
    try:
        served = [int(arch) for arch in cupy.cuda.nvrtc.getSupportedArchs()]
    except Exception as error:  # a CuPy or CUDA without the call says nothing
        print(f"nvrtc: {error}")
        return False
    return bool(served) and capability < min(served)


def _checked(cupy: Any, index: int) -> bool:
    """2 x + 1 over 0..999, compared element by element on the host."""
    try:
        with cupy.cuda.Device(index):
            got = (cupy.arange(1000, dtype=cupy.float32) * 2 + 1).tolist()
        return bool(got == [2.0 * x + 1.0 for x in range(1000)])
    except Exception as error:  # any failure of the device means: not checked
        print(f"cuda:{index}: {error}")
        return False
