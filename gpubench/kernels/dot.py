"""dot: the sum of x[i] * y[i]; two reads per element and a single number written."""

from typing import Any

from gpubench.kernels.families.cpu import Blocks, Launch
from gpubench.kernels.families.reduce import CudaReduction, WgslReduction, fold_blocks, reduction
from gpubench.model.op import Array, Params, Tolerance

# einsum adds up in a few lanes from end to end; short runs keep its error that of a pairwise sum.
_RUN = 4096


def _cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    """The sum of products by einsum, not BLAS: called from several threads at once, BLAS fights for its own."""

    def fold(x: Array, y: Array) -> Array:
        even = x.size // _RUN * _RUN
        runs = np.einsum("ij,ij->i", x[:even].reshape(-1, _RUN), y[:even].reshape(-1, _RUN))
        return np.add.reduce(runs) + np.einsum("i,i->", x[even:], y[even:])

    return fold_blocks(np, blocks, fold, short=np.dot, join=np.add.reduce)


def _scale(xp: Array, x: Array, y: Array) -> Array:
    """The product of the two vectors' norms."""
    return xp.sqrt(xp.sum(x * x)) * xp.sqrt(xp.sum(y * y))


OP = reduction(
    name="dot",
    group="vector",
    summary="out = x[0] y[0] + ... + x[n - 1] y[n - 1]",
    inputs=("x", "y"),
    flops_per_element=2,
    blas=("numpy", "torch"),
    expr=lambda xp, x, y: x @ y,
    tolerance=Tolerance(8, scale=_scale),
    join="add",
    reference=lambda xp, x, y: xp.sum(x * y),
    cpu=_cpu,
    cuda=CudaReduction("dot", ("x", "y"), "x * y"),
    wgsl=WgslReduction(("x", "y"), "zero", "x * y", "a + b"),
)
