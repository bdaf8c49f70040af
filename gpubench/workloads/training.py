"""The training ops. `mlp_step` gives the loss of each of n labelled images, which is copied to the host, and the
gradients of the perceptron's weights. `transformer_step` gives the gradients of the block's input and weights.

`mlp_sgd`, `mlp_adam` and `transformer_sgd` are three training steps, each with its own batch and an update of the
weights: w -= rate dw, or Adam with both bias corrections. One launch makes all three steps; weights and moments
stay on the device from step to step. Each launch begins with the same weights, so that no number drifts, and a
float64 training is its reference.

Adam's mean squares begin with small numbers instead of 0. From 0 the first step would be the rate times the sign of
the gradient, and round-off decides the sign of a gradient that is nearly 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gpubench import kernels
from gpubench.kernels.contract.op import (
    Array,
    Ids,
    Ladder,
    Op,
    Params,
    Repeat,
    Shape,
    Stage,
    Tolerance,
    Values,
    each,
)
from gpubench.kernels.templates.attention import ATTENTION_PARAMS
from gpubench.kernels.templates.matmul import norms
from gpubench.kernels.vector import SQUARES
from gpubench.workloads.networks import (
    BACKWARD,
    BLOCK_WEIGHTS,
    CLASSES,
    FORWARD,
    GROWTH,
    LOSS,
    MLP_PARAMS,
    MLP_SIZES,
    MLP_WEIGHTS,
    PARAMS,
    all_tokens,
    to_widths,
    width,
    with_heads,
)
from gpubench.workloads.workload import workload

STEPS = 3
_LAST = f"loss.{STEPS - 1}"
WeightShape = Callable[[Params], Shape]
Update = Callable[[str, WeightShape], tuple[Stage, ...]]


def _update(op: str, weight: str, reads: str, write: str, shape: WeightShape) -> Stage:
    """Return the stage that updates a weight or a moment. `{w}` in names is replaced by the weight's name."""

    def own(params: Params) -> Params:
        extents = shape(params)
        columns = {"columns": extents[-1]} if len(extents) > 1 else {}
        return {"n": math.prod(extents), **columns, "step": params["step"]}

    return Stage("update", op, tuple(reads.format(w=weight).split()), (write.format(w=weight),), own)


def _sgd(weight: str, shape: WeightShape) -> tuple[Stage, ...]:
    return (_update("sgd", weight, "{w} d{w}", "{w}+", shape),)


def _adam(weight: str, shape: WeightShape) -> tuple[Stage, ...]:
    return (
        _update("adam_mean", weight, "{w}_mean d{w}", "{w}_mean+", shape),
        _update("adam_square", weight, "{w}_square d{w}", "{w}_square+", shape),
        _update("adam", weight, "{w} {w}_mean+ {w}_square+", "{w}+", shape),
    )


def _shape_of(weight: str, stages: Sequence[Stage]) -> WeightShape:
    """Return the shape, as a function of the params, that the first stage that reads a weight declares."""
    stage = next(stage for stage in stages if weight in stage.reads)
    operand = kernels.load(stage.op).inputs[stage.reads.index(weight)]
    return lambda params: operand.shape(stage.params(params))


def _of_step(value: str) -> str:
    """Return the name of a value in a step, with a placeholder for the step's number."""
    # `+` marks a value with which the next step begins
    return f"{value[:-1]}.{{step+1}}" if value.endswith("+") else f"{value}.{{step}}"


def _steps(stages: Sequence[Stage], update: Update, weights: Iterable[str]) -> Repeat:
    updates = (stage for weight in weights for stage in update(weight, _shape_of(weight, stages)))
    named = (
        replace(stage, reads=tuple(map(_of_step, stage.reads)), writes=tuple(map(_of_step, stage.writes)))
        for stage in (*stages, *updates)
    )
    return Repeat("step", STEPS, tuple(named))


def _train(op: Op, xp: Array, arrays: Sequence[Array], margin: float) -> dict[str, Array]:
    """Return all values of a training in float64, by name, with hidden values shifted by `margin`."""
    values = dict(zip((operand.name for operand in op.inputs), arrays, strict=True))
    for stage in op.stages:
        own = kernels.load(stage.op).at(stage.params({"n": len(arrays[0])}))
        reads = [values[name] for name in stage.reads]
        # With a positive margin, in units of the rounding error, the gradient of every hidden value near 0 flows
        # back; with a negative one none does.
        if stage.op == "linear_grad_relu":
            x, w, b = (values[f"{name}.{stage.turns[0]}"] for name in ("x", "w1", "b1"))
            reads[2] = x @ w + b + margin * (stage.turns[0] + 1) * (norms(xp, x, w) + xp.abs(b))
        values.update(zip(stage.writes, each(own.exact()(xp, *reads)), strict=True))
    return values


def training_slack(op_name: str, value: str) -> Callable[..., Array]:
    """Return the slack of a training op's output `value`, as a function. Round-off decides whether gradients flow back
    through hidden values near 0. The slack is four times the largest difference, in each column, between two
    trainings in float64: one in which all of these gradients flow, and one in which none does."""

    def slack(xp: Array, u: float, *arrays: Array) -> Array:
        key = tuple(float(xp.sum(array)) for array in arrays)
        if (op_name, u, key) not in distances:
            op = kernels.load(op_name)
            above, below = (_train(op, xp, arrays, sign * 8 * u) for sign in (1, -1))
            distances.clear()
            distances[op_name, u, key] = {
                # the largest difference of each column
                output.name: xp.max(xp.abs(above[output.name] - below[output.name]), axis=0, initial=0.0)
                for output in op.outputs
            }
        return 4 * distances[op_name, u, key][value]

    return slack


# The differences of the last training, because its outputs are judged one after the other.
distances: dict[tuple[str, float, Any], dict[str, Array]] = {}


def _largest_weight(xp: Array, *arrays: Array, **params: int) -> Array:
    """Return the scale of weights after three updates: the largest absolute initial weight or moment."""
    return max((xp.max(xp.abs(array)) for array in arrays[2 * STEPS :]), key=float)


def sign_slack(gradient: str) -> Callable[..., Array]:
    """Return the slack of `gradient`, `dw1` or `db1`, as a function. Round-off decides the sign of hidden values near
    0, and so whether a gradient flows back through them. The slack is the sum of these gradients' absolute values."""

    def slack(xp: Array, u: float, x: Array, labels: Array, *weights: Array) -> Array:
        w1, b1, w2, b2 = weights
        before = x @ w1 + b1
        near = xp.abs(before) <= 8 * u * (norms(xp, x, w1) + xp.abs(b1))
        z = xp.maximum(before, 0) @ w2 + b2
        powers = xp.exp(z - xp.max(z, axis=1, keepdims=True))
        dz = powers / xp.sum(powers, axis=1, keepdims=True)
        dz[xp.arange(len(z)), labels] -= 1
        flow = xp.where(near, xp.abs(dz / len(z)) @ xp.abs(w2).T, 0)
        return xp.abs(x).T @ flow if gradient == "dw1" else xp.sum(flow, axis=0)

    return slack


mlp_step = workload(
    name="mlp_step", group="network", summary="forward pass, cross entropy and gradients of mlp_forward",
    params=MLP_PARAMS, sizes=MLP_SIZES,
    stages=(*FORWARD[:2], *LOSS, *BACKWARD), inputs={"x": "normal", "labels": Ids(lambda params: CLASSES)},
    weights=MLP_WEIGHTS, judged={name: sign_slack(name) for name in ("dw1", "db1")},
    outputs={"loss": "activation", "dw2": "weight", "db2": "weight", "dw1": "weight", "db1": "weight"},
)  # fmt: skip


def _name_results(weights: Iterable[str]) -> list[str]:
    """Return the names of the weights after the last step."""
    return [f"{weight}.{STEPS}" for weight in weights]


def _training(
    *, stages: Sequence[Stage], update: Update, weights: Mapping[str, Values], classes: Callable[[Params], int],
    moments: Mapping[str, Values] | None = None, **declared: Any,
) -> Op:  # fmt: skip
    """Return the op of three training steps. Each runs `stages` and updates every weight."""
    batches: dict[str, Values] = {"x": "normal", "labels": Ids(classes)}
    return workload(
        stages=(_steps(stages, update, weights),),
        inputs={f"{x}.{step}": values for step in range(STEPS) for x, values in batches.items()},
        weights={f"{weight}.0": values for weight, values in weights.items()}
        | {f"{weight}_{moment}.0": values for weight in weights for moment, values in (moments or {}).items()},
        outputs={_LAST: "activation", **dict.fromkeys(_name_results(weights), "weight")},
        averaged=tuple(f"d{weight}.{step}" for step in range(STEPS) for weight in weights), **declared,
    )  # fmt: skip


def _perceptron(*, name: str, moments: Mapping[str, Values] | None = None, **declared: Any) -> Op:
    # 8 units for each stage on the longest path through a step: hidden, logits, loss, grad_h, grad_w1, update.
    judged: dict[str, Any] = {
        value: Tolerance(8 * 6 * STEPS, scale=_largest_weight, slack=training_slack(name, value))
        for value in _name_results(MLP_WEIGHTS)
    }
    return _training(
        name=name, params=MLP_PARAMS, sizes=MLP_SIZES, weights=MLP_WEIGHTS,
        stages=(*FORWARD[:2], *LOSS, *BACKWARD), classes=lambda params: CLASSES, moments=moments,
        judged={_LAST: training_slack(name, _LAST), **judged}, **declared,
    )  # fmt: skip


mlp_sgd = _perceptron(
    name="mlp_sgd", group="network", summary="three steps of training mlp_forward: mlp_step and w - 0.125 dw",
    update=_sgd,
)  # fmt: skip
mlp_adam = _perceptron(
    name="mlp_adam", group="network", summary="three steps of training mlp_forward by Adam, with its moments",
    update=_adam, moments={"mean": "zeros", "square": SQUARES},
)  # fmt: skip


# ---------------------------------------------------------------- a transformer's block


def _rows_of(widths: int) -> Callable[[Params], Params]:
    return lambda params: {"n": params["n"], "columns": widths * width(params)}


def _numbers_of(widths: int) -> Callable[[Params], Params]:
    return lambda params: {"n": params["n"] * widths * width(params), "columns": widths * width(params)}


def _norm(params: Params) -> Params:
    return {"n": params["n"], "width": width(params)}


def _product_grads(read: str, made: str, name: str, k: int, m: int) -> tuple[Stage, ...]:
    """Return the stages for the gradients of a layer from `k` to `m` widths: weights, bias and input."""
    return (
        Stage(f"grad_w{name}", "matmul", (read, f"d{made}"), (f"dw{name}",),
              lambda params: {"m": k * width(params), "n": m * width(params), "k": params["n"], "ta": 1}),
        Stage(f"grad_b{name}", "sum_rows", (f"d{made}",), (f"db{name}",), _rows_of(m)),
        Stage(f"grad_{read}", "matmul", (f"d{made}", f"w{name}"), (f"d{read}",),
              lambda params: {"m": params["n"], "n": k * width(params), "k": m * width(params), "tb": 1}),
    )  # fmt: skip


def _norm_grads(read: str, number: int, residual: str) -> tuple[Stage, ...]:
    """Return the stages for the gradients of norm `number`: weights, and input with `residual` added."""
    normed = f"dn{number}"
    return (
        Stage(
            f"grad_norm{number}", "layernorm_grad", (read, normed, f"scale{number}"), (f"inner{number}",), _norm
        ),
        Stage(f"terms{number}", "layernorm_grad_g", (read, normed), (f"terms{number}",), _norm),
        Stage(f"grad_scale{number}", "sum_rows", (f"terms{number}",), (f"dscale{number}",), _rows_of(1)),
        Stage(f"grad_shift{number}", "sum_rows", (normed,), (f"dshift{number}",), _rows_of(1)),
        Stage(f"grad_{read}", "add", (f"inner{number}", residual), (f"d{read}",), _numbers_of(1)),
    )


BLOCK_FORWARD = (
    Stage("norm1", "layernorm", ("x", "scale1", "shift1"), ("n1",), _norm),
    Stage("qkv", "linear", ("n1", "wqkv", "bqkv"), ("qkv",), to_widths(1, 3)),
    Stage("heads", "attention", ("qkv",), ("o",), with_heads(all_tokens)),
    Stage("project", "linear_add", ("o", "wo", "bo", "x"), ("a",), to_widths(1, 1)),
    Stage("norm2", "layernorm", ("a", "scale2", "shift2"), ("n2",), _norm),
    Stage("ffn_in", "linear", ("n2", "win", "bin"), ("u",), to_widths(1, GROWTH)),
    Stage("gelu", "gelu", ("u",), ("g",), _numbers_of(GROWTH)),
    Stage("ffn_out", "linear_add", ("g", "wout", "bout", "a"), ("y",), to_widths(GROWTH, 1)),
)
BLOCK_BACKWARD = (
    *_product_grads("g", "y", "out", GROWTH, 1),
    Stage("grad_u", "gelu_grad", ("u", "dg"), ("du",), _numbers_of(GROWTH)),
    *_product_grads("n2", "u", "in", 1, GROWTH),
    *_norm_grads("a", 2, "dy"),
    *_product_grads("o", "a", "o", 1, 1),
    Stage("grad_qkv", "attention_grad", ("qkv", "do"), ("dqkv",), with_heads(all_tokens)),
    *_product_grads("n1", "qkv", "qkv", 1, 3),
    *_norm_grads("x", 1, "da"),
)
transformer_step = workload(
    name="transformer_step", group="network", summary="transformer_block, and the gradients of x and all its weights",
    params=PARAMS, sizes=Ladder(low=1, high=2048), options=ATTENTION_PARAMS["options"],
    stages=(*BLOCK_FORWARD, *BLOCK_BACKWARD), inputs={"x": "normal", "dy": "normal"}, weights=BLOCK_WEIGHTS,
    outputs={"y": "activation", "dx": "activation", **{f"d{weight}": "weight" for weight in BLOCK_WEIGHTS}},
)  # fmt: skip
_BLOCK_LOSS = Stage(
    "loss", "cross_entropy", ("y", "labels"), ("loss", "dy"),
    lambda params: {"n": params["n"], "classes": width(params)},
)  # fmt: skip
# The longest path through a step has 20 stages and ends at scale1. Each adds 8 units to the loss, but only an eighth
# of this to a weight, because an update adds an eighth of a gradient.
_LOSS_TOLERANCE, _WEIGHT_TOLERANCE = (Tolerance(units * 20 * STEPS, scale=_largest_weight) for units in (8, 1))
transformer_sgd = _training(
    name="transformer_sgd", group="network",
    summary="three steps of training transformer_block: its gradients and w - 0.125 dw",
    params=PARAMS, sizes=Ladder(low=1, high=2048), options=ATTENTION_PARAMS["options"],
    stages=(*BLOCK_FORWARD, _BLOCK_LOSS, *BLOCK_BACKWARD), update=_sgd, weights=BLOCK_WEIGHTS, classes=width,
    judged={_LAST: _LOSS_TOLERANCE, **dict.fromkeys(_name_results(BLOCK_WEIGHTS), _WEIGHT_TOLERANCE)},
)  # fmt: skip
