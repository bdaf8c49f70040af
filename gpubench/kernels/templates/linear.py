"""Products of a layer: n rows times a matrix of weights, and what is done to the result before anyone reads it.

- CPU: slabs. Each block thread takes rows, multiplies them with a BLAS of one thread, and applies bias and activation
  while they are in its cache: on two cores half the time of the plain expression. Few rows go through BLAS at once, on
  its own threads.
- CUDA: cuBLAS, then one pass over the result, where CuPy's expression makes one pass for each operation. Few rows take
  one launch for all of it.
- WGSL: the register-blocked matmul, whose threads apply the rest to what they hold; few rows have their own kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpubench.kernels.contract.kernel import CudaProduct, CudaProgram, Limits, by_backend
from gpubench.kernels.contract.op import Array, Ladder, Op, Operand, Params, Shape, Split, counted_by
from gpubench.kernels.templates.cpu import SLOW_HALVES, Blocks, Launch, ThreadScratch, widen
from gpubench.kernels.templates.matmul import few_rows, wgsl
from gpubench.kernels.templates.matmul.epilogue import Epilogue

_WIDTH = 256
_OPTIONS = {"k": f"columns of the input ({_WIDTH})", "m": f"columns of the result ({_WIDTH})"}
# Rows of a slab: fewer make every product of BLAS read the weights too often, more leave its cache.
_FEWEST_ROWS, _SLAB = 128, 256 * 1024


def sides(params: Params) -> tuple[int, int, int]:
    """(n, m, k): rows, columns of the result, columns of the input."""
    return params["n"], params.get("m", _WIDTH), params.get("k", _WIDTH)


def rows_in(params: Params) -> Shape:
    n, _, k = sides(params)
    return (n, k)


def rows_out(params: Params) -> Shape:
    n, m, _ = sides(params)
    return (n, m)


def across(params: Params) -> Shape:
    return (sides(params)[1],)


def norms(xp: Array, x: Array, w: Array) -> Array:
    """The product of the norms of row i of x and column j of w."""
    rows = xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))
    return rows * xp.sqrt(xp.sum(w * w, axis=-2, keepdims=True))


def scale_of_sum(xp: Array, x: Array, w: Array, *added: Array) -> Array:
    """The scale of x w + b + ..."""
    return sum((xp.abs(other) for other in added), norms(xp, x, w))


def linear(
    *, epilogue: Epilogue, turned: bool = False, expr: Callable[..., Array] | None = None, **declared: Any,
) -> Op:  # fmt: skip
    """The op that multiplies rows x with weights w and applies `epilogue`, whose operands are the inputs after them.

    `turned`: the rows are gradients dy, and the weights are stored m x k, as those of the layer that they go back
    through. `expr` is an array expression that is better than the epilogue's formula of the product, and `declared` are
    the op's name, group, summary, `library` and `tolerance`.
    """
    x = "dy" if turned else "x"
    w = Operand("w", partial(_weights, turned), "fan-in", role="weight")
    beside = tuple(
        Operand(other, across, "normal", role="weight")
        if along == "across"
        else Operand(other, rows_out, "normal")
        for other, along in epilogue.operands.items()
    )
    on_arrays = partial(_product, turned, epilogue.traced.on_arrays(epilogue.formula))
    names = (x, w.name)
    cut = {x: 0, **{other: 0 for other, along in epilogue.operands.items() if along == "all"}}
    return Op(
        params={"n": "number of rows"}, options=_OPTIONS, sizes=Ladder(low=1, high=16384),
        inputs=(Operand(x, rows_in, "normal"), w, *beside), output=Operand("out", rows_out),
        flops=partial(_flops, epilogue.flops), expr=expr or on_arrays, reference=None if expr is None else on_arrays,
        split=Split(cut, counted_by("n")), fits=_fits, tf32=("cupy", "torch"),
        blas=("numpy", "torch"),
        slow=SLOW_HALVES,
        tuned=by_backend(
            partial(build_cpu, epilogue, turned),
            partial(build_cuda, names, turned, epilogue),
            wgsl.kernel(partial(product, names, turned, epilogue)),
        ),
        **declared,
    )  # fmt: skip


def _product(
    turned: bool, formula: Callable[..., Array], xp: Array, x: Array, w: Array, *beside: Array
) -> Array:
    return formula(xp, x @ (w.T if turned else w), *beside)


def _weights(turned: bool, params: Params) -> Shape:
    _, m, k = sides(params)
    return (m, k) if turned else (k, m)


def _flops(per_element: int, params: Params) -> int:
    n, m, k = sides(params)
    return 2 * n * m * k + per_element * n * m


def _fits(params: Params) -> str | None:
    _, m, k = sides(params)
    return None if m >= 1 and k >= 1 else "a row has at least one element"


# ---------------------------------------------------------------- CPU


def build_cpu(epilogue: Epilogue, turned: bool, np: Any, blocks: Blocks, params: Params) -> Launch:
    """Slabs of rows on all threads, or all rows at once; halves in float32, rounded once on the way out."""
    scratch, finish = ThreadScratch(np), epilogue.traced.fill

    def launch(inputs: Sequence[Array], output: Array) -> None:
        x, w, *beside = inputs
        n, widest, half = len(x), max(w.shape), output.dtype == np.float16
        if n < blocks.threads * _FEWEST_ROWS and not half:
            np.matmul(x, w.T if turned else w, out=output)
            finish(np, output, np.empty_like, *beside)
            return
        kind = np.dtype(np.float32) if half else output.dtype
        if half:
            w, *beside = (other.astype(kind) for other in (w, *beside))
        weights, rows = w.T if turned else w, slab_rows(n, widest, blocks.threads)

        def slab(start: int, stop: int) -> None:
            free = iter(scratch.arrays(3, rows * widest, kind))

            def room(like: Array) -> Array:
                return next(free)[: like.size].reshape(like.shape)

            part, out = x[start:stop], output[start:stop]
            others = (
                other if along == "across" else other[start:stop]
                for other, along in zip(beside, epilogue.operands.values(), strict=True)
            )
            with np.errstate(all="ignore"):
                target = room(out) if half else out
                np.matmul(widen(np, part, room(part)) if half else part, weights, out=target)
                finish(np, target, room, *others)
                if half:
                    np.copyto(out, target, casting="same_kind")

        if rows < n:
            blocks.multiply(slab, n, rows)
        elif n:  # on BLAS's own threads
            slab(0, n)

    return launch


def slab_rows(n: int, widest: int, threads: int) -> int:
    """Rows of a slab: all of them where each thread would get too few."""
    if n < threads * _FEWEST_ROWS or threads == 1:
        return n
    longest = max(_FEWEST_ROWS, _SLAB // widest)
    rounds = max(1, -(-n // (threads * longest)))
    return -(-n // (threads * rounds))


# ---------------------------------------------------------------- GPU


def build_cuda(
    names: tuple[str, str], turned: bool, epilogue: Epilogue, params: Params, dtype: str, limits: Limits
) -> CudaProgram:
    """Few rows in one launch, others by cuBLAS and a pass over the result."""
    n, m, k = sides(params)
    if n == 0:
        return CudaProgram(())
    if few := few_rows.cuda_pass(few_rows.WeightedRows(names, n, m, k, dtype, turned, epilogue), limits):
        return CudaProgram((few,))
    return CudaProgram((CudaProduct(*names, "out", n, m, k, tb=turned), epilogue.cuda_pass(n, m, dtype)))


def product(
    names: tuple[str, str], turned: bool, epilogue: Epilogue, params: Params, dtype: str
) -> wgsl.Product:
    """Return the product that WGSL computes."""
    n, m, k = sides(params)
    return wgsl.Product(n, m, k, 1, dtype, tb=turned, a=names[0], b=names[1], epilogue=epilogue)
