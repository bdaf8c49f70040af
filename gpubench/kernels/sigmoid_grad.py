"""sigmoid_grad: dy s (1 - s) with s = 1 / (1 + exp(-x)), what frameworks call the backward of sigmoid.

The kernels use the equal form dy e / (1 + e)^2 with e = exp(-|x|): nothing overflows, nothing cancels.
"""

from gpubench.kernels.contract.op import Array, Operand, Tolerance
from gpubench.kernels.templates.elementwise import elementwise, vector_shape

_WGSL = """
fn slope(x: f32) -> f32 {
  let e = exp(-abs(x));
  return e / ((1.0 + e) * (1.0 + e));
}"""
# Written out, the exponential stands there three times; the compiler computes it once.
_E = "exp(-fabs(x))"


def _sigmoid(xp: Array, x: Array) -> Array:
    return 1 / (1 + xp.exp(-x))


def _expr(xp: Array, x: Array, dy: Array) -> Array:
    s = _sigmoid(xp, x)
    return dy * s * (1 - s)


def _reference(xp: Array, x: Array, dy: Array) -> Array:
    return dy / (2 * xp.cosh(x / 2)) ** 2


def _scale(xp: Array, x: Array, dy: Array) -> Array:
    """|dy| s (1 + s): for large x the two terms cancel."""
    s = _sigmoid(xp, x)
    return xp.abs(dy) * s * (1 + s)


OP = elementwise(
    name="sigmoid_grad",
    group="derivative",
    summary="out = dy s (1 - s), s = 1 / (1 + exp(-x))",
    inputs=(Operand("x", vector_shape, values="normal"), "dy"),
    flops_per_element=7,
    expr=_expr,
    wgsl="dy * slope(x)",
    wgsl_functions=_WGSL.strip(),
    cuda=f"dy * ({_E} / ((real(1) + {_E}) * (real(1) + {_E})))",
    tolerance=Tolerance(64, scale=_scale),
    reference=_reference,
)
