"""The tuned NumPy kernels: right on one thread and on several, whatever the size, and without temporaries."""

import re
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.backends.shared.blocks import BlockThreads
from gpubench.backends.shared.host import random_inputs
from gpubench.backends.shared.reference import compare, sentinels
from gpubench.kernels import matmul
from gpubench.kernels.families import cpu, elementwise
from gpubench.kernels.families.elementwise import NumbaElement

TUNED = [name for name in kernels.usual() if "numpy" in kernels.load(name).tuned]
ELEMENTWISE = [
    name
    for name in TUNED
    if isinstance(getattr(kernels.load(name).tuned["numpy"][0].candidates, "__self__", None), NumbaElement)
]
# NumPy multiplies matrices of halves by a plain loop: 2 s at 1000.
SLOW = [name for name in TUNED if kernels.load(name).flops({"n": 1000}) > 1e9]
FAST = [name for name in TUNED if name not in SLOW]
HOST_DTYPES = ("float32", "float64", "float16")  # bfloat16 is CUDA's alone


class OneAfterAnother:
    threads = 1

    def run(self, function, length, grain):
        for start in range(0, length, grain):
            function(start, min(start + grain, length))

    multiply = run


class AllAtOnce:
    threads = 4

    def run(self, function, length, grain):
        threads = [
            threading.Thread(target=function, args=(start, min(start + grain, length)))
            for start in range(0, length, grain)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    multiply = run


one_after_another, all_at_once = OneAfterAnother(), AllAtOnce()


def numpy_kernel(op):
    """Its form in NumPy's own calls, beside a compiled one."""
    return next(kernel for kernel in op.tuned["numpy"] if kernel.language == "numpy")


def check(name, n, dtype, blocks):
    op, params = kernels.load(name), {"n": n}
    inputs = random_inputs(op, params, dtype, seed=21)
    before = [x.copy() for x in inputs]
    output = sentinels(op.output.shape(params), dtype)
    launch = numpy_kernel(op).build(np, blocks, params)
    launch(inputs, output)
    launch(inputs, output)
    wide = [x.astype(np.float64) for x in inputs]
    scale = np.asarray(op.tolerance.scale(np, *wide)) if op.tolerance.scale else None
    with np.errstate(all="ignore"):
        want = np.asarray((op.reference or op.expr)(np, *wide))
    assert compare(op, dtype, output, want, scale).ok
    assert all(np.array_equal(x, y) for x, y in zip(inputs, before, strict=True))


def several_blocks(name):
    """A size of several blocks, the last one short: the side of a matrix, else the number of elements."""
    op = kernels.load(name)
    if op.group == "matrix":
        return 2301
    return 600_003 if op.output.shape({"n": 600_003}) else 2**22 + 77


def test_every_op_has_one():
    assert list(kernels.usual()) == TUNED


@pytest.mark.parametrize("name", TUNED)
def test_small_and_odd_sizes(name):
    for n in (1, 3, 7, 255, 257, *([] if name in SLOW else [1000])):
        for dtype in set(HOST_DTYPES) & set(kernels.load(name).dtypes):
            check(name, n, dtype, one_after_another)


@pytest.mark.parametrize("blocks", [one_after_another, all_at_once])
@pytest.mark.parametrize("name", FAST)
def test_several_blocks_with_a_short_last_one(name, blocks):
    check(name, several_blocks(name), "float32", blocks)


@pytest.mark.parametrize("name", FAST)
def test_several_blocks_of_halves(name):
    check(name, several_blocks(name), "float16", all_at_once)


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
    tape, slots = elementwise.record(op.expr, len(op.inputs))
    assert (len(tape), slots) == (steps, scratch)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_the_tuned_form_is_the_expression_bit_for_bit(name):
    op = kernels.load(name)
    inputs = random_inputs(op, {"n": 1000}, "float32", seed=22)
    output = sentinels((1000,), "float32")
    numpy_kernel(op).build(np, one_after_another, {"n": 1000})(inputs, output)
    assert output.tobytes() == op.expr(np, *inputs).tobytes()


def test_two_live_terms_do_not_share_a_slot():
    def expr(xp, x, y):
        return (x + y) * (x - y) + xp.exp(x) * (y - 1)

    x, y = np.linspace(-1, 1, 300_001), np.linspace(2, 3, 300_001)
    output = np.full_like(x, np.nan)
    elementwise.build_cpu(expr, 2, np, all_at_once, {})([x, y], output)
    np.testing.assert_array_equal(output, expr(np, x, y))


def test_operators_with_a_number_on_either_side():
    def expr(xp, x):
        return 1 - (2 - (-x)) + (x - 3) / 4 - 5 / x + (6 + x) * (7 * x)

    x = np.linspace(1, 2, 1000)
    output = np.empty_like(x)
    elementwise.build_cpu(expr, 1, np, one_after_another, {})([x], output)
    np.testing.assert_array_equal(output, expr(np, x))


SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -np.nan, 1e-40, -1e-40, 6e-8, 3e4, -3e4)


def launched(name, inputs, shape, dtype, params):
    output = sentinels(shape, dtype, value=0.25)
    with np.errstate(all="ignore"):
        numpy_kernel(kernels.load(name)).build(np, one_after_another, params)(inputs, output)
    return output


@pytest.mark.parametrize("dtype", HOST_DTYPES)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_what_is_not_finite_or_not_normal_comes_out_as_in_numpy(name, dtype):
    """Every special value meets every other; halves are computed in float32 and rounded once."""
    op = kernels.load(name)
    grid = np.meshgrid(*[np.array(SPECIAL).astype(dtype)] * len(op.inputs))
    inputs = [np.ascontiguousarray(values.ravel()) for values in grid]
    got = launched(name, inputs, inputs[0].shape, dtype, {"n": inputs[0].size})
    with np.errstate(all="ignore"):
        if dtype == "float16":
            want = op.expr(np, *(x.astype(np.float32) for x in inputs)).astype(np.float16)
        else:
            want = op.expr(np, *inputs)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", HOST_DTYPES)
@pytest.mark.parametrize("name", [name for name in TUNED if name not in ELEMENTWISE])
def test_one_value_that_is_not_finite_spreads_as_in_numpy(name, dtype):
    op, params = kernels.load(name), {"n": 64}
    for value in (np.inf, -np.inf, np.nan, 1e-40):
        inputs = random_inputs(op, params, dtype, seed=23)
        inputs[0].ravel()[5] = value
        got = launched(name, inputs, op.output.shape(params), dtype, params)
        with np.errstate(all="ignore"):
            want = np.asarray(op.expr(np, *inputs))
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", HOST_DTYPES)
@pytest.mark.parametrize("name", TUNED)
def test_no_elements_give_what_numpy_gives(name, dtype):
    op, params = kernels.load(name), {"n": 0}
    inputs = random_inputs(op, params, dtype, seed=24)
    shape = op.output.shape(params)
    try:
        want = op.expr(np, *inputs)
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error).partition(" to ")[0])):
            launched(name, inputs, shape, dtype, params)
    else:
        np.testing.assert_array_equal(launched(name, inputs, shape, dtype, params), want)


def test_a_matrix_without_columns_times_an_empty_vector_is_zero():
    for dtype in HOST_DTYPES:
        inputs = [np.empty((3, 0), dtype), np.empty(0, dtype)]
        assert launched("gemv", inputs, (3,), dtype, {"n": 0, "m": 3}).tolist() == [0, 0, 0]


def test_every_half_is_widened_exactly():
    half = np.arange(2**16, dtype=np.uint16).view(np.float16)
    for part in (half, half[np.isfinite(half)]):
        wide = cpu.widen(np, part, np.full(part.size, np.nan, np.float32))
        np.testing.assert_array_equal(wide, part.astype(np.float32))
        np.testing.assert_array_equal(np.signbit(wide), np.signbit(part))


def test_halves_are_multiplied_in_float32():
    inputs = [np.full((40, 40), 0.1, np.float16), np.full((40, 40), 0.3, np.float16)]
    output = np.empty((40, 40), np.float16)
    matmul.multiply_halves(np, one_after_another, {"n": 40})(inputs, output)
    np.testing.assert_array_equal(output, (inputs[0].astype("f4") @ inputs[1].astype("f4")).astype("f2"))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_block_threads_run_each_block_once_and_end(threads):
    before = threading.active_count()
    team = BlockThreads(threads)
    for length, grain in ((0, 4), (3, 4), (4, 4), (1001, 7)):
        seen = []
        team.run(lambda start, stop: seen.append((start, stop)), length, grain)  # noqa: B023
        assert sorted(seen) == [(start, min(start + grain, length)) for start in range(0, length, grain)]
    assert threading.active_count() <= before + threads - 1
    team.close()
    assert threading.active_count() == before
    team.run(lambda start, stop: seen.append((start, stop)), 8, 4)
    assert seen[-2:] in ([(0, 4), (4, 8)], [(4, 8), (0, 4)])
    team.close()


def test_an_error_in_a_block_reaches_the_caller_and_the_threads_live_on():
    team = BlockThreads(3)

    def fails(start, stop):
        if start == 5:
            raise MemoryError("block 5")

    with pytest.raises(MemoryError, match="block 5"):
        team.run(fails, 10, 1)
    seen = []
    team.run(lambda start, stop: seen.append(start), 10, 1)
    assert sorted(seen) == list(range(10))
    team.close()


@given(st.integers(1, 2**28), st.integers(1, 256), st.booleans(), st.booleans())
def test_blocks_keep_all_threads_busy_in_the_last_round(length, threads, cheap, alone):
    size = cpu.grain(length, threads, cheap=cheap, alone=alone)
    shortest = 256 * 1024 if cheap or alone else 128 * 1024
    assert shortest <= size <= (2 * 1024 * 1024 if alone else 512 * 1024)
    blocks = -(-length // size)
    rounds = -(-blocks // threads)
    if size > shortest:  # else there is too little work for all of them
        assert rounds * threads * size < length + rounds * threads
