"""On a software adapter nothing is left behind, in small counts; `benchmarks/leaks.py` has the full ones."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpubench import kernels
from gpubench.measure import conformance, leaks

pytestmark = pytest.mark.vulkan


@pytest.fixture(scope="module")
def device():
    from gpubench.backends.wgpu import BACKEND

    return next(device for device in BACKEND.devices() if device.kind == "software")


def test_launches_and_openings_leave_nothing_behind(device):
    from gpubench.backends.wgpu import BACKEND

    # In float32 alone: what is kept or lost does not depend on the dtype.
    ops = [replace(kernels.load(name), dtypes=("float32",)) for name in kernels.usual()]
    report = conformance.suite(
        BACKEND,
        device.id,
        ops,
        conformance.Checks(sizes=lambda op: (65,), seeds=(1,), around=False, launches=100, openings=4),
    )
    assert report.findings == []
    assert {text.split("/")[0] for text in report.checked} == {op.name for op in ops}


def test_a_device_that_is_not_closed_is_found(device, tmp_path):
    from gpubench.backends import wgpu

    class Forgetful:
        name, forms = "wgpu", ("tuned",)

        def __init__(self):
            self.kept = []

        def open(self, device_id, threads=None):
            session = wgpu.BACKEND.open(device_id)
            self.kept.append((session, session.close))
            session.close = lambda: None
            return session

    forgetful = Forgetful()
    found = leaks.openings(forgetful, device.id, kernels.load("add"), tmp_path, leaks.Repeats(4))
    for _, close in forgetful.kept:
        close()
    assert found.leaks()
