"""linear_gelu: out = gelu(x w + b), the first half of a transformer's feed-forward part; gelu in its tanh form."""

from typing import Any

from gpubench.kernels.families.elementwise import GELU_CUBIC as CUBIC
from gpubench.kernels.families.elementwise import GELU_SCALE as C
from gpubench.kernels.families.linear import linear, norms
from gpubench.kernels.families.matmul.epilogue import Epilogue
from gpubench.model.op import Array, Tolerance

LARGEST_SLOPE = 1.13  # of gelu, at x = 1.4


def _expr(xp: Array, x: Array, w: Array, b: Array) -> Array:
    z = x @ w + b
    return 0.5 * z * (1 + xp.tanh(C * (z + CUBIC * z * z * z)))


def _reference(xp: Array, x: Array, w: Array, b: Array) -> Array:
    """The same through exp(-|2 u|), which never overflows."""
    z = x @ w + b
    twice = 2 * C * (z + CUBIC * z**3)
    small = xp.exp(-xp.abs(twice))
    return z * xp.where(twice < 0, small, 1.0) / (1.0 + small)


def _scale(xp: Array, x: Array, w: Array, b: Array) -> Array:
    """The error of z, enlarged by gelu's slope, and that of gelu itself: eight times what the first is counted by."""
    z = x @ w + b
    return LARGEST_SLOPE * (norms(xp, x, w) + xp.abs(b)) + 4 * xp.abs(z) * (
        1 + xp.abs(xp.tanh(C * (z + CUBIC * z**3)))
    )


def _cpu(np: Any, out: Array, room: Any, b: Array) -> None:
    """z / (1 + exp(-2 c (z + 0.044715 z^3))), step by step in place."""
    kind = out.dtype.type
    power = room(out)
    np.add(out, b, out=out)
    np.multiply(out, out, out=power)
    np.multiply(power, kind(-2 * C * CUBIC), out=power)
    np.subtract(power, kind(2 * C), out=power)
    np.multiply(power, out, out=power)
    np.exp(power, out=power)
    np.add(power, kind(1), out=power)
    np.divide(out, power, out=out)


EPILOGUE = Epilogue(
    {"b": "across"},
    cpu=_cpu,
    wgsl="gelu(v + b)",
    wgsl_functions=f"""fn gelu(x: V) -> V {{
  return x / (V(1.0) + exp(V({-2 * C!r}) * fma(V({CUBIC}) * x * x, x, x)));
}}""",
    exponential=True,
    cuda="gelu(v + b)",
    flops=10,
    cuda_functions=f"""__device__ __forceinline__ real gelu(real x) {{
  return x / (real(1) + exp(real({-2 * C!r}) * fma(real({CUBIC}) * x * x, x, x)));
}}""",
)
OP = linear(
    name="linear_gelu",
    summary="out = gelu(x w + b) of n rows",
    epilogue=EPILOGUE,
    expr=_expr,
    torch=lambda torch, x, w, b: torch.nn.functional.gelu(torch.addmm(b, x, w), approximate="tanh"),
    tolerance=Tolerance(8, scale=_scale),
    reference=_reference,
)
