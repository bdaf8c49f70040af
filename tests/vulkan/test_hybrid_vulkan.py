"""An op split over NumPy and a Vulkan adapter: right in every regime, on both sides."""

import pytest

from gpubench import backends, kernels
from gpubench.measure import conformance
from tests.conformance.test_hybrid import REGIMES, SIZES, SPLIT, check_everywhere, narrow

pytestmark = pytest.mark.vulkan


@pytest.fixture(scope="module")
def device_id():
    return next(d.id for d in backends.load("hybrid").devices() if d.id.startswith("hybrid:wgpu:"))


@pytest.fixture(scope="module")
def session(device_id):
    opened = backends.load("hybrid").open(device_id)
    yield opened
    opened.close()


# One op of each template, and of each way to split one; halves, of which a part may begin within a word; doubles.
@pytest.mark.parametrize(("name", "dtype"), [
    *((name, "float32") for name in (
        "adam", "add", "argmax", "conv2d", "embedding", "gemv", "layernorm_grad", "layernorm_grad_g", "linear_add",
        "linear_grad_relu", "matmul", "norm_linear", "softmax", "sum", "sum_rows", "transpose",
    )),
    *((name, "float16") for name in ("add", "matmul", "sum", "transpose")), ("gemv", "float64"),
])  # fmt: skip
def test_a_part_of_each_output_is_the_adapters(session, device_id, name, dtype, tmp_path):
    """The scripted GPU takes every op at all shares. A device need not have float16 or float64."""
    op = SPLIT[name]
    n = 67 if op.group in SIZES else 5005
    tried = check_everywhere(session, op, dtype, narrow(op, n), tmp_path, device_id, (0.77,))
    assert tried == len(REGIMES) or (dtype != "float32" and not tried)


def test_the_contract_is_kept(device_id):
    """At one size: transfers, memory and clock are those of the adapter, whose own suite tries them."""
    ops = [kernels.load(name) for name in ("add", "gemv", "sum", "softmax")]
    checks = conformance.Checks(sizes=lambda op: SIZES.get(op.group, (1, 257))[1:2], seeds=(1,), around=False)
    report = conformance.suite(backends.load("hybrid"), device_id, ops, checks)
    assert report.findings == []
    assert report.checked
