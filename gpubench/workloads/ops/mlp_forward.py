"""mlp_forward: class probabilities of n pictures by a perceptron of two layers, 784 -> 512 -> 10."""

from gpubench.workloads.mlp import FORWARD, PARAMS, SIZES, WEIGHTS
from gpubench.workloads.workload import workload

OP = workload(
    name="mlp_forward", group="network", summary="softmax(relu(x w1 + b1) w2 + b2), 784-512-10",
    params=PARAMS, sizes=SIZES,
    stages=FORWARD, inputs={"x": "normal"}, weights=WEIGHTS, outputs={"p": "activation"},
)  # fmt: skip
