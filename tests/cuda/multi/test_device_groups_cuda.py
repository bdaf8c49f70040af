"""The links of two CUDA devices: every collective delivers what it says, checked on the host and on the devices."""

import pytest

from gpubench import backends, kernels
from gpubench.base.errors import Unsupported
from gpubench.multi import device_group as device_group_module
from gpubench.multi.device_group import CollectiveTimer
from gpubench.result.case import Case
from tests.group_runs import computed

pytestmark = pytest.mark.cuda

OPS = [kernels.load(name) for name in kernels.groups()["collective"]]


@pytest.fixture(scope="module")
def device_group():
    listed = {device.id for device in backends.load("group").devices()}
    if "group:cupy:0+1" not in listed:
        pytest.skip("one GPU")
    session = backends.load("group").open("group:cupy:0+1")
    yield session
    session.close()


@pytest.mark.parametrize("fetched_bytes", [0, 64 << 20], ids=["where it lies", "on the host"])
@pytest.mark.parametrize("shares", [1, 4099, 1 << 22])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_rank_gets_what_the_collective_says(device_group, op, shares, fetched_bytes, monkeypatch):
    monkeypatch.setattr(device_group_module, "FETCHED_BYTES", fetched_bytes)
    params = {"n": shares * 8, "ranks": 2}
    case = Case(op.name, op.group, params, "float32", "library", "resident", "group:cupy:0+1")
    try:
        timed = CollectiveTimer(device_group, op, case)
        assert timed.verify().ok
    except Unsupported as error:
        pytest.skip(error.detail)
    assert timed.seconds(3) > 0
    timed.release()


@pytest.mark.parametrize("regime", ["resident-waited", "resident-queued", "transfer-always"])
@pytest.mark.parametrize("name", ["add", "matmul", "softmax", "transpose", "sum"])
def test_two_gpus_compute_their_shares_of_an_op(device_group, name, regime):
    import numpy as np

    op = kernels.load(name)
    params = {"n": {"matmul": 512, "transpose": 1024}.get(name, 1 << 20)}
    case = Case(op.name, op.group, params, "float32", "tuned", regime, "group:cupy:0+1")
    found, want = computed(device_group, case, 3)
    np.testing.assert_allclose(found, want, rtol=1e-3)
