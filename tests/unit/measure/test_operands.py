"""Inputs and references of a smaller size are the beginning of those of a larger one, where an op is cut so."""

import numpy as np
import pytest

from gpubench import kernels
from gpubench.backends.shared import host
from gpubench.measure.worker.operands import Operands
from gpubench.result.case import Case
from tests import judging

# Drawing does not know the op, nor cutting the dtype: of each op two dtypes, each with another kind of values.
DRAWN = [
    (name, *drawn) for name in kernels.usual()
    for drawn in zip(kernels.load(name).dtypes, ("random", "normal"), strict=False)
]  # fmt: skip


def case(op, n, dtype, **shape):
    return Case(op.name, op.group, {"n": n, **shape}, dtype, "library", "resident", "numpy:0")


def sizes(op):
    """Three small sizes of its ladder, the largest first, as a visit asks for them."""
    small, middle, large = op.sizes.sizes()[:3] if op.sizes.low < 1024 else (1024, 3072, 4096)
    return large, small, middle


@pytest.mark.parametrize(("name", "dtype", "kind"), DRAWN)
def test_a_smaller_size_has_the_inputs_and_the_answer_that_it_has_alone(name, dtype, kind, tmp_path):
    op = kernels.load(name)
    shared = Operands(op, 1, kind, tmp_path)
    for n in sizes(op):
        ours = case(op, n, dtype)
        inputs = host.random_inputs(op, ours.params, dtype, 1, kind)
        found = shared.inputs(ours)
        assert [x.shape for x in found] == [operand.shape(ours.params) for operand in op.inputs]
        assert [x.tobytes() for x in found] == [x.tobytes() for x in inputs]
        assert all(x.flags["C_CONTIGUOUS"] for x in found)
        ((want, scale, _),) = shared.references(ours)
        expected, spread, _ = judging.reference(op, inputs, tmp_path, f"alone {name} {n} {dtype} {kind}")
        assert want.shape == expected.shape
        np.testing.assert_allclose(want, expected, rtol=1e-12, atol=1e-12)
        assert (scale is None) == (spread is None)
        if scale is not None:
            ours, theirs = (np.broadcast_to(found, want.shape) for found in (scale, spread))
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("other", [
    ("add", 1000, "float64", {}), ("add", 2000, "float32", {}), ("softmax", 1024, "float32", {"columns": 64}),
])  # fmt: skip
def test_a_larger_size_another_dtype_and_another_shape_are_made_anew(other, tmp_path):
    name, n, dtype, shape = other
    op = kernels.load(name)
    shared, larger = Operands(op, 1, "random", tmp_path), case(op, n, dtype, **shape)
    shared.inputs(case(op, 1024 if shape else 1000, "float32"))
    alone = host.random_inputs(op, larger.params, dtype, 1)
    assert [(x.shape, x.tobytes()) for x in shared.inputs(larger)] == [(x.shape, x.tobytes()) for x in alone]


@pytest.mark.parametrize(("name", "begins"), [
    ("add", True), ("gelu", True), ("softmax", True), ("matmul", False), ("dot", True),
])  # fmt: skip
def test_ops_of_one_length_begin_and_those_of_squares_do_not(name, begins):
    op = kernels.load(name)
    low, high = op.sizes.snap(4096), op.sizes.high
    assert op.begins({"n": low}, {"n": high}) == begins
    assert not op.begins({"n": high}, {"n": low}) or low == high


def test_rows_of_another_length_do_not_begin():
    op = kernels.load("softmax")
    assert op.begins({"n": 2048, "columns": 256}, {"n": 4096, "columns": 256})
    assert not op.begins({"n": 1117}, {"n": 4096}), "one row of 1117"
