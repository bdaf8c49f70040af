"""Adapters that wgpu lists, each with its API (Vulkan, Metal, D3D12, OpenGL)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpubench.base.installation import install_command
from gpubench.detect.probes import ProbeFailure, last

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


def probe(check: bool = True) -> dict[str, Any]:
    """Records of all adapters; with `check` each runs one kernel whose result is compared."""
    return last(steps(check))


def steps(check: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the records, then again after each check: one adapter's driver may hang, or end the process."""
    try:
        import wgpu
    except Exception as error:  # a half-installed wheel raises OSError and worse
        raise ProbeFailure(
            "absent", type(error).__name__, f"wgpu is not installed, or does not load: {install_command()}"
        ) from error
    answer: dict[str, Any] = {"records": [], "version": wgpu.__version__, "partial": True}
    adapters, lost = [], []
    for number, adapter in enumerate(wgpu.gpu.enumerate_adapters_sync()):
        try:
            answer["records"].append(_adapter(adapter, number))
            adapters.append(adapter)
        except Exception as error:  # one adapter that does not tell must not hide the others
            lost.append(f"adapter {number}: {error}")
    if lost:
        answer["hint"] = "; ".join(lost)
    for adapter, record in zip(adapters, answer["records"], strict=True):
        yield answer
        if check:
            record["checked"] = _checked(adapter)
    yield answer | {"partial": False}


def _adapter(adapter: Any, ordinal: int) -> dict[str, Any]:
    info = dict(adapter.info)
    api = _APIS.get(str(info.get("backend_type")), str(info.get("backend_type") or "unknown").lower())
    record = {
        "source": f"wgpu:{api}", "ordinal": ordinal, "driver": info.get("vendor") or None, "name": info.get("device"),
        "adapter_type": _TYPES.get(str(info.get("adapter_type")), "other"), "version": info.get("description") or None,
    }  # fmt: skip
    if api == "metal":  # it tells no ids; its names begin with the maker's
        record["vendor"] = info.get("device")
        if record["adapter_type"] == "integrated":
            record["memory.unified"] = {"value": True, "status": "ok"}
    for key in ("vendor_id", "device_id"):
        if isinstance(info.get(key), int) and info[key]:
            record[key] = f"{info[key]:04x}"
    return record


def _checked(adapter: Any) -> bool:
    """2 x + 1 over 0..999, compared element by element on the host."""
    import array

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
