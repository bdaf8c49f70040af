"""Overheads on a real wgpu device: every call is checked and takes time; both ways to move data bring back every byte."""

import time

import pytest

from gpubench import kernels
from gpubench.measure import protocol
from gpubench.measure.worker.hardware import OverheadTimer
from gpubench.result.case import Case

pytestmark = pytest.mark.vulkan


def timer_of(session, name, implementation, n):
    case = Case(name, "overhead", {"n": n}, "float32", implementation, "resident", session.device.id)
    op = kernels.load(name)
    assert session.supports(op, case) is None
    opening = protocol.Open(
        id=1, device_id=session.device.id, threads=None, seed=1, inputs="random", scratch="", since=time.monotonic()
    )  # fmt: skip
    return OverheadTimer(session, op, case, opening)


@pytest.mark.parametrize("name", ["open", "launch", "roundtrip", "sync"])
def test_a_call_without_a_size(session, name):
    found = timer_of(session, name, "library", 1)
    assert found.verify().ok
    assert found.seconds(1 if name == "open" else 300) > 0
    found.release()


@pytest.mark.parametrize("n", [4, 1024, (1 << 16) + 4, (16 << 20) + 4])  # the last is above all staging buffers
@pytest.mark.parametrize("implementation", ["library", "tuned"])
@pytest.mark.parametrize("name", ["allocate", "upload", "download"])
def test_a_call_with_a_size(session, name, implementation, n):
    found = timer_of(session, name, implementation, n)
    assert found.verify().ok
    assert found.seconds(2) > 0
    assert found.verify().ok, "also after it was timed"
    assert found.staging == {"library": "pageable", "tuned": "mapped"}[implementation]
    found.release()


def test_what_no_buffer_holds_is_refused_with_its_limit(session):
    n = session.limits.max_buffer_bytes + 4
    case = Case("upload", "overhead", {"n": n}, "float32", "tuned", "resident", session.device.id)
    refusal = session.supports(kernels.load("upload"), case)
    assert (refusal.reason, str(session.limits.max_buffer_bytes) in refusal.detail) == ("limit", True)


def test_a_implementation_that_is_like_another_is_refused(session):
    case = Case("sync", "overhead", {"n": 1}, "float32", "tuned", "resident", session.device.id)
    assert session.supports(kernels.load("sync"), case).reason == "no-implementation"
