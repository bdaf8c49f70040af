"""dot: the sum of x[i] * y[i]; two reads per element and a single number written."""

from gpubench.kernels.contract.op import Array, Tolerance
from gpubench.kernels.templates.reduce import reduction


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
    formula=lambda m, x, y: x * y,
    join="add",
    expr=lambda xp, x, y: x @ y,
    tolerance=Tolerance(8, scale=_scale),
    library={"torch": lambda torch, x, y, out: torch.dot(x, y, out=out)},
)
