"""ffn: the two layers behind the attention of a transformer, width -> 4 width -> width, gelu between them."""

from gpubench.workloads.transformer import FFN, FFN_WEIGHTS, PARAMS, SIZES, WIDE
from gpubench.workloads.workload import workload

OP = workload(
    name="ffn", group="network", summary="gelu(x win + bin) wout + bout",
    params=PARAMS, sizes=SIZES, options=WIDE, stages=FFN,
    inputs={"x": "normal"}, weights=FFN_WEIGHTS, outputs={"y": "activation"},
)  # fmt: skip
