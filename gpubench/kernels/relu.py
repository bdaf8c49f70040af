"""relu(x) = max(x, 0): one read and one write per element, so bound by memory everywhere.

The shader compares instead of calling `max`: WGSL leaves open what `max` makes of a NaN, NumPy keeps it.
"""

from gpubench.kernels.contract.op import EXACT
from gpubench.kernels.templates.elementwise import WGSL_ALL, elementwise

OP = elementwise(
    name="relu",
    group="activation",
    summary="out = max(x, 0)",
    inputs=("x",),
    flops_per_element=1,
    expr=lambda xp, x: xp.maximum(x, 0),
    wgsl="select(x, 0.0, x < 0.0)",
    cuda="select(x < real(0), real(0), x)",
    tolerance=EXACT,
    wgsl_dtypes=WGSL_ALL,
)
