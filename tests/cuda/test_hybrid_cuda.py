"""An op split over NumPy and a CUDA device: right in every regime, at every kind of share."""

from __future__ import annotations

import pytest

from gpubench import backends, kernels
from gpubench.kernels.contract.op import Dtype
from tests.conformance.test_hybrid import GPU_SHARES, REGIMES, SPLIT, check_everywhere, narrow

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
