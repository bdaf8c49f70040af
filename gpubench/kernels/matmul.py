"""matmul: C = A B, the op in which a GPU's arithmetic counts: 2 n^3 operations on 3 n^2 elements.

A is n x n, or `m` x `k` with B `k` x n where these params are given. With `batch` A and B have one more axis, in
front: so many products of their own, one launch. With `ta` or `tb` that matrix is stored transposed, as the products of
a backward pass find it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from gpubench.kernels.contract.kernel import CudaProduct, CudaProgram, Kernel, Limits, WgslProgram
from gpubench.kernels.contract.op import Array, Ladder, Op, Operand, Params, Shape, Split, Tolerance, counted_by
from gpubench.kernels.templates.cpu import SLOW_HALVES, Blocks, Launch, widen
from gpubench.kernels.templates.matmul import norms, wgsl

_TURNS = ("ta", "tb")
_BLOCK = 256 * 1024  # halves that one thread widens at a time: they have to be in cache still


def sides(params: Params) -> tuple[int, int, int]:
    """(m, n, k): rows of C, columns of C, length of the inner products."""
    n = params["n"]
    return (params.get("m", n), n, params.get("k", n))


def _batch(params: Params) -> Shape:
    return (params["batch"],) if "batch" in params else ()


def _shape_a(params: Params) -> Shape:
    m, _, k = sides(params)
    return (*_batch(params), *((k, m) if params.get("ta") else (m, k)))


def _shape_b(params: Params) -> Shape:
    _, n, k = sides(params)
    return (*_batch(params), *((n, k) if params.get("tb") else (k, n)))


def _shape_out(params: Params) -> Shape:
    m, n, _ = sides(params)
    return (*_batch(params), m, n)


def _flops(params: Params) -> int:
    m, n, k = sides(params)
    return 2 * params.get("batch", 1) * m * n * k


def _fits(params: Params) -> str | None:
    odd = next((name for name in _TURNS if params.get(name, 0) not in (0, 1)), None)
    return None if odd is None else f"{odd} is 1 where the matrix is stored transposed, else 0"


def _split(params: Params) -> Split:
    """Rows of A and C; of a batch, whole products."""
    if "batch" in params:
        return Split({"a": 0, "b": 0}, counted_by("batch"))
    return Split({"a": 1 if params.get("ta") else 0}, counted_by("m"))


def _rows(xp: Array, a: Array, b: Array, ta: int, tb: int) -> tuple[Array, Array]:
    """A and B as they are multiplied: views."""
    return xp.moveaxis(a, -1, -2) if ta else a, xp.moveaxis(b, -1, -2) if tb else b


def _expr(xp: Array, a: Array, b: Array, ta: int = 0, tb: int = 0) -> Array:
    a, b = _rows(xp, a, b, ta, tb)
    return a @ b


def _torch(torch: Any, a: Any, b: Any, ta: int = 0, tb: int = 0, out: Any = None) -> Any:
    product = torch.mm if a.dim() == 2 else torch.bmm
    return product(a.mT if ta else a, b.mT if tb else b, out=out)


def _scale(xp: Array, a: Array, b: Array, ta: int = 0, tb: int = 0) -> Array:
    return norms(xp, *_rows(xp, a, b, ta, tb))


def _product(params: Params, dtype: str) -> wgsl.Product:
    ta, tb = (bool(params.get(name)) for name in _TURNS)
    return wgsl.Product(*sides(params), params.get("batch", 1), dtype, ta, tb)


def _rung(text: str, params: Params, dtype: str, limits: Limits) -> WgslProgram:
    return wgsl.ladder(text, _product(params, dtype), limits)


def _cublas(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    """The call that is behind the library's, into an array that is there: a stage of a workload."""
    m, n, k = sides(params)
    ta, tb = (bool(params.get(name)) for name in _TURNS)
    return CudaProgram((CudaProduct("a", "b", "out", m, n, k, ta, tb, params.get("batch", 1)),))


def _blas(np: Any, blocks: Blocks, params: Params) -> Launch:
    """BLAS, which reads a transposed matrix as it lies."""
    ta, tb = (params.get(name, 0) for name in _TURNS)
    return lambda inputs, output: np.matmul(*_rows(np, inputs[0], inputs[1], ta, tb), out=output)


def multiply_halves(np: Any, blocks: Blocks, params: Params) -> Launch:
    """Halves as float32 through BLAS, whose own threads multiply; NumPy's own product of halves is a plain loop."""

    ta, tb = (params.get(name, 0) for name in _TURNS)

    def launch(arrays: Sequence[Array], output: Array) -> None:
        wide = [np.empty(x.shape, np.float32) for x in arrays]
        for half, target in zip(arrays, wide, strict=True):
            flat, flat_target = half.reshape(-1), target.reshape(-1)
            blocks.run(partial(_widen_slice, np, flat, flat_target), half.size, _BLOCK)
        flat_output = output.reshape(-1)
        product = np.matmul(*_rows(np, wide[0], wide[1], ta, tb)).reshape(-1)

        def narrow(start: int, stop: int) -> None:
            with np.errstate(all="ignore"):
                np.copyto(flat_output[start:stop], product[start:stop], casting="same_kind")

        blocks.run(narrow, output.size, _BLOCK)

    return launch


def _widen_slice(np: Any, half: Array, wide: Array, start: int, stop: int) -> None:
    widen(np, half[start:stop], wide[start:stop])


OPS = (
    Op(
        name="matmul",
        group="matrix",
        summary="C = A B of n x n matrices",
        params={"n": "side of the square matrices"},
        options={
            "m": "rows of A and C",
            "k": "columns of A, rows of B",
            "batch": "products in one launch, each of its own A and B",
            "ta": "1: A is stored transposed",
            "tb": "1: B is stored transposed",
        },
        fits=_fits,
        takes=_TURNS,
        sizes=Ladder(low=32, high=4096, factor=2, granule=8),
        inputs=(Operand("a", _shape_a), Operand("b", _shape_b)),
        output=Operand("out", _shape_out),
        flops=_flops,
        expr=_expr,
        library={"torch": _torch},
        tolerance=Tolerance(8, scale=_scale),
        split=_split,
        blas=("numpy", "torch"),
        tf32=("cupy", "torch"),
        slow=SLOW_HALVES,
        tuned={
            "numpy": (
                Kernel("numpy", _blas, library=True, dtypes=("float32", "float64")),
                Kernel("numpy", multiply_halves, variant="widened", dtypes=("float16",)),
            ),
            "cupy": (Kernel("cuda", _cublas, library=True),),
            "wgpu": (
                wgsl.kernel(_product),
                Kernel("wgsl", partial(_rung, wgsl.TILED), variant="tiled"),
                Kernel("wgsl", partial(_rung, wgsl.NAIVE), variant="naive"),
            ),
        },
    ),
)
