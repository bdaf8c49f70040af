"""dot: the sum of x[i] * y[i]; two reads per element and a single number written."""

from gpubench.kernels import _reduce_cuda, _reduce_numpy, _reduce_wgsl
from gpubench.kernels._elementwise import LADDER, PARAMS, WORKING_DTYPES, scalar_shape, vector_shape
from gpubench.model.kernel import CudaProgram, Kernel, Limits, WgslProgram
from gpubench.model.op import Array, Op, Operand, Params, Split, Tolerance, counted_by

_BODY = _reduce_wgsl.Body(names=("x", "y"), start="zero", element="x * y", join="a + b")
_CUDA = _reduce_cuda.Body("dot", ("x", "y"), "x * y")


def _scale(xp: Array, x: Array, y: Array) -> Array:
    """The product of the two vectors' norms."""
    return xp.sqrt(xp.sum(x * x)) * xp.sqrt(xp.sum(y * y))


def _build_wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    return _reduce_wgsl.build(_BODY, params["n"], dtype, limits)


def _build_cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    return _reduce_cuda.build(_CUDA, params["n"], dtype)


def _expr(xp: Array, x: Array, y: Array) -> Array:
    return x @ y


OP = Op(
    name="dot",
    group="vector",
    summary="out = x[0] y[0] + ... + x[n - 1] y[n - 1]",
    params=PARAMS,
    sizes=LADDER,
    dtypes=WORKING_DTYPES,
    inputs=(Operand("x", vector_shape), Operand("y", vector_shape)),
    output=Operand("out", scalar_shape),
    flops=lambda params: 2 * params["n"],
    expr=_expr,
    tolerance=Tolerance(8, scale=_scale),
    reference=lambda xp, x, y: xp.sum(x * y),
    split=Split({"x": 0, "y": 0}, counted_by("n"), join="add"),
    tuned={
        "numpy": (Kernel("numpy", _reduce_numpy.inner_product),),
        "wgpu": (Kernel("wgsl", _build_wgsl),),
        "cupy": (Kernel("cuda", _build_cuda),),
    },
)
