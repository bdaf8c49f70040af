"""Adapters that wgpu lists, each with its API (Vulkan, Metal, D3D12, OpenGL)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpubench.detect.probes import ask_each, require

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


def steps(check: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the records, then again after each check: one adapter's driver may hang, or end the process."""
    with require("wgpu is not installed, or does not load"):
        import wgpu
    adapters = wgpu.gpu.enumerate_adapters_sync()
    yield from ask_each(wgpu.__version__, "adapter ", adapters, _adapter, _check if check else None)


def _adapter(ordinal: int, adapter: Any) -> dict[str, Any]:
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
    for key in ("vendor_id", "device_id"):
        if isinstance(info.get(key), int) and info[key]:
            record[key] = f"{info[key]:04x}"
    return record


def _check(adapter: Any) -> bool:
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
