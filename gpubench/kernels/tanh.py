"""tanh(x): one transcendental function per element.

The shader has its own tanh: Vulkan bounds the built-in one by an absolute error alone, which is worthless
near 0. Below 0.625 a polynomial in x^2 (fitted at Chebyshev nodes, relative error 0.08 u), above it
1 - 2 / (exp(2 |x|) + 1), with |x| cut at 10, where tanh has rounded to 1 (`select` keeps a NaN, `min` may not).
"""

from gpubench.kernels.contract.op import Array, Operand, Tolerance
from gpubench.kernels.templates.elementwise import elementwise, vector_shape

_WGSL = """
fn tanh_accurate(x: f32) -> f32 {
  let z = x * x;
  let series = fma(fma(fma(fma(-0.00570404252, z, 0.0206378615), z, -0.0537391565), z, 0.133314318), z, -0.333332813);
  let a = select(abs(x), 10.0, abs(x) > 10.0);
  let far = sign(x) * (1.0 - 2.0 / (exp(2.0 * a) + 1.0));
  return select(far, fma(x * z, series, x), abs(x) < 0.625);
}"""


def _reference(xp: Array, x: Array) -> Array:
    """The same from expm1(-2 |x|), which neither overflows nor cancels."""
    t = xp.expm1(-2.0 * xp.abs(x))
    return xp.sign(x) * -t / (t + 2.0)


OP = elementwise(
    name="tanh",
    group="activation",
    summary="out = tanh(x)",
    inputs=(Operand("x", vector_shape, values="normal"),),
    flops_per_element=1,
    expr=lambda xp, x: xp.tanh(x),
    wgsl="tanh_accurate(x)",
    wgsl_functions=_WGSL.strip(),
    cuda="tanh(x)",
    tolerance=Tolerance(64),
    reference=_reference,
)
