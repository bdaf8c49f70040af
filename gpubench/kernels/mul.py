"""mul: x * y; two reads and one write per element, so bound by memory everywhere."""

from gpubench.kernels.contract.op import Tolerance
from gpubench.kernels.templates.elementwise import elementwise

OP = elementwise(
    name="mul",
    group="vector",
    summary="out = x * y",
    inputs=("x", "y"),
    flops_per_element=1,
    formula=lambda m, x, y: x * y,
    library={"torch": lambda torch, x, y, out: torch.mul(x, y, out=out)},
    tolerance=Tolerance(4),
)
