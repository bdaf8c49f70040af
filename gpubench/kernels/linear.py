"""linear: out = x w + b, a layer of a network: n rows times a matrix of weights, and a bias."""

from gpubench.kernels.contract.op import Array, Tolerance
from gpubench.kernels.templates.linear import linear, norms
from gpubench.kernels.templates.matmul.epilogue import BIAS


def _scale(xp: Array, x: Array, w: Array, b: Array) -> Array:
    return norms(xp, x, w) + xp.abs(b)


OP = linear(
    name="linear",
    group="layers",
    summary="out = x w + b of n rows",
    epilogue=BIAS,
    library={"torch": lambda torch, x, w, b: torch.addmm(b, x, w)},
    tolerance=Tolerance(8, scale=_scale),
)
