"""transformer_block: one layer of a GPT: norm, attention, norm, two layers, with what goes in added twice."""

from gpubench.kernels._transformer import (
    ATTENTION_WEIGHTS,
    BLOCK,
    FFN_WEIGHTS,
    HEADED,
    NORM_WEIGHTS,
    PARAMS,
    SIZES,
)
from gpubench.kernels.families.workload import workload

OP = workload(
    name="transformer_block", summary="one layer of a GPT of n tokens", params=PARAMS, sizes=SIZES, options=HEADED,
    stages=BLOCK, inputs={"x": "normal"}, weights={**NORM_WEIGHTS, **ATTENTION_WEIGHTS, **FFN_WEIGHTS},
    outputs={"y": "activation"},
)  # fmt: skip
