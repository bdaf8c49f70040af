"""saxpy: a * x + y with a = 2.5, the BLAS level 1 classic; two reads and one write per element."""

from gpubench.kernels.contract.op import Tolerance
from gpubench.kernels.templates.elementwise import absolute_sum, elementwise

A = 2.5  # exact in every dtype, and no power of two: the product has to be rounded

OP = elementwise(
    name="saxpy",
    group="vector",
    summary="out = 2.5 * x + y",
    inputs=("x", "y"),
    flops_per_element=2,
    formula=lambda m, x, y: m.fma(A, x, y),
    expr=lambda xp, x, y: A * x + y,
    library={"torch": lambda torch, x, y, out: torch.add(y, x, alpha=A, out=out)},
    tolerance=Tolerance(4, scale=lambda xp, x, y: absolute_sum(xp, A * x, y)),
)
