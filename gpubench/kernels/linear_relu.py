"""linear_relu: out = max(x w + b, 0), a layer and its activation in one launch."""

from gpubench.kernels.contract.op import Tolerance
from gpubench.kernels.templates.linear import linear, scale_of_sum
from gpubench.kernels.templates.matmul.epilogue import Epilogue

OP = linear(
    name="linear_relu",
    group="layers",
    summary="out = max(x w + b, 0) of n rows",
    epilogue=Epilogue({"b": "across"}, lambda m, v, b: m.maximum(v + b, 0), flops=2),
    library={"torch": lambda torch, x, w, b: torch.relu_(torch.addmm(b, x, w))},
    tolerance=Tolerance(8, scale=scale_of_sum),
)
