"""linear: out = x w + b, a layer of a network: n rows times a matrix of weights, and a bias."""

from gpubench.kernels.contract.op import Tolerance
from gpubench.kernels.templates.linear import linear, scale_of_sum
from gpubench.kernels.templates.matmul.epilogue import BIAS

OP = linear(
    name="linear",
    group="layers",
    summary="out = x w + b of n rows",
    epilogue=BIAS,
    library={"torch": lambda torch, x, w, b: torch.addmm(b, x, w)},
    tolerance=Tolerance(8, scale=scale_of_sum),
)
