"""gelu_grad: dy times the derivative of gelu's tanh form, what frameworks call the backward of gelu.

With u = c (x + 0.044715 x^3) and t = tanh(u): 0.5 (1 + t) + 0.5 x (1 - t^2) u'. The formula puts s = 1 / (1 +
exp(-2 u)) for 0.5 (1 + t) and 4 s (1 - s) for 1 - t^2, both from e = exp(-2 |u|): no overflow for any finite x
and no cancellation of either factor. The two terms themselves do cancel, near x = -0.75 where the derivative is 0.
"""

from typing import Any

from gpubench.kernels.contract.op import Array, Operand, Tolerance
from gpubench.kernels.templates.elementwise import GELU_CUBIC as CUBIC
from gpubench.kernels.templates.elementwise import GELU_SCALE as C
from gpubench.kernels.templates.elementwise import elementwise, vector_shape

_SLOPE, _CURVE = 2 * C, 6 * C * CUBIC  # 2 u' = _SLOPE + _CURVE x^2


def _formula(m: Any, x: Any, dy: Any) -> Any:
    e = m.exp(-2 * C * m.abs(m.fma(CUBIC * x * x, x, x)))
    large = 1 / (1 + e)
    # q is 0 before x^2 overflows, so it is multiplied in first; an infinite x gives a NaN, as in NumPy.
    q = x * (e * large * large)
    return dy * (m.where(x < 0, e * large, large) + m.fma(_CURVE * (q * x), x, _SLOPE * q))


def _expr(xp: Array, x: Array, dy: Array) -> Array:
    t = xp.tanh(C * (x + CUBIC * x * x * x))
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (C + 3 * C * CUBIC * x * x))


def _scale(xp: Array, x: Array, dy: Array) -> Array:
    """|dy| (0.5 (1 + |t|) + 0.5 |x| (1 + t^2) u'): the sum of all absolute terms."""
    t = xp.tanh(C * (x + CUBIC * x * x * x))
    return xp.abs(dy) * (0.5 * (1 + xp.abs(t)) + 0.5 * xp.abs(x) * (1 + t * t) * (C + 3 * C * CUBIC * x * x))


def _torch(torch: Any, x: Any, dy: Any, out: Any) -> Any:
    return torch.ops.aten.gelu_backward.grad_input(dy, x, approximate="tanh", grad_input=out)


OP = elementwise(
    name="gelu_grad",
    group="derivative",
    summary="out = dy (0.5 (1 + t) + 0.5 x (1 - t^2) u'), t = tanh(u), u as in gelu",
    inputs=(Operand("x", vector_shape, values="normal"), "dy"),
    flops_per_element=18,
    formula=_formula,
    expr=_expr,
    library={"torch": _torch},
    tolerance=Tolerance(64, scale=_scale),
)
