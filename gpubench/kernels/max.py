"""max: one read per element and a single number written: bound by memory.

A NaN wins, as in NumPy: `a` stays if it is NaN, and `b` replaces it unless b <= a is known to hold.
"""

from functools import partial

from gpubench.kernels import _reduce_wgsl, _rows_numpy
from gpubench.kernels._elementwise import LADDER, PARAMS, scalar_shape, vector_shape
from gpubench.model.kernel import Kernel, Limits, WgslProgram
from gpubench.model.op import EXACT, Array, Op, Operand, Params

_BODY = _reduce_wgsl.Body(
    names=("x",),
    start="vec4<f32>(x_[0].x)",  # WGSL has no literal for minus infinity; any element serves
    element="x",
    join="select(a, b, !(b <= a) & (a == a))",
    finish="join1(join1(a.x, a.y), join1(a.z, a.w))",
)


def _build_wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    return _reduce_wgsl.build(_BODY, params["n"], dtype, limits)


def _expr(xp: Array, x: Array) -> Array:
    return xp.max(x)


OP = Op(
    name="max",
    group="reduction",
    summary="out = largest of x",
    params=PARAMS,
    sizes=LADDER,
    dtypes=("float32", "float64", "float16"),
    inputs=(Operand("x", vector_shape),),
    output=Operand("out", scalar_shape),
    flops=lambda params: params["n"],
    expr=_expr,
    tolerance=EXACT,
    tuned={
        "numpy": (Kernel("numpy", partial(_rows_numpy.reduction, _expr)),),
        "wgpu": (Kernel("wgsl", _build_wgsl),),
    },
)
