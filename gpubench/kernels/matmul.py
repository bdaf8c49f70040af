"""matmul: C = A B, the op in which a GPU's arithmetic counts: 2 n^3 operations on 3 n^2 elements.

A is n x n, or `m` x `k` with B `k` x n where these params are given. With `batch` A and B have one more axis, in
front: so many products of their own, one launch.
"""

from gpubench.errors import Unsupported
from gpubench.kernels import _matmul_wgsl, _matrix_numpy
from gpubench.model.kernel import Candidate, CudaProgram, Kernel, Limits, WgslProgram
from gpubench.model.op import Array, Dtype, Ladder, Op, Operand, Params, Shape, Split, Tolerance, counted_by

# NumPy multiplies halves without its BLAS: 0.6 to 0.8 GFLOP/s on one core (256 to 512, a Xeon of 2023).
_NUMPY_HALF_FLOPS_PER_S = 1e9


def sides(params: Params) -> tuple[int, int, int]:
    """(m, n, k): rows of C, columns of C, length of the inner products."""
    n = params["n"]
    return (params.get("m", n), n, params.get("k", n))


def _batch(params: Params) -> Shape:
    return (params["batch"],) if "batch" in params else ()


def _shape_a(params: Params) -> Shape:
    m, _, k = sides(params)
    return (*_batch(params), m, k)


def _shape_b(params: Params) -> Shape:
    _, n, k = sides(params)
    return (*_batch(params), k, n)


def _shape_out(params: Params) -> Shape:
    m, n, _ = sides(params)
    return (*_batch(params), m, n)


def _flops(params: Params) -> int:
    m, n, k = sides(params)
    return 2 * params.get("batch", 1) * m * n * k


def _split(params: Params) -> Split:
    """Rows of A and C; of a batch, whole products."""
    if "batch" in params:
        return Split({"a": 0, "b": 0}, counted_by("batch"))
    return Split({"a": 0}, counted_by("m"))


def _scale(xp: Array, a: Array, b: Array) -> Array:
    """The product of the norms of row i of A and column j of B."""
    rows = xp.sqrt(xp.sum(a * a, axis=-1, keepdims=True))
    return rows * xp.sqrt(xp.sum(b * b, axis=-2, keepdims=True))


def _candidates(params: Params, dtype: Dtype, limits: Limits) -> tuple[Candidate, ...]:
    return _matmul_wgsl.register(*sides(params), params.get("batch", 1), dtype, limits)


def _register(params: Params, dtype: Dtype, limits: Limits) -> WgslProgram:
    return _candidates(params, dtype, limits)[0].build()


def _tiled(params: Params, dtype: Dtype, limits: Limits) -> WgslProgram:
    return _matmul_wgsl.tiled(*sides(params), params.get("batch", 1), dtype, limits)


def _naive(params: Params, dtype: Dtype, limits: Limits) -> WgslProgram:
    return _matmul_wgsl.naive(*sides(params), params.get("batch", 1), dtype, limits)


def _cublas(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    raise Unsupported("cuBLAS behind the library call is the tuned kernel", reason="no-implementation")


OP = Op(
    name="matmul",
    group="matrix",
    summary="C = A B of n x n matrices",
    params={"n": "side of the square matrices"},
    options={
        "m": "rows of A and C",
        "k": "columns of A, rows of B",
        "batch": "products in one launch, each of its own A and B",
    },
    sizes=Ladder(low=32, high=4096, factor=2, granule=8),
    dtypes=("float32", "float64", "float16", "bfloat16"),
    inputs=(Operand("a", _shape_a), Operand("b", _shape_b)),
    output=Operand("out", _shape_out),
    flops=_flops,
    expr=lambda xp, a, b: a @ b,
    tolerance=Tolerance(8, scale=_scale),
    split=_split,
    tf32=("cupy",),
    slow={("numpy", "float16"): _NUMPY_HALF_FLOPS_PER_S},
    tuned={
        "numpy": (
            Kernel("numpy", _matrix_numpy.blas, library=True, dtypes=("float32", "float64")),
            Kernel("numpy", _matrix_numpy.matmul, variant="widened", dtypes=("float16",)),
        ),
        "cupy": (Kernel("cuda", _cublas, library=True),),
        "wgpu": (
            Kernel("wgsl", _register, variant="register", candidates=_candidates),
            Kernel("wgsl", _tiled, variant="tiled"),
            Kernel("wgsl", _naive, variant="naive"),
        ),
    },
)
