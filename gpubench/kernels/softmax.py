"""softmax along rows: exp(x - max) / sum of it; one read and one write per element if a row stays on chip.

The rows are those of `_rows.py`: of 1024 for sizes that are multiples of it, or as long as `columns` says.
"""

from gpubench.kernels import _rows_numpy, _softmax_cuda, _softmax_wgsl
from gpubench.kernels._elementwise import WORKING_DTYPES
from gpubench.kernels._rows import LADDER, OPTIONS, PARAMS, by_rows, fits, rows_of, shape
from gpubench.model.kernel import Kernel
from gpubench.model.op import Array, Op, Operand, Split, Tolerance


def _expr(xp: Array, x: Array) -> Array:
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def _reference(xp: Array, x: Array) -> Array:
    """The same as exp(z - log(sum(exp(z)))) of the shifted rows z: no division."""
    z = x - xp.max(x, axis=-1, keepdims=True)
    return xp.exp(z - xp.log(xp.sum(xp.exp(z), axis=-1, keepdims=True)))


OP = Op(
    name="softmax",
    group="activation",
    summary="out = exp(x - max(x)) / sum(exp(x - max(x))) along rows of up to 1024",
    params=PARAMS,
    options=OPTIONS,
    fits=fits,
    sizes=LADDER,
    dtypes=WORKING_DTYPES,
    inputs=(Operand("x", shape, values="normal"),),
    output=Operand("out", shape),
    # max, subtract, exp, add, divide
    flops=lambda params: 5 * params["n"],
    expr=_expr,
    tolerance=Tolerance(64),
    reference=_reference,
    split=Split({"x": 0}, rows_of),
    tuned={
        "numpy": (Kernel("numpy", _rows_numpy.softmax),),
        "cupy": (Kernel("cuda", by_rows(_softmax_cuda.build)),),
        "wgpu": (Kernel("wgsl", by_rows(_softmax_wgsl.build)),),
    },
)
