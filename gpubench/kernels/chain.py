"""chain: (a + b) * c. The library form pays one temporary array, the tuned form is a single pass."""

from gpubench.kernels.contract.op import Tolerance
from gpubench.kernels.templates.elementwise import WGSL_ALL, absolute_sum, elementwise

OP = elementwise(
    name="chain",
    group="vector",
    summary="out = (a + b) * c",
    inputs=("a", "b", "c"),
    flops_per_element=2,
    expr=lambda xp, a, b, c: (a + b) * c,
    wgsl="(a + b) * c",
    cuda="(a + b) * c",
    tolerance=Tolerance(4, scale=lambda xp, a, b, c: absolute_sum(xp, a * c, b * c)),
    wgsl_dtypes=WGSL_ALL,
)
