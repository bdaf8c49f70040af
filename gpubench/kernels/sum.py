"""sum: one read per element and a single number written: bound by memory."""

from gpubench.kernels import _reduce_cuda, _reduce_numpy, _reduce_wgsl
from gpubench.kernels._elementwise import LADDER, PARAMS, WORKING_DTYPES, scalar_shape, vector_shape
from gpubench.model.kernel import CudaProgram, Kernel, Limits, WgslProgram
from gpubench.model.op import Array, Op, Operand, Params, Split, Tolerance, counted_by

_BODY = _reduce_wgsl.Body(names=("x",), start="zero", element="x", join="a + b")
_CUDA = _reduce_cuda.Body("sum", ("x",), "x")


def _build_wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    return _reduce_wgsl.build(_BODY, params["n"], dtype, limits)


def _build_cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    return _reduce_cuda.build(_CUDA, params["n"], dtype)


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
    split=Split({"x": 0}, counted_by("n"), join="add"),
    tuned={
        "numpy": (Kernel("numpy", _reduce_numpy.total),),
        "wgpu": (Kernel("wgsl", _build_wgsl),),
        "cupy": (Kernel("cuda", _build_cuda),),
    },
)
