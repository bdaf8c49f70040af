"""leaky_relu(x) = x for x > 0, else x / 8: the same text for NumPy and CuPy, one line each for WGSL and CUDA.

The tolerance is one rounding: the product with a power of two is exact but below the smallest normal number.
"""

from gpubench.kernels import elementwise
from gpubench.kernels.contract.op import Tolerance

OP = elementwise(
    name="leaky_relu",
    group="activation",
    summary="out = x if x > 0 else x / 8",
    inputs=("x",),
    flops_per_element=2,
    expr=lambda xp, x: xp.maximum(x, x * 0.125),
    wgsl="max(x, x * 0.125)",
    cuda="select(x > real(0), x, x * real(0.125))",
    tolerance=Tolerance(1),
)
