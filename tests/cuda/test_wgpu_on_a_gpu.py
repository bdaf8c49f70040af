"""wgpu on a real GPU: the same suite as on the software adapter, and on sizes that fill the device."""

import pytest

from gpubench import kernels
from gpubench.kernels.contract.kernel import Limits
from gpubench.measure import conformance

pytestmark = pytest.mark.cuda

OPS = [kernels.load(name) for name in kernels.usual()]


@pytest.fixture(scope="module")
def device_id():
    """A CUDA machine has a Vulkan driver too; without it the wgpu half of the figures would be missing."""
    from gpubench.backends.wgpu import BACKEND

    devices = BACKEND.devices()
    gpus = [device.id for device in devices if device.kind == "gpu"]
    assert gpus, f"no hardware adapter, only {[device.name for device in devices]}"
    return gpus[0]


def test_the_suite(device_id):
    from gpubench.backends.wgpu import BACKEND

    report = conformance.suite(BACKEND, device_id, checks=conformance.Checks(exhaust=True))
    assert report.findings == []
    assert {text.split("/")[0] for text in report.checked} == {op.name for op in OPS}


def test_the_clock_and_the_limits(device_id):
    from gpubench.backends.wgpu import BACKEND

    session = BACKEND.open(device_id)
    try:
        assert session.device.clock is not None
        assert session.device.clock.kind == "pass-timestamp"
        assert isinstance(session.limits, Limits)
        assert not session.limits.software
        assert session.limits.max_binding_bytes >= 2**27
    finally:
        session.close()
