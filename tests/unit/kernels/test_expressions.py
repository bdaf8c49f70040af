"""The array expressions: portable, equal to their references, and as expensive as they claim."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.backends.shared.host import random_inputs
from gpubench.kernels.contract.op import Op
from tests.judging import compare

OPS = [kernels.load(name) for name in kernels.usual()]
# Not in the array API standard, which has neither a method `copy` nor `ascontiguousarray`; without them
# copy and transpose would be views, and nothing would move.
NOT_PORTABLE = ("copy", "transpose")


def by_name(op: Op) -> str:
    return op.name


def answer(op: Op, inputs: list) -> np.ndarray:
    wide = [x.astype(np.float64) for x in inputs]
    return np.asarray((op.reference or op.expr)(np, *wide))


@pytest.mark.parametrize("n", [1, 3, 8, 96])
@pytest.mark.parametrize("op", [op for op in OPS if op.name not in NOT_PORTABLE], ids=by_name)
def test_the_expression_needs_only_the_array_api(op, n):
    import array_api_strict as xp

    inputs = random_inputs(op, {"n": n}, "float32", seed=1)
    got = op.expr(xp, *(xp.asarray(x) for x in inputs))
    assert (got.dtype, got.shape) == (xp.float32, op.output.shape({"n": n}))
    np.testing.assert_array_max_ulp(np.asarray(got), np.asarray(op.expr(np, *inputs)), maxulp=2)


@pytest.mark.parametrize("op", [op for op in OPS if op.tolerance.scale], ids=by_name)
def test_the_scale_broadcasts_and_is_no_smaller_than_the_answer(op):
    inputs = random_inputs(op, {"n": 96}, "float64", seed=4)
    scale = np.broadcast_to(op.tolerance.scale(np, *inputs), op.output.shape({"n": 96}))
    assert np.all(scale >= np.abs(answer(op, inputs)) * (1 - 1e-12))


@pytest.mark.parametrize("op", OPS, ids=by_name)
def test_a_result_that_is_wrong_in_the_fourth_digit_is_caught(op):
    inputs = random_inputs(op, {"n": 1024}, "float32", seed=5)
    wide = [x.astype(np.float64) for x in inputs]
    want = answer(op, inputs)
    scale = np.asarray(op.tolerance.scale(np, *wide)) if op.tolerance.scale else None
    wrong = np.array(want)
    spread = np.abs(want) if scale is None else np.broadcast_to(scale, want.shape)
    place = np.unravel_index(np.argmax(spread), want.shape)
    wrong[place] += 1e-4 * spread[place]
    assert not compare(op, "float32", wrong, want, scale).ok


# op -> the op it is the derivative of, by the one input x.
DERIVATIVES = {"relu_grad": "relu", "sigmoid_grad": "sigmoid", "tanh_grad": "tanh", "gelu_grad": "gelu"}


def central_difference(op: Op, x: np.ndarray, step: float) -> np.ndarray:
    """f'(x) to about step^4: two central differences, the error of the first order taken out."""
    coarse, fine = ((op.expr(np, x + h) - op.expr(np, x - h)) / (2 * h) for h in (step, step / 2))
    return (4 * fine - coarse) / 3


@given(x=st.floats(-12, 12), dy=st.floats(-1e3, 1e3))
@pytest.mark.parametrize("name", DERIVATIVES)
def test_a_derivative_is_the_slope_of_its_op(name, x, dy):
    step = 1e-3
    if name == "relu_grad" and abs(x) <= step:  # the corner of relu lies between the points
        return
    op, origin = kernels.load(name), kernels.load(DERIVATIVES[name])
    x, dy = np.array([x]), np.array([dy])
    slope = dy * central_difference(origin, x, step)
    for formula in (op.expr, op.reference or op.expr):
        np.testing.assert_allclose(formula(np, x, dy), slope, rtol=1e-8, atol=1e-9 * max(1, abs(dy[0])))


@given(seed=st.integers(0, 2**32), columns=st.integers(1, 40))
def test_the_derivative_of_softmax_is_that_of_a_weighted_sum_of_it(seed, columns):
    softmax, op, step = kernels.load("softmax"), kernels.load("softmax_grad"), 1e-3
    x, dy = np.random.default_rng(seed).standard_normal((2, 1, columns))

    def slope(moved, h):
        return ((softmax.expr(np, x + h * moved) - softmax.expr(np, x - h * moved)) * dy).sum() / (2 * h * step)

    slopes = [(4 * slope(moved, 0.5) - slope(moved, 1.0)) / 3 for moved in step * np.eye(columns)]
    np.testing.assert_allclose(op.expr(np, softmax.expr(np, x), dy)[0], slopes, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["sigmoid_grad", "tanh_grad", "gelu_grad"])
def test_the_references_of_the_derivatives_do_not_overflow(name):
    op = kernels.load(name)
    x = np.array([-1e4, -700.0, -90.0, 90.0, 700.0, 1e4])
    with np.errstate(over="ignore"):
        got = op.reference(np, x, np.ones(6))
    limit = [0, 0, 0, 1, 1, 1] if name == "gelu_grad" else [0] * 6
    np.testing.assert_allclose(got, limit, atol=1e-35)


@pytest.mark.parametrize(("name", "view"), [("copy", "x"), ("transpose", "x")])
def test_data_really_moves(name, view):
    op = kernels.load(name)
    (x,) = random_inputs(op, {"n": 8}, "float32", seed=6)
    got = op.expr(np, x)
    assert got.flags["C_CONTIGUOUS"]
    assert not np.shares_memory(got, x)
