"""multi_head_attention: attention of n tokens with its projections, and x added; `attention` is the core alone."""

from gpubench.workloads.transformer import ATTENTION_WEIGHTS, HEADED, PARAMS, SIZES, attend
from gpubench.workloads.workload import workload

OP = workload(
    name="multi_head_attention", group="network", summary="x + attention(x wqkv + bqkv) wo + bo, causal",
    params=PARAMS, sizes=SIZES,
    options=HEADED, stages=attend("x", "y"), inputs={"x": "normal"}, weights=ATTENTION_WEIGHTS,
    outputs={"y": "activation"},
)  # fmt: skip
