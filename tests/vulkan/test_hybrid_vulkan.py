"""An op split over NumPy and a Vulkan adapter: right in every regime, at every kind of share."""

from __future__ import annotations

import pytest

from gpubench import backends, kernels
from gpubench.kernels.contract.op import Dtype
from gpubench.measure import conformance
from gpubench.result.case import Case
from tests.conformance.test_hybrid import GPU_SHARES, OPS, REGIMES, SIZES, SPLIT, check_everywhere, narrow

pytestmark = pytest.mark.vulkan
# WGSL has no exponential in float64, and a device need not have float16 or float64 at all: those are refused.
EXACT = ("add", "copy", "matmul", "transpose", "sum", "max", "dot", "gemv", "relu")


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
    n = 67 if op.group in SIZES else 5005
    tried = check_everywhere(session, op, "float32", narrow(op, n), tmp_path, device_id)
    assert tried == len(GPU_SHARES) * len(REGIMES)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("name", EXACT)
def test_other_dtypes_are_right_or_refused(session, device_id, name: str, dtype: Dtype, tmp_path):
    op = OPS[name]
    tried = check_everywhere(
        session, op, dtype, {"n": 65 if op.group == "matrix" else 3003}, tmp_path, device_id
    )
    if not tried:
        refusal = session.supports(
            op, Case(name, op.group, {"n": 64}, dtype, "tuned", "resident-queued", device_id)
        )
        assert refusal is not None
        assert refusal.detail.startswith("wgpu:")


def test_the_contract_is_kept(device_id):
    ops = [kernels.load(name) for name in ("add", "matmul", "sum", "softmax")]
    report = conformance.suite(backends.load("hybrid"), device_id, ops, conformance.Checks(seeds=(1,)))
    assert report.findings == []
    assert report.checked
