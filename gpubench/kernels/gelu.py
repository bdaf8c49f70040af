"""gelu, tanh form: 0.5 x (1 + tanh(c (x + 0.044715 x^3))), c = sqrt(2 / pi).

Source: Hendrycks and Gimpel, arXiv 1606.08415. The formula is the equal
x / (1 + exp(-2 c (x + 0.044715 x^3))): one exponential, and no cancellation for negative x.
"""

from gpubench.kernels.contract.op import Operand, Tolerance
from gpubench.kernels.templates.elementwise import elementwise, gelu, gelu_on_arrays, gelu_scale, vector_shape

OP = elementwise(
    name="gelu",
    group="activation",
    summary="out = 0.5 x (1 + tanh(0.79788 (x + 0.044715 x^3)))",
    inputs=(Operand("x", vector_shape, values="normal"),),
    flops_per_element=9,
    formula=gelu,
    expr=gelu_on_arrays,
    library={"torch": lambda torch, x, out: torch.ops.aten.gelu.out(x, approximate="tanh", out=out)},
    tolerance=Tolerance(64, scale=gelu_scale),
)
