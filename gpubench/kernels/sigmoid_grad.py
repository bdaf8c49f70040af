"""sigmoid_grad: dy s (1 - s) with s = 1 / (1 + exp(-x)), what frameworks call the backward of sigmoid.

The formula is the equal dy e / (1 + e)^2 with e = exp(-|x|): nothing overflows, nothing cancels.
"""

from typing import Any

from gpubench.kernels.contract.op import Array, Operand, Tolerance
from gpubench.kernels.templates.elementwise import elementwise, vector_shape


def _formula(m: Any, x: Any, dy: Any) -> Any:
    e = m.exp(-m.abs(x))
    return dy * (e / ((1 + e) * (1 + e)))


def _sigmoid(xp: Array, x: Array) -> Array:
    return 1 / (1 + xp.exp(-x))


def _expr(xp: Array, x: Array, dy: Array) -> Array:
    s = _sigmoid(xp, x)
    return dy * s * (1 - s)


def _scale(xp: Array, x: Array, dy: Array) -> Array:
    """|dy| s (1 + s): for large x the two terms cancel."""
    s = _sigmoid(xp, x)
    return xp.abs(dy) * s * (1 + s)


def _torch(torch: Any, x: Any, dy: Any, out: Any) -> Any:
    s = torch.sigmoid(x, out=out)
    return torch.ops.aten.sigmoid_backward.grad_input(dy, s, grad_input=s)


OP = elementwise(
    name="sigmoid_grad",
    group="derivative",
    summary="out = dy s (1 - s), s = 1 / (1 + exp(-x))",
    inputs=(Operand("x", vector_shape, values="normal"), "dy"),
    flops_per_element=7,
    formula=_formula,
    expr=_expr,
    library={"torch": _torch},
    tolerance=Tolerance(64, scale=_scale),
)
