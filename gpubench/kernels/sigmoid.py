"""sigmoid(x) = 1 / (1 + exp(-x)): one exponential per element."""

from gpubench.kernels.contract.op import Operand, Tolerance
from gpubench.kernels.templates.elementwise import elementwise, vector_shape

OP = elementwise(
    name="sigmoid",
    group="activation",
    summary="out = 1 / (1 + exp(-x))",
    inputs=(Operand("x", vector_shape, values="normal"),),
    flops_per_element=4,
    formula=lambda m, x: 1 / (1 + m.exp(-x)),
    library={"torch": lambda torch, x, out: torch.sigmoid(x, out=out)},
    tolerance=Tolerance(64),
)
