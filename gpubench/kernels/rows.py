"""Ops along rows: softmax and layernorm with their derivatives, and rmsnorm.

A row that stays on chip is read once and written once."""

from __future__ import annotations

from typing import Any

from gpubench.kernels.contract.op import Array, Operand, Tolerance
from gpubench.kernels.templates.rows import CUT_INTO_ROWS, EPSILON, OF_WIDTH, across, layernorm, rowwise


def _softmax_formula(m: Any, x: Any) -> Any:
    power, total = m.powers(x)
    return power / total


def _softmax_scale(xp: Array, y: Array, dy: Array) -> Array:
    """|y| (|dy| + sum |y dy|): the terms of the sum may cancel, and so may the difference."""
    return xp.abs(y) * (xp.abs(dy) + xp.sum(xp.abs(y * dy), axis=-1, keepdims=True))


def _softmax_torch(torch: Any, y: Any, dy: Any, out: Any) -> Any:
    return torch.ops.aten._softmax_backward_data.out(dy, y, -1, y.dtype, grad_input=out)


def _layernorm_scale(xp: Array, x: Array, g: Array, c: Array) -> Array:
    """|g| (|x| + mean |x|) / deviation + |c|."""
    return xp.abs(g) * _unit_scale(xp, x)[1] + xp.abs(c)


def _layernorm_grad(m: Any, x: Any, dy: Any, g: Any) -> Any:
    rest = x - m.mean(x)
    deviation = m.sqrt(m.mean(rest * rest) + EPSILON)
    unit, slope = rest / deviation, dy * g
    return (slope - m.mean(slope) - unit * m.mean(slope * unit)) / deviation


def _layernorm_grad_g(m: Any, x: Any, dy: Any) -> Any:
    rest = x - m.mean(x)
    return dy * (rest / m.sqrt(m.mean(rest * rest) + EPSILON))


def _unit_scale(xp: Array, x: Array) -> tuple[Array, Array]:
    """The deviation of each row, and (|x| + mean |x|) / deviation: the mean is taken off, and may cancel."""
    rest = x - xp.mean(x, axis=-1, keepdims=True)
    deviation = xp.sqrt(xp.mean(rest * rest, axis=-1, keepdims=True) + EPSILON)
    return deviation, (xp.abs(x) + xp.mean(xp.abs(x), axis=-1, keepdims=True)) / deviation


def _layernorm_grad_scale(xp: Array, x: Array, dy: Array, g: Array) -> Array:
    deviation, unit = _unit_scale(xp, x)
    slope = xp.abs(dy * g)
    means = (xp.mean(slope, axis=-1, keepdims=True), xp.mean(slope * unit, axis=-1, keepdims=True))
    return (slope + means[0] + unit * means[1]) / deviation


def _layernorm_grad_torch(torch: Any, x: Any, dy: Any, g: Any) -> Any:
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    inverse, only = torch.rsqrt(variance + EPSILON), [True, False, False]
    return torch.ops.aten.native_layer_norm_backward(dy, x, x.shape[-1:], mean, inverse, g, None, only)[0]


OPS = (
    rowwise(
        name="softmax",
        group="activation",
        summary="out = exp(x - max(x)) / sum(exp(x - max(x))) along rows of up to 1024",
        inputs=(Operand("x", CUT_INTO_ROWS.shape, values="normal"),),
        formula=_softmax_formula,
        flops_per_element=5,  # max, subtract, exp, add, divide
        library={"torch": lambda torch, x, out=None: torch.softmax(x, -1, out=out)},
        tolerance=Tolerance(64),
    ),
    rowwise(
        name="softmax_grad",
        group="derivative",
        summary="out = y (dy - sum(y dy)) along rows of up to 1024",
        inputs=(Operand("y", CUT_INTO_ROWS.shape), Operand("dy", CUT_INTO_ROWS.shape)),
        formula=lambda m, y, dy: y * (dy - m.total(y * dy)),
        flops_per_element=4,  # multiply, add, subtract, multiply
        library={"torch": _softmax_torch},
        tolerance=Tolerance(8, scale=_softmax_scale),
    ),
    rowwise(
        name="layernorm",
        group="layers",
        summary="out = (x - mean) / sqrt(variance + 1e-5) g + c of each row",
        inputs=(
            Operand("x", OF_WIDTH.shape, "normal"),
            Operand("g", across, "normal", role="weight"),
            Operand("c", across, "normal", role="weight"),
        ),
        of=OF_WIDTH,
        formula=layernorm,
        flops_per_element=7,  # add, take the mean off; multiply, add; multiply by the inverse and by g, add c
        library={
            "torch": lambda torch, x, g, c: torch.nn.functional.layer_norm(x, x.shape[-1:], g, c, EPSILON)
        },
        tolerance=Tolerance(8, scale=_layernorm_scale),
    ),
    rowwise(
        name="layernorm_grad",
        group="layers",
        summary="the gradient of layernorm by x, from dy, that of its result",
        inputs=(
            Operand("x", OF_WIDTH.shape, "normal"),
            Operand("dy", OF_WIDTH.shape, "normal"),
            Operand("g", across, "normal", role="weight"),
        ),
        of=OF_WIDTH,
        formula=_layernorm_grad,
        flops_per_element=14,
        library={"torch": _layernorm_grad_torch},
        tolerance=Tolerance(8, scale=_layernorm_grad_scale),
    ),
    rowwise(
        name="layernorm_grad_g",
        group="layers",
        summary="the terms whose sums over the rows are the gradient of layernorm by g",
        inputs=(Operand("x", OF_WIDTH.shape, "normal"), Operand("dy", OF_WIDTH.shape, "normal")),
        of=OF_WIDTH,
        formula=_layernorm_grad_g,
        flops_per_element=6,
        library={
            "torch": lambda torch, x, dy: dy * torch.nn.functional.layer_norm(x, x.shape[-1:], eps=EPSILON)
        },
        tolerance=Tolerance(8, scale=lambda xp, x, dy: xp.abs(dy) * _unit_scale(xp, x)[1]),
    ),
    rowwise(
        name="rmsnorm",
        group="layers",
        summary="out = x / sqrt(mean of squares + 1e-5) g of each row",
        inputs=(Operand("x", OF_WIDTH.shape, "normal"), Operand("g", across, "normal", role="weight")),
        of=OF_WIDTH,
        formula=lambda m, x, g: x / m.sqrt(m.mean(x * x) + EPSILON) * g,
        flops_per_element=4,
        library={"torch": lambda torch, x, g: torch.nn.functional.rms_norm(x, x.shape[-1:], g, EPSILON)},
        tolerance=Tolerance(8),
    ),
)
