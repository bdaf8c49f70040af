"""Calls in place on the software adapter: storage buffers that the host maps."""

from types import SimpleNamespace

import numpy as np
import pytest
import wgpu
from msgspec.structs import replace

from gpubench.backends.wgpu import WgpuSession
from gpubench.backends.wgpu.programs import WgpuLaunch
from gpubench.backends.wgpu.transfers import MAPPABLE
from gpubench.base.errors import Unsupported
from gpubench.measure.worker.workspace import Wrong
from tests.in_place import timer_in_place, verify_in_place

pytestmark = pytest.mark.vulkan


@pytest.mark.parametrize(
    ("name", "params"),
    [("add", {"n": 1001}), ("sum", {"n": 5000}), ("matmul", {"n": 65}), ("linear", {"n": 64})],
)
def test_what_is_computed_in_place_is_right(session, name, params, tmp_path):
    verify_in_place(session, "mapped", name, params, "tuned", tmp_path)


def test_a_launch_that_writes_nothing_in_place_is_found(session, tmp_path):
    timer = timer_in_place(session, "mapped", "add", {"n": 1000}, "tuned", tmp_path)
    timer.launch = WgpuLaunch([], timer.launch.output, None)
    with pytest.raises(Wrong):
        timer.verify()


def test_bytes_go_where_the_device_reads_them(session):
    within = session.in_place("mapped")
    buffer, there = within.allocate((7,), "float32"), np.arange(7, dtype=np.float32)
    within.upload(buffer, there)
    assert (within.memory(buffer, (7,), "float32") == there).all()
    within.free(buffer)
    within.close()


def test_memory_that_an_adapter_lacks_is_refused_with_the_reason(session):
    with pytest.raises(Unsupported, match="WebGPU has no managed memory"):
        session.in_place("managed")
    adapter = next(a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] == "Vulkan")
    refusing = WgpuSession(
        session.device,
        SimpleNamespace(features=adapter.features - {MAPPABLE}, request_device_sync=adapter.request_device_sync),
    )  # fmt: skip
    with pytest.raises(Unsupported, match="refuses storage buffers") as refused:
        refusing.in_place("mapped")
    assert refused.value.reason == "not-in-place"
    refusing.close()
    asked = {}
    watched = SimpleNamespace(
        features=adapter.features, request_device_sync=lambda **words: asked.update(words) or adapter.request_device_sync(**words)
    )  # fmt: skip
    card = WgpuSession(replace(session.device, kind="gpu", unified=False), watched)
    with pytest.raises(Unsupported, match="on a card"):
        card.in_place("mapped")
    assert MAPPABLE not in asked["required_features"]  # wgpu warns of it there
    card.close()
