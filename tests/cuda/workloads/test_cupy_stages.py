"""The stages of a network on a real GPU."""

from statistics import median

import pytest

from gpubench import kernels
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import gate
from gpubench.result.case import Case
from gpubench.workloads.chains import ChainWorkspace

pytestmark = pytest.mark.cuda


def test_stages_of_a_workload_add_up(tmp_path):
    from gpubench.backends.cupy import BACKEND

    session, op = BACKEND.open("cupy:0"), kernels.load("ffn")
    case = Case(op.name, op.group, {"n": 4096}, "float32", "tuned", "resident-queued", "cupy:0")
    workspace = ChainWorkspace(session, op, case, 1, "random", tmp_path)
    launch = gate(workspace, case, lambda phase: None).launch
    found = workspace.time_stages(Timer(workspace, case, launch), 0, 0.25)
    workspace.release()
    session.close()
    assert (found.clock, found.stages) == ("event", [stage.name for stage in op.stages])
    total_s, span_s, wall_s = sum(map(median, found.chain_s)), median(found.span_s), median(found.wall_s)
    assert total_s == pytest.approx(span_s, rel=0.01)
    assert abs(wall_s - total_s - median(found.empty_s)) < max(0.1 * wall_s, 20e-6)
