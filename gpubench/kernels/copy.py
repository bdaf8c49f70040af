"""copy: one read and one write per element and nothing else: the roof that the memory-bound ops are held to."""

from gpubench.kernels.contract.op import EXACT
from gpubench.kernels.templates.elementwise import elementwise

OP = elementwise(
    name="copy",
    group="vector",
    summary="out = x",
    inputs=("x",),
    flops_per_element=0,
    formula=lambda m, x: x,
    expr=lambda xp, x: x.copy(),
    library={"torch": lambda torch, x, out: out.copy_(x)},
    tolerance=EXACT,
)
