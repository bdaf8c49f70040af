"""relu(x) = max(x, 0): one read and one write per element, so bound by memory everywhere."""

from gpubench.kernels.contract.op import EXACT
from gpubench.kernels.templates.elementwise import elementwise

OP = elementwise(
    name="relu",
    group="activation",
    summary="out = max(x, 0)",
    inputs=("x",),
    flops_per_element=1,
    formula=lambda m, x: m.maximum(x, 0),
    library={"torch": lambda torch, x, out: torch.ops.aten.relu.out(x, out=out)},
    tolerance=EXACT,
)
