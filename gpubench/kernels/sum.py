"""sum: one read per element and a single number written: bound by memory."""

from gpubench.kernels.contract.op import Tolerance
from gpubench.kernels.templates.reduce import reduction

OP = reduction(
    name="sum",
    group="reduction",
    summary="out = x[0] + x[1] + ... + x[n - 1]",
    inputs=("x",),
    flops_per_element=1,
    formula=lambda m, x: x,
    join="add",
    tolerance=Tolerance(4, scale=lambda xp, x: xp.sum(xp.abs(x))),
    library={"torch": lambda torch, x, out: torch.sum(x, 0, out=out)},
)
