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
    assert (report.findings, {text.split("/")[0] for text in report.checked}) == ([], {op.name for op in OPS})


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_large_sizes_in_every_dtype(device_id, op):
    """Many groups at once: a barrier that is missing shows on no software adapter."""
    from gpubench.backends.wgpu import BACKEND

    def sizes(op):
        return (1023, 1500) if op.group == "matrix" else (2**20 + 3, 2**22 + 5)

    checks = conformance.Checks(sizes=sizes, seeds=(5,), around=False)
    report = conformance.suite(BACKEND, device_id, [op], checks)
    assert report.findings == []
    assert report.checked


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
