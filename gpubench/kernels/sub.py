"""sub: x - y; two reads and one write per element, so bound by memory everywhere."""

from gpubench.kernels.contract.op import Tolerance
from gpubench.kernels.templates.elementwise import absolute_sum, elementwise

OP = elementwise(
    name="sub",
    group="vector",
    summary="out = x - y",
    inputs=("x", "y"),
    flops_per_element=1,
    formula=lambda m, x, y: x - y,
    library={"torch": lambda torch, x, y, out: torch.sub(x, y, out=out)},
    tolerance=Tolerance(4, scale=absolute_sum),
)
