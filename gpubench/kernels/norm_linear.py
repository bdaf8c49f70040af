"""norm_linear: out = layernorm(x) w + b, what a transformer does before its attention: queries, keys and values."""

from gpubench import kernels
from gpubench.kernels.templates.matmul.epilogue import BIAS
from gpubench.kernels.templates.norm_linear import norm_linear

OP = norm_linear(
    name="norm_linear", group="layers", summary="out = layernorm(x) w + b of n rows", plain=kernels.load("linear"),
    epilogue=BIAS,
)  # fmt: skip
