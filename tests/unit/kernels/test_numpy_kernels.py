"""The tuned NumPy kernels: right on one thread and on several, whatever the size, and without temporaries."""

import numpy as np
import pytest

from gpubench import kernels
from gpubench.backends.shared.blocks import BlockThreads
from gpubench.backends.shared.host import random_inputs
from gpubench.backends.shared.reference import sentinels
from gpubench.kernels import matmul
from gpubench.kernels.templates import cpu
from tests.judging import compare

LANGUAGES = {name: {one.language for one in kernels.load(name).tuned["numpy"]} for name in kernels.usual()}
TUNED = [name for name, languages in LANGUAGES.items() if "numpy" in languages]
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


one_after_another = OneAfterAnother()


def numpy_kernel(op):
    """Return the op's kernel in NumPy's own calls."""
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


def test_an_op_has_a_compiled_kernel_or_one_of_numpys_calls():
    """Two of the same would be two homes of one thing; those of other dtypes are variants."""
    for name in kernels.usual():
        languages = {kernel.language for kernel in kernels.load(name).tuned["numpy"]}
        assert languages in ({"numba"}, {"numpy"}), name


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", FAST)
def test_several_blocks_with_a_short_last_one(name, threads):
    blocks = BlockThreads(threads)
    check(name, several_blocks(name), "float32", blocks)
    blocks.close()


@pytest.mark.parametrize("name", ["linear", "linear_gelu", "linear_relu", "linear_add", "linear_grad_relu"])
def test_what_is_done_to_a_product_in_place_is_what_its_formula_says(name):
    """At the jumps of the formula, too: each epilogue is written twice."""
    op, params = kernels.load(name), {"n": 6, "m": 6, "k": 6}
    *inputs, beside = random_inputs(op, params, "float32", seed=3)
    beside = np.resize(np.array([0, -0.0, 2, -2, np.inf, -np.inf, np.nan, 1e-30], np.float32), beside.shape)
    output = sentinels(op.output.shape(params), "float32")
    with np.errstate(all="ignore"):
        numpy_kernel(op).build(np, one_after_another, params)([*inputs, beside], output)
        want = op.expr(np, *(x.astype(np.float64) for x in (*inputs, beside)))
    np.testing.assert_allclose(output, want, rtol=2e-5, atol=1e-6)


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


def test_an_error_in_a_block_reaches_the_caller_and_the_threads_live_on():
    limits = []
    team = BlockThreads(3, limits.append)

    def fails(start, stop):
        if start == 5:
            raise MemoryError("block 5")

    with pytest.raises(MemoryError, match="block 5"):
        team.multiply(fails, 10, 1)
    assert limits == [1, 3], "threads of BLAS during the blocks, and after them"
    seen = []
    team.run(lambda start, stop: seen.append(start), 10, 1)
    assert sorted(seen) == list(range(10))
    team.close()
