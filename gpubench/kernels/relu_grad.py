"""relu_grad: what frameworks call the backward of relu, dy where x > 0 and 0 elsewhere (at 0 too).

Two reads and one write per element. A comparison instead of a product: 0 times an infinite dy would be a NaN.
"""

from gpubench.kernels.contract.op import EXACT
from gpubench.kernels.templates.elementwise import elementwise

OP = elementwise(
    name="relu_grad",
    group="derivative",
    summary="out = dy where x > 0, else 0",
    inputs=("x", "dy"),
    flops_per_element=1,
    formula=lambda m, x, dy: m.where(x > 0, dy, 0),
    library={
        "torch": lambda torch, x, dy, out: torch.ops.aten.threshold_backward.grad_input(
            dy, x, 0, grad_input=out
        )
    },
    tolerance=EXACT,
)
