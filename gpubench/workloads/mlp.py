"""The stages of a small perceptron for pictures of 28 x 28: 784 inputs, 512 hidden, 10 classes.

mlp_forward: class probabilities of n pictures by a perceptron of two layers, 784 -> 512 -> 10.

mlp_backward: the gradients of all weights of `mlp_forward`, from what its forward pass left.

They stay on the device, where the optimiser is. The formulas hold for any hidden values and any gradient
of the logits.


mlp_step: the loss of `mlp_forward` on n labelled pictures, and the gradients of all its weights.

The gradients stay on the device, where the optimiser is; the loss of each picture comes down.

"""

from __future__ import annotations

from collections.abc import Callable

from gpubench.kernels.contract.op import Array, Ids, Ladder, Params, Stage, Values
from gpubench.kernels.templates.linear import norms
from gpubench.workloads.workload import workload

PIXELS, HIDDEN, CLASSES = 784, 512, 10
PARAMS = {"n": "rows in the batch"}
SIZES = Ladder(low=1, high=16384)
WEIGHTS: dict[str, Values] = {"w1": "fan-in", "b1": "zeros", "w2": "fan-in", "b2": "zeros"}


def _linear(k: int, m: int) -> Callable[[Params], Params]:
    return lambda params: {"n": params["n"], "k": k, "m": m}


def _product(m: int, n: int) -> Callable[[Params], Params]:
    """A gradient of weights: a sum over the rows of the batch."""
    return lambda params: {"m": m, "n": n, "k": params["n"], "ta": 1}


def _rows(columns: int) -> Callable[[Params], Params]:
    return lambda params: {"n": params["n"], "columns": columns}


FORWARD = (
    Stage("hidden", "linear_relu", ("x", "w1", "b1"), ("h",), _linear(PIXELS, HIDDEN)),
    Stage("logits", "linear", ("h", "w2", "b2"), ("z",), _linear(HIDDEN, CLASSES)),
    Stage(
        "probabilities",
        "softmax",
        ("z",),
        ("p",),
        lambda params: {"n": params["n"] * CLASSES, "columns": CLASSES},
    ),
)
LOSS = (
    Stage(
        "loss",
        "cross_entropy",
        ("z", "labels"),
        ("loss", "dz"),
        lambda params: {"n": params["n"], "classes": CLASSES},
    ),
)
BACKWARD = (
    Stage("grad_w2", "matmul", ("h", "dz"), ("dw2",), _product(HIDDEN, CLASSES)),
    Stage("grad_b2", "sum_rows", ("dz",), ("db2",), _rows(CLASSES)),
    Stage("grad_h", "linear_grad_relu", ("dz", "w2", "h"), ("dh",), _linear(CLASSES, HIDDEN)),
    Stage("grad_w1", "matmul", ("x", "dh"), ("dw1",), _product(PIXELS, HIDDEN)),
    Stage("grad_b1", "sum_rows", ("dh",), ("db1",), _rows(HIDDEN)),
)  # fmt: skip


def flipped(gradient: str) -> Callable[..., Array]:
    """Return by how much dw1 or db1 may be off where hidden values are so near to 0 that round-off decides their sign,
    hence whether anything flows back through them."""

    def slack(xp: Array, u: float, x: Array, labels: Array, *weights: Array) -> Array:
        w1, b1, w2, b2 = weights
        before = x @ w1 + b1
        near = xp.abs(before) <= 8 * u * (norms(xp, x, w1) + xp.abs(b1))
        z = xp.maximum(before, 0) @ w2 + b2
        powers = xp.exp(z - xp.max(z, axis=-1, keepdims=True))
        dz = powers / xp.sum(powers, axis=-1, keepdims=True)
        dz[xp.arange(len(z)), labels] -= 1
        flow = xp.where(near, xp.abs(dz / len(z)) @ xp.abs(w2).T, 0)
        return xp.abs(x).T @ flow if gradient == "dw1" else xp.sum(flow, axis=0)

    return slack


mlp_forward = workload(
    name="mlp_forward", group="network", summary="softmax(relu(x w1 + b1) w2 + b2), 784-512-10",
    params=PARAMS, sizes=SIZES,
    stages=FORWARD, inputs={"x": "normal"}, weights=WEIGHTS, outputs={"p": "activation"},
)  # fmt: skip


mlp_backward = workload(
    name="mlp_backward", group="network", summary="gradients of the weights of mlp_forward",
    params=PARAMS, sizes=SIZES,
    stages=BACKWARD, inputs={"x": "normal", "h": "relu", "dz": "normal"}, weights={"w2": "fan-in"},
    outputs={"dw2": "weight", "db2": "weight", "dw1": "weight", "db1": "weight"},
)  # fmt: skip


mlp_step = workload(
    name="mlp_step", group="network", summary="forward pass, cross entropy and gradients of mlp_forward",
    params=PARAMS, sizes=SIZES,
    stages=(*FORWARD[:2], *LOSS, *BACKWARD), inputs={"x": "normal", "labels": Ids(lambda params: CLASSES)},
    weights=WEIGHTS, judged={name: flipped(name) for name in ("dw1", "db1")},
    outputs={"loss": "activation", "dw2": "weight", "db2": "weight", "dw1": "weight", "db1": "weight"},
)  # fmt: skip
