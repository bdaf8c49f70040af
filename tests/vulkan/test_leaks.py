"""On a software adapter nothing is left behind, in small counts; `benchmarks/leaks.py` has the full ones."""

import pytest

from benchmarks import leak_traces as leaks
from gpubench import kernels
from gpubench.result.case import Case

pytestmark = pytest.mark.vulkan


def test_launches_and_openings_leave_nothing_behind(device, tmp_path):
    from gpubench.backends.wgpu import BACKEND

    session, sum_op = BACKEND.open(device.id), kernels.load("sum")
    traces = [leaks.openings(BACKEND, device.id, sum_op, tmp_path, leaks.Repeats(4))]
    # What is kept or lost depends neither on the dtype nor on the formula: one op of each template.
    for op in map(kernels.load, ("add", "softmax", "gemv", "transpose", "matmul", "sum")):
        case = Case(op.name, op.group, {"n": 65}, "float32", "tuned", session.device.resident_regime, device.id)
        if session.supports(op, case) is None:
            traces.append(leaks.launches(session, op, case, tmp_path, leaks.Repeats(100)))
    session.close()
    assert [trace.leaks() for trace in traces] == [[]] * 7


def test_a_device_that_is_not_closed_is_found(device, tmp_path):
    from gpubench.backends import wgpu

    class Forgetful:
        name, implementations = "wgpu", ("tuned",)

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
