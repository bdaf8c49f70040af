"""max: one read per element and a single number written: bound by memory.

A NaN wins, as in NumPy: `a` stays if it is NaN, and `b` replaces it unless b <= a is known to hold.
"""

from gpubench.errors import Unsupported
from gpubench.kernels import _reduce_cuda, _reduce_numpy, _reduce_wgsl
from gpubench.kernels._elementwise import LADDER, PARAMS, WORKING_DTYPES, scalar_shape, vector_shape
from gpubench.model.kernel import CudaProgram, Kernel, Limits, WgslProgram
from gpubench.model.op import EXACT, Array, Op, Operand, Params, Split, counted_by

_BODY = _reduce_wgsl.Body(
    names=("x",),
    start="minus infinity",
    element="x",
    join="select(a, b, !(b <= a) & (a == a))",
)
_CUDA = _reduce_cuda.Body("max", ("x",), "x", "larger(a, b)", _reduce_cuda.MINUS_INFINITY)


def _build_wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    if params["n"] == 0:
        raise Unsupported("no elements have no largest one: NumPy raises here, too")
    return _reduce_wgsl.build(_BODY, params["n"], dtype, limits)


def _build_cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    if params["n"] == 0:
        raise Unsupported("no elements have no largest one: NumPy raises here, too")
    return _reduce_cuda.build(_CUDA, params["n"], dtype)


def _expr(xp: Array, x: Array) -> Array:
    return xp.max(x)


OP = Op(
    name="max",
    group="reduction",
    summary="out = largest of x",
    params=PARAMS,
    sizes=LADDER,
    dtypes=WORKING_DTYPES,
    inputs=(Operand("x", vector_shape),),
    output=Operand("out", scalar_shape),
    flops=lambda params: params["n"],
    expr=_expr,
    tolerance=EXACT,
    split=Split({"x": 0}, counted_by("n"), join="maximum"),
    tuned={
        "numpy": (Kernel("numpy", _reduce_numpy.largest),),
        "wgpu": (Kernel("wgsl", _build_wgsl),),
        "cupy": (Kernel("cuda", _build_cuda),),
    },
)
