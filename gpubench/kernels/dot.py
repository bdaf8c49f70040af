"""dot: the sum of x[i] * y[i]; two reads per element and a single number written."""

from gpubench.kernels.contract.op import Array, Tolerance
from gpubench.kernels.templates.reduce import CudaReduction, WgslReduction, reduction


def _scale(xp: Array, x: Array, y: Array) -> Array:
    """The product of the two vectors' norms."""
    return xp.sqrt(x @ x) * xp.sqrt(y @ y)


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
    cuda=CudaReduction("dot", ("x", "y"), "x * y"),
    wgsl=WgslReduction(("x", "y"), "zero", "x * y", "a + b"),
)
