"""The host side of every check: seeded inputs, sentinels, the float64 reference and the comparison."""

from __future__ import annotations

import hashlib
import math
import threading

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.backends.shared import host
from gpubench.model.op import EXACT, Range, Tolerance

ADD, MATMUL, GELU = (kernels.load(name) for name in ("add", "matmul", "gelu"))


def with_tolerance(tolerance, op=ADD):
    return msgspec.structs.replace(op, tolerance=tolerance)


@given(st.sampled_from(kernels.usual()), st.integers(1, 100), st.integers(0, 2**31))
def test_inputs_are_the_same_bytes_for_the_same_seed_and_others_for_another(name, n, seed):
    op = kernels.load(name)
    first, again, other = (host.random_inputs(op, {"n": n}, "float32", s) for s in (seed, seed, seed + 1))
    assert [x.tobytes() for x in first] == [x.tobytes() for x in again]
    assert [x.tobytes() for x in first] != [x.tobytes() for x in other]
    for operand, array in zip(op.inputs, first, strict=True):
        assert array.shape == operand.shape({"n": n})
        assert array.flags["C_CONTIGUOUS"]
        assert array.dtype == np.float32
        assert np.isfinite(array).all()
        if operand.values == "uniform":
            assert array.min() >= -1
            assert array.max() < 1


@given(st.integers(-50, 50), st.integers(1, 100), st.booleans(), st.sampled_from(["random", "normal"]))
def test_inputs_stay_in_the_range_that_the_op_declares(low, span, whole, kind):
    x = msgspec.structs.replace(ADD.inputs[0], values=Range(low, low + span, whole))
    op = msgspec.structs.replace(ADD, inputs=(x, ADD.inputs[1]))
    found, other = host.random_inputs(op, {"n": 500}, "float64", 1, kind)
    assert low <= found.min() <= found.max() < low + span
    assert bool((found == np.floor(found)).all()) == whole
    assert (np.abs(other).max() > 1) == (kind == "normal"), "what is normal has no bounds but a range's"


def test_inputs_differ_between_ops_dtypes_and_operands():
    drawn = [
        host.random_inputs(ADD, {"n": 64}, "float64", 1)[0],
        host.random_inputs(ADD, {"n": 64}, "float64", 1)[1],
        host.random_inputs(kernels.load("sub"), {"n": 64}, "float64", 1)[0],
        host.random_inputs(ADD, {"n": 64}, "float32", 1)[0].astype(np.float64),
    ]
    assert len({array.tobytes() for array in drawn}) == len(drawn)


def test_normal_inputs_are_normal():
    (x,) = host.random_inputs(GELU, {"n": 100_000}, "float64", 1)
    assert abs(x.mean()) < 0.02
    assert abs(x.std() - 1) < 0.02


@pytest.mark.parametrize(("kind", "value"), [("zeros", 0), ("ones", 1)])
def test_inputs_of_one_value(kind, value):
    assert all((x == value).all() for x in host.random_inputs(ADD, {"n": 9}, "float16", 1, kind))


def test_the_sentinel_is_not_a_number_everywhere():
    assert np.isnan(host.sentinels((3, 5), "float16")).all()
    assert np.isnan(host.sentinels((), "float64"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_halves_have_host_arrays(dtype):
    """Inputs are rounded to the dtype, the sentinel is NaN in it, and a comparison knows its unit round-off."""
    (x, y) = host.random_inputs(ADD, {"n": 1000}, dtype, 1)
    assert (x.dtype.name, x.dtype.itemsize, x.flags["C_CONTIGUOUS"]) == (dtype, 2, True)
    assert np.abs(x.astype(np.float64)).max() <= 1
    assert np.unique(x).size > 200
    assert np.isnan(host.sentinels((3,), dtype).astype(np.float64)).all()
    want = np.abs(x.astype(np.float64)) + 1
    rounded = want.astype(x.dtype)
    assert host.compare(with_tolerance(Tolerance(1)), dtype, rounded, want, None).ok
    assert not host.compare(with_tolerance(Tolerance(0.5)), dtype, rounded, want, None).ok
    assert y.tobytes() != x.tobytes()


def test_bfloat16_keeps_the_range_of_float32():
    big = np.full(3, 1e38, np.float32).astype(host.host_dtype("bfloat16"))
    assert np.isfinite(big.astype(np.float64)).all()


@pytest.mark.parametrize("name", kernels.usual())
def test_the_reference_is_computed_once_and_shared(name, tmp_path):
    op = kernels.load(name)
    inputs = host.random_inputs(op, {"n": 12}, "float32", 1)
    want, scale = host.reference(op, inputs, tmp_path, "key")
    files = sorted(path.name for path in tmp_path.iterdir())
    assert not [name for name in files if name.endswith(".part")]
    again, _ = host.reference(op, [np.zeros_like(x) for x in inputs], tmp_path, "key")
    assert again.tobytes() == want.tobytes(), "the second worker reads what the first one wrote"
    assert want.dtype == np.float64
    assert want.shape == op.output.shape({"n": 12})
    assert (scale is None) == (op.tolerance.scale is None)


# ------------------------------------------------------------------- the comparison

finite = st.floats(-1e6, 1e6).filter(lambda x: x == 0 or abs(x) > 1e-6)
arrays = st.lists(finite, min_size=1, max_size=40).map(np.array)


@given(arrays)
def test_equal_passes_whatever_the_tolerance(want):
    check = host.compare(with_tolerance(EXACT), "float64", want.copy(), want, None)
    assert check.ok
    assert check.max_error == 0


@given(arrays, st.data())
def test_one_wrong_element_fails_and_is_named(want, data):
    index = data.draw(st.integers(0, want.size - 1))
    got = want.copy()
    got[index] += max(1.0, abs(got[index]))
    check = host.compare(with_tolerance(Tolerance(4)), "float64", got, want, None)
    assert not check.ok
    assert check.index == [index]


@given(arrays, st.data(), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_what_is_not_a_number_fails(want, data, value):
    got = want.copy()
    got[data.draw(st.integers(0, want.size - 1))] = value
    check = host.compare(with_tolerance(Tolerance(1e9)), "float64", got, want, None)
    assert not check.ok
    assert check.max_error is None


@given(st.floats(0.1, 10), st.floats(0, 100))
def test_the_limit_is_units_of_rounding_error(units, error):
    want = np.ones(5)
    got = want.copy()
    got[3] += error * 2.0**-24
    check = host.compare(with_tolerance(Tolerance(units)), "float32", got, want, None)
    assert check.limit == units * 2.0**-24
    assert check.ok == ((got[3] - 1) <= check.limit)


def test_infinities_and_nans_in_the_right_places_pass():
    want = np.array([math.inf, -math.inf, math.nan, 1.0])
    assert host.compare(with_tolerance(EXACT), "float32", want.copy(), want, None).ok
    assert not host.compare(with_tolerance(EXACT), "float32", -want, want, None).ok


def test_an_overflow_of_the_dtype_is_the_right_answer_and_no_other_infinity_is():
    op = with_tolerance(Tolerance(4))
    past = np.array([65520.0, -1e9])
    rounded = np.array([math.inf, -math.inf], np.float16)
    assert host.compare(op, "float16", rounded, past, None).ok
    assert not host.compare(op, "float16", -rounded, past, None).ok
    assert not host.compare(op, "float32", rounded.astype(np.float32), past, None).ok
    assert not host.compare(op, "float16", rounded, np.array([60000.0, -1e9]), None).ok
    assert not host.compare(op, "float16", np.array([1.0, -math.inf], np.float16), past, None).ok


def test_below_the_smallest_normal_number_an_error_is_absolute():
    op, smallest = with_tolerance(Tolerance(1)), 2.0**-14
    want = np.array([0.3 * smallest, 1e-9, 0.0])
    assert host.compare(op, "float16", want.astype(np.float16), want, None).ok
    for index, error in enumerate([2.0**-23, 2.0**-24, 2.0**-23]):
        got = want.astype(np.float16)
        got[index] += error
        assert not host.compare(op, "float16", got, want, None).ok


@pytest.mark.parametrize("size", [1, 4, 6])
def test_a_result_of_another_size_never_passes(size):
    """Broadcasting must not hide a missing element."""
    try:
        passed = host.compare(with_tolerance(Tolerance(4)), "float32", np.ones(size), np.ones(5), None).ok
    except ValueError:
        passed = False
    assert not passed


def test_the_scale_is_that_of_the_terms_where_they_cancel():
    a, b = np.array([[1e8, 1.0]]), np.array([[1.0], [-1e8]])
    scale = np.asarray(MATMUL.tolerance.scale(np, a, b))
    check = host.compare(MATMUL, "float32", np.array([[0.5]]), a @ b, scale)
    assert check.ok
    assert check.scale == "terms"
    assert check.index == [0, 0]


def test_an_error_in_any_slice_is_found():
    n = 3 * host.SLICE + 7
    want = np.ones(n)
    for index in (0, host.SLICE - 1, host.SLICE, n - 1):
        got = want.copy()
        got[index] = 2
        check = host.compare(with_tolerance(Tolerance(4)), "float32", got, want, None)
        assert (check.ok, check.index) == (False, [index])


def test_scalars_are_compared_too():
    check = host.compare(with_tolerance(Tolerance(4)), "float32", np.float32(2), np.asarray(1.0), None)
    assert (check.ok, check.index) == (False, [])


# ------------------------------------------------------------------- hashes and memory


def test_the_hash_of_an_op_changes_with_its_meaning():
    same = msgspec.structs.replace(ADD, summary="another text")
    assert host.op_hash(same) == host.op_hash(ADD)
    others = [
        msgspec.structs.replace(ADD, flops=lambda params: 2 * params["n"]),
        msgspec.structs.replace(ADD, expr=lambda xp, x, y: x - y, reference=None),
        with_tolerance(Tolerance(16)),
        kernels.load("mul"),
    ]
    assert len({host.op_hash(op) for op in (ADD, *others)}) == 5


def test_hashes_of_all_ops_differ():
    assert len({host.op_hash(kernels.load(name)) for name in kernels.computed()}) == len(kernels.computed())


def test_a_thread_that_runs_is_waited_for_and_one_that_sleeps_is_not():
    """By its state, not by processor time: one that wants a core and gets none would be taken for one that rests."""
    done, asleep = threading.Event(), threading.Event()

    def spin():
        while not done.is_set():
            hashlib.sha256(bytes(1 << 20))  # without the interpreter's lock

    others = [threading.Thread(target=spin), threading.Thread(target=asleep.wait)]
    for thread in others:
        thread.start()
    looks = 20
    assert sum(host.others_run() for _ in range(looks)) > looks / 2
    done.set()
    others[0].join()
    host.settle()
    assert not host.others_run()
    asleep.set()
    others[1].join()


@pytest.mark.parametrize(("affinity", "bound", "usable", "copying"), [
    (16, None, 16, 8), (16, 2, 2, 2), (1, None, 1, 1), (2, 16, 2, 2), (128, None, 128, 8), (128, 128, 128, 8),
])  # fmt: skip
def test_affinity_and_the_bound_of_a_quota_limit_the_usable_cpus(monkeypatch, affinity, bound, usable, copying):
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: set(range(affinity)), raising=False)
    host.bound_cpus(bound)
    try:
        assert (host.usable_cpus(), host.copying_threads()) == (usable, copying)
    finally:
        host.bound_cpus(None)
