"""rmsnorm: x / sqrt(mean of squares + epsilon) g of each row: layernorm without the mean and the shift.

Source: Zhang and Sennrich, arXiv 1910.07467.
"""

from gpubench.kernels.contract.op import Operand, Tolerance
from gpubench.kernels.templates.rows import EPSILON, OF_WIDTH, across, rowwise

OP = rowwise(
    name="rmsnorm",
    group="layers",
    summary="out = x / sqrt(mean of squares + 1e-5) g of each row",
    inputs=(Operand("x", OF_WIDTH.shape, "normal"), Operand("g", across, "normal", role="weight")),
    of=OF_WIDTH,
    formula=lambda m, x, g: x / m.sqrt(m.mean(x * x) + EPSILON) * g,
    flops_per_element=4,
    library={"torch": lambda torch, x, g: torch.nn.functional.rms_norm(x, x.shape[-1:], g, EPSILON)},
    tolerance=Tolerance(8),
)
