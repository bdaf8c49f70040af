"""tanh_grad: dy (1 - tanh(x)^2), what frameworks call the backward of tanh.

The kernels use the equal form dy 4 e / (1 + e)^2 with e = exp(-2 |x|): nothing overflows, nothing cancels.
"""

from gpubench.kernels.contract.op import Array, Operand, Tolerance
from gpubench.kernels.templates.elementwise import elementwise, vector_shape

_WGSL = """
fn slope(x: f32) -> f32 {
  let e = exp(-2.0 * abs(x));
  return 4.0 * e / ((1.0 + e) * (1.0 + e));
}"""
# Written out, the exponential stands there three times; the compiler computes it once.
_E = "exp(real(-2) * fabs(x))"


def _expr(xp: Array, x: Array, dy: Array) -> Array:
    t = xp.tanh(x)
    return dy * (1 - t * t)


def _reference(xp: Array, x: Array, dy: Array) -> Array:
    return dy / xp.cosh(x) ** 2


def _scale(xp: Array, x: Array, dy: Array) -> Array:
    """|dy| (1 + tanh^2): for large |x| the two terms cancel."""
    return xp.abs(dy) * (1 + xp.tanh(x) ** 2)


OP = elementwise(
    name="tanh_grad",
    group="derivative",
    summary="out = dy (1 - tanh(x)^2)",
    inputs=(Operand("x", vector_shape, values="normal"), "dy"),
    flops_per_element=4,
    expr=_expr,
    wgsl="dy * slope(x)",
    wgsl_functions=_WGSL.strip(),
    cuda=f"dy * (real(4) * {_E} / ((real(1) + {_E}) * (real(1) + {_E})))",
    tolerance=Tolerance(64, scale=_scale),
    reference=_reference,
)
