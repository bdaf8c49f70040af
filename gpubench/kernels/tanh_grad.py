"""tanh_grad: dy (1 - tanh(x)^2), what frameworks call the backward of tanh.

The formula is the equal dy 4 e / (1 + e)^2 with e = exp(-2 |x|): nothing overflows, nothing cancels.
"""

from typing import Any

from gpubench.kernels.contract.op import Array, Operand, Tolerance
from gpubench.kernels.templates.elementwise import elementwise, vector_shape


def _formula(m: Any, x: Any, dy: Any) -> Any:
    e = m.exp(-2 * m.abs(x))
    return dy * (4 * e / ((1 + e) * (1 + e)))


def _expr(xp: Array, x: Array, dy: Array) -> Array:
    t = xp.tanh(x)
    return dy * (1 - t * t)


def _scale(xp: Array, x: Array, dy: Array) -> Array:
    """|dy| (1 + tanh^2): for large |x| the two terms cancel."""
    return xp.abs(dy) * (1 + xp.tanh(x) ** 2)


def _torch(torch: Any, x: Any, dy: Any, out: Any) -> Any:
    t = torch.tanh(x, out=out)
    return torch.ops.aten.tanh_backward.grad_input(dy, t, grad_input=t)


OP = elementwise(
    name="tanh_grad",
    group="derivative",
    summary="out = dy (1 - tanh(x)^2)",
    inputs=(Operand("x", vector_shape, values="normal"), "dy"),
    flops_per_element=4,
    formula=_formula,
    expr=_expr,
    library={"torch": _torch},
    tolerance=Tolerance(64, scale=_scale),
)
