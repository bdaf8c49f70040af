"""An op split over NumPy and a Vulkan adapter: right in every regime, on both sides."""

import pytest

from gpubench import backends, kernels
from gpubench.kernels.contract.op import Dtype
from gpubench.measure import conformance
from gpubench.result.case import Case
from tests.conformance.test_hybrid import OPS, REGIMES, SIZES, SPLIT, check_everywhere, narrow

pytestmark = pytest.mark.vulkan


@pytest.fixture(scope="module")
def device_id():
    return next(d.id for d in backends.load("hybrid").devices() if d.id.startswith("hybrid:wgpu:"))


@pytest.fixture(scope="module")
def session(device_id):
    opened = backends.load("hybrid").open(device_id)
    yield opened
    opened.close()


@pytest.mark.parametrize("op", SPLIT.values(), ids=SPLIT)
def test_every_op_is_right_at_every_share(session, device_id, op, tmp_path):
    """The scripted GPU takes all shares: what a real one adds is that a part of each output is its own."""
    n = 67 if op.group in SIZES else 5005
    tried = check_everywhere(session, op, "float32", narrow(op, n), tmp_path, device_id, (0.77,))
    assert tried == len(REGIMES)


# WGSL has no exponential in float64, and a device need not have float16 or float64 at all: those are refused.
@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("name", ["add", "matmul", "transpose", "sum", "gemv"])
def test_other_dtypes_are_right_or_refused(session, device_id, name: str, dtype: Dtype, tmp_path):
    op = OPS[name]
    params = {"n": 65 if op.group == "matrix" else 3003}
    tried = check_everywhere(session, op, dtype, params, tmp_path, device_id, (0.5,))
    if not tried:
        case = Case(name, op.group, {"n": 64}, dtype, "tuned", "resident-queued", device_id)
        refusal = session.supports(op, case)
        assert refusal is not None
        assert refusal.detail.startswith("wgpu:")


def test_the_contract_is_kept(device_id):
    """Transfers, memory and clock are those of the adapter, whose own suite tries them."""
    ops = [kernels.load(name) for name in ("add", "matmul", "sum", "softmax")]
    checks = conformance.Checks(sizes=lambda op: SIZES.get(op.group, (1, 257)), seeds=(1,), around=False)
    report = conformance.suite(backends.load("hybrid"), device_id, ops, checks)
    assert report.findings == []
    assert report.checked
