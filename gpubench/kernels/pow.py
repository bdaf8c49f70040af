"""pow: x to the power of y, arrays of real numbers. A power is exp(y log x): twenty times the work of a product."""

from gpubench.kernels.contract.op import Operand, Range, Tolerance
from gpubench.kernels.templates.elementwise import elementwise, vector_shape

OP = elementwise(
    name="pow",
    group="math",
    summary="out = x ** y",
    inputs=(Operand("x", vector_shape, values=Range(0.25, 4)), "y"),
    flops_per_element=20,
    formula=lambda m, x, y: m.pow(x, y),
    library={"torch": lambda torch, x, y, out: torch.pow(x, y, out=out)},
    # What the logarithm is wrong by counts y times.
    tolerance=Tolerance(16, scale=lambda xp, x, y: x**y * (1 + xp.abs(y * xp.log(x)))),
)
