"""Activations of networks and their derivatives, the backward of frameworks: relu, sigmoid, tanh and gelu.

The formulas of the derivatives are equal to the definitions, but neither overflow nor cancel.
"""

from __future__ import annotations

from typing import Any

from gpubench.kernels.contract.op import EXACT, Array, Operand, Tolerance
from gpubench.kernels.templates.elementwise import GELU_CUBIC as CUBIC
from gpubench.kernels.templates.elementwise import GELU_SCALE as C
from gpubench.kernels.templates.elementwise import elementwise, gelu, gelu_on_arrays, gelu_scale, vector_shape


def _sigmoid_formula(m: Any, x: Any, dy: Any) -> Any:
    e = m.exp(-m.abs(x))
    return dy * (e / ((1 + e) * (1 + e)))


def _sigmoid(xp: Array, x: Array) -> Array:
    return 1 / (1 + xp.exp(-x))


def _sigmoid_expr(xp: Array, x: Array, dy: Array) -> Array:
    s = _sigmoid(xp, x)
    return dy * s * (1 - s)


def _sigmoid_scale(xp: Array, x: Array, dy: Array) -> Array:
    """|dy| s (1 + s): for large x the two terms cancel."""
    s = _sigmoid(xp, x)
    return xp.abs(dy) * s * (1 + s)


def _sigmoid_torch(torch: Any, x: Any, dy: Any, out: Any) -> Any:
    s = torch.sigmoid(x, out=out)
    return torch.ops.aten.sigmoid_backward.grad_input(dy, s, grad_input=s)


def _tanh_formula(m: Any, x: Any, dy: Any) -> Any:
    e = m.exp(-2 * m.abs(x))
    return dy * (4 * e / ((1 + e) * (1 + e)))


def _tanh_expr(xp: Array, x: Array, dy: Array) -> Array:
    t = xp.tanh(x)
    return dy * (1 - t * t)


def _tanh_scale(xp: Array, x: Array, dy: Array) -> Array:
    """|dy| (1 + tanh^2): for large |x| the two terms cancel."""
    return xp.abs(dy) * (1 + xp.tanh(x) ** 2)


def _tanh_torch(torch: Any, x: Any, dy: Any, out: Any) -> Any:
    t = torch.tanh(x, out=out)
    return torch.ops.aten.tanh_backward.grad_input(dy, t, grad_input=t)


_GELU_SLOPE, _GELU_CURVE = 2 * C, 6 * C * CUBIC  # 2 u' = _GELU_SLOPE + _GELU_CURVE x^2


def _gelu_formula(m: Any, x: Any, dy: Any) -> Any:
    e = m.exp(-2 * C * m.abs(m.fma(CUBIC * x * x, x, x)))
    large = 1 / (1 + e)
    # q is 0 before x^2 overflows, so it is multiplied in first; an infinite x gives a NaN, as in NumPy.
    q = x * (e * large * large)
    return dy * (m.where(x < 0, e * large, large) + m.fma(_GELU_CURVE * (q * x), x, _GELU_SLOPE * q))


def _gelu_expr(xp: Array, x: Array, dy: Array) -> Array:
    t = xp.tanh(C * (x + CUBIC * x * x * x))
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (C + 3 * C * CUBIC * x * x))


def _gelu_scale(xp: Array, x: Array, dy: Array) -> Array:
    """|dy| (0.5 (1 + |t|) + 0.5 |x| (1 + t^2) u'): the sum of all absolute terms."""
    t = xp.tanh(C * (x + CUBIC * x * x * x))
    return xp.abs(dy) * (0.5 * (1 + xp.abs(t)) + 0.5 * xp.abs(x) * (1 + t * t) * (C + 3 * C * CUBIC * x * x))


def _gelu_forward(torch: Any, x: Any, out: Any = None) -> Any:
    if out is None:
        return torch.nn.functional.gelu(x, approximate="tanh")
    return torch.ops.aten.gelu.out(x, approximate="tanh", out=out)


def _gelu_torch(torch: Any, x: Any, dy: Any, out: Any = None) -> Any:
    if out is None:
        return torch.ops.aten.gelu_backward(dy, x, approximate="tanh")
    return torch.ops.aten.gelu_backward.grad_input(dy, x, approximate="tanh", grad_input=out)


OPS = (
    elementwise(
        name="relu",
        group="activation",
        summary="out = max(x, 0)",
        inputs=("x",),
        flops_per_element=1,
        formula=lambda m, x: m.maximum(x, 0),
        library={"torch": lambda torch, x, out: torch.ops.aten.relu.out(x, out=out)},
        tolerance=EXACT,
    ),
    elementwise(
        name="sigmoid",
        group="activation",
        summary="out = 1 / (1 + exp(-x))",
        inputs=(Operand("x", vector_shape, values="normal"),),
        flops_per_element=4,
        formula=lambda m, x: 1 / (1 + m.exp(-x)),
        library={"torch": lambda torch, x, out: torch.sigmoid(x, out=out)},
        tolerance=Tolerance(64),
    ),
    elementwise(
        name="tanh",
        group="activation",
        summary="out = tanh(x)",
        inputs=(Operand("x", vector_shape, values="normal"),),
        flops_per_element=1,
        formula=lambda m, x: m.tanh(x),
        library={"torch": lambda torch, x, out: torch.tanh(x, out=out)},
        tolerance=Tolerance(64),
    ),
    elementwise(
        name="gelu",
        group="activation",
        summary="out = 0.5 x (1 + tanh(0.79788 (x + 0.044715 x^3)))",
        inputs=(Operand("x", vector_shape, values="normal"),),
        flops_per_element=9,
        formula=gelu,
        expr=gelu_on_arrays,
        library={"torch": _gelu_forward},
        tolerance=Tolerance(64, scale=gelu_scale),
    ),
    elementwise(
        name="relu_grad",
        group="derivative",
        summary="out = dy where x > 0, else 0",
        inputs=("x", "dy"),
        flops_per_element=1,
        formula=lambda m, x, dy: m.where(x > 0, dy, 0),
        library={
            "torch": lambda torch, x, dy, out: torch.ops.aten.threshold_backward.grad_input(
                dy, x, 0, grad_input=out
            )
        },
        tolerance=EXACT,
    ),
    elementwise(
        name="sigmoid_grad",
        group="derivative",
        summary="out = dy s (1 - s), s = 1 / (1 + exp(-x))",
        inputs=(Operand("x", vector_shape, values="normal"), "dy"),
        flops_per_element=7,
        formula=_sigmoid_formula,
        expr=_sigmoid_expr,
        library={"torch": _sigmoid_torch},
        tolerance=Tolerance(64, scale=_sigmoid_scale),
    ),
    elementwise(
        name="tanh_grad",
        group="derivative",
        summary="out = dy (1 - tanh(x)^2)",
        inputs=(Operand("x", vector_shape, values="normal"), "dy"),
        flops_per_element=4,
        formula=_tanh_formula,
        expr=_tanh_expr,
        library={"torch": _tanh_torch},
        tolerance=Tolerance(64, scale=_tanh_scale),
    ),
    elementwise(
        name="gelu_grad",
        group="derivative",
        summary="out = dy (0.5 (1 + t) + 0.5 x (1 - t^2) u'), t = tanh(u), u as in gelu",
        inputs=(Operand("x", vector_shape, values="normal"), "dy"),
        flops_per_element=18,
        formula=_gelu_formula,
        expr=_gelu_expr,
        library={"torch": _gelu_torch},
        tolerance=Tolerance(64, scale=_gelu_scale),
    ),
)
