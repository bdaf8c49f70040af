"""What decides whether an output is right: sentinels, the float64 reference and the comparison."""

import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import backends, kernels
from gpubench.backends.shared import host, reference
from gpubench.kernels.contract.op import EXACT, Tolerance
from tests import judging

ADD, MATMUL = (kernels.load(name) for name in ("add", "matmul"))


def with_tolerance(tolerance, op=ADD):
    return msgspec.structs.replace(op, tolerance=tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_halves_have_host_arrays(dtype):
    """Inputs are rounded to the dtype, the sentinel is NaN in it, and a comparison knows its unit round-off."""
    (x, y) = host.random_inputs(ADD, {"n": 1000}, dtype, 1)
    assert (x.dtype.name, x.dtype.itemsize, x.flags["C_CONTIGUOUS"]) == (dtype, 2, True)
    assert np.abs(x.astype(np.float64)).max() <= 1
    assert np.unique(x).size > 200
    assert np.isnan(reference.sentinels((3,), dtype).astype(np.float64)).all()
    want = np.abs(x.astype(np.float64)) + 1
    rounded = want.astype(x.dtype)
    assert judging.compare(with_tolerance(Tolerance(1)), dtype, rounded, want, None).ok
    assert not judging.compare(with_tolerance(Tolerance(0.5)), dtype, rounded, want, None).ok
    assert y.tobytes() != x.tobytes()


@pytest.mark.parametrize("name", kernels.usual())
def test_the_reference_is_computed_once_and_shared(name, tmp_path):
    op = kernels.load(name)
    inputs = host.random_inputs(op, {"n": 12}, "float32", 1)
    want, scale, _ = judging.reference(op, inputs, tmp_path, "key")
    files = sorted(path.name for path in tmp_path.iterdir())
    assert not [name for name in files if name.endswith(".part")]
    again, _, _ = judging.reference(op, [np.zeros_like(x) for x in inputs], tmp_path, "key")
    assert again.tobytes() == want.tobytes(), "the second worker reads what the first one wrote"
    assert want.dtype == np.float64
    assert want.shape == op.output.shape({"n": 12})
    assert (scale is None) == (op.tolerance.scale is None)


def test_a_second_writer_of_a_reference_touches_no_file_of_the_first(tmp_path):
    """Two workers may compute a reference at the same time: a mapped file that shrinks ends its reader by SIGBUS."""
    inputs = host.random_inputs(ADD, {"n": 3 * host.SLICE}, "float32", 1)
    turns, seen = itertools.count(), []

    def while_another_writes(xp, x, y):
        if next(turns) == 1:  # the first turn tells the shape, before there is a file
            seen.append(judging.reference(ADD, inputs, tmp_path, "key"))
        return x + y

    first = msgspec.structs.replace(ADD, reference=while_another_writes, tolerance=Tolerance(4))
    want, _, _ = judging.reference(first, inputs, tmp_path, "key")
    assert want.tobytes() == seen[0].want.tobytes()
    assert not list(tmp_path.glob("*.part"))


# ------------------------------------------------------------------- the comparison

finite = st.floats(-1e6, 1e6).filter(lambda x: x == 0 or abs(x) > 1e-6)
arrays = st.lists(finite, min_size=1, max_size=40).map(np.array)


@given(arrays)
def test_equal_passes_whatever_the_tolerance(want):
    check = judging.compare(with_tolerance(EXACT), "float64", want.copy(), want, None)
    assert check.ok
    assert check.max_error == 0


@given(arrays, st.data())
def test_one_wrong_element_fails_and_is_named(want, data):
    index = data.draw(st.integers(0, want.size - 1))
    got = want.copy()
    got[index] += max(1.0, abs(got[index]))
    check = judging.compare(with_tolerance(Tolerance(4)), "float64", got, want, None)
    assert not check.ok
    assert check.index == [index]


@given(arrays, st.data(), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_what_is_not_a_number_fails(want, data, value):
    got = want.copy()
    got[data.draw(st.integers(0, want.size - 1))] = value
    check = judging.compare(with_tolerance(Tolerance(1e9)), "float64", got, want, None)
    assert not check.ok
    assert check.max_error is None


@given(st.floats(0.1, 10), st.floats(0, 100))
def test_the_limit_is_units_of_rounding_error(units, error):
    want = np.ones(5)
    got = want.copy()
    got[3] += error * 2.0**-24
    check = judging.compare(with_tolerance(Tolerance(units)), "float32", got, want, None)
    assert check.limit == units * 2.0**-24
    assert check.ok == ((got[3] - 1) <= check.limit)


def test_infinities_and_nans_in_the_right_places_pass():
    want = np.array([math.inf, -math.inf, math.nan, 1.0])
    assert judging.compare(with_tolerance(EXACT), "float32", want.copy(), want, None).ok
    assert not judging.compare(with_tolerance(EXACT), "float32", -want, want, None).ok


def test_an_overflow_of_the_dtype_is_the_right_answer_and_no_other_infinity_is():
    op = with_tolerance(Tolerance(4))
    past = np.array([65520.0, -1e9])
    rounded = np.array([math.inf, -math.inf], np.float16)
    assert judging.compare(op, "float16", rounded, past, None).ok
    assert not judging.compare(op, "float16", -rounded, past, None).ok
    assert not judging.compare(op, "float32", rounded.astype(np.float32), past, None).ok
    assert not judging.compare(op, "float16", rounded, np.array([60000.0, -1e9]), None).ok
    assert not judging.compare(op, "float16", np.array([1.0, -math.inf], np.float16), past, None).ok


def test_below_the_smallest_normal_number_an_error_is_absolute():
    op, smallest = with_tolerance(Tolerance(1)), 2.0**-14
    want = np.array([0.3 * smallest, 1e-9, 0.0])
    assert judging.compare(op, "float16", want.astype(np.float16), want, None).ok
    for index, error in enumerate([2.0**-23, 2.0**-24, 2.0**-23]):
        got = want.astype(np.float16)
        got[index] += error
        assert not judging.compare(op, "float16", got, want, None).ok


@pytest.mark.parametrize("size", [1, 4, 6])
def test_a_result_of_another_size_never_passes(size):
    assert not judging.compare(with_tolerance(Tolerance(4)), "float32", np.ones(size), np.ones(5), None).ok


def test_the_scale_is_that_of_the_terms_where_they_cancel():
    a, b = np.array([[1e8, 1.0]]), np.array([[1.0], [-1e8]])
    scale = np.asarray(MATMUL.tolerance.scale(np, a, b))
    check = judging.compare(MATMUL, "float32", np.array([[0.5]]), a @ b, scale)
    assert check.ok
    assert check.scale == "terms"
    assert check.index == [0, 0]


def test_an_error_in_any_slice_is_found():
    n = 3 * host.SLICE + 7
    want = np.ones(n)
    for index in (0, host.SLICE - 1, host.SLICE, n - 1):
        got = want.copy()
        got[index] = 2
        check = judging.compare(with_tolerance(Tolerance(4)), "float32", got, want, None)
        assert (check.ok, check.index) == (False, [index])


@pytest.fixture(scope="module")
def compiled():
    """The comparison as numba compiles it."""
    session = backends.load("numpy").open("numpy:0", 2)
    session.foresee([ADD], ["float32"])
    yield session.block_errors
    session.close()


PECULIAR = [1e-9, 0.0, -65520.0, 1e30, -math.inf, math.nan]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("dtype", "precision"), [
    ("float32", "float32"), ("float32", "tf32"), ("float16", "float16"), ("float64", "float64"),
])  # fmt: skip
def test_the_compiled_pass_says_what_numpy_says(compiled, dtype, precision, scaled):
    n = 2 * reference.BLOCK + 77
    want = np.random.default_rng(1).standard_normal(n)
    with np.errstate(over="ignore"):
        got = want.astype(dtype)
        scale = np.abs(want) + 1 if scaled else None
        for wanted, value in itertools.product(PECULIAR, PECULIAR):
            want[-1], got[-1] = wanted, value
            checks = [
                reference.judge(Tolerance(4), precision, got, want, scale, one) for one in (compiled, None)
            ]
            assert checks[0] == checks[1], (wanted, value)
    assert compiled(got, want, scale, 0.0) is not None


def test_the_compiled_pass_leaves_other_arrays_to_numpy(compiled):
    want = np.ones(reference.BLOCK * 2)
    assert compiled(want.astype(np.int32), want, None, 0.0) is None
    assert compiled(np.ones(want.size * 2)[::2], want, None, 0.0) is None


def test_the_largest_error_is_told_although_another_block_needs_an_allowance():
    want, got = np.ones(3 * reference.BLOCK), np.ones(3 * reference.BLOCK, np.float32)
    want[0], got[0] = 1e39, math.inf
    got[-1] += 2.0**-23
    check = judging.compare(with_tolerance(Tolerance(4)), "float32", got, want, None)
    assert (check.ok, check.index, check.max_error) == (True, [got.size - 1], 2.0**-23)


@pytest.mark.parametrize(("name", "params"), [
    ("dot", {"n": 3 * host.SLICE + 5}), ("max", {"n": 3 * host.SLICE + 5}), ("sum_rows", {"n": 3000}),
    ("add", {"n": 2 * host.SLICE + 5}), ("transpose", {"n": 700}), ("softmax", {"n": 2 * host.SLICE}),
])  # fmt: skip
def test_a_reference_in_slices_is_the_formula_of_the_whole(name, params, tmp_path):
    op = kernels.load(name)
    inputs = host.random_inputs(op, params, "float32", 1)
    want, scale, odd = judging.reference(op, inputs, tmp_path, "key")
    wide = [x.astype(np.float64) for x in inputs]
    np.testing.assert_allclose(want, (op.reference or op.expr)(np, *wide), rtol=1e-10)
    if op.tolerance.scale is not None:
        np.testing.assert_allclose(scale, op.tolerance.scale(np, *wide), rtol=1e-14)
    assert (want.flags["C_CONTIGUOUS"], odd) == (True, reference.Oddities())


@pytest.mark.parametrize("n", [100, 2 * host.SLICE])
def test_a_reference_knows_its_first_infinity_and_whether_it_holds_a_nan(n, tmp_path):
    op = kernels.load("div")
    x, y = np.ones(n, np.float32), np.ones(n, np.float32)
    y[n - 5], x[n - 2], y[n - 2] = 0, 0, 0
    answer = judging.reference(op, [x, y], tmp_path, "key")
    assert answer.odd == reference.Oddities(n - 5, nan=True)
    assert reference.not_finite(answer, [x, y]) == [n - 5]
    assert answer.beginning(n - 5).odd == reference.Oddities()
    assert not reference.not_finite(answer, [x, np.full(n, math.inf)]), "an input is not finite either"
