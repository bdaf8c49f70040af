"""gelu_grad: dy times the derivative of gelu's tanh form, what frameworks call the backward of gelu.

With u = c (x + 0.044715 x^3) and t = tanh(u): 0.5 (1 + t) + 0.5 x (1 - t^2) u'. The kernels put s = 1 / (1 +
exp(-2 u)) for 0.5 (1 + t) and 4 s (1 - s) for 1 - t^2, both from e = exp(-2 |u|): no overflow for any finite x
and no cancellation of either factor. The two terms themselves do cancel, near x = -0.75 where the derivative is 0.
"""

from gpubench.kernels.contract.op import Array, Operand, Tolerance
from gpubench.kernels.templates.elementwise import GELU_CUBIC as CUBIC
from gpubench.kernels.templates.elementwise import GELU_SCALE as C
from gpubench.kernels.templates.elementwise import elementwise, vector_shape

_SLOPE, _CURVE = 2 * C, 6 * C * CUBIC  # 2 u' = _SLOPE + _CURVE x^2

# q = x s (1 - s) is 0 before x^2 overflows, so it is multiplied in first; an infinite x gives a NaN, as in NumPy.
_WGSL = f"""
fn gelu_slope(x: f32) -> f32 {{
  let e = exp({-2 * C!r} * abs(fma({CUBIC} * x * x, x, x)));
  let large = 1.0 / (1.0 + e);
  let q = x * (e * large * large);
  return select(large, e * large, x < 0.0) + fma({_CURVE!r} * (q * x), x, {_SLOPE!r} * q);
}}"""
# Written out; the compiler computes what is repeated once.
_E = f"exp(real({-2 * C!r}) * fabs(fma(real({CUBIC}) * x * x, x, x)))"
_LARGE = f"(real(1) / (real(1) + {_E}))"
_Q = f"(x * ({_E} * {_LARGE} * {_LARGE}))"
_CUDA = (
    f"dy * (select(x < real(0), {_E} * {_LARGE}, {_LARGE})"
    f" + fma(real({_CURVE!r}) * ({_Q} * x), x, real({_SLOPE!r}) * {_Q}))"
)


def _expr(xp: Array, x: Array, dy: Array) -> Array:
    t = xp.tanh(C * (x + CUBIC * x * x * x))
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (C + 3 * C * CUBIC * x * x))


def _reference(xp: Array, x: Array, dy: Array) -> Array:
    """The same through e = exp(-|2 u|) and 1 - t^2 = 4 e / (1 + e)^2."""
    twice = 2 * C * (x + CUBIC * x * x * x)
    e = xp.exp(-xp.abs(twice))
    half = xp.where(twice < 0, e, 1.0) / (1 + e)
    return dy * (half + x * e / (1 + e) ** 2 * (2 * C + 6 * C * CUBIC * x * x))


def _scale(xp: Array, x: Array, dy: Array) -> Array:
    """|dy| (0.5 (1 + |t|) + 0.5 |x| (1 + t^2) u'): the sum of all absolute terms."""
    t = xp.tanh(C * (x + CUBIC * x * x * x))
    return xp.abs(dy) * (0.5 * (1 + xp.abs(t)) + 0.5 * xp.abs(x) * (1 + t * t) * (C + 3 * C * CUBIC * x * x))


OP = elementwise(
    name="gelu_grad",
    group="derivative",
    summary="out = dy (0.5 (1 + t) + 0.5 x (1 - t^2) u'), t = tanh(u), u as in gelu",
    inputs=(Operand("x", vector_shape, values="normal"), "dy"),
    flops_per_element=18,
    expr=_expr,
    wgsl="dy * gelu_slope(x)",
    wgsl_functions=_WGSL.strip(),
    cuda=_CUDA,
    tolerance=Tolerance(64, scale=_scale),
    reference=_reference,
)
