"""Every op file declares a complete op: what it costs, portable expressions equal to their references, and parts that make the whole."""

import importlib
import itertools
import json
import math
import re
from operator import attrgetter
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import backends, kernels
from gpubench.backends.shared.host import random_inputs
from gpubench.base.errors import Unsupported
from gpubench.base.plugins import wings
from gpubench.cli import options, selection
from gpubench.kernels.contract.op import ITEMSIZE, Op, Params, SessionCall
from tests.golden import programs
from tests.judging import compare
from tests.raising import raised
from tests.shapes import H200

OPS = [kernels.load(name) for name in kernels.usual()]
LANGUAGES = {
    backend: {op.tuned[backend][0].language for op in OPS if backend in op.tuned}
    for backend in {name for op in OPS for name in op.tuned}
}
SIZES = (1, 3, 7, 255, 257, 1000, 1024, 4099)
by_name = attrgetter("name")


def test_a_listing_names_every_declared_op_and_every_call_of_a_session():
    files = [path.stem for path in Path(kernels.__file__).parent.glob("*.py") if path.stem != "__init__"]
    declared = [op.name for file in files for op in importlib.import_module(f"gpubench.kernels.{file}").OPS]
    assert {*kernels.names()} == {*declared, *wings.brought("ops"), *get_args(SessionCall)}
    assert len(set(declared)) == len(declared)
    for group, members in kernels.groups().items():
        assert {kernels.load(name).group for name in members} == {group}


def test_all_stands_for_every_op_but_those_of_the_groups_on_request():
    asked_for = {name for group in kernels.ON_REQUEST for name in kernels.groups().get(group, ())}
    assert {*kernels.usual()} | asked_for == {*kernels.names()}
    assert not {*kernels.usual()} & asked_for
    assert {*selection.parse_ops("all")} == {*kernels.usual(), *kernels.foreign()}
    assert f"all ({', '.join(kernels.ON_REQUEST)} apart)" in options.SelectionOptions.declared["ops"].help


@pytest.mark.parametrize("name", ["nothing", "", "_elementwise", "add.py", "Add"])
def test_an_unknown_name_is_a_key_error(name):
    assert raised(KeyError, kernels.load, name).args == (name,)


@pytest.mark.parametrize("op", OPS, ids=by_name)
def test_the_declaration_is_complete(op):
    assert op.name == kernels.load(op.name).name
    assert op.summary
    assert "n" in op.params
    assert set(op.dtypes) <= set(ITEMSIZE)
    assert len({operand.name for operand in op.operands}) == len(op.operands)
    assert all(size % op.sizes.granule == 0 for size in op.sizes.sizes())
    assert 0 <= op.tolerance.units <= 64 or op.tolerance.why
    for name, kernel_list in op.tuned.items():
        assert {kernel.language for kernel in kernel_list} <= LANGUAGES[name], "a language of the backend"
        variants = [kernel.variant for kernel in kernel_list]
        assert len(set(variants)) == len(variants)
    assert set(op.tuned) <= set(backends.names())


# Counted by hand: operations of an element, of the ops whose output has one for each of theirs.
OPERATIONS = {
    "copy": 0, "add": 1, "sub": 1, "mul": 1, "div": 1, "saxpy": 2, "relu": 1, "sum": 1, "max": 1, "dot": 2,
    "sigmoid": 4, "gelu": 9, "softmax": 5, "softmax_grad": 4, "transpose": 0,
}  # fmt: skip
# An op and params, its operations, and the elements of its operands, all by hand.
COSTS = [
    ("matmul", {"n": 8}, 2 * 8**3, 3 * 64), ("gemv", {"m": 3, "n": 5}, 30, 15 + 5 + 3),
    ("matmul", {"m": 3, "n": 5, "k": 7, "batch": 2}, 420, 2 * (21 + 35 + 15)),
    ("linear", {"n": 2, "m": 3, "k": 4}, 48 + 6, 8 + 12 + 3 + 6),
    ("linear_gelu", {"n": 2, "m": 3, "k": 4}, 48 + 60, 8 + 12 + 3 + 6),
    ("norm_linear", {"n": 17, "m": 40, "k": 33}, 7 * 17 * 33 + 2 * 17 * 40 * 33 + 17 * 40, 17 * 33 + 66 + 1320 + 40 + 680),
    # Of 36 pixels 16 have nine neighbours inside, 16 six, and 4 four.
    ("conv2d", {"n": 2, "channels": 3, "filters": 4, "side": 6}, 2 * 2 * 12 * (16 * 9 + 16 * 6 + 4 * 4), 216 + 108 + 288),
    # 15 pairs of tokens: two products of 6 and five operations on the score of each of 2 heads.
    ("attention", {"n": 5, "width": 6, "heads": 2}, 15 * (24 + 10), 90 + 30),
]  # fmt: skip


def test_costs_are_those_counted_by_hand():
    for name, operations in OPERATIONS.items():
        assert kernels.load(name).flops({"n": 9}) == operations * (9 if name != "transpose" else 0), name
    for name, params, flops, elements in COSTS:
        op = kernels.load(name)
        assert (op.flops(params), op.bytes(params, "float32")) == (flops, 4 * elements), name


@pytest.mark.parametrize("op", OPS, ids=by_name)
def test_the_bytes_are_those_of_the_shapes(op):
    for n, dtype in itertools.product(SIZES, op.dtypes):
        elements = sum(math.prod(operand.shape({"n": n})) for operand in op.operands)
        assert op.bytes({"n": n}, dtype) == elements * ITEMSIZE[dtype]


def test_rows_that_do_not_divide_the_elements_are_refused():
    for name in ("softmax", "softmax_grad"):
        op = kernels.load(name)
        assert "columns" in op.options
        told = [op.fits({"n": 96, **columns}) for columns in ({}, {"columns": 12}, {"columns": 11})]
        assert told == [None, None, "rows of 11 do not divide 96 elements"]
    fits = kernels.load("pow_int").fits
    assert [fits({"n": 1, "exponent": power}) is None for power in (0, 1, 16, 17)] == [False, True, True, False]


@pytest.mark.parametrize("backend", ["cupy", "wgpu"])
@pytest.mark.parametrize("op", OPS, ids=by_name)
def test_every_declared_dtype_has_a_kernel_or_a_reason(op, backend):
    refused = {}
    for dtype in op.dtypes:
        kernel = op.kernel(backend, dtype)
        try:
            assert kernel is None or kernel.library or kernel.build({"n": 1000}, dtype, H200).passes
        except Unsupported as refusal:
            refused[kernel.language, dtype] = refusal.reason
    # WGSL has no bfloat16, and no exponential in float64.
    assert refused.items() <= {("wgsl", "bfloat16"): "no-dtype", ("wgsl", "float64"): "no-dtype"}.items()
    if backend == "wgpu":
        text = op.kernel("wgpu", "float32").build({"n": 1000}, "float32", H200).passes[0].source
        assert (("wgsl", "float64") in refused) == bool(re.search(r"\b(exp|tanh|pow)\w*\(", text))


def test_every_declaration_and_program_is_the_one_that_was_measured():
    """A difference is meant, or it is a bug: `python -m tests.golden` writes them anew, docs/performance.md stays true only
    if the kernel is as fast."""
    stored, found = json.loads(programs.FILE.read_text(encoding="utf-8")), programs.digests()
    assert sorted(stored.items() ^ found.items()) == []


# ---------------------------------------------------------------------- the array expressions


# Not in the array API standard, which has neither a method `copy` nor `ascontiguousarray`; without them
# copy and transpose would be views, and nothing would move.
NOT_PORTABLE = ("copy", "transpose")


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


@pytest.mark.parametrize("name", NOT_PORTABLE)
def test_data_really_moves(name):
    op = kernels.load(name)
    (x,) = random_inputs(op, {"n": 8}, "float32", seed=6)
    got = op.expr(np, x)
    assert got.flags["C_CONTIGUOUS"]
    assert not np.shares_memory(got, x)


# ---------------------------------------------------------------------- the parts of every op that can be cut


SHAPES_TO_SPLIT = {
    "matmul": [{"n": 7}, {"n": 5, "m": 9, "k": 3}, {"n": 4, "batch": 6}, {"n": 4, "m": 2, "batch": 3}],
    "gemv": [{"n": 11}, {"n": 5, "m": 13}],
    "transpose": [{"n": 11}, {"n": 5, "m": 13}],
    "softmax": [{"n": 2048}, {"n": 63}, {"n": 60, "columns": 5}],
    "softmax_grad": [{"n": 2048}, {"n": 60, "columns": 5}],
}


def part_of(op: Op, params: Params, start: int, stop: int) -> np.ndarray:
    """The op on one part, from arrays of exactly the shapes that the part's params declare."""
    split = op.split_at(params)
    less = split.part(params, stop - start)
    assert op.fits(less) is None
    arrays = []
    for operand, whole in zip(op.inputs, random_inputs(op, params, "float64", 1), strict=True):
        part = whole
        if operand.name in split.axes:
            index = [slice(None)] * whole.ndim
            index[split.axes[operand.name]] = slice(start, stop)
            part = whole[tuple(index)]
        assert part.shape == operand.shape(less)
        arrays.append(part)
    found = np.asarray(op.expr(np, *arrays))
    assert found.shape == op.output.shape(less)
    return found


@pytest.mark.parametrize("op", [op for op in OPS if op.split is not None], ids=by_name)
@given(share=st.floats(0, 1))
def test_two_parts_make_the_whole(op: Op, share: float) -> None:
    for params in SHAPES_TO_SPLIT.get(op.name, ({"n": n} for n in (1000, 257, 1))):
        if op.fits(params) is not None or op.units(params) < 2:
            continue
        split, units = op.split_at(params), op.units(params)
        place = min(max(round(share * units), 1), units - 1)
        first, second = part_of(op, params, 0, place), part_of(op, params, place, units)
        joined = getattr(np, split.join)(first, second) if split.join else np.concatenate([first, second])
        want = np.asarray(op.expr(np, *random_inputs(op, params, "float64", 1)))
        np.testing.assert_allclose(joined, want, rtol=1e-9, atol=1e-12)
