"""add: x + y; two reads and one write per element, so bound by memory everywhere."""

from gpubench.kernels.contract.op import Tolerance
from gpubench.kernels.templates.elementwise import WGSL_ALL, absolute_sum, elementwise

OP = elementwise(
    name="add",
    group="vector",
    summary="out = x + y",
    inputs=("x", "y"),
    flops_per_element=1,
    expr=lambda xp, x, y: x + y,
    wgsl="x + y",
    cuda="x + y",
    tolerance=Tolerance(4, scale=absolute_sum),
    wgsl_dtypes=WGSL_ALL,
)
