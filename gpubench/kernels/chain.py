"""chain: (a + b) * c. The library form pays one temporary array, the tuned form is a single pass."""

from gpubench.kernels.contract.op import Tolerance
from gpubench.kernels.templates.elementwise import absolute_sum, elementwise

OP = elementwise(
    name="chain",
    group="vector",
    summary="out = (a + b) * c",
    inputs=("a", "b", "c"),
    flops_per_element=2,
    formula=lambda m, a, b, c: (a + b) * c,
    library={"torch": lambda torch, a, b, c, out: torch.mul(torch.add(a, b, out=out), c, out=out)},
    tolerance=Tolerance(4, scale=lambda xp, a, b, c: absolute_sum(xp, a * c, b * c)),
)
