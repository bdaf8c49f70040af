"""relu_grad: what frameworks call the backward of relu, dy where x > 0 and 0 elsewhere (at 0 too).

Two reads and one write per element. A comparison instead of a product: 0 times an infinite dy would be a NaN.
The tuned NumPy form chooses by bits, where np.where branches (5 ns an element).
"""

from collections.abc import Sequence
from typing import Any

from gpubench.kernels.families.cpu import Blocks, Launch, ThreadScratch, grain
from gpubench.kernels.families.elementwise import WGSL_ALL, elementwise
from gpubench.model.op import EXACT, Array, Params

_HALF_INFINITY = 0x7C00


def _where_positive(np: Any, blocks: Blocks, params: Params) -> Launch:
    """out = second input where the first is above 0, else 0; a NaN is not above 0."""
    scratch = ThreadScratch(np)

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


OP = elementwise(
    name="relu_grad",
    group="derivative",
    summary="out = dy where x > 0, else 0",
    inputs=("x", "dy"),
    flops_per_element=1,
    expr=lambda xp, x, dy: xp.where(x > 0, dy, 0),
    wgsl="select(0.0, dy, x > 0.0)",
    cuda="select(x > real(0), dy, real(0))",
    tolerance=EXACT,
    wgsl_dtypes=WGSL_ALL,
    numpy=_where_positive,
)
