"""layernorm: (x - mean) / sqrt(variance + epsilon) g + c of each row, as a transformer does before every part of it.

Source: Ba, Kiros and Hinton, arXiv 1607.06450.
"""

from gpubench.kernels.contract.op import Array, Tolerance
from gpubench.kernels.templates.norm import EPSILON, norm


def _expr(xp: Array, x: Array, g: Array, c: Array) -> Array:
    mean = xp.mean(x, axis=-1, keepdims=True)
    variance = xp.mean((x - mean) * (x - mean), axis=-1, keepdims=True)
    return (x - mean) / xp.sqrt(variance + EPSILON) * g + c


def _scale(xp: Array, x: Array, g: Array, c: Array) -> Array:
    """|g| (|x| + mean |x|) / deviation + |c|: the mean is taken off, and may cancel."""
    rest = x - xp.mean(x, axis=-1, keepdims=True)
    deviation = xp.sqrt(xp.mean(rest * rest, axis=-1, keepdims=True) + EPSILON)
    return xp.abs(g) * (xp.abs(x) + xp.mean(xp.abs(x), axis=-1, keepdims=True)) / deviation + xp.abs(c)


OP = norm(
    name="layernorm",
    group="layers",
    summary="out = (x - mean) / sqrt(variance + 1e-5) g + c of each row",
    centred=True,
    expr=_expr,
    library={"torch": lambda torch, x, g, c: torch.nn.functional.layer_norm(x, x.shape[-1:], g, c, EPSILON)},
    tolerance=Tolerance(8, scale=_scale),
)
