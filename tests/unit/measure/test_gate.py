"""The gates of a worker: nothing that is wrong, or that an earlier launch wrote, passes for the answer; what passed stays on the device."""

import itertools
import os
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks import leak_traces as leaks
from gpubench import backends, kernels
from gpubench.backends.shared.host import calls_library, random_inputs
from gpubench.backends.shared.reference import Oddities, not_finite, same_bytes, sentinel_for
from gpubench.base.errors import DeviceOutOfMemory
from gpubench.kernels.contract.op import Ladder, Op, Operand, Range, Tolerance
from gpubench.kernels.templates.elementwise import elementwise, vector_shape
from gpubench.measure.worker import workspace as workspace_module
from gpubench.measure.worker.operands import Operands, Passed, copies_bytes
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import Workspace, Wrong, gate
from gpubench.result.case import STREAMED, Case
from tests.judging import reference


@pytest.fixture
def session():
    opened = backends.load("numpy").open("numpy:0", 1)
    yield opened
    opened.close()


def case_of(op, implementation, regime="resident"):
    calls = 3 if regime == "transfer-once" else None
    return Case(op, kernels.load(op).group, {"n": 1000}, "float32", implementation, regime, "numpy:0", calls)


def cycle_of(session, folder, op, implementation, regime="resident", kind="random"):
    case = case_of(op, implementation, regime)
    workspace = Workspace(session, kernels.load(op), case, 1, kind, folder)
    return Timer(workspace, case, gate(workspace, case, lambda phase: None).launch)


@pytest.mark.parametrize("implementation", ["library", "tuned"])
@pytest.mark.parametrize("last", ["resident", "transfer-once"])
def test_a_final_check_leaves_the_answers_of_other_regimes_alone(session, tmp_path, implementation, last):
    """The regimes of an implementation share their workspace."""
    cases = [case_of("relu", implementation, regime) for regime in ("transfer-always", last)]
    workspace = Workspace(session, kernels.load("relu"), cases[0], 1, "random", tmp_path)
    launch = gate(workspace, cases[0], lambda phase: None).launch
    cycles = [Timer(workspace, case, launch) for case in cases]
    for cycle in cycles[::-1]:
        cycle.seconds(2)
    for cycle in cycles:
        cycle.verify()
        assert cycle.calls == (cycle.case.calls or 1), "a check makes fewer, samples as many as before"


@pytest.mark.parametrize("implementation", ["library", "tuned"])
@pytest.mark.parametrize("regime", ["resident", "transfer-once", "transfer-always"])
def test_a_launch_that_does_nothing_after_the_first_time_is_found(session, tmp_path, implementation, regime):
    cycle = cycle_of(session, tmp_path, "relu", implementation, regime)
    cycle.verify()
    session.run = lambda launch, repeat=1: None
    with pytest.raises(Exception, match=r"largest error|dtype|None"):  # wrong, or nothing there to download
        cycle.verify()


@pytest.mark.parametrize("implementation", ["library", "tuned"])
def test_what_the_last_sample_left_is_checked_before_anything_runs_again(session, tmp_path, implementation):
    """A kernel that was right at first and broke its output in the last launch would be right in the next one, too."""
    cycle = cycle_of(session, tmp_path, "relu", implementation)
    cycle.seconds(5)
    cycle.launch.output[17] += 1.0
    runs = []
    right = session.run
    session.run = lambda launch, repeat=1: runs.append(repeat) or right(launch, repeat)
    with pytest.raises(Wrong, match=r"largest error .* at \[17\]"):
        cycle.verify()
    assert runs == []
    cycle.seconds(1)
    cycle.verify()


def test_an_output_of_another_shape_is_told_and_a_regime_that_a_device_lacks_is_refused(session, tmp_path):
    cycle = cycle_of(session, tmp_path, "relu", "library")
    with pytest.raises(Wrong, match=r"got the shape \(3,\), want \(1000,\)"):
        cycle.workspace.verify_arrays([np.zeros(3, np.float32)], "float32")
    refused = workspace_module.refusal(session, kernels.load("relu"), replace(cycle.case, regime=STREAMED))
    assert (refused.reason, refused.detail) == ("no-streams", "numpy:0 copies nothing while it computes")
    refused = workspace_module.chain_refusal(
        Mock(device=session.device, spec=["device"]), cycle.workspace.op, cycle.case
    )
    assert refused.reason == "no-implementation"


@given(st.lists(st.floats(width=32), max_size=9), st.integers(0, 8))
def test_same_bytes_are_equal_bit_by_bit(values, at):
    one = np.array(values, np.float32)
    assert same_bytes(one, one.copy()), "a NaN equals itself"
    other = one.copy()
    if len(other):
        other.view(np.uint32)[at % len(other)] ^= 1 << 31
        assert not same_bytes(one, other), "0 is not -0"


def test_an_answer_of_nan_has_another_sentinel_than_nan(session, tmp_path):
    """0 / 0 is NaN everywhere: NaN in an untouched output would pass for it."""
    assert np.isnan(sentinel_for(Oddities()))
    assert not np.isnan(sentinel_for(Oddities(1, nan=True)))
    cycle = cycle_of(session, tmp_path, "div", "tuned", kind="zeros")
    cycle.verify()
    session.run = lambda launch, repeat=1: None
    with pytest.raises(Exception, match="largest error"):
        cycle.verify()


def test_a_session_that_tunes_does_so_with_the_inputs_before_anything_is_built_or_filled(session, tmp_path):
    case = case_of("relu", "tuned")
    workspace = Workspace(session, kernels.load("relu"), case, 1, "random", tmp_path)
    seen, phases = [], []

    def tune(op, tuned, inputs):
        seen.append((op.name, tuned, [np.array(x) for x in inputs], dict(workspace.outputs)))

    session.tune, session.clock = tune, lambda: 100.0 * len(seen)
    checked = gate(workspace, case, phases.append)
    assert (checked.tune_s, checked.compile_s, checked.first_launch_s) == (100.0, 0.0, 0.0)
    assert phases == ["upload", "autotune", "compile", "first launch", "check"]
    ((name, tuned, inputs, outputs),) = seen
    assert (name, tuned, outputs) == ("relu", case, {})
    np.testing.assert_array_equal(inputs[0], workspace.inputs[0])


@pytest.mark.parametrize(("op", "device", "implementation", "own"), [
    ("matmul", "cupy:0", "tuned", True), ("matmul", "cupy:0", "library", True), ("matmul", "wgpu:0", "tuned", False),
    ("add", "cupy:0", "tuned", False), ("add", "numpy:0", "library", True),
    ("matmul", "hybrid:cupy:0", "tuned", False),
])  # fmt: skip
def test_a_case_that_calls_the_library_makes_its_own_output(op, device, implementation, own):
    """No buffer is taken for it, and what an earlier launch left is let go before a check."""
    declared = kernels.load(op)
    one = Case(op, declared.group, {"n": 64}, "float32", implementation, "transfer-always", device)
    assert calls_library(declared, one) == own


def op_without_meaning_below_0(values="normal", **fields):
    return elementwise(
        name="log_of", group="vector", summary="out = log(x)", inputs=(Operand("x", vector_shape, values=values),),
        flops_per_element=1, formula=lambda m, x: m.log(x), tolerance=Tolerance(64), **fields,
    )  # fmt: skip


def gate_of(session, folder, op, dtype="float32", kind="random"):
    case = Case(op.name, op.group, {"n": 1000}, dtype, "library", "resident", "numpy:0")
    with np.errstate(all="ignore"):
        return gate(Workspace(session, op, case, 1, kind, folder), case, lambda phase: None)


TOTAL = {"expr": lambda xp, x: (abs(x), xp.sum(xp.log(x))), "reference": None, "more_outputs": (Operand("total", lambda params: ()),)}  # fmt: skip


@pytest.mark.parametrize(("kind", "named", "own"), [("random", "x=", {}), ("zeros", "x=", {}), ("random", "of total; got", TOTAL)])  # fmt: skip
def test_a_nan_or_infinity_by_mistake_is_wrong_though_the_reference_agrees(session, tmp_path, kind, named, own):
    with pytest.raises(Wrong, match=rf"not finite at \[\d*\].*{named}.*the reference itself") as wrong:
        gate_of(session, tmp_path, replace(op_without_meaning_below_0(), **own), kind=kind)
    check, hint = wrong.value.check, wrong.value.hint
    assert (check.ok, check.max_error, "Range" in hint, "not_finite" in hint) == (False, None, True, True)


@pytest.mark.parametrize("own", [{"values": Range(0.1, 10.0)}, {"not_finite": "x may be negative"}])
def test_an_op_whose_inputs_have_a_meaning_or_that_declares_such_outputs_is_right(session, tmp_path, own):
    assert gate_of(session, tmp_path, op_without_meaning_below_0(**own)).check.ok


def test_what_only_the_dtype_cannot_hold_is_right(session, tmp_path):
    """exp(12) is 162,755, and float16 ends at 65,504: infinity is its answer. In float32 that infinity is wrong."""
    op = elementwise(
        name="steep", group="vector", summary="out = exp(12 x)", inputs=(Operand("x", vector_shape),),
        flops_per_element=2, formula=lambda m, x: m.exp(x * 12),
        tolerance=Tolerance(1024, why="the rounding of 12 x is multiplied by 12 x"),
    )  # fmt: skip
    want = np.exp(12 * random_inputs(op, {"n": 1000}, "float16", 1)[0].astype(np.float64))
    assert want.max() > 65520, "the test has no overflow"
    assert gate_of(session, tmp_path, op, "float16").check.ok


def test_an_op_without_inputs_has_a_reference(session, tmp_path):
    op = Op(
        name="ones", group="vector", summary="out = 1", params={"n": "size"}, sizes=Ladder(64, 2**20), inputs=(),
        output=Operand("out", vector_shape), flops=lambda params: params["n"], takes=("n",), tolerance=Tolerance(1),
        expr=lambda xp, n: xp.ones(n, dtype="float32"),
    )  # fmt: skip
    assert gate_of(session, tmp_path, op.at({"n": 1000})).check.ok


def test_every_op_is_finite_or_says_why_not(tmp_path):
    """With its own inputs and with normal ones, at sizes around the edges; zeros and ones as --inputs draws them."""
    for op in map(kernels.load, kernels.usual()):
        for dtype, kind, n in itertools.product(op.dtypes, ("random", "normal", "zeros", "ones"), (1, 33)):
            inputs = random_inputs(op, {"n": n}, dtype, 1, kind)
            answer = reference(op, inputs, tmp_path, f"{op.name} {dtype} {kind} {n}")
            assert op.not_finite or not_finite(answer, inputs) is None, (op.name, dtype, kind, n)


def test_a_file_forgotten_in_each_launch_is_found(tmp_path):
    op, session = kernels.load("add"), backends.load("numpy").open("numpy:0")
    kept, whole = [], session.run
    session.run = lambda launch, repeat=1: (kept.append(open(os.devnull)), whole(launch, repeat))  # noqa: SIM115
    case = Case("add", "vector", {"n": 1000}, "float32", "library", "resident", "numpy:0")
    try:
        found = leaks.launches(session, op, case, tmp_path, leaks.Repeats(1000))
    finally:
        session.close()
        for file in kept:
            file.close()
    assert (found.count, [text.partition(" ")[0] for text in found.leaks()]) == (1000, ["handles"])


# ---------------------------------------------------------------------- outputs that passed stay on the device: what has their bits is right


RELU = kernels.load("relu")
TOP, BETWEEN, MIDDLE, SMALL = 2**22, 3 * 2**20, 2**20, 2**17


@pytest.fixture
def gpu():
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

    def __init__(self, gpu, folder, op=RELU, room=2**28, passed=None):
        self.session, self.op = gpu, op
        self.operands = Operands(op, 1, "random", folder)
        self.operands.weights.passed = passed or Passed(gpu, room)

    def check(self, n):
        """Return a case of this size, checked and ready to be timed."""
        case = Case(self.op.name, self.op.group, {"n": n}, "float32", "library", "resident-queued", "fake:gpu")
        workspace = Workspace(self.session, self.op, case, 1, "random", None, self.operands)
        return Timer(workspace, case, gate(workspace, case, lambda phase: None).launch)


@pytest.fixture
def bench(gpu, tmp_path):
    return Bench(gpu, tmp_path)


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


def test_a_delivered_output_is_compared_with_the_copy_and_with_the_reference_where_a_bit_differs(bench, judged):
    resident = bench.check(TOP)
    cycle = Timer(resident.workspace, replace(resident.case, regime="transfer-once", calls=10), resident.launch)
    cycle.verify()
    assert judged == [TOP]
    cycle.transfers = Mock(
        download=lambda buffer, host: (bench.session.download(buffer, host), host.__setitem__(-1, 9))
    )
    with pytest.raises(Wrong):
        cycle.verify()
    assert judged == [TOP, TOP]


def test_what_was_right_for_one_op_is_no_answer_of_another(gpu, tmp_path):
    def nothing(xp, x):
        return xp.zeros_like(x)

    bench = Bench(gpu, tmp_path, replace(RELU, expr=nothing, reference=nothing))
    bench.check(TOP)
    op = replace(kernels.load("copy"), expr=nothing, reference=lambda xp, x: +x)
    other = Bench(gpu, tmp_path, op, passed=bench.operands.weights.passed)
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


def test_a_kernel_that_rounds_otherwise_at_another_size_is_compared_whole(gpu, tmp_path, judged):
    def halves(xp, x):
        return x * xp.float32(1 + 2.0**-23) if len(x) == BETWEEN and x.dtype == "float32" else x

    op = elementwise(
        name="halves", group="vector", summary="out = x", inputs=("x",), flops_per_element=1, expr=halves,
        formula=lambda m, x: m.maximum(x, x), tolerance=Tolerance(4),
    )  # fmt: skip
    bench = Bench(gpu, tmp_path, op)
    bench.check(TOP)
    cycle = bench.check(BETWEEN)
    assert judged == [TOP, BETWEEN]
    cycle.verify()
    assert judged == [TOP, BETWEEN], "then its own bits count"


def test_copies_are_as_large_as_they_may_be_and_the_latest_stay(gpu, tmp_path, judged, monkeypatch):
    freed = []
    monkeypatch.setattr(gpu, "free", freed.append)
    bench = Bench(gpu, tmp_path, room=4 * (TOP + MIDDLE))
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


def test_without_memory_for_a_copy_outputs_are_compared_whole(gpu, tmp_path, judged, monkeypatch):
    monkeypatch.setattr(gpu, "copy_of", Mock(side_effect=DeviceOutOfMemory("scripted: no memory left")))
    cycle = Bench(gpu, tmp_path).check(TOP)
    cycle.verify()
    assert judged == [TOP, TOP, TOP]


def test_what_is_not_downloaded_is_not_right(gpu, tmp_path):
    """What an earlier check left in the host's memory passes for nothing."""
    cycle = Bench(gpu, tmp_path, room=0).check(TOP)
    gpu.download = lambda buffer, host: None
    with pytest.raises(Wrong):
        cycle.verify()


def test_a_device_that_tells_its_memory_gives_a_share_of_it(gpu):
    for usable, share in ((None, 2**28), (20 * 2**30, 2**30), (2**40, 2**31)):
        assert copies_bytes(replace(gpu.device, usable_bytes=usable)) == share
