"""norm_linear_gelu: out = gelu(layernorm(x) w + b), a norm and the first half of what a transformer feeds forward."""

from gpubench import kernels
from gpubench.kernels.templates.matmul.epilogue import GELU, GELU_SLOPE
from gpubench.kernels.templates.norm_linear import norm_linear

OP = norm_linear(
    name="norm_linear_gelu", group="layers",
    summary="out = gelu(layernorm(x) w + b) of n rows", plain=kernels.load("linear_gelu"),
    epilogue=GELU, slope=GELU_SLOPE,
)  # fmt: skip
