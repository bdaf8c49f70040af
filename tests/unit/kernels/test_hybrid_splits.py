"""The parts of every op that can be cut make the whole, at every place where it can be cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.backends.shared.host import random_inputs
from gpubench.kernels.contract.op import Op, Params

OPS = {name: op for name in kernels.usual() if (op := kernels.load(name)).split is not None}
SHAPES = {
    "matmul": [{"n": 7}, {"n": 5, "m": 9, "k": 3}, {"n": 4, "batch": 6}, {"n": 4, "m": 2, "batch": 3}],
    "gemv": [{"n": 11}, {"n": 5, "m": 13}],
    "transpose": [{"n": 11}, {"n": 5, "m": 13}],
    "softmax": [{"n": 2048}, {"n": 63}, {"n": 60, "columns": 5}],
    "softmax_grad": [{"n": 2048}, {"n": 60, "columns": 5}],
}


def shapes(op: Op) -> list[Params]:
    return SHAPES.get(op.name) or [params for n in (1000, 257, 1) if op.fits(params := {"n": n}) is None]


def part_of(op: Op, params: Params, start: int, stop: int) -> np.ndarray:
    """The op on one part, from arrays of exactly the shapes that the part's params declare."""
    split = op.split_at(params)
    assert split is not None
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


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
@given(share=st.floats(0, 1))
def test_two_parts_make_the_whole(op: Op, share: float) -> None:
    for params in shapes(op):
        split, units = op.split_at(params), op.units(params)
        assert split is not None
        if units < 2:
            continue
        place = min(max(round(share * units), 1), units - 1)
        first, second = part_of(op, params, 0, place), part_of(op, params, place, units)
        joined = getattr(np, split.join)(first, second) if split.join else np.concatenate([first, second])
        want = np.asarray(op.expr(np, *random_inputs(op, params, "float64", 1)))
        np.testing.assert_allclose(joined, want, rtol=1e-9, atol=1e-12)


def test_an_overhead_cannot_be_split() -> None:
    assert kernels.load("launch").split_at({"n": 1}) is None
    assert kernels.load("launch").units({"n": 1}) == 0
