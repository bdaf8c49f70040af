"""norm_linear_gelu: out = gelu(layernorm(x) w + b), a norm and the first half of what a transformer feeds forward."""

from gpubench import kernels
from gpubench.kernels.templates.matmul.epilogue import GELU, GELU_SLOPE
from gpubench.kernels.templates.norm_linear import norm_linear

OP = norm_linear(
    "norm_linear_gelu", "out = gelu(layernorm(x) w + b) of n rows", kernels.load("linear_gelu"), GELU,
    slope=GELU_SLOPE,
)  # fmt: skip
