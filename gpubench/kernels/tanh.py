"""tanh(x): one transcendental function per element."""

from gpubench.kernels.contract.op import Operand, Tolerance
from gpubench.kernels.templates.elementwise import elementwise, vector_shape

OP = elementwise(
    name="tanh",
    group="activation",
    summary="out = tanh(x)",
    inputs=(Operand("x", vector_shape, values="normal"),),
    flops_per_element=1,
    formula=lambda m, x: m.tanh(x),
    library={"torch": lambda torch, x, out: torch.tanh(x, out=out)},
    tolerance=Tolerance(64),
)
