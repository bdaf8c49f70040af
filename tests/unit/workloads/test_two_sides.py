"""Workloads on two sides: right at every stage assignment, and nothing is copied that is there."""

import itertools
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from gpubench import backends, kernels
from gpubench.backends.hidden.fake.session import STAGED_BYTES_PER_S, STAGED_CALL_S
from gpubench.curves.stats import median
from gpubench.measure.worker.operands import Operands, Weights
from gpubench.measure.worker.timer import Timer, wall_s
from gpubench.measure.worker.workspace import Wrong, gate, refusal
from gpubench.result.case import Case
from gpubench.workloads import two_sides
from gpubench.workloads.assignment import nearest, predicted_s
from gpubench.workloads.chains import ChainWorkspace

DEVICE = "hybrid:fake:gpu"
ADD = Case("add", "vector", {"n": 3}, "float32", "tuned", "resident-waited", DEVICE)


@pytest.fixture
def session():
    opened = backends.load("hybrid").open(DEVICE, 1)
    yield opened
    opened.close()


def case_of(name: str, n: int = 3, regime: str = "resident-waited") -> Case:
    return Case(name, "network", {"n": n}, "float32", "tuned", regime, DEVICE)  # type: ignore[arg-type]


def workspace_of(session, case: Case, folder, weights: Weights | None = None) -> ChainWorkspace:
    op = kernels.load(case.op)
    operands = Operands(op, 1, "random", folder, weights)
    return ChainWorkspace(session.for_op(op) if op.stages else session, op, case, 1, "random", folder, operands)


@pytest.fixture
def copies(session, monkeypatch):
    """(direction, shape) of what goes to the GPU and back."""
    seen, transfers = [], type(session.gpu.transfers("tuned"))
    own = {name: getattr(transfers, name) for name in ("upload", "download")}
    for name in own:

        def noted(self, buffer, host, name=name):
            seen.append((name, host.shape))
            own[name](self, buffer, host)

        monkeypatch.setattr(transfers, name, noted)
    return seen


def timed(workspace: ChainWorkspace, case: Case, assignment: str) -> Timer:
    if assignment:
        workspace.session.assign(assignment)
    found = Timer(workspace, case, gate(workspace, case, lambda _: None).launch)
    found.split = assignment or found.split
    return found


@pytest.mark.parametrize("name", ["mlp_forward", "multi_head_attention"])
@pytest.mark.parametrize("regime", ["resident-waited", "transfer-always"])
def test_every_assignment_is_right_before_and_after_it_is_timed(session, tmp_path, name, regime):
    case = case_of(name, regime=regime)
    workspace = workspace_of(session, case, tmp_path)
    assert refusal(workspace.session, workspace.op, case) is None
    for letters in itertools.product("cg", repeat=len(workspace.op.stages)):
        ready = timed(workspace, case, "".join(letters))
        ready.seconds(2)
        ready.verify()


@pytest.mark.parametrize(("assignment", "idle"), [("cc", "cpu"), ("gg", "gpu"), ("cg", "gpu"), ("gc", "cpu")])
def test_a_side_that_does_nothing_is_found(session, tmp_path, monkeypatch, assignment, idle):
    case = case_of("ffn")
    timed(workspace_of(session, case, tmp_path), case, assignment)
    monkeypatch.setattr(getattr(session, idle), "run", lambda launch, repeat=1: None)
    fresh = workspace_of(session, case, tmp_path)
    with pytest.raises(Wrong):
        timed(fresh, case, assignment)


def test_a_tensor_that_is_there_is_not_copied_again(session, tmp_path, copies):
    case = case_of("mlp_forward")
    ready = timed(workspace_of(session, case, tmp_path), case, "gcg")
    ready.seconds(1)
    copies.clear()
    ready.seconds(1)
    # h comes down, z goes up, p comes home. The input and the weights stay.
    assert copies == [("download", (3, 512)), ("upload", (3, 10)), ("download", (3, 10))]
    case = case_of("mlp_forward", regime="transfer-always")
    for assignment, wanted in (("ggg", ["upload", "download"]), ("ccc", []), ("gcc", ["upload", "download"])):
        ready = timed(workspace_of(session, case, tmp_path), case, assignment)
        ready.seconds(1)
        copies.clear()
        ready.seconds(1)
        assert [kind for kind, _ in copies] == wanted


@pytest.mark.parametrize(("op", "more", "sides"), [("ffn", {}, "gg"), ("linear_relu", {"k": 20, "m": 30}, "")])
def test_a_weight_goes_up_once_whatever_sizes_read_it(session, tmp_path, copies, op, more, sides):
    """Of an assignment and of a split."""
    op, weights = kernels.load(op), Weights(1, "random", 1 << 30)
    for n in (64, 96):
        case = Case(op.name, op.group, {"n": n, **more}, "float32", "tuned", "transfer-always", DEVICE)
        workspace = workspace_of(session, case, tmp_path, weights)
        ready = timed(workspace, case, sides)
        ready.seconds(2)
        ready.release()
        workspace.release()
    assert copies.count(("upload", (20, 30) if more else (256, 1024))) == 1


def test_what_is_predicted_is_what_the_scripted_clock_tells(session, tmp_path):
    """A mixture wins: large products on the GPU, the small rest on the CPU."""
    for regime in ("resident-waited", "transfer-always"):
        case = case_of("mlp_forward", 16, regime)
        workspace = workspace_of(session, case, tmp_path)
        ready = timed(workspace, case, "ggg")
        found = two_sides.assign_stages(ready, 0, 1.0)
        assert found is not None
        best = min(found.predicted_s, key=found.predicted_s.__getitem__)
        assert (set(best), found.free_s <= found.predicted_s[best]) == ({"c", "g"}, True)
        costs = two_sides.costs(workspace.op, case, found)
        assert found.predicted_s == {one: pytest.approx(predicted_s(costs, one)) for one in found.predicted_s}
        assert best == nearest(costs)[0].assignment
        for assignment, seconds in found.predicted_s.items():
            ready.split = assignment
            measured = median([ready.seconds(1) for _ in range(3)])
            assert measured == pytest.approx(seconds, rel=0.25)


def test_a_value_is_the_callers_array_until_a_launch_writes_it():
    first, second = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    value = two_sides.Value((2,), "float32")
    assert (value.places, value.uploaded, value.array.shape) == ("", False, (2,))
    value = two_sides.Value((2,), "float32")
    value.hold(first)
    assert (value.array is first, value.places, value.uploaded) == (True, "c", True)
    own = value.own()
    assert (own is first, own.tolist(), value.own() is value.array is own) == (False, [1, 2], True)
    value.hold(second)
    assert (value.array is own, own.tolist(), first.tolist()) == (True, [3, 4], [1, 2])
    value.forget()
    assert (value.array is own, value.places, value.uploaded) == (True, "", False)
    other = two_sides.Value((2,), "float32")
    other.hold(first)
    other.forget()
    assert other.array is not first, "what a caller lent is let go"


@pytest.fixture
def assigned(session):
    return session.for_op(kernels.load("ffn"))


def test_spare_values_keep_their_memory_for_the_next_call(session, assigned, monkeypatch):
    values = [assigned.allocate((length,), "float32") for length in range(1, 10)]
    on_gpu = [assigned.buffer("g", value) for value in values]
    freed = []
    monkeypatch.setattr(session.gpu, "free", freed.append)
    for value in values:
        assigned.free(value)
    assert (freed, values[0].device, values[1].places) == (on_gpu[:1], None, ""), "of nine the first one goes"
    asked = (((2,), "float32", 1), ((2,), "float32", 1), ((3,), "float64", 2))
    assert [assigned.allocate(*words) is values[place] for *words, place in asked] == [True, False, False]
    assigned.forget()
    assert [id(buffer) for buffer in freed] == [id(buffer) for buffer in (on_gpu[0], *on_gpu[:1:-1])]
    assigned.forget()
    assert len(freed) == 8


def test_a_copy_of_a_value_is_timed_each_way_and_changes_nothing(assigned):
    value, sent = assigned.allocate((1 << 20,), "float32"), np.arange(1 << 20, dtype=np.float32)
    assigned.upload(value, sent)
    seconds = pytest.approx(STAGED_CALL_S + sent.nbytes / STAGED_BYTES_PER_S, rel=1e-3)
    assert (*assigned.copy_times(value), value.places) == (seconds, seconds, "cg")
    assert np.array_equal(assigned.buffer("g", value).array, sent)
    assert (np.array_equal(value.array, sent), value.array is sent) == (True, False)
    assigned.way.staging = "pageable"
    assert assigned.transfers("tuned").staging == "pageable"


def test_what_a_side_lacks_is_told(session, assigned, monkeypatch):
    op, stage = kernels.load("ffn"), kernels.load("linear")
    asked = Case("linear", "matrix", {"n": 3, "k": 4, "m": 5}, "float32", "tuned", "resident-waited", DEVICE)
    assert assigned.supports(stage, asked) is None
    assert assigned.supports(op, case_of("ffn")).reason == "no-implementation"
    for side in ("gpu", "cpu"):
        with monkeypatch.context() as patch:
            plain = SimpleNamespace(device=getattr(session, side).device, supports=lambda op, case: None)
            patch.setattr(assigned, side, plain)
            assert "does not run several ops" in assigned.supports(stage, asked).detail


def test_both_sides_choose_their_kernels_on_their_own_copies(session, assigned, monkeypatch):
    tuned = []
    for side in (session.gpu, session.cpu):
        monkeypatch.setattr(side, "tune", lambda op, case, inputs: tuned.append((case, *inputs)), raising=False)
    value = assigned.allocate((3, 4), "float32")
    assigned.upload(value, np.ones((3, 4), np.float32))
    case = Case("relu", "activation", {"n": 12}, "float32", "tuned", "resident-waited", DEVICE)
    assigned.tune(kernels.load("relu"), case, [value])
    assert [case.device_id for case, _ in tuned] == [session.gpu.device.id, session.cpu.device.id]
    assert (tuned[0][1] is value.device, np.array_equal(tuned[1][1].array, value.array)) == (True, True)


@pytest.mark.parametrize(("kept", "written", "copied"), [(False, False, 1), (False, True, 2), (True, False, 2)])
def test_a_state_is_copied_once_somebody_wrote_it_or_where_the_op_keeps_it(assigned, kept, written, copied):
    read, state = (assigned.allocate((3,), "float32") for _ in range(2))
    for value in (read, state):
        assigned.upload(value, np.ones(3, np.float32))
        value.uploaded = False
    assigned.keeps_state = kept
    launch = two_sides.StageLaunch(kernels.load("add"), ADD, (read, state), state)
    segment = two_sides.Segment(assigned, "g")
    segment.add(launch, state, {id(state)} if written else set())
    segment()
    assert ([read.places, state.places].count("cg"), state.places) == (1, "g")
    assert np.array_equal(state.device.array, [2, 2, 2]) == (copied == 2)


def test_a_segment_of_the_cpu_keeps_its_chains_for_a_few_arrays_of_the_caller(session, assigned, monkeypatch):
    read, made = (assigned.allocate((3,), "float32") for _ in range(2))
    segment = two_sides.Segment(assigned, "c")
    segment.add(two_sides.StageLaunch(kernels.load("add"), ADD, (read, read), made), made, set())
    arrays, built, compiled = [np.full(3, i, np.float32) for i in range(5)], [], session.cpu.compile
    monkeypatch.setattr(session.cpu, "compile", lambda *given: (built.append(1), compiled(*given))[1])
    for places, count in (((0, 1, 2, 3), 4), ((0, 1, 2, 3), 4), ((4,), 5), ((0,), 6), ((4,), 6)):
        for place in places:
            assigned.upload(read, arrays[place])
            segment()
            assert made.array.tolist() == [2 * place] * 3
        assert len(built) == count


@pytest.mark.parametrize(("limit_s", "rounds"), [(60, 15), (2, 2), (1.5, 1), (0.5, 1)])
def test_a_prediction_rests_on_rounds_after_one_to_warm_up(session, tmp_path, monkeypatch, limit_s, rounds):
    """A round takes a second; both chains run before it, and what flows is copied."""
    case = case_of("mlp_forward")
    ready = timed(workspace_of(session, case, tmp_path), case, "gcg")
    assigned, ticks, events = ready.session, itertools.count(1), []
    run, sync = assigned.run, assigned.sync
    monkeypatch.setattr(assigned, "run", lambda *given: (events.append(assigned.assignment), run(*given))[1])
    monkeypatch.setattr(assigned, "sync", lambda: (events.append("sync"), sync())[1])
    monkeypatch.setattr(assigned, "copy_times", lambda value: (1.0, 2.0))
    monkeypatch.setattr(two_sides, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    found = two_sides.assign_stages(ready, 4, limit_s)
    assert events[:4] == ["ccc", "sync", "ggg", "sync"]
    assert (found.session, found.stages) == (4, ["hidden", "logits", "probabilities"])
    values = ("x", "h", "z", "p")
    assert found.up_s == dict.fromkeys(values, [1.0] * rounds)
    assert found.down_s == dict.fromkeys(values, [2.0] * rounds)
    assert found.enter_s == [pytest.approx(wall_s(assigned, assigned.empty_launch(), 1), rel=0.01)] * rounds
    sides = (*found.cpu_s, *found.gpu_s, found.cpu_whole_s, found.gpu_whole_s)
    assert {len(times) for times in sides} == {rounds}
    prices = two_sides.costs(ready.workspace.op, case, found)
    assert (prices.enter_s, prices.wanted) == (median(found.enter_s), ["p"])
    waited = msgspec.structs.replace(found, clock="waited")
    assert two_sides.costs(ready.workspace.op, case, waited).enter_s == 0.0


def test_both_chains_are_built_once_and_what_cannot_be_read_predicts_nothing(session, tmp_path, monkeypatch):
    case = case_of("ffn")
    ready = timed(workspace_of(session, case, tmp_path), case, "gc")
    assigned, built, compiled = ready.session, [], session.gpu.compile

    def noted(*given):
        built.append(compiled(*given))
        built[-1].kernel_hash, built[-1].kernel_name = "text", "name"
        return built[-1]

    monkeypatch.setattr(session.gpu, "compile", noted)
    steps = ready.workspace.chain(case).steps(ready.workspace.buffers, ready.launch.output)
    assert {(launch.kernel_hash, launch.kernel_name) for launch, _ in steps} == {("text fake", "name")}
    built.clear()
    for _ in range(2):
        assert (assigned.side_times(steps) is not None, len(built)) == (True, len(steps))
    assigned.side_times(list(steps))
    assert len(built) == 2 * len(steps), "other steps are built anew"
    for side in (session.gpu, session.cpu):
        with monkeypatch.context() as patch:
            patch.setattr(side, "stage_times", lambda steps: None)
            assert two_sides.assign_stages(ready, 0, 0.0) is None
