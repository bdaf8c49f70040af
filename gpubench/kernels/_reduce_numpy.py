"""Tuned NumPy forms of the reductions: partial results of blocks on all cores; halves are summed in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpubench.kernels._elementwise_numpy import Blocks, Launch, Scratch, widen
from gpubench.model.op import Array, Params

# One core folds 1 Mi elements in the time it takes to wake the others a few times.
_BLOCK, _WHOLE = 1024 * 1024, 2 * 1024 * 1024
_HALF_BLOCK = 128 * 1024  # widened, it has to stay in cache
_SHORT = 64 * 1024  # up to here the calls are the cost
# einsum adds up in a few lanes from end to end; short runs keep its error that of a pairwise sum.
_RUN = 4096

Fold = Callable[..., Array]


def total(np: Any, blocks: Blocks, params: Params) -> Launch:
    """The sum of the elements."""
    return _reduction(np, blocks, np.add.reduce, np.add.reduce, np.add.reduce)


def largest(np: Any, blocks: Blocks, params: Params) -> Launch:
    """The largest element, or a NaN. Raises ValueError if there is none, as NumPy does."""
    return _reduction(np, blocks, np.maximum.reduce, np.maximum.reduce, np.maximum.reduce)


def inner_product(np: Any, blocks: Blocks, params: Params) -> Launch:
    """The sum of products by einsum, not BLAS: called from several threads at once, BLAS fights for its own."""

    def fold(x: Array, y: Array) -> Array:
        even = x.size // _RUN * _RUN
        runs = np.einsum("ij,ij->i", x[:even].reshape(-1, _RUN), y[:even].reshape(-1, _RUN))
        return np.add.reduce(runs) + np.einsum("i,i->", x[even:], y[even:])

    return _reduction(np, blocks, np.dot, fold, np.add.reduce)


def _reduction(np: Any, blocks: Blocks, short: Fold, fold: Fold, join: Callable[[Array], Array]) -> Launch:
    """`short` of few elements, else `fold` of each block and `join` of the results; of halves in float32."""
    scratch = Scratch(np)

    def partial_result(parts: Sequence[Array]) -> Array:
        if parts[0].dtype == np.float16:
            spare = scratch.arrays(len(parts), _HALF_BLOCK, np.float32)
            parts = [widen(np, part, wide[: part.size]) for part, wide in zip(parts, spare, strict=True)]
        return fold(*parts)

    def launch(arrays: Sequence[Array], output: Array) -> None:
        length, half = arrays[0].size, output.dtype == np.float16
        if length <= _SHORT and not half:
            output[...] = short(*arrays)
            return
        size = _HALF_BLOCK if half else _BLOCK
        if length <= (_HALF_BLOCK if half else _WHOLE):
            output[...] = partial_result(arrays)
            return
        partial = np.empty(-(-length // size), np.float32 if half else output.dtype)

        def block(start: int, stop: int) -> None:
            with np.errstate(all="ignore"):
                partial[start // size] = partial_result([array[start:stop] for array in arrays])

        blocks.run(block, length, size)
        output[...] = join(partial)

    return launch
