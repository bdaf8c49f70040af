"""max: one read per element and a single number written: bound by memory. A NaN wins, as in NumPy."""

from gpubench.kernels.contract.op import EXACT
from gpubench.kernels.templates.reduce import reduction

OP = reduction(
    name="max",
    group="reduction",
    summary="out = largest of x",
    inputs=("x",),
    flops_per_element=1,
    formula=lambda m, x: x,
    join="maximum",
    tolerance=EXACT,
    library={"torch": lambda torch, x, out: torch.amax(x, 0, out=out)},
)
