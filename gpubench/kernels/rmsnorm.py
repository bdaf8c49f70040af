"""rmsnorm: x / sqrt(mean of squares + epsilon) g of each row: layernorm without the mean and the shift.

Source: Zhang and Sennrich, arXiv 1910.07467.
"""

from gpubench.kernels.contract.op import Array, Tolerance
from gpubench.kernels.templates.norm import EPSILON, norm


def _expr(xp: Array, x: Array, g: Array) -> Array:
    return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + EPSILON) * g


OP = norm(
    name="rmsnorm",
    group="layers",
    summary="out = x / sqrt(mean of squares + 1e-5) g of each row",
    centred=False,
    expr=_expr,
    library={"torch": lambda torch, x, g: torch.nn.functional.rms_norm(x, x.shape[-1:], g, EPSILON)},
    tolerance=Tolerance(8, scale=lambda xp, x, g: xp.abs(_expr(xp, x, g))),
)
