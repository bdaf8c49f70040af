"""add: x + y; two reads and one write per element, so bound by memory everywhere."""

from gpubench.kernels._elementwise import absolute_sum, elementwise
from gpubench.model.op import Tolerance

OP = elementwise(
    name="add",
    group="vector",
    summary="out = x + y",
    inputs=("x", "y"),
    flops_per_element=1,
    expr=lambda xp, x, y: x + y,
    wgsl="x + y",
    cuda="x + y",
    tolerance=Tolerance(4, scale=absolute_sum),
    dtypes=("float32", "float64", "float16"),
    wgsl_dtypes=("float32", "float64", "float16"),
)
