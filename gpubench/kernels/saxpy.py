"""saxpy: a * x + y with a = 2.5, the BLAS level 1 classic; two reads and one write per element."""

from gpubench.kernels.contract.op import Tolerance
from gpubench.kernels.templates.elementwise import WGSL_ALL, absolute_sum, elementwise

A = 2.5  # exact in every dtype, and no power of two: the product has to be rounded

OP = elementwise(
    name="saxpy",
    group="vector",
    summary=f"out = {A} * x + y",
    inputs=("x", "y"),
    flops_per_element=2,
    expr=lambda xp, x, y: A * x + y,
    wgsl=f"fma({A}, x, y)",
    cuda=f"fma(real({A}), x, y)",
    tolerance=Tolerance(4, scale=lambda xp, x, y: absolute_sum(xp, A * x, y)),
    wgsl_dtypes=WGSL_ALL,
    constants={"a": A},
)
