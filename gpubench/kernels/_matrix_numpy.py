"""Tuned NumPy forms of the matrix products: what BLAS does not do by itself, and halves by way of float32."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from gpubench.kernels._elementwise_numpy import Blocks, Launch, Scratch, widen
from gpubench.model.op import Array, Params

_BLOCK = 256 * 1024  # halves that one thread widens at a time: they have to be in cache still


def blas(np: Any, blocks: Blocks, params: Params) -> Launch:
    """The product of two inputs by the BLAS behind NumPy, which uses all cores by itself; only the temporary is saved.

    Called from several threads at once, a BLAS fights for its own threads: 1.2 instead of 25 GB/s of gemv on two cores.
    """
    return lambda inputs, output: np.matmul(inputs[0], inputs[1], out=output)


def gemv(np: Any, blocks: Blocks, params: Params) -> Launch:
    """Halves as float32, in blocks of rows by einsum, which takes no lock and starts no threads."""
    scratch = Scratch(np)

    def launch(arrays: Sequence[Array], output: Array) -> None:
        a, x = arrays[0], arrays[1].astype(np.float32)
        rows = max(1, _BLOCK // max(1, a.shape[1]))

        def block(start: int, stop: int) -> None:
            part = a[start:stop]
            wide = scratch.arrays(1, rows * a.shape[1], np.float32)[0]
            part = widen(np, part, wide[: part.size].reshape(part.shape))
            with np.errstate(all="ignore"):
                output[start:stop] = np.einsum("ij,j->i", part, x)

        blocks.run(block, a.shape[0], rows)

    return launch


def matmul(np: Any, blocks: Blocks, params: Params) -> Launch:
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
