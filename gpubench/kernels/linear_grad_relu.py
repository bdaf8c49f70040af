"""linear_grad_relu: dy w^T where h > 0, what goes back through a layer and the relu in front of it.

`w` (m x k) is the weight of the layer that has h as its input; h is the output of that relu, as the forward pass kept
it. The mask comes from the given h, so that no rounding can flip it.
"""

from gpubench.kernels.contract.op import Array, Tolerance
from gpubench.kernels.templates.linear import linear, norms
from gpubench.kernels.templates.matmul.epilogue import Epilogue


def _scale(xp: Array, dy: Array, w: Array, h: Array) -> Array:
    return norms(xp, dy, w.T)


OP = linear(
    name="linear_grad_relu",
    group="layers",
    summary="out = dy w^T where h > 0, else 0",
    turned=True,
    epilogue=Epilogue({"h": "all"}, lambda m, v, h: m.where(h > 0, v, 0), flops=1),
    library={"torch": lambda torch, dy, w, h: torch.ops.aten.threshold_backward(dy @ w.T, h, 0)},
    tolerance=Tolerance(8, scale=_scale),
)
