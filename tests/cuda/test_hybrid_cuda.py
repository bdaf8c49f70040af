"""An op split over NumPy and a CUDA device: right in every regime, at every kind of share."""

import pytest

from gpubench import backends, kernels
from gpubench.kernels.contract.op import Dtype
from gpubench.measure.worker.operands import Operands
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import gate, kind_of
from tests.conformance.test_hybrid import GPU_SHARES, REGIMES, SPLIT, case_of, check_everywhere, narrow

pytestmark = pytest.mark.cuda

SIZES = {"matrix": (17, 513), "layers": (17, 513), "network": (5, 17)}


@pytest.fixture(scope="module")
def session():
    opened = backends.load("hybrid").open("hybrid:cupy:0")
    yield opened
    opened.close()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("op", SPLIT.values(), ids=SPLIT)
def test_every_op_is_right_at_every_share(session, op, dtype: Dtype, tmp_path):
    sizes = SIZES.get(op.group, (5005, 1 << 20))
    for n in sizes:
        tried = check_everywhere(session, op, dtype, narrow(op, n), tmp_path, "hybrid:cupy:0")
        assert tried == len(GPU_SHARES) * len(REGIMES)


@pytest.mark.parametrize(("name", "dtype"), [("tanh", "float64"), ("softmax", "float32"), ("pow", "float32")])
def test_pieces_over_streams_are_right(session, name, dtype, tmp_path, monkeypatch):
    """Whatever a trial would choose: 4 and 8 pieces, with a last one that is shorter."""
    op, n = kernels.load(name), (3 << 20) + 512 * 5
    case = case_of(op, "transfer-always", dtype, "hybrid:cupy:0", n=n)
    operands = Operands(op, 1, "random", tmp_path)
    operands.page_locked = True
    workspace = kind_of(op)(session, op, case, 1, "random", tmp_path, operands)
    session.divide(op, case, 0.77)
    timer = Timer(workspace, case, gate(workspace, case, lambda phase: None).launch)
    assert session.pieces(case) in (4, 8, "no-gain")
    for pieces in (4, 8):
        monkeypatch.setitem(session.held_pieces, case.workload, pieces)
        timer.split = 0.77
        timer.verify_alone({"gpu": 1.0})
    workspace.release()


def test_the_second_thread_waits_asleep(session, tmp_path):
    """CUDA's usual wait spins: the thread that drives the GPU would take a core from the CPU's part."""
    import time

    from gpubench.backends.cupy import BACKEND

    gpu = BACKEND.open("cupy:0")
    op, cupy = kernels.load("matmul"), pytest.importorskip("cupy")
    a = cupy.ones((8192, 8192), "float32")
    for _ in range(2):  # the first one loads the library
        for _ in range(10):
            op.expr(cupy, a, a)
        began, cpu = time.perf_counter(), time.thread_time()
        gpu.sync_asleep()
        wall, busy = time.perf_counter() - began, time.thread_time() - cpu
    assert wall > 0.05
    assert busy < wall / 4
    gpu.close()
