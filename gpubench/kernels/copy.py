"""copy: one read and one write per element and nothing else: the roof that the memory-bound ops are held to."""

from gpubench.kernels.families.elementwise import WGSL_ALL, elementwise
from gpubench.model.op import EXACT

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
