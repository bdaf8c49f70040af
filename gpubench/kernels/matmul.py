"""matmul: C = A B, the op in which a GPU's arithmetic counts: 2 n^3 operations on 3 n^2 elements.

A is n x n, or `m` x `k` with B `k` x n where these params are given. With `batch` A and B have one more axis, in
front: so many products of their own, one launch.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from gpubench.errors import Unsupported
from gpubench.kernels.families.cpu import Blocks, Launch, blas, widen
from gpubench.kernels.families.matmul import wgsl
from gpubench.model.kernel import Candidate, CudaProgram, Kernel, Limits, WgslProgram
from gpubench.model.op import Array, Dtype, Ladder, Op, Operand, Params, Shape, Split, Tolerance, counted_by

_BLOCK = 256 * 1024  # halves that one thread widens at a time: they have to be in cache still
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


def _product(params: Params, dtype: Dtype) -> wgsl.Product:
    return wgsl.Product(*sides(params), params.get("batch", 1), dtype)


def _candidates(params: Params, dtype: Dtype, limits: Limits) -> tuple[Candidate, ...]:
    return wgsl.candidates(_product(params, dtype), limits)


def _register(params: Params, dtype: Dtype, limits: Limits) -> WgslProgram:
    program: WgslProgram = _candidates(params, dtype, limits)[0].build()
    return program


def _rung(text: str, params: Params, dtype: Dtype, limits: Limits) -> WgslProgram:
    return wgsl.ladder(text, _product(params, dtype), limits)


def _cublas(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    raise Unsupported("cuBLAS behind the library call is the tuned kernel", reason="no-implementation")


def multiply_halves(np: Any, blocks: Blocks, params: Params) -> Launch:
    """Halves as float32 through BLAS, whose own threads multiply; NumPy's own product of halves is a plain loop."""

    def launch(arrays: Sequence[Array], output: Array) -> None:
        wide = [np.empty(x.shape, np.float32) for x in arrays]
        for half, target in zip(arrays, wide, strict=True):
            flat, flat_target = half.reshape(-1), target.reshape(-1)
            blocks.run(partial(_widen_slice, np, flat, flat_target), half.size, _BLOCK)
        flat_output, product = output.reshape(-1), np.matmul(*wide).reshape(-1)

        def narrow(start: int, stop: int) -> None:
            with np.errstate(all="ignore"):
                np.copyto(flat_output[start:stop], product[start:stop], casting="same_kind")

        blocks.run(narrow, output.size, _BLOCK)

    return launch


def _widen_slice(np: Any, half: Array, wide: Array, start: int, stop: int) -> None:
    widen(np, half[start:stop], wide[start:stop])


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
    tf32=("cupy", "torch"),
    slow={("numpy", "float16"): _NUMPY_HALF_FLOPS_PER_S},
    tuned={
        "numpy": (
            Kernel("numpy", blas, library=True, dtypes=("float32", "float64")),
            Kernel("numpy", multiply_halves, variant="widened", dtypes=("float16",)),
        ),
        "cupy": (Kernel("cuda", _cublas, library=True),),
        "wgpu": (
            Kernel("wgsl", _register, variant="register", candidates=_candidates),
            Kernel("wgsl", partial(_rung, wgsl.TILED), variant="tiled"),
            Kernel("wgsl", partial(_rung, wgsl.NAIVE), variant="naive"),
        ),
    },
)
