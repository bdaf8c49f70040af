"""Probes of native libraries and drivers: CuPy (CUDA or HIP), wgpu, the render nodes of AMD and Intel, NumPy's
BLAS, and py-cpuinfo on systems without /proc/cpuinfo.

CuPy creates a context and obeys CUDA_VISIBLE_DEVICES. Opening a render node wakes its GPU.

`python -m gpubench.detect.probes.libraries NAME [OPTIONS]` writes JSON objects as messages, which are not mixed
with the output of a library.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import re
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpubench.base import AMD, NVIDIA
from gpubench.base.child_main import Messages
from gpubench.base.installation import cupy_commands
from gpubench.base.messages import CUDA_REMEDIES
from gpubench.detect.probes import FactJson, ProbeFailure, ask_each, fact, require, text
from gpubench.result.machine import Status

_CACHES = (
    ("l1_data_cache_size", 1, "data"), ("l1_instruction_cache_size", 1, "instruction"), ("l2_cache_size", 2, "unified"),
    ("l3_cache_size", 3, "unified"),
)  # fmt: skip
# The types of the texts that py-cpuinfo may tell. A field of another type is left out.
_TYPES_OF = {"brand_raw": str, "vendor_id_raw": str, "flags": list}


def probe_blas() -> dict[str, Any]:
    """Return the library, version, threads and kernel of each BLAS that NumPy loads, in the entry `blas`.
    Raises ProbeFailure if NumPy or threadpoolctl does not load."""
    with require("NumPy with threadpoolctl"):
        import numpy  # noqa: F401
        from threadpoolctl import threadpool_info
    keys = {"library": "internal_api", "version": "version", "threads": "num_threads", "kernel": "architecture"}
    pools = [pool for pool in threadpool_info() if pool.get("user_api") == "blas"]
    return {"records": [], "blas": [{key: pool.get(name) for key, name in keys.items()} for pool in pools]}


def probe_cpuinfo() -> dict[str, Any]:
    """Return model, vendor, flags, advertised clock (hertz) and caches (bytes) in the entry `cpu`. py-cpuinfo
    sleeps for a second and forks. Raises ProbeFailure if it does not load."""
    with require("py-cpuinfo"):
        from cpuinfo import get_cpu_info
    info: dict[str, Any] = {
        key: value for key, value in get_cpu_info().items() if isinstance(value, _TYPES_OF.get(key, object))
    }
    caches = [
        {"level": level, "type": kind, "size_bytes": size, "instances": 1}
        for name, level, kind in _CACHES
        if (size := _bytes(info.get(name)))
    ]
    cpu = {
        "model": info.get("brand_raw"), "vendor": info.get("vendor_id_raw"),
        "flags": [*map(str, info.get("flags", ()))], "base_hz": _hertz(info.get("hz_advertised")), "caches": caches,
    }  # fmt: skip
    return {"records": [], "cpu": cpu}


def _hertz(clock: Any) -> int | None:
    """Return py-cpuinfo's pair (whole hertz, decimals) as whole hertz, or None."""
    match clock:
        case [int(whole), *_] if whole > 0:
            return whole
    return None


def _bytes(size: Any) -> int | None:
    """Convert a cache size, a number of bytes or a text such as "256 KB", to bytes, or return None."""
    match = re.fullmatch(r"([0-9]{1,18})(?: ([kmg]?).*)?", str(size).strip(), re.I)
    return int(match[1]) * 1024 ** " kmg".index((match[2] or " ").lower()) or None if match else None


# ---------------------------------------------------------------- CUDA and HIP

_NO_DEVICE = 100


def probe_cuda(cupy: Any = None) -> Iterator[dict[str, Any]]:
    """Yield the probe's growing answer (`ask_each`) for the devices that CuPy lists. `cupy` is the library, or
    None to import it. Raises ProbeFailure if CuPy or its driver does not work."""
    if cupy is None:
        with require("CuPy", cupy_commands()):
            import cupy  # type: ignore[no-redef]
            from cupy import cuda  # noqa: F401  (a folder that an uninstalled CuPy has left has none)
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        if error.status == _NO_DEVICE:
            yield {"records": [], "version": cupy.__version__}
            return
        status: Status = "mismatch" if error.status in CUDA_REMEDIES else "invalid"
        raise ProbeFailure(status, str(error), CUDA_REMEDIES.get(error.status, str(error))) from error
    yield from ask_each(
        cupy.__version__,
        "cuda:",
        range(count),
        lambda _, index: _device(cupy, index),
        lambda index: _check_cuda(cupy, index),
    )


def _device(cupy: Any, index: int) -> dict[str, Any]:
    table = cupy.cuda.runtime.getDeviceProperties(index)
    identity = table.get("uuid")
    bdf = f"{table['pciDomainID']:04x}:{table['pciBusID']:02x}:{table['pciDeviceID']:02x}.0"
    hip = getattr(cupy.cuda.runtime, "is_hip", False)  # whether this CuPy was built for ROCm
    chip = text(table.get("gcnArchName")) or ""  # `gfx90a:sramecc+:xnack-`: the chip, and how it is set up
    arch = chip.partition(":")[0] if hip else f"sm_{table['major']}{table['minor']}"
    # From RDNA on HIP counts pairs of compute units, unless this variable is 0.
    paired = hip and arch.startswith("gfx1") and os.environ.get("GPU_ENABLE_WGP_MODE") != "0"
    record: dict[str, Any] = {
        "source": "hip" if hip else "cuda", "ordinal": index, "bdf": bdf, "vendor_id": AMD if hip else NVIDIA,
        "version": str(cupy.cuda.runtime.runtimeGetVersion()),
        "name": text(table.get("name")),
        "memory_bytes": int(table["totalGlobalMem"]),
        "adapter_type": "integrated" if table.get("integrated") else "discrete",
        "compute.units": int(table["multiProcessorCount"]) * (1 + paired), **({"compute.arch": arch} if arch else {}),
        "memory.unified": bool(table.get("integrated")),
    }  # fmt: skip
    if not hip and isinstance(identity, bytes) and len(identity) == 16 and any(identity):
        record["uuid"] = f"GPU-{uuid.UUID(bytes=identity)}"
    if not hip and _too_old(cupy, 10 * table["major"] + table["minor"]):
        record["why_not"] = ["TOO_OLD"]
    return record


def _too_old(cupy: Any, capability: int) -> bool:
    """Tell whether CuPy's compiler no longer supports this compute `capability`, such as 75 for 7.5."""
    try:
        served = [int(arch) for arch in cupy.cuda.nvrtc.getSupportedArchs()]
    except Exception as error:  # a CuPy or CUDA without the call says nothing
        print(f"nvrtc: {error}")
        return False
    return bool(served) and capability < min(served)


def _check_cuda(cupy: Any, index: int) -> bool:
    """Compute 2 x + 1 for 0..999 on the device, and tell whether all elements are right."""
    try:
        with cupy.cuda.Device(index):
            got = (cupy.arange(1000, dtype=cupy.float32) * 2 + 1).tolist()
        return bool(got == [2.0 * x + 1.0 for x in range(1000)])
    except Exception as error:  # any failure of the device means: not checked
        print(f"cuda:{index}: {error}")
        return False


# ---------------------------------------------------------------- WebGPU

_TYPES = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "VirtualGPU": "virtual", "CPU": "cpu"}
_APIS = {
    "Vulkan": "vulkan", "OpenGL": "gl", "OpenGLES": "gl", "Metal": "metal", "D3D12": "dx12", "D3D11": "dx11",
}  # fmt: skip
_SHADER = """
@group(0) @binding(0) var<storage, read_write> data: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&data)) { data[id.x] = 2.0 * f32(id.x) + 1.0; }
}
"""


def probe_wgpu(check: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the probe's growing answer (`ask_each`) for the adapters of wgpu. With `check`, each adapter
    computes something, and `checked` in its record tells whether the result was right. Raises ProbeFailure if
    wgpu is not installed."""
    with require("wgpu"):
        import wgpu
    adapters = wgpu.gpu.enumerate_adapters_sync()
    entries = read_registry()

    def describe(ordinal: int, adapter: Any) -> dict[str, Any]:
        ids = adapter.info.get("vendor_id"), adapter.info.get("device_id")
        return entries.get(ids, {}) | adapter_record(ordinal, adapter)

    yield from ask_each(wgpu.__version__, "adapter ", adapters, describe, _check_adapter if check else None)


def adapter_record(ordinal: int, adapter: Any) -> dict[str, Any]:
    """Return the record of an adapter of wgpu. What the adapter leaves empty is None, or left out if it is
    an id."""
    info = dict(adapter.info)
    api = _APIS.get(str(info.get("backend_type")), str(info.get("backend_type") or "unknown").lower())
    record = {
        "source": f"wgpu:{api}", "ordinal": ordinal, "driver": info.get("vendor") or None, "name": info.get("device"),
        "adapter_type": _TYPES.get(str(info.get("adapter_type")), "other"), "version": info.get("description") or None,
    }  # fmt: skip
    if api == "metal":  # it tells no ids; its names begin with the maker's
        record["vendor"] = info.get("device")
        if record["adapter_type"] == "integrated":
            record["memory.unified"] = True
    return record | {key: info[key] for key in ("vendor_id", "device_id") if info.get(key)}


def _check_adapter(adapter: Any) -> bool:
    """Compute 2 x + 1 for 0..999 on the adapter, and tell whether all elements are right."""
    import wgpu

    try:
        device = adapter.request_device_sync()
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        buffer = device.create_buffer(size=4000, usage=usage)
        module = device.create_shader_module(code=_SHADER)
        pipeline = device.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": "main"}
        )
        entries = [{"binding": 0, "resource": {"buffer": buffer, "offset": 0, "size": 4000}}]
        group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
        encoder = device.create_command_encoder()
        work = encoder.begin_compute_pass()
        work.set_pipeline(pipeline)
        work.set_bind_group(0, group)
        work.dispatch_workgroups(16)
        work.end()
        device.queue.submit([encoder.finish()])
        got = array.array("f", bytes(device.queue.read_buffer(buffer)))
        return list(got) == [2.0 * x + 1.0 for x in range(1000)]
    except Exception as error:  # any failure of the device means: not checked
        print(f"{adapter.summary}: {error}")
        return False


# ---------------------------------------------------------------- render nodes

# Layouts of the kernel's include/uapi/drm: amdgpu_drm.h, i915_drm.h, xe_drm.h (stable interfaces).
_WRITE, _READ_WRITE = 1, 3
_COMMAND = 0x40  # DRM_COMMAND_BASE
_AMD_DEV_INFO, _AMD_MEMORY = 0x16, 0x19
_AMD_FUSION = 1
_I915_MEMORY_REGIONS, _XE_MEMORY_REGIONS = 4, 1
_REGION_BYTES = 88  # of i915 and of xe alike
_DEVICE_MEMORY = 1
_MOST_BYTES = 1 << 16


def probe_drm(nodes: list[dict[str, str]], limit_s: float) -> dict[str, Any]:
    """Return one record for each render node that answers within `limit_s` seconds, and name the others in the
    hint. `nodes` holds the `node` name, `bdf` and `driver` of each. Raises ProbeFailure on systems without
    render nodes, and if nodes refuse permission and none answers."""
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
    outcomes = {node["node"]: answers.get(node["node"]) for node in nodes}
    records = [answer for answer in outcomes.values() if isinstance(answer, dict)]
    errors = {name: outcomes[name] for name in sorted(outcomes) if isinstance(outcomes[name], Exception)}
    late = [name for name, answer in outcomes.items() if answer is None]
    refused = [error for error in errors.values() if isinstance(error, PermissionError)]
    if refused and not records and not late:
        raise ProbeFailure("permission", str(refused[0].strerror), "join the groups render and video")
    notes = [*(f"{name}: {error}" for name, error in errors.items()), *(f"{name}: no answer" for name in late)]
    result = {"records": records, "hint": "; ".join(notes) or None}
    return result | ({"status": "timeout", "error_code": f"no answer in {limit_s:.3g} s"} if late else {})


def _record(ioctl: Any, node: dict[str, str]) -> dict[str, Any]:
    """Query one render node and return its record."""
    handle = os.open(f"/dev/dri/{node['node']}", os.O_RDWR | os.O_CLOEXEC)
    try:
        asks = {"amdgpu": ask_amdgpu, "i915": ask_i915, "xe": ask_xe}
        return {"source": "drm-ioctl", "bdf": node["bdf"]} | asks[node["driver"]](ioctl, handle)
    finally:
        os.close(handle)


def request(direction: int, number: int, size: int) -> int:
    """Return the ioctl number of a DRM command. `direction` is _WRITE or _READ_WRITE, and `size` the bytes of
    the argument."""
    return direction << 30 | size << 16 | ord("d") << 8 | _COMMAND + number


def ask_amdgpu(ioctl: Any, handle: int) -> dict[str, Any]:
    """Return the facts of an AMD GPU, by two queries of DRM_IOCTL_AMDGPU_INFO. Raises OSError."""

    def ask(query: int) -> bytes:
        answer = array.array("B", bytes(1024))
        command = struct.pack("=QII16x", answer.buffer_info()[0], len(answer), query)
        ioctl(handle, request(_WRITE, 0x05, len(command)), command)
        return answer.tobytes()

    # struct drm_amdgpu_info_device and struct drm_amdgpu_memory_info
    info, (vram,) = ask(_AMD_DEV_INFO), struct.unpack_from("=Q", ask(_AMD_MEMORY), 0)
    (units,), (flags,) = struct.unpack_from("=I", info, 48), struct.unpack_from("=Q", info, 136)
    fused = bool(flags & _AMD_FUSION)
    return {
        "kind": "integrated" if fused else "discrete", "memory.unified": fused,
        "compute.units": fact(units or None, "absent"), "memory.dedicated_bytes": fact(vram or None, "absent"),
    }  # fmt: skip


def ask_i915(ioctl: Any, handle: int) -> dict[str, Any]:
    """Return the facts of an Intel GPU with the driver i915, by DRM_IOCTL_I915_QUERY. Raises OSError."""

    def query(length: int, target: int) -> int:
        item = array.array("B", struct.pack("=QiIQ", _I915_MEMORY_REGIONS, length, 0, target))
        ioctl(handle, request(_READ_WRITE, 0x39, 16), struct.pack("=IIQ", 1, 0, item.buffer_info()[0]))
        return int(struct.unpack_from("=i", item.tobytes(), 8)[0])

    return _region_facts(query, 16)


def ask_xe(ioctl: Any, handle: int) -> dict[str, Any]:
    """Return the facts of an Intel GPU with the driver xe, by DRM_IOCTL_XE_DEVICE_QUERY. Raises OSError."""

    def query(length: int, target: int) -> int:
        command = array.array("B", struct.pack("=QIIQ16x", 0, _XE_MEMORY_REGIONS, length, target))
        ioctl(handle, request(_READ_WRITE, 0x00, len(command)), command, True)
        return int(struct.unpack_from("=I", command.tobytes(), 12)[0])

    return _region_facts(query, 8)


def _region_facts(query: Callable[[int, int], int], header: int) -> dict[str, Any]:
    """Return the facts of the memory regions that `query` lists. The first region follows `header` bytes."""
    # It fills a buffer of a length at an address, and with length 0 tells the length that it needs.
    length = query(0, 0)
    if not 0 < length <= _MOST_BYTES:
        raise OSError(f"the query answered {length}")
    answer = array.array("B", bytes(length))
    query(length, answer.buffer_info()[0])
    regions = [struct.unpack_from("=H6xQ", answer, header + number * _REGION_BYTES)
               for number in range(struct.unpack_from("=I", answer, 0)[0])]  # fmt: skip
    size = sum(size for kind, size in regions if kind == _DEVICE_MEMORY) or None
    return {
        "kind": "discrete" if size else "integrated", "memory.unified": not size,
        "memory.dedicated_bytes": fact(size, "absent"),
    }  # fmt: skip


# ---------------------------------------------------------------- Windows' registry

# The Windows registry has the memory and the driver version for each driver of a display adapter. The entry of
# a removed card remains, so an entry only describes a GPU that a library lists.
_ADAPTERS = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"
_IDS = re.compile(r"PCI\\VEN_([0-9A-F]{4})&DEV_([0-9A-F]{4})", re.IGNORECASE)
_SIZE = "HardwareInformation.qwMemorySize"


def read_registry() -> dict[tuple[int | None, int | None], dict[str, FactJson]]:
    """Return the facts that the registry of Windows states about each model of GPU, by vendor and device id.
    Facts in which two entries of a model differ are left out. The result is empty on other systems."""
    entries: dict[tuple[int | None, int | None], dict[str, FactJson]] = {}
    for values in _adapters():
        match = _IDS.match(str(values.get("MatchingDeviceId", "")))
        if match is None:
            continue
        ids, facts = (int(match[1], 16), int(match[2], 16)), _registry_facts(values)
        other = entries.get(ids, facts)
        entries[ids] = {path: fact for path, fact in facts.items() if other.get(path) == fact}
    return entries


def _registry_facts(values: Mapping[str, Any]) -> dict[str, FactJson]:
    size, version = values.get(_SIZE), values.get("DriverVersion")
    if isinstance(size, bytes):  # by the driver a number or its bytes
        size = int.from_bytes(size, "little")
    stated = {
        "memory.dedicated_bytes": size if isinstance(size, int) and 0 < size < 1 << 60 else None,
        "driver.version": version if isinstance(version, str) else None,
    }
    return {path: fact(value) | {"source": "registry"} for path, value in stated.items() if value}


def _adapters() -> Iterator[dict[str, Any]]:
    """Yield the values, by name, of each readable subkey of the registry key of graphics adapters."""
    try:
        import winreg
    except ImportError:
        return
    registry: Any = winreg  # typeshed has its names for Windows alone
    with contextlib.suppress(OSError), registry.OpenKey(registry.HKEY_LOCAL_MACHINE, _ADAPTERS) as adapters:
        for number in range(registry.QueryInfoKey(adapters)[0]):
            name = registry.EnumKey(adapters, number)
            with contextlib.suppress(OSError), registry.OpenKey(adapters, name) as key:
                count = registry.QueryInfoKey(key)[1]
                yield dict(registry.EnumValue(key, i)[:2] for i in range(count))


def main(arguments: list[str]) -> None:
    """Run the probe whose name is the first argument. The second is a JSON object of keyword arguments."""
    messages = Messages()
    name, options = arguments[0], json.loads(arguments[1]) if len(arguments) > 1 else {}
    try:
        answers = _probe(name)(**options)
        for answer in [answers] if isinstance(answers, dict) else answers:
            # each message replaces the one before
            messages.write(json.dumps(answer).encode())
    except ProbeFailure as failure:
        messages.write(json.dumps({"records": [], **vars(failure)}).encode())
    # Native libraries have crashed in their own exit handlers; the answer is out, so leave without them.
    sys.stderr.flush()
    os._exit(0)


def _probe(name: str) -> Any:
    if name != "nvml":
        return globals()[f"probe_{name}"]
    from gpubench.detect.probes import nvml  # its layouts take longer than a default `detect` may

    return nvml.probe_nvml


if __name__ == "__main__":
    main(sys.argv[1:])
