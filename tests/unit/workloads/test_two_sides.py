"""Workloads on two sides: right at every stage assignment, and nothing is copied that is there."""

import itertools

import pytest

from gpubench import backends, kernels
from gpubench.curves.stats import median
from gpubench.measure.worker.operands import Operands, Weights
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import Wrong, gate, refusal
from gpubench.result.case import Case
from gpubench.workloads import two_sides
from gpubench.workloads.assignment import nearest, predicted_s
from gpubench.workloads.chains import ChainWorkspace

DEVICE = "hybrid:fake:gpu"


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
    seen = []
    transfers = type(session.gpu.transfers("tuned"))

    def noting(name):
        own = getattr(transfers, name)

        def noted(self, buffer, host):
            seen.append((name, host.shape))
            own(self, buffer, host)

        monkeypatch.setattr(transfers, name, noted)

    for name in ("upload", "download"):
        noting(name)
    return seen


def timed(workspace: ChainWorkspace, case: Case, assignment: str) -> Timer:
    workspace.session.assign(assignment)
    found = Timer(workspace, case, gate(workspace, case, lambda _: None).launch)
    found.split = assignment
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


@pytest.mark.parametrize(
    ("name", "params", "shape"), [("ffn", {}, (256, 1024)), ("linear_relu", {"k": 20, "m": 30}, (20, 30))]
)
def test_a_weight_goes_up_once_whatever_sizes_read_it(session, tmp_path, copies, name, params, shape):
    """Of an assignment and of a split."""
    op, weights = kernels.load(name), Weights(1, "random", 1 << 30)
    for n in (64, 96):
        case = Case(op.name, op.group, {"n": n, **params}, "float32", "tuned", "transfer-always", DEVICE)
        workspace = workspace_of(session, case, tmp_path, weights)
        ready = (
            timed(workspace, case, "gg")
            if op.stages
            else Timer(workspace, case, gate(workspace, case, lambda _: None).launch)
        )
        ready.seconds(2)
        ready.release()
        workspace.release()
    assert [sent for kind, sent in copies if kind == "upload"].count(shape) == 1


def test_what_is_predicted_is_what_the_scripted_clock_tells(session, tmp_path):
    """A mixture wins: large products on the GPU, the small rest on the CPU."""
    for regime in ("resident-waited", "transfer-always"):
        case = case_of("mlp_forward", 16, regime)
        workspace = workspace_of(session, case, tmp_path)
        ready = timed(workspace, case, "ggg")
        found = two_sides.assign_stages(ready, 0, 1.0)
        assert found is not None
        best = min(found.predicted_s, key=found.predicted_s.__getitem__)
        assert set(best) == {"c", "g"}
        assert found.free_s <= found.predicted_s[best]
        costs = two_sides.costs(workspace.op, case, found)
        assert found.predicted_s == {one: pytest.approx(predicted_s(costs, one)) for one in found.predicted_s}
        assert best == nearest(costs)[0].assignment
        for assignment, seconds in found.predicted_s.items():
            ready.split = assignment
            measured = median([ready.seconds(1) for _ in range(3)])
            assert measured == pytest.approx(seconds, rel=0.25)
