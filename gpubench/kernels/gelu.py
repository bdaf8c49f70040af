"""gelu, tanh form: 0.5 x (1 + tanh(c (x + 0.044715 x^3))), c = sqrt(2 / pi).

Source: Hendrycks and Gimpel, arXiv 1606.08415. The formula is the equal
x / (1 + exp(-2 c (x + 0.044715 x^3))): one exponential, and no cancellation for negative x.
"""

import math
from typing import Any

from gpubench.kernels.contract.op import Array, Operand, Tolerance
from gpubench.kernels.templates.elementwise import elementwise, vector_shape

C, CUBIC = math.sqrt(2 / math.pi), 0.044715


def formula(m: Any, x: Any) -> Any:
    return x / (1 + m.exp(-2 * C * m.fma(CUBIC * x * x, x, x)))


def expr(xp: Array, x: Array) -> Array:
    return 0.5 * x * (1 + xp.tanh(C * (x + CUBIC * x * x * x)))


def scale(xp: Array, x: Array) -> Array:
    """0.5 |x| (1 + |tanh|): for negative x the two terms cancel."""
    return 0.5 * xp.abs(x) * (1 + xp.abs(xp.tanh(C * (x + CUBIC * x * x * x))))


OP = elementwise(
    name="gelu",
    group="activation",
    summary="out = 0.5 x (1 + tanh(0.79788 (x + 0.044715 x^3)))",
    inputs=(Operand("x", vector_shape, values="normal"),),
    flops_per_element=9,
    formula=formula,
    expr=expr,
    library={"torch": lambda torch, x, out: torch.ops.aten.gelu.out(x, approximate="tanh", out=out)},
    tolerance=Tolerance(64, scale=scale),
)
