"""Tuned NumPy forms of softmax and its derivative: rows in blocks that stay in cache, in place in the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpubench.kernels._elementwise_numpy import Blocks, Launch, Scratch, widen
from gpubench.model.op import Array, Params

# Elements of a block: several passes over it should find it in cache, and last longer than threads wait in line.
_BLOCK = 512 * 1024


def softmax(np: Any, blocks: Blocks, params: Params) -> Launch:
    """Subtract the maximum, exponentials, divide by their sum."""

    def rows(out: Array, x: Array) -> None:
        np.subtract(x, np.maximum.reduce(x, axis=-1, keepdims=True), out=out)
        np.exp(out, out=out)
        np.divide(out, np.add.reduce(out, axis=-1, keepdims=True), out=out)

    return _by_rows(np, blocks, rows)


def softmax_grad(np: Any, blocks: Blocks, params: Params) -> Launch:
    """Products, their sum subtracted from dy, times y."""

    def rows(out: Array, y: Array, dy: Array) -> None:
        np.multiply(y, dy, out=out)
        np.subtract(dy, np.add.reduce(out, axis=-1, keepdims=True), out=out)
        np.multiply(y, out, out=out)

    return _by_rows(np, blocks, rows)


def _by_rows(np: Any, blocks: Blocks, rows: Callable[..., None]) -> Launch:
    """`rows(out, *inputs)` over blocks of rows; halves in float32 scratch, rounded once on the way out."""
    scratch = Scratch(np)

    def launch(arrays: Sequence[Array], output: Array) -> None:
        if not output.size:
            return
        count, columns = output.shape
        size = min(count, max(1, _BLOCK // columns))

        def block(start: int, stop: int) -> None:
            parts, out = [array[start:stop] for array in arrays], output[start:stop]
            with np.errstate(all="ignore"):
                if out.dtype != np.float16:
                    rows(out, *parts)
                    return
                wide, *spare = (
                    array[: out.size].reshape(out.shape)
                    for array in scratch.arrays(len(parts) + 1, size * columns, np.float32)
                )
                rows(wide, *(widen(np, part, array) for part, array in zip(parts, spare, strict=True)))
                np.copyto(out, wide, casting="same_kind")

        blocks.run(block, count, size)

    return launch
