"""transformer_block: one layer of a GPT: norm, attention, norm, two layers, with what goes in added twice."""

from gpubench.workloads.transformer import BLOCK_WEIGHTS, HEADED, PARAMS, SIZES, block
from gpubench.workloads.workload import workload

OP = workload(
    name="transformer_block", group="network", summary="one layer of a GPT of n tokens",
    params=PARAMS, sizes=SIZES, options=HEADED,
    stages=block("x", "y"), inputs={"x": "normal"}, weights=BLOCK_WEIGHTS, outputs={"y": "activation"},
)  # fmt: skip
