"""The tuned NumPy kernels: right on one thread and on several, whatever the size, and without temporaries."""

import threading

import numpy as np
import pytest

from gpubench import kernels
from gpubench.backends._host import compare, poisoned, random_inputs
from gpubench.kernels import _elementwise_numpy

TUNED = [name for name in kernels.computed() if "numpy" in kernels.load(name).tuned]
ELEMENTWISE = [
    name
    for name in TUNED
    if name not in ("matmul", "gemv", "transpose", "softmax", "softmax_grad", "sum", "max", "dot")
]
HOST_DTYPES = ("float32", "float64", "float16")  # bfloat16 is CUDA's alone
# Sizes of several blocks, the last one short; the sides of the matrices, the number of elements elsewhere.
BLOCKS = {"transpose": 1037, "gemv": 2301, "sum": 2**22 + 77, "max": 2**22 + 77, "dot": 2**22 + 77}


def one_after_another(function, length, grain):
    for start in range(0, length, grain):
        function(start, min(start + grain, length))


def all_at_once(function, length, grain):
    threads = [
        threading.Thread(target=function, args=(start, min(start + grain, length)))
        for start in range(0, length, grain)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def check(name, n, dtype, blocks):
    op, params = kernels.load(name), {"n": n}
    inputs = random_inputs(op, params, dtype, seed=21)
    before = [x.copy() for x in inputs]
    output = poisoned(op.output.shape(params), dtype)
    launch = op.tuned["numpy"][0].build(np, blocks, params)
    launch(inputs, output)
    launch(inputs, output)
    wide = [x.astype(np.float64) for x in inputs]
    scale = np.asarray(op.tolerance.scale(np, *wide)) if op.tolerance.scale else None
    with np.errstate(all="ignore"):
        want = np.asarray((op.reference or op.expr)(np, *wide))
    assert compare(op, dtype, output, want, scale).ok
    assert all(np.array_equal(x, y) for x, y in zip(inputs, before, strict=True))


def test_every_op_has_one():
    assert list(kernels.computed()) == TUNED


@pytest.mark.parametrize("name", TUNED)
def test_small_and_odd_sizes(name):
    for n in (1, 3, 7, 255, 257, 1000):
        for dtype in set(HOST_DTYPES) & set(kernels.load(name).dtypes):
            check(name, n, dtype, one_after_another)


@pytest.mark.parametrize("blocks", [one_after_another, all_at_once])
@pytest.mark.parametrize("name", [name for name in TUNED if name != "matmul"])
def test_several_blocks_with_a_short_last_one(name, blocks):
    check(name, BLOCKS.get(name, 600_003), "float32", blocks)


@pytest.mark.parametrize("name", [name for name in TUNED if name != "matmul"])
def test_several_blocks_of_halves(name):
    check(name, BLOCKS.get(name, 600_003), "float16", all_at_once)


@pytest.mark.parametrize(
    ("name", "steps", "scratch"),
    [
        ("copy", 1, 0),
        ("add", 1, 0),
        ("saxpy", 2, 0),
        ("chain", 2, 0),
        ("relu", 1, 0),
        ("sigmoid", 4, 0),
        ("gelu", 9, 1),
    ],
)
def test_the_recorded_steps_need_no_more_scratch_than_this(name, steps, scratch):
    op = kernels.load(name)
    tape, slots = _elementwise_numpy.record(op.expr, len(op.inputs))
    assert (len(tape), slots) == (steps, scratch)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_the_tuned_form_is_the_expression_bit_for_bit(name):
    op = kernels.load(name)
    inputs = random_inputs(op, {"n": 1000}, "float32", seed=22)
    output = poisoned((1000,), "float32")
    op.tuned["numpy"][0].build(np, one_after_another, {"n": 1000})(inputs, output)
    assert output.tobytes() == op.expr(np, *inputs).tobytes()


def test_two_live_terms_do_not_share_a_slot():
    def expr(xp, x, y):
        return (x + y) * (x - y) + xp.exp(x) * (y - 1)

    x, y = np.linspace(-1, 1, 300_001), np.linspace(2, 3, 300_001)
    output = np.full_like(x, np.nan)
    _elementwise_numpy.build(expr, 2, np, all_at_once, {})([x, y], output)
    np.testing.assert_array_equal(output, expr(np, x, y))


def test_operators_with_a_number_on_either_side():
    def expr(xp, x):
        return 1 - (2 - (-x)) + (x - 3) / 4 - 5 / x + (6 + x) * (7 * x)

    x = np.linspace(1, 2, 1000)
    output = np.empty_like(x)
    _elementwise_numpy.build(expr, 1, np, one_after_another, {})([x], output)
    np.testing.assert_array_equal(output, expr(np, x))
