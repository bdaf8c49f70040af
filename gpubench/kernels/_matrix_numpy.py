"""Tuned NumPy forms of the matrix products: what BLAS does not do by itself, and halves by way of float32."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from gpubench.kernels._elementwise_numpy import Blocks, Launch, Scratch, grain, widen
from gpubench.model.op import Array, Params

_BLOCK = 256 * 1024  # halves that one thread widens at a time: they have to be in cache still
_IN_CACHE = 4 * 1024 * 1024


def gemv(np: Any, blocks: Blocks, params: Params) -> Launch:
    """BLAS while A fits a cache; past that blocks of rows by einsum, which takes no lock and starts no threads.

    BLAS called from several threads at once fights for its own threads: 1.2 instead of 25 GB/s with two cores.
    """
    scratch = Scratch(np)

    def launch(arrays: Sequence[Array], output: Array) -> None:
        a, x = arrays
        half = a.dtype == np.float16
        if a.size <= _IN_CACHE and not half:
            np.matmul(a, x, out=output)
            return
        if half:
            x = x.astype(np.float32)
        size = _BLOCK if half else grain(a.size, cheap=True, alone=True)
        rows = max(1, size // max(1, a.shape[1]))

        def block(start: int, stop: int) -> None:
            part = a[start:stop]
            if half:
                wide = scratch.arrays(1, rows * a.shape[1], np.float32)[0]
                part = widen(np, part, wide[: part.size].reshape(part.shape))
            with np.errstate(all="ignore"):
                output[start:stop] = np.einsum("ij,j->i", part, x)

        blocks(block, a.shape[0], rows)

    return launch


def matmul(np: Any, blocks: Blocks, params: Params) -> Launch:
    """Halves as float32 through BLAS, whose own threads multiply; NumPy's own product of halves is a plain loop."""

    def launch(arrays: Sequence[Array], output: Array) -> None:
        wide = [np.empty(x.shape, np.float32) for x in arrays]
        for half, target in zip(arrays, wide, strict=True):
            flat, flat_target = half.reshape(-1), target.reshape(-1)
            blocks(partial(_widen_slice, np, flat, flat_target), half.size, _BLOCK)
        flat_output, product = output.reshape(-1), np.matmul(*wide).reshape(-1)

        def narrow(start: int, stop: int) -> None:
            with np.errstate(all="ignore"):
                np.copyto(flat_output[start:stop], product[start:stop], casting="same_kind")

        blocks(narrow, output.size, _BLOCK)

    return launch


def _widen_slice(np: Any, half: Array, wide: Array, start: int, stop: int) -> None:
    widen(np, half[start:stop], wide[start:stop])
