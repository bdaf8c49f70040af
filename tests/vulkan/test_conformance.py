"""wgpu on a software adapter keeps the contract, device clock included."""

from __future__ import annotations

import pytest

from gpubench import kernels
from gpubench.backends._wgpu_transfer import CHUNK_BYTES
from gpubench.measure import conformance

pytestmark = pytest.mark.vulkan


@pytest.fixture(scope="module")
def device():
    from gpubench.backends.wgpu import BACKEND

    return next(device for device in BACKEND.devices() if device.kind == "software")


def test_the_suite(device):
    from gpubench.backends.wgpu import BACKEND

    report = conformance.suite(BACKEND, device.id, exhaust=True)
    assert report.findings == []
    checked = {tuple(text.split("/")[i] for i in (0, 2, 3)) for text in report.checked}
    # Every op has a WGSL kernel in float32, and wgpu has no library form.
    assert {(name, "float32", "tuned") for name in kernels.names()} <= checked
    assert {form for _, _, form in checked} == {"tuned"}
    assert set(report.refused.values()) <= {"no-dtype", "no-implementation", "unsupported", "limit"}
    assert conformance.LARGE_BYTES > 2 * CHUNK_BYTES  # both staging buffers, and the first a second time


def test_the_device_is_told_apart_from_a_gpu(device):
    assert device.clock is not None
    assert device.clock.kind == "pass-timestamp"
    assert device.api == "vulkan"


def test_a_second_session_works_after_the_first_was_closed(device):
    from gpubench.backends.wgpu import BACKEND

    for _ in range(3):
        report = conformance.suite(BACKEND, device.id, [kernels.load("dot")], seeds=(1,), around=False)
        assert report.findings == []
        assert report.checked


def test_a_case_beyond_the_binding_limit_is_refused_with_its_numbers(device):
    from gpubench.backends.wgpu import BACKEND
    from gpubench.model.case import Case

    session = BACKEND.open(device.id)
    try:
        n = session.limits.max_binding_bytes // 4 + 4
        refusal = session.supports(
            kernels.load("add"), Case("add", "vector", {"n": n}, "float32", "tuned", "resident", device.id)
        )
        assert refusal is not None
        assert str(4 * n) in refusal.detail
        assert str(session.limits.max_binding_bytes) in refusal.detail
    finally:
        session.close()
