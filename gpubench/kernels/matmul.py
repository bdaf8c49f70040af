"""matmul: C = A B, the op in which a GPU's arithmetic counts: 2 n^3 operations on 3 n^2 elements.

A is n x n, or `m` x `k` with B `k` x n where these params are given.
"""

from gpubench.errors import Unsupported
from gpubench.kernels import _matmul_wgsl
from gpubench.model.kernel import CudaProgram, Kernel, Limits, WgslProgram
from gpubench.model.op import Array, Ladder, Op, Operand, Params, Shape, Tolerance


def sides(params: Params) -> tuple[int, int, int]:
    """(m, n, k): rows of C, columns of C, length of the inner products."""
    n = params["n"]
    return (params.get("m", n), n, params.get("k", n))


def _shape_a(params: Params) -> Shape:
    m, _, k = sides(params)
    return (m, k)


def _shape_b(params: Params) -> Shape:
    _, n, k = sides(params)
    return (k, n)


def _shape_out(params: Params) -> Shape:
    m, n, _ = sides(params)
    return (m, n)


def _flops(params: Params) -> int:
    m, n, k = sides(params)
    return 2 * m * n * k


def _scale(xp: Array, a: Array, b: Array) -> Array:
    """The product of the norms of row i of A and column j of B."""
    rows = xp.sqrt(xp.sum(a * a, axis=1, keepdims=True))
    return rows * xp.sqrt(xp.sum(b * b, axis=0, keepdims=True))


def _register(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    return _matmul_wgsl.register(*sides(params), dtype, limits)


def _tiled(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    return _matmul_wgsl.tiled(*sides(params), dtype, limits)


def _naive(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    return _matmul_wgsl.naive(*sides(params), dtype, limits)


def _blas(np: Array, blocks: Array, params: Params) -> Array:
    """The BLAS behind NumPy uses all cores by itself; only the temporary is saved."""
    return lambda inputs, output: np.matmul(inputs[0], inputs[1], out=output)


def _cublas(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    raise Unsupported("cuBLAS behind the library call is the tuned kernel", reason="no-implementation")


OP = Op(
    name="matmul",
    group="matrix",
    summary="C = A B of n x n matrices",
    params={"n": "side of the square matrices"},
    sizes=Ladder(low=32, high=4096, factor=2, granule=8),
    dtypes=("float32", "float64"),
    inputs=(Operand("a", _shape_a), Operand("b", _shape_b)),
    output=Operand("out", _shape_out),
    flops=_flops,
    expr=lambda xp, a, b: a @ b,
    tolerance=Tolerance(8, scale=_scale),
    split={"a": 0},
    tuned={
        "numpy": (Kernel("numpy", _blas, library=True),),
        "cupy": (Kernel("cuda", _cublas, library=True),),
        "wgpu": (
            Kernel("wgsl", _register, variant="register"),
            Kernel("wgsl", _tiled, variant="tiled"),
            Kernel("wgsl", _naive, variant="naive"),
        ),
    },
)
