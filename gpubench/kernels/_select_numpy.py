"""The tuned NumPy form of a choice between an array and 0: by bits, where np.where branches (5 ns an element)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpubench.kernels._elementwise_numpy import Blocks, Launch, Scratch, grain
from gpubench.model.op import Array, Params

_HALF_INFINITY = 0x7C00


def where_positive(np: Any, blocks: Blocks, params: Params) -> Launch:
    """out = second input where the first is above 0, else 0; a NaN is not above 0."""
    scratch = Scratch(np)

    def launch(arrays: Sequence[Array], output: Array) -> None:
        size = min(output.size, grain(output.size, blocks.threads, cheap=True, alone=False))
        whole = np.dtype(f"i{output.itemsize}")

        def block(start: int, stop: int) -> None:
            x, kept, out = (array[start:stop] for array in (*arrays, output))
            mask = scratch.arrays(1, size, np.bool_)[0][: out.size]
            bits = out.view(whole)
            if out.dtype == np.float16:
                # As integers, 0 < x <= infinity; the unsigned difference sends 0 and negatives to the far end.
                distance = out.view(np.uint16)
                np.subtract(x.view(np.uint16), 1, out=distance)
                np.less(distance, _HALF_INFINITY, out=mask)
            else:
                with np.errstate(invalid="ignore"):
                    np.greater(x, 0, out=mask)
            np.negative(mask.view(np.int8), out=bits)  # 0, or -1: all bits
            np.bitwise_and(bits, kept.view(whole), out=bits)

        if size:
            blocks.run(block, output.size, size)

    return launch
