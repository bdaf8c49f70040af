"""What decides whether an output is right: sentinels, the float64 reference, the comparison, and TF32 with a tolerance of its own."""

import errno
import itertools
import math
import os
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import backends, kernels
from gpubench.backends.shared import host, reference
from gpubench.backends.torch import TorchSession
from gpubench.base.errors import BackendError
from gpubench.kernels.contract.op import EXACT, Tolerance, each
from gpubench.result.case import TF32, Case
from tests import judging
from tests.raising import raised

ADD, MATMUL = (kernels.load(name) for name in ("add", "matmul"))


def with_tolerance(tolerance, op=ADD):
    return msgspec.structs.replace(op, tolerance=tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_halves_have_host_arrays(dtype):
    x, _ = host.random_inputs(ADD, {"n": 1000}, dtype, 1)
    assert (x.dtype.name, x.dtype.itemsize, x.flags["C_CONTIGUOUS"]) == (dtype, 2, True)
    assert (np.abs(x.astype(np.float64)).max() <= 1, np.unique(x).size > 200) == (True, True)
    assert np.isnan(reference.sentinels((3,), dtype).astype(np.float64)).all()
    want = np.abs(x.astype(np.float64)) + 1
    for units, ok in ((1, True), (0.5, False)):
        rounded = want.astype(x.dtype)
        assert judging.compare(with_tolerance(Tolerance(units)), dtype, rounded, want, None).ok == ok


@pytest.mark.parametrize("name", kernels.usual())
def test_the_reference_is_computed_once_and_shared(name, tmp_path):
    op = kernels.load(name)
    inputs = host.random_inputs(op, {"n": 12}, "float32", 1)
    want, scale, _ = judging.reference(op, inputs, tmp_path, "key")
    files = sorted(path.name for path in tmp_path.iterdir())
    assert not [name for name in files if name.endswith(".part")]
    again, _, _ = judging.reference(op, [np.zeros_like(x) for x in inputs], tmp_path, "key")
    assert again.tobytes() == want.tobytes(), "the second worker reads what the first one wrote"
    assert (want.dtype, want.shape) == (np.float64, op.output.shape({"n": 12}))
    assert (scale is None) == (op.tolerance.scale is None)


@pytest.mark.parametrize(
    ("number", "full"), [(errno.ENOSPC, True), (errno.EIO, True), (errno.EOPNOTSUPP, False)]
)
def test_a_disk_that_has_no_room_is_told_and_one_that_reserves_none_is_used(
    monkeypatch, tmp_path, number, full
):
    monkeypatch.setattr(os, "posix_fallocate", Mock(side_effect=OSError(number, "refused")), raising=False)
    judged = (ADD, host.random_inputs(ADD, {"n": 12}, "float32", 1), tmp_path, "key")
    if full:
        assert "TMPDIR" in raised(BackendError, judging.reference, *judged).hint
    else:
        assert judging.reference(*judged).want.shape == (12,)
    assert not list(tmp_path.glob("*.part"))


def test_a_second_writer_of_a_reference_touches_no_file_of_the_first(tmp_path):
    """Two workers may compute a reference at the same time: a mapped file that shrinks ends its reader by SIGBUS."""
    inputs, turns, seen = host.random_inputs(ADD, {"n": 3 * host.SLICE}, "float32", 1), itertools.count(), []

    def while_another_writes(xp, x, y):
        if next(turns) == 1:  # the first turn tells the shape, before there is a file
            seen.append(judging.reference(ADD, inputs, tmp_path, "key"))
        return x + y

    first = msgspec.structs.replace(ADD, reference=while_another_writes, tolerance=Tolerance(4))
    want, _, _ = judging.reference(first, inputs, tmp_path, "key")
    assert want.tobytes() == seen[0].want.tobytes()
    assert not list(tmp_path.glob("*.part"))


# ------------------------------------------------------------------- the comparison

arrays = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40).map(np.array)


@given(arrays, st.data(), st.sampled_from([1, math.nan, math.inf, -math.inf]))
def test_one_wrong_element_fails_and_is_named(want, data, error):
    assert judging.compare(with_tolerance(EXACT), "float64", want.copy(), want, None).max_error == 0
    got, index = want.copy(), data.draw(st.integers(0, want.size - 1))
    got[index] += error * max(1.0, abs(got[index]))
    check = judging.compare(with_tolerance(Tolerance(4)), "float64", got, want, None)
    huge = max(1.0, abs(want[index])) >= reference.LARGEST * abs(want[index])  # no file can hold it
    assert (check.ok, check.index, check.max_error is None) == (False, [index], error != 1 or huge)


INF, SMALLEST = math.inf, 2.0**-14


@pytest.mark.parametrize(("got", "want", "dtype", "ok"), [
    ([INF, -INF, math.nan, 1], [INF, -INF, math.nan, 1], "float32", True), ([-INF, 1], [INF, 1], "float32", False),
    # An overflow of the dtype is the right answer, and no other infinity is.
    ([INF, -INF], [65520, -1e9], "float16", True), ([-INF, INF], [65520, -1e9], "float16", False),
    ([INF, -INF], [65520, -1e9], "float32", False), ([INF, -INF], [60000, -1e9], "float16", False),
    ([1, -INF], [65520, -1e9], "float16", False), ([INF], [65489], "float16", True), ([INF], [65487], "float16", False),
    ([], [], "float32", True),
    # Below the smallest normal number an error is absolute.
    ([0.3 * SMALLEST, 1e-9, 0], [0.3 * SMALLEST, 1e-9, 0], "float16", True),
    *((got, [0.3 * SMALLEST, 1e-9, 0], "float16", False) for got in (
        [0.3 * SMALLEST + 2**-23, 1e-9, 0], [0.3 * SMALLEST, 2**-23, 0], [0.3 * SMALLEST, 1e-9, 2**-24],
    )),
    # There a device may take numbers as 0, as WebGPU allows.
    ([0, 0], [1e-38, -1e-45], "float32", True), ([0], [1.2e-38], "float32", False), ([0], [1e-5], "float16", False),
    ([1] * 4, [1] * 5, "float32", False), ([1] * 6, [1] * 5, "float32", False), ([1], [1] * 5, "float32", False),
])  # fmt: skip
def test_what_passes_at_the_limits_of_a_dtype(got, want, dtype, ok):
    got, want = np.array(got, dtype), np.array(want, float)
    assert judging.compare(with_tolerance(Tolerance(1)), dtype, got, want, None).ok == ok


def test_an_error_in_any_slice_is_found_and_the_largest_is_told():
    n, op = 3 * host.SLICE + 7, with_tolerance(Tolerance(4))
    for index in (0, host.SLICE - 1, host.SLICE, n - 1):
        got, want = np.ones(n), np.ones(n)
        got[index] = 2
        check = judging.compare(op, "float32", got, want, None)
        assert (check.ok, check.index) == (False, [index])
    want, got = np.ones(n), np.ones(n, np.float32)
    want[0], got[0] = 1e39, INF  # another block needs an allowance
    got[-1] += 2.0**-23
    check = judging.compare(op, "float32", got, want, None)
    assert (check.ok, check.index, check.max_error) == (True, [n - 1], 2.0**-23)


@pytest.fixture(scope="module")
def compiled():
    """The comparison as numba compiles it."""
    session = backends.load("numpy").open("numpy:0", 2)
    session.foresee([ADD], ["float32"])
    yield session.block_errors
    session.close()


PECULIAR = [1e-9, 0.0, -65520.0, 1e30, -math.inf, math.nan]


@pytest.mark.parametrize("scaled", [False, True])
def test_a_block_that_is_looked_at_once_says_what_each_element_says(scaled):
    """One block alone is looked at element by element."""
    n, size = 2 * reference.BLOCK + 77, 77
    want = np.random.default_rng(1).standard_normal(n)
    scale, last_scale = (np.abs(want) + 1, np.abs(want[-size:]) + 1) if scaled else (None, None)
    for wanted, value in itertools.product(PECULIAR, PECULIAR):
        got = want.astype(np.float32)
        want[-1], got[-1] = wanted, value
        whole = reference.judge(Tolerance(4), "float32", got, want, scale)
        last = reference.judge(Tolerance(4), "float32", got[-size:], want[-size:], last_scale)
        assert whole.ok == last.ok, (wanted, value)
        if not whole.ok:
            assert (whole.max_error, whole.index) == (last.max_error, [n - size + last.index[0]])


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
            asked = (Tolerance(4), precision, got, want, scale)
            assert reference.judge(*asked, compiled) == reference.judge(*asked, None), (wanted, value)
    assert compiled(got, want, scale, 0.0) is not None
    for other in (np.ones(n, np.int32), np.ones(2 * n)[::2]):
        assert compiled(other, want, None, 0.0) is None, "other arrays are left to NumPy"


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


def test_arrays_of_the_same_bytes_have_the_same_shape():
    x = np.array([[1.0, math.nan, 0.0]], "float32")
    others = x.copy(), x[0], np.array([[1.0, math.nan, -0.0]], "float32"), x[:, :2]
    assert [reference.same_bytes(x, other) for other in others] == [True, False, False, False]


def test_sixteen_elements_of_each_numeric_output_stand_for_it_from_its_first_to_its_last():
    numbers, few = np.arange(76.0).reshape(4, 19), np.array([1 + 2j, math.nan])
    odd = np.array([math.inf, -1e200, 1e-200])  # a result file has no such numbers
    outputs = [numbers, few, np.array(["text"]), np.zeros(0), odd]
    assert reference.samples_of(outputs) == [*range(0, 76, 5), 1.0, 0.0, 1e99, -1e99, 0.0]
    assert [reference.storable(x) for x in (math.nan, 1e200, 1e-200, 1e-9)] == [None, None, 0.0, 1e-9]


@pytest.mark.parametrize("n", [100, 2 * host.SLICE])
def test_a_reference_knows_its_first_infinity_and_whether_it_holds_a_nan(n, tmp_path):
    op = kernels.load("div")
    x, y = np.ones(n, np.float32), np.ones(n, np.float32)
    y[n - 5], x[n - 2], y[n - 2] = 0, 0, 0
    answer = judging.reference(op, [x, y], tmp_path, "key")
    assert (answer.odd, reference.not_finite(answer, [x, y])) == (reference.Oddities(n - 5, nan=True), [n - 5])
    assert answer.beginning(n - 5).odd == reference.Oddities()
    assert reference.not_finite(answer, [x, np.full(n, math.inf)]) is None, "an input is not finite either"


# ---------------------------------------------------------------------- TF32: one case at a time, and a tolerance of its own


U_TF32 = 2.0**-11


def matmul_case(op=MATMUL, dtype="float32", how="library", variant=TF32):
    return Case(op.name, op.group, {"n": 64}, dtype, how, "resident-queued", "cupy:0", variant=variant)


def rounded(x, *, truncate):
    """float32 with 10 bits of mantissa, rounded to nearest or cut off: hardware does either."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits if truncate else bits + (1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize(("asked", "capability", "reason"), [
    (matmul_case(), (9, 0), None), (matmul_case(), (8, 0), None), (matmul_case(), (7, 5), "no-tf32"), (matmul_case(variant=None), (7, 5), None),
    (matmul_case(dtype="float64"), (9, 0), "no-implementation"), (matmul_case(variant="naive"), (9, 0), "no-implementation"),
    (matmul_case(kernels.load("add")), (9, 0), "no-implementation"),
])  # fmt: skip
def test_which_cases_run(asked, capability, reason):
    op, on_torch = kernels.load(asked.op), msgspec.structs.replace(asked, device_id="torch:cuda:0")
    refusal = host.no_tf32(op, asked, *capability)
    assert (refusal.reason if refusal else None) == reason
    if reason:
        session = TorchSession.__new__(TorchSession)
        session.device, session.capability = SimpleNamespace(kind="gpu", api="cuda"), capability
        assert session.supports(op, on_torch).reason == reason


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("params", [{"n": 3, "k": 1}, {"n": 48, "k": 4096}, {"n": 9, "batch": 3}])
def test_the_gate_takes_tf32_for_tf32_alone(params, truncate, tmp_path):
    """Inputs with 10 bits of mantissa are right for `tf32`, and wrong for float32: TF32 cannot slip in unseen."""
    inputs = host.random_inputs(MATMUL, params, "float32", 1)
    want, scale, _ = judging.reference(MATMUL, inputs, tmp_path, "key")
    a, b = (rounded(x, truncate=truncate) for x in inputs)
    as_tf32 = judging.compare(MATMUL, matmul_case().precision, a @ b, want, scale)
    assert (as_tf32.ok, as_tf32.limit) == (True, MATMUL.tolerance.units * U_TF32)
    assert not judging.compare(MATMUL, "float32", a @ b, want, scale).ok
    assert judging.compare(MATMUL, "float32", inputs[0] @ inputs[1], want, scale).ok


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "params", [{"n": 5, "k": 1}, {"n": 16, "k": 8192}, {"n": 40, "m": 7}, {"n": 9, "batch": 3}]
)
def test_halves_with_float32_accumulation_pass_with_room(dtype, params, tmp_path):
    """Products summed in float32 and rounded once stay below one unit of the dtype times the norms; 8 are allowed."""
    inputs = host.random_inputs(MATMUL, params, dtype, 1)
    want, scale, _ = judging.reference(MATMUL, inputs, tmp_path, "key")
    a, b = (x.astype(np.float32) for x in inputs)
    check = judging.compare(MATMUL, dtype, (a @ b).astype(inputs[0].dtype), want, scale)
    assert check.ok
    assert check.max_error <= check.limit / MATMUL.tolerance.units
    wrong = (a @ b) * 1.1
    wrong[..., 0] += 0.1 * scale[..., 0]
    assert not judging.compare(MATMUL, dtype, wrong.astype(inputs[0].dtype), want, scale).ok


LOADED = map(kernels.load, kernels.names())
SUMS = [op.name for op in LOADED if op.terms is not None or op.probe is not None]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("name", "params"), [
    *((name, {"n": n}) for name in SUMS for n in (1, 300 if name != "conv2d" else 2)), ("sum", {"n": 2**24}),
    ("matmul", {"n": 40, "m": 3, "k": 700, "ta": 1}), ("matmul", {"n": 40, "k": 700, "tb": 1, "batch": 2}),
])  # fmt: skip
def test_a_single_missing_term_is_visible_at_every_length_and_in_every_dtype(name, params, dtype):
    op = kernels.load(name).at(params)
    case = Case(name, "", params, dtype, "tuned", "resident", "numpy:0")
    drawn = host.random_inputs(op, params, dtype, 1)
    axes = op.terms(params) if op.terms else {"qkv": 0}
    operand, axis = next((name, axes[name]) for name in axes if name not in op.zero_terms)
    for inputs, compare in reference.probes(op, case, drawn):

        def right(inputs=inputs, compare=compare):
            result = each(op.exact()(np, *(x.copy() for x in map(reference.widen, inputs))))[0]
            return compare(np.asarray(result).astype(inputs[0].dtype)).ok

        by_name = dict(zip((x.name for x in op.inputs), inputs, strict=True))
        assert right()
        terms = np.moveaxis(by_name[operand], axis, 0)
        terms[np.argmax(terms) if name == "max" else -1] = -1 if name == "max" else 0
        assert not right()


def test_the_largest_term_lies_once_in_each_block_that_a_kernel_may_drop():
    case = Case("max", "", {"n": 3000}, "float16", "tuned", "resident", "numpy:0")
    probes = reference.probes(kernels.load("max"), case, [np.zeros(3000)])
    assert {int(np.argmax(x)) for (x,), _ in probes} == {2999, 2996, 2984, 2936, 2744, 1976, 0}
