"""softmax_grad: y (dy - sum(y dy)) along rows, what frameworks call the backward of softmax; y is its output.

Two reads and one write per element if a row stays on chip. The formula asks nothing of y: its rows need not sum
to one, and here they do not. The product y dy is summed in float (double for double), whatever the elements are stored
in.
"""

from typing import Any

from gpubench.kernels.contract.op import Array, Operand, Tolerance
from gpubench.kernels.templates.rows import CUT_INTO_ROWS, rowwise


def _scale(xp: Array, y: Array, dy: Array) -> Array:
    """|y| (|dy| + sum |y dy|): the terms of the sum may cancel, and so may the difference."""
    return xp.abs(y) * (xp.abs(dy) + xp.sum(xp.abs(y * dy), axis=-1, keepdims=True))


def _torch(torch: Any, y: Any, dy: Any, out: Any) -> Any:
    return torch.ops.aten._softmax_backward_data.out(dy, y, -1, y.dtype, grad_input=out)


OP = rowwise(
    name="softmax_grad",
    group="derivative",
    summary="out = y (dy - sum(y dy)) along rows of up to 1024",
    inputs=(Operand("y", CUT_INTO_ROWS.shape), Operand("dy", CUT_INTO_ROWS.shape)),
    formula=lambda m, y, dy: y * (dy - m.total(y * dy)),
    flops_per_element=4,  # multiply, add, subtract, multiply
    library={"torch": _torch},
    tolerance=Tolerance(8, scale=_scale),
)
