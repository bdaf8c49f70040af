"""softmax along rows: exp(x - max) / sum of it; one read and one write per element if a row stays on chip.

n elements are cut into rows of `columns`: the largest divisor of n up to 1024. If that is below 32 while n
is at most 65,536 (a prime n, say), all of n is one row. A param `columns` that divides n overrides the rule.
"""

from gpubench.kernels import _rows_numpy, _softmax_cuda, _softmax_wgsl
from gpubench.model.kernel import CudaProgram, Kernel, Limits, WgslProgram
from gpubench.model.op import Array, Ladder, Op, Operand, Params, Shape, Tolerance

_WIDEST, _NARROWEST, _ONE_ROW = 1024, 32, 65536


def columns(params: Params) -> int:
    """The length of a row."""
    n = params["n"]
    if "columns" in params:
        return params["columns"]
    width = next(d for d in range(min(n, _WIDEST), 0, -1) if n % d == 0)
    return n if width < _NARROWEST and n <= _ONE_ROW else width


def _shape(params: Params) -> Shape:
    """(rows, columns)."""
    return (params["n"] // columns(params), columns(params))


def _expr(xp: Array, x: Array) -> Array:
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def _reference(xp: Array, x: Array) -> Array:
    """The same as exp(z - log(sum(exp(z)))) of the shifted rows z: no division."""
    z = x - xp.max(x, axis=-1, keepdims=True)
    return xp.exp(z - xp.log(xp.sum(xp.exp(z), axis=-1, keepdims=True)))


def _build_wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    rows, width = _shape(params)
    return _softmax_wgsl.build(rows, width, dtype, limits)


def _build_cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    rows, width = _shape(params)
    return _softmax_cuda.build(rows, width, dtype)


OP = Op(
    name="softmax",
    group="activation",
    summary="out = exp(x - max(x)) / sum(exp(x - max(x))) along rows of up to 1024",
    params={"n": "number of elements (a multiple of 1024 gives rows of 1024)"},
    sizes=Ladder(low=2**10, high=2**24, granule=1024),
    dtypes=("float32", "float64"),
    inputs=(Operand("x", _shape, values="normal"),),
    output=Operand("out", _shape),
    # max, subtract, exp, add, divide
    flops=lambda params: 5 * params["n"],
    expr=_expr,
    tolerance=Tolerance(64),
    reference=_reference,
    split={"x": 0},
    tuned={
        "numpy": (Kernel("numpy", _rows_numpy.softmax),),
        "cupy": (Kernel("cuda", _build_cuda),),
        "wgpu": (Kernel("wgsl", _build_wgsl),),
    },
)
