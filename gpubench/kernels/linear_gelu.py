"""linear_gelu: out = gelu(x w + b), the first half of a transformer's feed-forward part; gelu in its tanh form."""

from gpubench.kernels.contract.op import Array, Tolerance
from gpubench.kernels.templates.elementwise import GELU_CUBIC as CUBIC
from gpubench.kernels.templates.elementwise import GELU_SCALE as C
from gpubench.kernels.templates.linear import linear, norms
from gpubench.kernels.templates.matmul.epilogue import GELU, GELU_SLOPE


def _expr(xp: Array, x: Array, w: Array, b: Array) -> Array:
    z = x @ w + b
    return 0.5 * z * (1 + xp.tanh(C * (z + CUBIC * z * z * z)))


def _scale(xp: Array, x: Array, w: Array, b: Array) -> Array:
    """The error of z, enlarged by gelu's slope, and that of gelu itself: eight times what the first is counted by."""
    z = x @ w + b
    return GELU_SLOPE * (norms(xp, x, w) + xp.abs(b)) + 4 * xp.abs(z) * (
        1 + xp.abs(xp.tanh(C * (z + CUBIC * z * z * z)))
    )


OP = linear(
    name="linear_gelu",
    group="layers",
    summary="out = gelu(x w + b) of n rows",
    epilogue=GELU,
    expr=_expr,
    library={
        "torch": lambda torch, x, w, b: torch.nn.functional.gelu(torch.addmm(b, x, w), approximate="tanh")
    },
    tolerance=Tolerance(8, scale=_scale),
)
