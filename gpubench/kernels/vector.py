"""Ops that work element by element: arithmetic on vectors, activations and their derivatives, and the updates of
training. `dot`, a reduction, is here too. Memory bounds most of them. `copy` only moves data, so its rate is the
peak of memory.

The library implementation of `chain` needs one temporary array, and its tuned implementation is a single pass.
The divisor of `div` is normal, so that an exact 0 is rarer than among uniform values. A power is exp(y log x),
twenty times the work of a product. If the integer exponent is known, compiled kernels multiply instead, by
repeated squaring; array libraries do so for a square only.

The formulas of the derivatives equal the definitions, but neither overflow nor cancel.

An update writes to another array than its inputs, so that a launch can be repeated. Adam (Kingma and Ba, arXiv
1412.6980) is three ops, one for each array that it computes, as users of an array library write it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpubench.kernels.contract.op import EXACT, Array, Operand, Params, Range, Tolerance, Values
from gpubench.kernels.templates.elementwise import (
    GELU_CUBIC,
    GELU_SCALE,
    absolute_sum,
    elementwise,
    gelu,
    gelu_on_arrays,
    gelu_scale,
    gelu_tanh,
    vector_shape,
)
from gpubench.kernels.templates.reduce import reduction

_A = 2.5  # exact in every dtype, and no power of two, so that the product has to be rounded


_LARGEST_POWER = 16  # for larger exponents the compiled kernels use the general power


def _has_products(params: Params) -> str | None:
    exponent = params.get("exponent", 3)
    if 1 <= exponent <= _LARGEST_POWER:
        return None
    return f"the exponent is {exponent}; pow_int takes 1 to {_LARGEST_POWER}, pow any real one"


def _count_products(params: Params) -> int:
    """Return the number of multiplications of a power by repeated squaring."""
    exponent = params.get("exponent", 3)
    return exponent.bit_length() - 1 + exponent.bit_count() - 1


def _sigmoid_formula(m: Any, x: Any, dy: Any) -> Any:
    e = m.exp(-m.abs(x))
    return dy * (e / ((1 + e) * (1 + e)))


def _sigmoid(xp: Array, x: Array) -> Array:
    return 1 / (1 + xp.exp(-x))


def _sigmoid_expr(xp: Array, x: Array, dy: Array) -> Array:
    s = _sigmoid(xp, x)
    return dy * s * (1 - s)


def _sigmoid_scale(xp: Array, x: Array, dy: Array) -> Array:
    """Return the scale of the gradient dy s (1 - s), s = sigmoid(x): |dy| s (1 + s)."""
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
    """Return the scale of the gradient dy (1 - tanh^2): |dy| (1 + tanh^2)."""
    return xp.abs(dy) * (1 + xp.tanh(x) ** 2)


def _tanh_torch(torch: Any, x: Any, dy: Any, out: Any) -> Any:
    t = torch.tanh(x, out=out)
    return torch.ops.aten.tanh_backward.grad_input(dy, t, grad_input=t)


_GELU_SLOPE, _GELU_CURVE = 2 * GELU_SCALE, 6 * GELU_SCALE * GELU_CUBIC  # 2 u' = _GELU_SLOPE + _GELU_CURVE x^2


def _gelu_formula(m: Any, x: Any, dy: Any) -> Any:
    e = m.exp(-2 * GELU_SCALE * m.abs(m.fma(GELU_CUBIC * x * x, x, x)))
    large = 1 / (1 + e)
    # q is 0 before x^2 overflows, so it is multiplied in first; an infinite x gives a NaN, as in NumPy.
    q = x * (e * large * large)
    return dy * (m.where(x < 0, e * large, large) + m.fma(_GELU_CURVE * (q * x), x, _GELU_SLOPE * q))


def _gelu_inner_slope(x: Array) -> Array:
    """Return u', the slope of the argument of gelu's tanh."""
    return GELU_SCALE + 3 * GELU_SCALE * GELU_CUBIC * x * x


def _gelu_expr(xp: Array, x: Array, dy: Array) -> Array:
    t = gelu_tanh(xp, x)
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * _gelu_inner_slope(x))


def _gelu_scale(xp: Array, x: Array, dy: Array) -> Array:
    """Return the scale of gelu's gradient: |dy| (0.5 (1 + |t|) + 0.5 |x| (1 + t^2) u')."""
    t = gelu_tanh(xp, x)
    return xp.abs(dy) * (0.5 * (1 + xp.abs(t)) + 0.5 * xp.abs(x) * (1 + t * t) * _gelu_inner_slope(x))


def _gelu_forward(torch: Any, x: Any, out: Any = None) -> Any:
    if out is None:
        return torch.nn.functional.gelu(x, approximate="tanh")
    return torch.ops.aten.gelu.out(x, approximate="tanh", out=out)


def _gelu_torch(torch: Any, x: Any, dy: Any, out: Any = None) -> Any:
    if out is None:
        return torch.ops.aten.gelu_backward(dy, x, approximate="tanh")
    return torch.ops.aten.gelu_backward.grad_input(dy, x, approximate="tanh", grad_input=out)


SGD_RATE, ADAM_RATE = 0.125, 0.015625
MEAN_DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.999, 1e-8
# Mean squares as in the middle of a training. float16 has no numbers below 2^-14 in full precision.
SQUARES = Range(2.0**-14, 2.0**-12)


def _vector(name: str, values: Values = "normal") -> Operand:
    return Operand(name, vector_shape, values=values)


def _adam_rate(step: int) -> float:
    """Return Adam's learning rate, multiplied by the bias corrections of mean and sqrt(v)."""
    return ADAM_RATE * _adam_root(step) / (1 - MEAN_DECAY ** (step + 1))


def _adam_root(step: int) -> float:
    return float((1 - SQUARE_DECAY ** (step + 1)) ** 0.5)


def _adam_epsilon(step: int) -> float:
    return EPSILON * _adam_root(step)


def _torch(name: str) -> dict[str, Callable[..., Any]]:
    """Return an entry for an op's `library`: PyTorch's function `name`, called with all inputs in order."""
    return {"torch": lambda torch, *inputs, out=None: getattr(torch, name)(*inputs, out=out)}


OPS = (
    elementwise(
        name="copy",
        group="vector",
        summary="out = x",
        inputs=("x",),
        flops_per_element=0,
        formula=lambda m, x: x,
        expr=lambda xp, x: x.copy(),
        library={"torch": lambda torch, x, out: out.copy_(x)},
        tolerance=EXACT,
    ),
    elementwise(
        name="add",
        group="vector",
        summary="out = x + y",
        inputs=("x", "y"),
        flops_per_element=1,
        formula=lambda m, x, y: x + y,
        library=_torch("add"),
        tolerance=Tolerance(4, scale=absolute_sum),
    ),
    elementwise(
        name="sub",
        group="vector",
        summary="out = x - y",
        inputs=("x", "y"),
        flops_per_element=1,
        formula=lambda m, x, y: x - y,
        library=_torch("sub"),
        tolerance=Tolerance(4, scale=absolute_sum),
    ),
    elementwise(
        name="mul",
        group="vector",
        summary="out = x * y",
        inputs=("x", "y"),
        flops_per_element=1,
        formula=lambda m, x, y: x * y,
        library=_torch("mul"),
        tolerance=Tolerance(4),
    ),
    elementwise(
        name="div",
        group="vector",
        summary="out = x / y",
        inputs=("x", _vector("y")),
        flops_per_element=1,
        formula=lambda m, x, y: x / y,
        library=_torch("div"),
        tolerance=Tolerance(6, why="Vulkan and WGSL allow a quotient 2.5 ULP, which is up to 5 u"),
        not_finite="the divisor can be 0",
    ),
    elementwise(
        name="saxpy",
        group="vector",
        summary="out = 2.5 * x + y",
        inputs=("x", "y"),
        flops_per_element=2,
        formula=lambda m, x, y: m.fma(_A, x, y),
        expr=lambda xp, x, y: _A * x + y,
        library={"torch": lambda torch, x, y, out: torch.add(y, x, alpha=_A, out=out)},
        tolerance=Tolerance(4, scale=lambda xp, x, y: absolute_sum(xp, _A * x, y)),
    ),
    elementwise(
        name="chain",
        group="vector",
        summary="out = (a + b) * c",
        inputs=("a", "b", "c"),
        flops_per_element=2,
        formula=lambda m, a, b, c: (a + b) * c,
        library={"torch": lambda torch, a, b, c, out: torch.mul(torch.add(a, b, out=out), c, out=out)},
        tolerance=Tolerance(4, scale=lambda xp, a, b, c: absolute_sum(xp, a * c, b * c)),
    ),
    reduction(
        name="dot",
        group="vector",
        summary="out = x[0] y[0] + ... + x[n - 1] y[n - 1]",
        inputs=("x", "y"),
        flops_per_element=2,
        blas=("numpy", "torch"),
        formula=lambda m, x, y: x * y,
        join="add",
        linear=True,
        expr=lambda xp, x, y: x @ y,
        tolerance=Tolerance(
            8, scale=lambda xp, x, y: xp.sqrt(x @ x) * xp.sqrt(y @ y)
        ),  # the product of the norms
        library=_torch("dot"),
    ),
    elementwise(
        name="pow",
        group="math",
        summary="out = x ** y",
        inputs=(_vector("x", Range(0.25, 4)), "y"),
        flops_per_element=20,
        formula=lambda m, x, y: m.pow(x, y),
        library=_torch("pow"),
        # The error of the logarithm counts y times.
        tolerance=Tolerance(16, scale=lambda xp, x, y: x**y * (1 + xp.abs(y * xp.log(x)))),
    ),
    elementwise(
        name="pow_int",
        group="math",
        summary="out = x ** exponent, an integer (3)",
        inputs=("x",),
        options={"exponent": f"the integer exponent, 1 to {_LARGEST_POWER} (3)"},
        takes=("exponent",),
        fits=_has_products,
        flops_per_element=_count_products,
        formula=lambda m, x, exponent=3: x**exponent,
        library={"torch": lambda torch, x, out, exponent=3: torch.pow(x, exponent, out=out)},
        # Each product rounds once, and squaring doubles the error so far: exponent - 1 roundings in all.
        tolerance=Tolerance(2 * _LARGEST_POWER),
    ),
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
        inputs=(_vector("x"),),
        flops_per_element=4,
        formula=lambda m, x: 1 / (1 + m.exp(-x)),
        library=_torch("sigmoid"),
        tolerance=Tolerance(64),
    ),
    elementwise(
        name="tanh",
        group="activation",
        summary="out = tanh(x)",
        inputs=(_vector("x"),),
        flops_per_element=1,
        formula=lambda m, x: m.tanh(x),
        library=_torch("tanh"),
        tolerance=Tolerance(64),
    ),
    elementwise(
        name="gelu",
        group="activation",
        summary="out = 0.5 x (1 + tanh(0.79788 (x + 0.044715 x^3)))",
        inputs=(_vector("x"),),
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
        inputs=(_vector("x"), "dy"),
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
        inputs=(_vector("x"), "dy"),
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
        inputs=(_vector("x"), "dy"),
        flops_per_element=18,
        formula=_gelu_formula,
        expr=_gelu_expr,
        library={"torch": _gelu_torch},
        tolerance=Tolerance(64, scale=_gelu_scale),
    ),
    elementwise(
        name="sgd",
        group="layers",
        summary="out = w - 0.125 dw",
        inputs=(_vector("w"), _vector("dw")),
        flops_per_element=2,
        formula=lambda m, w, dw: w - SGD_RATE * dw,
        library={"torch": lambda torch, w, dw, out=None: torch.sub(w, dw, alpha=SGD_RATE, out=out)},
        tolerance=Tolerance(4, scale=lambda xp, w, dw: absolute_sum(xp, w, SGD_RATE * dw)),
    ),
    elementwise(
        name="adam_mean",
        group="layers",
        summary="out = 0.9 m + 0.1 dw, the mean of Adam's gradients",
        inputs=(_vector("m"), _vector("dw")),
        flops_per_element=3,
        formula=lambda m, mean, dw: MEAN_DECAY * mean + (1 - MEAN_DECAY) * dw,
        library={"torch": lambda torch, mean, dw, out=None: torch.lerp(mean, dw, 1 - MEAN_DECAY, out=out)},
        tolerance=Tolerance(8, scale=absolute_sum),
    ),
    elementwise(
        name="adam_square",
        group="layers",
        summary="out = 0.999 v + 0.001 dw^2, the mean of their squares",
        inputs=(_vector("v", SQUARES), _vector("dw")),
        flops_per_element=4,
        formula=lambda m, v, dw: SQUARE_DECAY * v + ((1 - SQUARE_DECAY) * dw) * dw,
        library={
            "torch": lambda torch, v, dw, out=None: torch.add(
                v * SQUARE_DECAY, dw * dw, alpha=1 - SQUARE_DECAY, out=out
            )
        },
        tolerance=Tolerance(8),
    ),
    elementwise(
        name="adam",
        group="layers",
        summary="out = w - 0.015625 (m / (1 - 0.9^t)) / (sqrt(v / (1 - 0.999^t)) + 1e-8), t = step + 1",
        inputs=(_vector("w"), _vector("m"), _vector("v", SQUARES)),
        options={"step": "updates made before this one (0)"},
        takes=("step",),
        flops_per_element=5,
        formula=lambda m, w, mean, v, step=0: w - _adam_rate(step) * mean / (m.sqrt(v) + _adam_epsilon(step)),
        library={
            "torch": lambda torch, w, mean, v, step=0, out=None: torch.addcdiv(
                w, mean, torch.sqrt(v).add_(_adam_epsilon(step)), value=-_adam_rate(step), out=out
            )
        },
        tolerance=Tolerance(
            12,
            scale=lambda xp, w, mean, v, step=0: absolute_sum(xp, w, _adam_rate(step) * mean / xp.sqrt(v)),
        ),
    ),
)
