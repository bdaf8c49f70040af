"""sum: one read per element and a single number written: bound by memory."""

from functools import partial

from gpubench.kernels import _reduce_wgsl, _rows_numpy
from gpubench.kernels._elementwise import LADDER, PARAMS, WORKING_DTYPES, scalar_shape, vector_shape
from gpubench.model.kernel import Kernel, Limits, WgslProgram
from gpubench.model.op import Array, Op, Operand, Params, Tolerance

_BODY = _reduce_wgsl.Body(
    names=("x",), start="vec4<f32>()", element="x", join="a + b", finish="a.x + a.y + (a.z + a.w)"
)


def _build_wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    return _reduce_wgsl.build(_BODY, params["n"], dtype, limits)


def _expr(xp: Array, x: Array) -> Array:
    return xp.sum(x)


OP = Op(
    name="sum",
    group="reduction",
    summary="out = x[0] + x[1] + ... + x[n - 1]",
    params=PARAMS,
    sizes=LADDER,
    dtypes=WORKING_DTYPES,
    inputs=(Operand("x", vector_shape),),
    output=Operand("out", scalar_shape),
    flops=lambda params: params["n"],
    expr=_expr,
    tolerance=Tolerance(4, scale=lambda xp, x: xp.sum(xp.abs(x))),
    tuned={
        "numpy": (Kernel("numpy", partial(_rows_numpy.reduction, _expr)),),
        "wgpu": (Kernel("wgsl", _build_wgsl),),
    },
)
