"""wgpu on a software adapter keeps the contract, device clock included."""

from __future__ import annotations

import math

import pytest

from gpubench import kernels
from gpubench.backends.wgpu.transfers import BUFFERS, CHUNK_BYTES
from gpubench.measure import conformance

pytestmark = pytest.mark.vulkan


@pytest.fixture(scope="module")
def device():
    from gpubench.backends.wgpu import BACKEND

    return next(device for device in BACKEND.devices() if device.kind == "software")


def test_the_suite(device):
    from gpubench.backends.wgpu import BACKEND

    report = conformance.suite(BACKEND, device.id, checks=conformance.Checks(exhaust=True))
    assert report.findings == []
    checked = {tuple(text.split("/")[i] for i in (0, 2, 3)) for text in report.checked}
    # Every op has a WGSL kernel in float32, and wgpu has no library implementation.
    assert {(name, "float32", "tuned") for name in kernels.usual()} <= checked
    assert {implementation for _, _, implementation in checked} == {"tuned"}
    assert set(report.refused.values()) <= {"no-dtype", "no-implementation", "unsupported", "limit"}
    assert conformance.LARGE_BYTES > BUFFERS * CHUNK_BYTES  # all staging buffers, and the first a second time


def test_the_device_is_told_apart_from_a_gpu(device):
    assert device.clock is not None
    assert device.clock.kind == "pass-timestamp"
    assert device.api == "vulkan"


def test_a_second_session_works_after_the_first_was_closed(device):
    from gpubench.backends.wgpu import BACKEND

    for _ in range(3):
        report = conformance.suite(
            BACKEND, device.id, [kernels.load("dot")], conformance.Checks(seeds=(1,), around=False)
        )
        assert report.findings == []
        assert report.checked


def test_a_case_beyond_a_binding_works_and_beyond_a_buffer_is_refused_with_its_numbers(device):
    from gpubench.backends.wgpu import BACKEND
    from gpubench.result.case import Case

    session = BACKEND.open(device.id)

    def refusal(name: str, n: int):
        op = kernels.load(name)
        return session.supports(
            op, Case(name, op.group, {"n": n}, "float32", "tuned", "resident-queued", device.id)
        )

    try:
        binding, buffer = session.limits.max_binding_bytes, session.limits.max_buffer_bytes
        for name in ("add", "sum", "softmax"):
            assert refusal(name, binding // 4 + 4) is None
            found = refusal(name, buffer // 4 + 4)
            assert found is not None
            assert found.reason == "limit"
            assert f"{4 * (buffer // 4 + 4)} bytes" in found.detail
            assert f"{buffer} bytes (maxBufferSize)" in found.detail
        side = math.isqrt(binding // 4) + 4
        found = refusal("transpose", side)
        assert found is not None
        assert f"{4 * side * side} bytes" in found.detail
        assert f"{binding} bytes" in found.detail
        assert "maxStorageBufferBindingSize" in found.detail
    finally:
        session.close()
