"""matmul beyond the square: sides, batches and halves, from the declaration to a checked launch on NumPy."""

from __future__ import annotations

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
        (*front, m, k),
        (*front, k, n),
        (*front, m, n),
    ]
    assert OP.flops(params) == 2 * count * m * n * k
    assert OP.bytes(params, "float16") == 2 * count * (m * k + k * n + m * n)


@pytest.mark.parametrize("params", SHAPES, ids=str)
def test_the_scale_is_the_product_of_the_norms(params):
    a, b = random_inputs(OP, params, "float64", 1)
    want = np.linalg.norm(a, axis=-1)[..., :, None] * np.linalg.norm(b, axis=-2)[..., None, :]
    np.testing.assert_allclose(OP.tolerance.scale(np, a, b), want, rtol=1e-12)


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
