"""The stages of a small perceptron for pictures of 28 x 28: 784 inputs, 512 hidden, 10 classes."""

from __future__ import annotations

from collections.abc import Callable

from gpubench.model.op import Ladder, Params, Stage

PIXELS, HIDDEN, CLASSES = 784, 512, 10
PARAMS = {"n": "rows in the batch"}
SIZES = Ladder(low=1, high=16384)


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
BACKWARD = (
    Stage("grad_w2", "matmul", ("h", "dz"), ("dw2",), _product(HIDDEN, CLASSES)),
    Stage("grad_b2", "sum_rows", ("dz",), ("db2",), _rows(CLASSES)),
    Stage("grad_h", "linear_grad_relu", ("dz", "w2", "h"), ("dh",), _linear(CLASSES, HIDDEN)),
    Stage("grad_w1", "matmul", ("x", "dh"), ("dw1",), _product(PIXELS, HIDDEN)),
    Stage("grad_b1", "sum_rows", ("dh",), ("db1",), _rows(HIDDEN)),
)  # fmt: skip
