"""Outputs that passed stay on the device: what has their bits is right, anything else is compared whole."""

import numpy as np
import pytest
from msgspec.structs import replace

from gpubench import backends, kernels
from gpubench.base.errors import DeviceOutOfMemory
from gpubench.kernels.contract.op import Tolerance
from gpubench.kernels.templates.elementwise import elementwise
from gpubench.measure.worker import workspace as workspace_module
from gpubench.measure.worker.operands import Operands, Passed, copies_bytes
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import Workspace, Wrong, gate
from gpubench.result.case import Case

RELU = kernels.load("relu")
TOP, BETWEEN, MIDDLE, SMALL = 2**22, 3 * 2**20, 2**20, 2**17


@pytest.fixture
def session():
    opened = backends.load("fake").open("fake:gpu")
    yield opened
    opened.close()


@pytest.fixture
def judged(monkeypatch):
    """The sizes of outputs that are compared with the reference, in order."""
    sizes, whole = [], workspace_module.judge

    def counting(tolerance, precision, got, want, scale, errors=None):
        sizes.append(got.size)
        return whole(tolerance, precision, got, want, scale, errors)

    monkeypatch.setattr(workspace_module, "judge", counting)
    return sizes


class Bench:
    """One device with the outputs that passed there."""

    def __init__(self, session, folder, op=RELU, room=2**28, passed=None):
        self.session, self.op = session, op
        self.operands = Operands(op, 1, "random", folder)
        self.operands.weights.passed = passed or Passed(session, room)

    def check(self, n):
        """Return a case of this size, checked and ready to be timed."""
        case = Case(self.op.name, self.op.group, {"n": n}, "float32", "library", "resident-queued", "fake:gpu")
        workspace = Workspace(self.session, self.op, case, 1, "random", None, self.operands)
        return Timer(workspace, case, gate(workspace, case, lambda phase: None).launch)


@pytest.fixture
def bench(session, tmp_path):
    return Bench(session, tmp_path)


def test_the_beginning_of_an_output_that_passed_is_right_but_for_some_sizes(bench, judged):
    for n in (TOP, BETWEEN, MIDDLE, SMALL):
        bench.check(n)
    assert judged == [TOP, MIDDLE, SMALL], "a middle rung, and what is small, are compared whole"


@pytest.mark.parametrize("n", [TOP, BETWEEN])
def test_a_launch_that_breaks_its_output_in_the_end_is_found(bench, n):
    bench.check(TOP)
    cycle = bench.check(n)
    cycle.verify()
    cycle.seconds(5)
    cycle.launch.output.array[n - 1] += 1
    with pytest.raises(Wrong, match=rf"at \[{n - 1}\]"):
        cycle.verify()


def test_what_was_right_for_one_op_is_no_answer_of_another(session, tmp_path):
    def nothing(xp, x):
        return xp.zeros_like(x)

    bench = Bench(session, tmp_path, replace(RELU, expr=nothing, reference=nothing))
    bench.check(TOP)
    op = replace(kernels.load("copy"), expr=nothing, reference=lambda xp, x: +x)
    other = Bench(session, tmp_path, op, passed=bench.operands.weights.passed)
    with pytest.raises(Wrong):
        other.check(TOP)


def test_other_bits_that_are_right_are_no_failure(bench, judged):
    cycle = bench.check(TOP)
    output = cycle.launch.output.array
    place = int(np.argmax(output))
    output[place] = np.nextafter(output[place], np.float32(0))
    cycle.workspace.op = replace(RELU, tolerance=Tolerance(4))
    cycle.workspace.verify(cycle.launch, cycle.case)
    assert judged == [TOP, TOP]
    cycle.workspace.verify(cycle.launch, cycle.case)
    assert judged == [TOP, TOP], "they are what passed last"


def test_a_kernel_that_rounds_otherwise_at_another_size_is_compared_whole(session, tmp_path, judged):
    def halves(xp, x):
        return x * xp.float32(1 + 2.0**-23) if len(x) == BETWEEN and x.dtype == "float32" else x

    op = elementwise(
        name="halves", group="vector", summary="out = x", inputs=("x",), flops_per_element=1, expr=halves,
        formula=lambda m, x: m.maximum(x, x), tolerance=Tolerance(4),
    )  # fmt: skip
    bench = Bench(session, tmp_path, op)
    bench.check(TOP)
    cycle = bench.check(BETWEEN)
    assert judged == [TOP, BETWEEN]
    cycle.verify()
    assert judged == [TOP, BETWEEN], "then its own bits count"


def test_copies_are_as_large_as_they_may_be_and_the_latest_stay(session, tmp_path, judged, monkeypatch):
    freed = []
    monkeypatch.setattr(session, "free", freed.append)
    bench = Bench(session, tmp_path, room=4 * (TOP + MIDDLE))
    first = bench.check(TOP)
    bench.check(MIDDLE)
    first.verify()
    assert judged == [TOP, MIDDLE], "both have room"
    larger = bench.check(TOP + 1)
    first.verify()
    assert judged[2:] == [TOP + 1], "its beginning does for the smaller one, whose copy went"
    assert len(freed) == 2, "there is no room for the others"
    larger.verify()
    assert judged[3:] == []


def test_without_memory_for_a_copy_outputs_are_compared_whole(session, tmp_path, judged, monkeypatch):
    def refuse(buffer, shape, dtype):
        raise DeviceOutOfMemory("scripted: no memory left")

    monkeypatch.setattr(session, "copy_of", refuse)
    cycle = Bench(session, tmp_path).check(TOP)
    cycle.verify()
    assert judged == [TOP, TOP, TOP]


def test_what_is_not_downloaded_is_not_right(session, tmp_path):
    """What an earlier check left in the host's memory passes for nothing."""
    cycle = Bench(session, tmp_path, room=0).check(TOP)
    session.download = lambda buffer, host: None
    with pytest.raises(Wrong):
        cycle.verify()


def test_a_device_that_tells_its_memory_gives_a_share_of_it(session):
    for usable, share in ((None, 2**28), (20 * 2**30, 2**30), (2**40, 2**31)):
        assert copies_bytes(replace(session.device, usable_bytes=usable)) == share
