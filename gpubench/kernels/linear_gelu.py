"""linear_gelu: out = gelu(x w + b), the first half of a transformer's feed-forward part; gelu in its tanh form."""

from gpubench.kernels.contract.op import Array, Tolerance
from gpubench.kernels.templates.elementwise import gelu_on_arrays, gelu_scale
from gpubench.kernels.templates.linear import linear, scale_of_sum
from gpubench.kernels.templates.matmul.epilogue import GELU, GELU_SLOPE


def _scale(xp: Array, x: Array, w: Array, b: Array) -> Array:
    """The error of z, enlarged by gelu's slope, and that of gelu itself: eight times what the first is counted by."""
    return GELU_SLOPE * scale_of_sum(xp, x, w, b) + 8 * gelu_scale(xp, x @ w + b)


OP = linear(
    name="linear_gelu",
    group="layers",
    summary="out = gelu(x w + b) of n rows",
    epilogue=GELU,
    expr=lambda xp, x, w, b: gelu_on_arrays(xp, x @ w + b),
    library={
        "torch": lambda torch, x, w, b: torch.nn.functional.gelu(torch.addmm(b, x, w), approximate="tanh")
    },
    tolerance=Tolerance(8, scale=_scale),
)
