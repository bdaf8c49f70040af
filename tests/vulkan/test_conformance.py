"""wgpu on a software adapter keeps the contract, device clock included."""

import pytest

from gpubench import kernels
from gpubench.backends.wgpu.transfers import BUFFERS, CHUNK_BYTES
from gpubench.measure import conformance

pytestmark = pytest.mark.vulkan


def test_the_suite(device):
    from gpubench.backends.wgpu import BACKEND

    # Other sizes: tests of the kernels.
    checks = conformance.Checks(sizes=lambda op: conformance.usual_sizes(op)[2:4], seeds=(1,), exhaust=True)
    report = conformance.suite(BACKEND, device.id, checks=checks)
    assert report.findings == []
    checked = {tuple(text.split("/")[i] for i in (0, 2, 3)) for text in report.checked}
    # Every op has a WGSL kernel in float32, and wgpu has no library implementation.
    assert {(name, "float32", "tuned") for name in kernels.usual()} <= checked
    assert {implementation for _, _, implementation in checked} == {"tuned"}
    assert set(report.refused.values()) <= {"no-dtype", "no-implementation", "unsupported", "limit"}
    assert conformance.LARGE_BYTES > BUFFERS * CHUNK_BYTES  # all staging buffers, and the first a second time
