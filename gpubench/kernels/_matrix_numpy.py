"""Tuned NumPy forms of the matrix products: what BLAS does not do by itself, and halves by way of float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpubench.kernels._elementwise_numpy import Blocks, Launch, Scratch, widen
from gpubench.model.op import Array, Params

_BLOCK = 512 * 1024  # elements of A that one thread takes at a time
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
        rows = max(1, _BLOCK // max(1, a.shape[1]))

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
    """BLAS; halves are widened as a whole first, since NumPy's own product of halves is a plain loop."""

    def launch(arrays: Sequence[Array], output: Array) -> None:
        a, b = arrays
        if output.dtype != np.float16:
            np.matmul(a, b, out=output)
            return
        output[...] = np.matmul(*(widen(np, x, np.empty(x.shape, np.float32)) for x in (a, b)))

    return launch
