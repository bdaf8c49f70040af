"""leaky_relu(x) = x for x > 0, else x / 8: one formula for the CPU, CUDA, WebGPU and the array libraries.

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
    formula=lambda m, x: m.maximum(x, x * 0.125),
    tolerance=Tolerance(1),
)
