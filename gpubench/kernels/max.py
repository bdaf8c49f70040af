"""max: one read per element and a single number written: bound by memory.

A NaN wins, as in NumPy: `a` stays if it is NaN, and `b` replaces it unless b <= a is known to hold.
"""

from gpubench.kernels.contract.op import EXACT
from gpubench.kernels.templates.reduce import MINUS_INFINITY, CudaReduction, WgslReduction, reduction

OP = reduction(
    name="max",
    group="reduction",
    summary="out = largest of x",
    inputs=("x",),
    flops_per_element=1,
    expr=lambda xp, x: xp.max(x),
    tolerance=EXACT,
    join="maximum",
    cuda=CudaReduction("max", ("x",), "x", "larger(a, b)", MINUS_INFINITY),
    wgsl=WgslReduction(("x",), "minus infinity", "x", "select(a, b, !(b <= a) & (a == a))"),
)
