"""div: x / y. The divisor is drawn from a normal distribution, where an exact 0 is rarer than among uniform values."""

from gpubench.kernels.contract.op import Operand, Tolerance
from gpubench.kernels.templates.elementwise import elementwise, vector_shape

OP = elementwise(
    name="div",
    group="vector",
    summary="out = x / y",
    inputs=("x", Operand("y", vector_shape, values="normal")),
    flops_per_element=1,
    formula=lambda m, x, y: x / y,
    library={"torch": lambda torch, x, y, out: torch.div(x, y, out=out)},
    tolerance=Tolerance(6, why="Vulkan and WGSL allow a quotient 2.5 ULP, which is up to 5 u"),
    not_finite="the divisor can be 0",
)
