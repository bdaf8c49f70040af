"""Tuned NumPy forms of the ops that are not elementwise: reductions, softmax and transpose over blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpubench.kernels._elementwise_numpy import Blocks, Launch
from gpubench.model.op import Array, Params

# Squares of 128 x 128 (64 KiB of float32) turn in the second-level cache: measured 2.7 x faster than whole rows.
_SQUARE = 128
_ONE_SQUARE = 256 * 256  # up to here one copy is faster than the squares' calls
# One core folds 1 Mi elements in the time it takes to wake the others a few times.
_FOLD_BLOCK, _FOLD_WHOLE = 1024 * 1024, 4 * 1024 * 1024
_ROWS_ELEMENTS = 256 * 1024  # a block of softmax rows: three passes over it must find it in cache


def reduction(fold: Callable[..., Array], np: Any, blocks: Blocks, params: Params) -> Launch:
    """`fold(np, *slices)` of each block; the partial results are folded, or added if `fold` takes two arrays."""

    def launch(arrays: Sequence[Array], output: Array) -> None:
        length = arrays[0].size
        if length <= _FOLD_WHOLE:
            output[...] = fold(np, *arrays)
            return
        partial = np.empty(-(-length // _FOLD_BLOCK), output.dtype)

        def block(start: int, stop: int) -> None:
            partial[start // _FOLD_BLOCK] = fold(np, *(array[start:stop] for array in arrays))

        blocks(block, length, _FOLD_BLOCK)
        output[...] = fold(np, partial) if len(arrays) == 1 else np.sum(partial)

    return launch


def softmax(np: Any, blocks: Blocks, params: Params) -> Launch:
    """Rows in blocks that stay in cache, in place in the output."""

    def launch(arrays: Sequence[Array], output: Array) -> None:
        x = arrays[0]
        rows, columns = x.shape

        def block(start: int, stop: int) -> None:
            part, out = x[start:stop], output[start:stop]
            with np.errstate(all="ignore"):
                np.subtract(part, np.max(part, axis=-1, keepdims=True), out=out)
                np.exp(out, out=out)
                np.divide(out, np.sum(out, axis=-1, keepdims=True), out=out)

        blocks(block, rows, max(1, _ROWS_ELEMENTS // columns))

    return launch


def transpose(np: Any, blocks: Blocks, params: Params) -> Launch:
    """Bands of the output, each in squares small enough for both of its sides to stay in cache."""

    def launch(arrays: Sequence[Array], output: Array) -> None:
        x = arrays[0]
        rows, columns = output.shape
        if x.size <= _ONE_SQUARE:
            np.copyto(output, x.T)
            return

        def block(start: int, stop: int) -> None:
            for at in range(0, columns, _SQUARE):
                np.copyto(output[start:stop, at : at + _SQUARE], x[at : at + _SQUARE, start:stop].T)

        blocks(block, rows, _SQUARE)

    return launch
