"""sum: one read per element and a single number written: bound by memory."""

from gpubench.kernels.contract.op import Tolerance
from gpubench.kernels.templates.reduce import CudaReduction, WgslReduction, reduction

OP = reduction(
    name="sum",
    group="reduction",
    summary="out = x[0] + x[1] + ... + x[n - 1]",
    inputs=("x",),
    flops_per_element=1,
    expr=lambda xp, x: xp.sum(x),
    tolerance=Tolerance(4, scale=lambda xp, x: xp.sum(xp.abs(x))),
    join="add",
    cuda=CudaReduction("sum", ("x",), "x"),
    wgsl=WgslReduction(("x",), "zero", "x", "a + b"),
)
