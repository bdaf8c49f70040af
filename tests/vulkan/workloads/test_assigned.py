"""A workload with its stages on NumPy and on a real adapter: right at every stage assignment, in both regimes."""

from __future__ import annotations

import itertools

import pytest

from gpubench import backends, kernels
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import gate
from gpubench.result.case import Case
from gpubench.workloads import two_sides
from gpubench.workloads.chains import ChainWorkspace


@pytest.fixture
def session():
    opened = backends.load("hybrid").open("hybrid:wgpu:0", 2, autotune=False)
    yield opened
    opened.close()


@pytest.mark.parametrize("name", ["mlp_forward", "ffn"])
@pytest.mark.parametrize("regime", ["resident-waited", "transfer-always"])
def test_every_assignment_is_right_and_has_a_prediction(session, tmp_path, name, regime):
    op = kernels.load(name)
    case = Case(name, "network", {"n": 5}, "float32", "tuned", regime, "hybrid:wgpu:0")
    workspace = ChainWorkspace(session.for_op(op), op, case, 1, "random", tmp_path)
    for assignment in map("".join, itertools.product("cg", repeat=len(op.stages))):
        workspace.session.assign(assignment)
        ready = Timer(workspace, case, gate(workspace, case, lambda _: None).launch)
        ready.assignment = assignment
        ready.seconds(2)
        ready.verify()
    found = two_sides.assign_stages(ready, 0, 0.2)
    assert found is not None
    assert set(two_sides.sides(op).values()) <= set(found.predicted_s)
    assert all(seconds > 0 for seconds in found.predicted_s.values())


# Those of the device alone: two runs of inference take a quarter of a minute here, and its stages are those of the others.
WORKLOADS = [
    name
    for name in kernels.names()
    if (op := kernels.load(name)).stages and not any(kernels.load(s.op).host for s in op.stages)
]


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_has_a_place_for_each_of_its_stages(session, tmp_path, name):
    """On the CPU, on the GPU, and with each stage on another side than the one before it."""
    op = kernels.load(name)
    case = Case(name, op.group, {"n": 3}, "float32", "tuned", "resident-waited", "hybrid:wgpu:0")
    assigned = session.for_op(op)
    workspace = ChainWorkspace(assigned, op, case, 1, "random", tmp_path)
    whole = two_sides.sides(op)["gpu"]
    for assignment in (*two_sides.sides(op).values(), ("cg" * len(whole))[: len(whole)]):
        assigned.assign(assignment)
        ready = Timer(workspace, case, gate(workspace, case, lambda _: None).launch)
        ready.assignment = assignment
        ready.seconds(1)
        ready.verify()
