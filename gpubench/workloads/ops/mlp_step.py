"""mlp_step: the loss of `mlp_forward` on n labelled pictures, and the gradients of all its weights.

The gradients stay on the device, where the optimiser is; the loss of each picture comes down.
"""

from gpubench.kernels.contract.op import Ids
from gpubench.workloads.mlp import BACKWARD, CLASSES, FORWARD, LOSS, PARAMS, SIZES, WEIGHTS, flipped
from gpubench.workloads.workload import workload

OP = workload(
    name="mlp_step", group="network", summary="forward pass, cross entropy and gradients of mlp_forward",
    params=PARAMS, sizes=SIZES,
    stages=(*FORWARD[:2], *LOSS, *BACKWARD), inputs={"x": "normal", "labels": Ids(lambda params: CLASSES)},
    weights=WEIGHTS, judged={name: flipped(name) for name in ("dw1", "db1")},
    outputs={"loss": "activation", "dw2": "weight", "db2": "weight", "dw1": "weight", "db1": "weight"},
)  # fmt: skip
