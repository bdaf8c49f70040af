"""leaky_relu(x) = x for x > 0, else x / 8: the same text for NumPy and CuPy, one line each for WGSL and CUDA.

The slope is a power of two, so that the product is exact in every dtype and the tolerance can be zero.
"""

from gpubench.kernels import elementwise
from gpubench.model.op import EXACT

OP = elementwise(
    name="leaky_relu",
    group="activation",
    summary="out = x if x > 0 else x / 8",
    inputs=("x",),
    flops_per_element=2,
    expr=lambda xp, x: xp.maximum(x, x * 0.125),
    wgsl="max(x, x * 0.125)",
    cuda="x > real(0) ? x : x * real(0.125)",
    tolerance=EXACT,
)
