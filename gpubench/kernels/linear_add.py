"""linear_add: out = x w + b + r, a layer and the residual connection around it."""

from gpubench.kernels.contract.op import Tolerance
from gpubench.kernels.templates.linear import linear, scale_of_sum
from gpubench.kernels.templates.matmul.epilogue import Epilogue

OP = linear(
    name="linear_add",
    group="layers",
    summary="out = x w + b + r of n rows",
    epilogue=Epilogue({"b": "across", "r": "all"}, lambda m, v, b, r: v + b + r, flops=2),
    library={"torch": lambda torch, x, w, b, r: torch.addmm(b, x, w).add_(r)},
    tolerance=Tolerance(8, scale=scale_of_sum),
)
