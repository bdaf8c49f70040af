"""softmax along rows: exp(x - max) / sum of it; one read and one write per element if a row stays on chip."""

from typing import Any

from gpubench.kernels.contract.op import Operand, Tolerance
from gpubench.kernels.templates.rows import CUT_INTO_ROWS, rowwise


def _formula(m: Any, x: Any) -> Any:
    power, total = m.powers(x)
    return power / total


OP = rowwise(
    name="softmax",
    group="activation",
    summary="out = exp(x - max(x)) / sum(exp(x - max(x))) along rows of up to 1024",
    inputs=(Operand("x", CUT_INTO_ROWS.shape, values="normal"),),
    formula=_formula,
    flops_per_element=5,  # max, subtract, exp, add, divide
    library={"torch": lambda torch, x, out=None: torch.softmax(x, -1, out=out)},
    tolerance=Tolerance(64),
)
