"""layernorm: (x - mean) / sqrt(variance + epsilon) g + c of each row, as a transformer does before every part of it.

The variance is the mean square of what is left after the mean, so that nothing cancels.
Source: Ba, Kiros and Hinton, arXiv 1607.06450.
"""

from gpubench.kernels.contract.op import Array, Operand, Tolerance
from gpubench.kernels.templates.rows import EPSILON, OF_WIDTH, across, layernorm, rowwise


def _scale(xp: Array, x: Array, g: Array, c: Array) -> Array:
    """|g| (|x| + mean |x|) / deviation + |c|: the mean is taken off, and may cancel."""
    rest = x - xp.mean(x, axis=-1, keepdims=True)
    deviation = xp.sqrt(xp.mean(rest * rest, axis=-1, keepdims=True) + EPSILON)
    return xp.abs(g) * (xp.abs(x) + xp.mean(xp.abs(x), axis=-1, keepdims=True)) / deviation + xp.abs(c)


OP = rowwise(
    name="layernorm",
    group="layers",
    summary="out = (x - mean) / sqrt(variance + 1e-5) g + c of each row",
    inputs=(
        Operand("x", OF_WIDTH.shape, "normal"),
        Operand("g", across, "normal", role="weight"),
        Operand("c", across, "normal", role="weight"),
    ),
    of=OF_WIDTH,
    formula=layernorm,
    flops_per_element=7,  # add, take the mean off; multiply, add; multiply by the inverse and by g, add c
    library={"torch": lambda torch, x, g, c: torch.nn.functional.layer_norm(x, x.shape[-1:], g, c, EPSILON)},
    tolerance=Tolerance(8, scale=_scale),
)
