"""softmax_grad: y (dy - sum(y dy)) along rows, what frameworks call the backward of softmax; y is its output.

Two reads and one write per element if a row stays on chip. The formula asks nothing of y: its rows need not sum
to one, and here they do not. The rows are those of `_rows.py`.
"""

from gpubench.kernels import _rows_numpy, _softmax_grad_cuda, _softmax_grad_wgsl
from gpubench.kernels._elementwise import WORKING_DTYPES
from gpubench.kernels._rows import LADDER, OPTIONS, PARAMS, by_rows, fits, rows_of, shape
from gpubench.model.kernel import Kernel
from gpubench.model.op import Array, Op, Operand, Split, Tolerance


def _expr(xp: Array, y: Array, dy: Array) -> Array:
    return y * (dy - xp.sum(y * dy, axis=-1, keepdims=True))


def _reference(xp: Array, y: Array, dy: Array) -> Array:
    """The same as the vector dy times the softmax's Jacobian diag(y) - y y^T, the inner product by einsum."""
    inner = xp.einsum("ij,ij->i", y, dy)
    return y * dy - inner[:, None] * y


def _scale(xp: Array, y: Array, dy: Array) -> Array:
    """|y| (|dy| + sum |y dy|): the terms of the sum may cancel, and so may the difference."""
    return xp.abs(y) * (xp.abs(dy) + xp.sum(xp.abs(y * dy), axis=-1, keepdims=True))


OP = Op(
    name="softmax_grad",
    group="derivative",
    summary="out = y (dy - sum(y dy)) along rows of up to 1024",
    params=PARAMS,
    options=OPTIONS,
    fits=fits,
    sizes=LADDER,
    dtypes=WORKING_DTYPES,
    inputs=(Operand("y", shape), Operand("dy", shape)),
    output=Operand("out", shape),
    # multiply, add, subtract, multiply
    flops=lambda params: 4 * params["n"],
    expr=_expr,
    tolerance=Tolerance(8, scale=_scale),
    reference=_reference,
    split=Split({"y": 0, "dy": 0}, rows_of),
    tuned={
        "numpy": (Kernel("numpy", _rows_numpy.softmax_grad),),
        "cupy": (Kernel("cuda", by_rows(_softmax_grad_cuda.build)),),
        "wgpu": (Kernel("wgsl", by_rows(_softmax_grad_wgsl.build)),),
    },
)
