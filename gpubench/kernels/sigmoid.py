"""sigmoid(x) = 1 / (1 + exp(-x)): one exponential per element."""

from gpubench.kernels.contract.op import Array, Operand, Tolerance
from gpubench.kernels.templates.elementwise import elementwise, vector_shape


def _reference(xp: Array, x: Array) -> Array:
    """The same from exp(-|x|), which never overflows, on either side of 0."""
    small = xp.exp(-xp.abs(x))
    return xp.where(x < 0, small, 1.0) / (1.0 + small)


OP = elementwise(
    name="sigmoid",
    group="activation",
    summary="out = 1 / (1 + exp(-x))",
    inputs=(Operand("x", vector_shape, values="normal"),),
    flops_per_element=4,
    expr=lambda xp, x: 1 / (1 + xp.exp(-x)),
    wgsl="1.0 / (1.0 + exp(-x))",
    cuda="real(1) / (real(1) + exp(-x))",
    tolerance=Tolerance(64),
    reference=_reference,
)
