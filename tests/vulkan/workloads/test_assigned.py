"""A workload with its stages on NumPy and on a real adapter: right at every stage assignment, in both regimes."""

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


# Weights that are written in place; stages of many kinds. The others are chains of the same.
@pytest.mark.parametrize("name", ["mlp_sgd", "transformer_block"])
def test_a_workload_has_a_place_for_each_of_its_stages(session, tmp_path, name):
    """On the CPU, on the GPU, and with each stage on another side than the one before it."""
    op = kernels.load(name)
    case = Case(name, op.group, {"n": 3}, "float32", "tuned", "resident-waited", "hybrid:wgpu:0")
    assigned = session.for_op(op)
    workspace = ChainWorkspace(assigned, op, case, 1, "random", tmp_path)
    whole = two_sides.sides(op)["gpu"]
    for assignment in (*two_sides.sides(op).values(), ("cg" * len(whole))[: len(whole)]):
        assigned.assign(assignment)
        ready = Timer(workspace, case, gate(workspace, case, lambda _: None).launch)
        ready.split = assignment
        ready.seconds(1)
        ready.verify()
