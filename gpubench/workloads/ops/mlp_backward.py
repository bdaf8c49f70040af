"""mlp_backward: the gradients of all weights of `mlp_forward`, from what its forward pass left.

They stay on the device, where the optimiser is. The formulas hold for any hidden values and any gradient
of the logits.
"""

from gpubench.workloads.mlp import BACKWARD, PARAMS, SIZES
from gpubench.workloads.workload import workload

OP = workload(
    name="mlp_backward", group="network", summary="gradients of the weights of mlp_forward",
    params=PARAMS, sizes=SIZES,
    stages=BACKWARD, inputs={"x": "normal", "h": "relu", "dz": "normal"}, weights={"w2": "fan-in"},
    outputs={"dw2": "weight", "db2": "weight", "dw1": "weight", "db1": "weight"},
)  # fmt: skip
