"""relu_grad: what frameworks call the backward of relu, dy where x > 0 and 0 elsewhere (at 0 too).

Two reads and one write per element. A comparison instead of a product: 0 times an infinite dy would be a NaN.
"""

from gpubench.kernels.contract.op import EXACT
from gpubench.kernels.templates.elementwise import WGSL_ALL, elementwise

OP = elementwise(
    name="relu_grad",
    group="derivative",
    summary="out = dy where x > 0, else 0",
    inputs=("x", "dy"),
    flops_per_element=1,
    expr=lambda xp, x, dy: xp.where(x > 0, dy, 0),
    wgsl="select(0.0, dy, x > 0.0)",
    cuda="select(x > real(0), dy, real(0))",
    tolerance=EXACT,
    wgsl_dtypes=WGSL_ALL,
)
