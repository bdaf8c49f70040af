"""linear_add: out = x w + b + r, a layer and the residual connection around it."""

from gpubench.kernels.contract.op import Array, Tolerance
from gpubench.kernels.templates.linear import linear, norms
from gpubench.kernels.templates.matmul.epilogue import Epilogue


def _scale(xp: Array, x: Array, w: Array, b: Array, r: Array) -> Array:
    return norms(xp, x, w) + xp.abs(b) + xp.abs(r)


OP = linear(
    name="linear_add",
    group="layers",
    summary="out = x w + b + r of n rows",
    epilogue=Epilogue({"b": "across", "r": "all"}, lambda m, v, b, r: v + b + r, flops=2),
    library={"torch": lambda torch, x, w, b, r: torch.addmm(b, x, w).add_(r)},
    tolerance=Tolerance(8, scale=_scale),
)
