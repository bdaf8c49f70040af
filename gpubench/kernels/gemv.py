"""gemv: out = A x, a matrix times a vector: every element of A is read once, so bound by memory.

A is n x n, or `m` x n where a param `m` is given.
"""

from gpubench.kernels.families import cpu, gemv
from gpubench.kernels.families.elementwise import WORKING_DTYPES, vector_shape
from gpubench.model.kernel import Kernel
from gpubench.model.op import Array, Ladder, Op, Operand, Params, Split, Tolerance, counted_by


def sides(params: Params) -> tuple[int, int]:
    """(m, n): rows and columns of A."""
    return (params.get("m", params["n"]), params["n"])


def _flops(params: Params) -> int:
    m, n = sides(params)
    return 2 * m * n


def _scale(xp: Array, a: Array, x: Array) -> Array:
    """The norms of the rows of A times the norm of x."""
    return xp.sqrt(xp.sum(a * a, axis=1)) * xp.sqrt(xp.sum(x * x))


OP = Op(
    name="gemv",
    group="matrix",
    summary="out = A x, A n x n",
    params={"n": "side of the square matrix A"},
    options={"m": "rows of A; n is its columns (default: n)"},
    sizes=Ladder(low=64, high=4096, granule=8),
    dtypes=WORKING_DTYPES,
    inputs=(Operand("a", sides), Operand("x", vector_shape)),
    output=Operand("out", lambda params: sides(params)[:1]),
    flops=_flops,
    expr=lambda xp, a, x: a @ x,
    tolerance=Tolerance(8, scale=_scale),
    reference=lambda xp, a, x: xp.sum(a * x, axis=1),
    split=Split({"a": 0}, counted_by("m")),
    tuned={
        "numpy": (
            Kernel("numpy", cpu.blas, library=True, dtypes=("float32", "float64")),
            Kernel("numpy", gemv.build_cpu_halves, variant="widened", dtypes=("float16",)),
        ),
        "cupy": (Kernel("cuda", lambda params, dtype, limits: gemv.build_cuda(*sides(params), dtype, limits)),),
        "wgpu": (Kernel("wgsl", lambda params, dtype, limits: gemv.build_wgsl(*sides(params), dtype, limits)),),
    },
)
