"""copy: one read and one write per element and nothing else: the roof that the memory-bound ops are held to."""

from gpubench.kernels.contract.op import EXACT
from gpubench.kernels.templates.elementwise import WGSL_ALL, elementwise

OP = elementwise(
    name="copy",
    group="vector",
    summary="out = x",
    inputs=("x",),
    flops_per_element=0,
    expr=lambda xp, x: x.copy(),
    wgsl="x",
    cuda="x",
    tolerance=EXACT,
    wgsl_dtypes=WGSL_ALL,
)
