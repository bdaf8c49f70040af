"""matmul beyond the square: sides, batches and halves, from the declaration to a checked launch on NumPy."""

import numpy as np
import pytest

from gpubench import kernels
from gpubench.backends.numpy import BACKEND
from gpubench.backends.shared.host import random_inputs
from gpubench.measure.worker.workspace import Workspace, gate
from gpubench.result.case import Case

OP = kernels.load("matmul")
SHAPES = [
    {"n": 7}, {"n": 5, "m": 2}, {"n": 5, "k": 1}, {"n": 33, "m": 1, "k": 70}, {"n": 1, "m": 1, "k": 1},
    {"n": 6, "batch": 1}, {"n": 6, "batch": 5}, {"n": 4, "m": 9, "k": 3, "batch": 2},
]  # fmt: skip


@pytest.fixture(scope="module")
def session():
    opened = BACKEND.open("numpy:0")
    yield opened
    opened.close()


@pytest.mark.parametrize("params", SHAPES, ids=str)
def test_shapes_work_and_traffic_follow_the_params(params):
    n, m, k = params["n"], params.get("m", params["n"]), params.get("k", params["n"])
    front = (params["batch"],) if "batch" in params else ()
    count = params.get("batch", 1)
    assert [x.shape(params) for x in (*OP.inputs, OP.output)] == [
        (*front, m, k), (*front, k, n), (*front, m, n),
    ]  # fmt: skip
    assert OP.flops(params) == 2 * count * m * n * k
    assert OP.bytes(params, "float16") == 2 * count * (m * k + k * n + m * n)


@pytest.mark.parametrize("params", SHAPES, ids=str)
def test_the_scale_of_usual_inputs_is_near_the_product_of_the_norms(params):
    a, b = random_inputs(OP, params, "float64", 1)
    norms = np.linalg.norm(a, axis=-1)[..., :, None] * np.linalg.norm(b, axis=-2)[..., None, :]
    ratio = OP.tolerance.scale(np, a, b) / norms
    assert np.all((ratio >= 1) & (ratio < 1.5))


@pytest.mark.parametrize("kind", ["few large terms", "one sign"])
def test_a_sum_in_order_passes_where_its_partial_sums_stay_large(kind):
    """As the gradient of a weight, over tokens of which few have a label, or of values that are positive."""
    k, generator = 4096, np.random.default_rng(1)
    a, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((64, k), (k, 64)))
    if kind == "one sign":
        a, b = np.abs(a), np.abs(b)
    else:
        a[:, 0], b[0], b[1:] = 16, 1, b[1:] / 4096
    total = np.zeros((64, 64), np.float32)
    for t in range(k):
        total += a[:, t : t + 1] * b[t]
    wide = a.astype(np.float64), b.astype(np.float64)
    error = np.abs(total - wide[0] @ wide[1]) / 2.0**-24
    assert np.all(error <= OP.tolerance.units * OP.tolerance.scale(np, *wide))
    norms = np.linalg.norm(wide[0], axis=1)[:, None] * np.linalg.norm(wide[1], axis=0)
    assert np.any(error > OP.tolerance.units * norms), "the norms alone would not do"


@pytest.mark.parametrize("turned", [{"ta": 1}, {"tb": 1}, {"ta": 1, "tb": 1}], ids=str)
@pytest.mark.parametrize("params", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("implementation", ["library", "tuned"])
def test_a_matrix_may_be_stored_transposed(session, params, turned, dtype, implementation, tmp_path):
    plain, params = OP.inputs[0].shape(params), {**params, **turned}
    assert OP.inputs[0].shape(params)[-2:] == (plain[-2:][::-1] if "ta" in turned else plain[-2:])
    case = Case("matmul", "matrix", params, dtype, implementation, "resident", "numpy:0")
    if session.supports(OP, case) is None:
        gate(Workspace(session, OP, case, 1, "random", tmp_path), case, lambda phase: None)
    a, b = random_inputs(OP, params, "float64", 1)
    got = OP.at(params).expr(np, a, b)
    a, b = (np.swapaxes(x, -1, -2) if name in turned else x for x, name in ((a, "ta"), (b, "tb")))
    np.testing.assert_array_equal(got, a @ b)


def test_a_flag_is_0_or_1():
    assert OP.fits({"n": 4, "ta": 2}) is not None
    assert OP.fits({"n": 4, "ta": 1, "tb": 0}) is None
