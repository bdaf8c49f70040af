"""gemv: out = A x, a matrix times a vector: every element of A is read once, so bound by memory.

A is n x n, or `m` x n where a param `m` is given.
"""

from gpubench.kernels import _gemv_cuda, _gemv_wgsl, _matrix_numpy
from gpubench.kernels._elementwise import WORKING_DTYPES
from gpubench.model.kernel import CudaProgram, Kernel, Limits, WgslProgram
from gpubench.model.op import Array, Ladder, Op, Operand, Params, Shape, Split, Tolerance, counted_by


def sides(params: Params) -> tuple[int, int]:
    """(m, n): rows and columns of A."""
    return (params.get("m", params["n"]), params["n"])


def _flops(params: Params) -> int:
    m, n = sides(params)
    return 2 * m * n


def _shape_x(params: Params) -> Shape:
    return (params["n"],)


def _shape_out(params: Params) -> Shape:
    return (sides(params)[0],)


def _scale(xp: Array, a: Array, x: Array) -> Array:
    """The norms of the rows of A times the norm of x."""
    return xp.sqrt(xp.sum(a * a, axis=1)) * xp.sqrt(xp.sum(x * x))


def _build_wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    return _gemv_wgsl.build(*sides(params), dtype, limits)


def _build_cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    return _gemv_cuda.build(*sides(params), dtype, limits)


OP = Op(
    name="gemv",
    group="matrix",
    summary="out = A x, A n x n",
    params={"n": "side of the square matrix A"},
    options={"m": "rows of A; n is its columns (default: n)"},
    sizes=Ladder(low=64, high=4096, granule=8),
    dtypes=WORKING_DTYPES,
    inputs=(Operand("a", sides), Operand("x", _shape_x)),
    output=Operand("out", _shape_out),
    flops=_flops,
    expr=lambda xp, a, x: a @ x,
    tolerance=Tolerance(8, scale=_scale),
    reference=lambda xp, a, x: xp.sum(a * x, axis=1),
    split=Split({"a": 0}, counted_by("m")),
    tuned={
        "numpy": (
            Kernel("numpy", _matrix_numpy.blas, library=True, dtypes=("float32", "float64")),
            Kernel("numpy", _matrix_numpy.gemv, variant="widened", dtypes=("float16",)),
        ),
        "cupy": (Kernel("cuda", _build_cuda),),
        "wgpu": (Kernel("wgsl", _build_wgsl),),
    },
)
