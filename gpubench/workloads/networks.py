"""The networks: a perceptron for images of 28 x 28 pixels, the block of a transformer, and a small GPT that
writes text. The perceptron has 784 inputs, 512 hidden units and 10 classes.

`mlp_forward` gives the class probabilities of n images. `mlp_backward` gives the gradients of all weights, from
hidden values and the gradient of the logits, which are inputs. The gradients stay on the device, where the optimiser
runs.

`ffn` is the pair of layers that follows the attention in a transformer: width -> 4 width -> width, with gelu
between them. `multi_head_attention` is the attention of n tokens with its projections, plus x; the op
`attention` is its core alone. `transformer_block` is one layer of a GPT: norm, attention, norm and the two
layers of `ffn`. The input of the attention, and that of `ffn`, is added to its result.

`inference` is a GPT that reads a prompt of n tokens and writes 16 more, each the most probable one. The host
divides the text into tokens, and one launch does the rest. The part `prefill` of the network reads the whole prompt;
the part `decode` writes one token in each step and reuses the keys and values of earlier tokens. Position and token
stay on the device, so that no step waits for the host. The weights are random. The head is not the transposed
embedding table, because a random model with such a head would repeat one token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpubench import kernels
from gpubench.kernels import tokens as bpe
from gpubench.kernels.contract.op import Array, Given, Ladder, Params, Repeat, Stage, Tolerance, Values
from gpubench.workloads.workload import workload

WIDTH, HEADS, GROWTH = 256, 8, 4
PARAMS = {"n": "tokens"}
SIZES = Ladder(low=1, high=4096)
WIDE = {"width": f"width of a token ({WIDTH})"}
HEADED = {**WIDE, "heads": f"heads, which divide the width ({HEADS})"}

Tokens = Callable[[Params], int]


def width(params: Params) -> int:
    return params.get("width", WIDTH)


def all_tokens(params: Params) -> int:
    """Return `n`, the number of tokens."""
    return params["n"]


def one(params: Params) -> int:
    return 1


def with_heads(tokens: Tokens) -> Callable[[Params], Params]:
    return lambda params: {
        "n": tokens(params), "width": width(params), "heads": params.get("heads", HEADS),
        **({"tokens": params["tokens"]} if "tokens" in params else {}),
    }  # fmt: skip


def to_widths(k: int, m: int, tokens: Tokens = all_tokens) -> Callable[[Params], Params]:
    """Return a function from the network's params to those of a matrix product. A row has `k` times the width of a
    token before the product, and `m` times this width after it."""
    return lambda params: {"n": tokens(params), "k": k * width(params), "m": m * width(params)}


class Turn(NamedTuple):
    """One of several equal blocks: suffixes of names, the number of tokens, and the kind of attention."""

    at: str = ""  # suffix of the names of the values between the block's stages
    layer: str = ""  # suffix of the names of the block's weights
    tokens: Tokens = all_tokens  # returns the number of tokens for the params
    # stages that replace the attention, from `qkv` to `o`; empty: the op `attention` computes it
    heads: tuple[Stage, ...] = ()


ONLY = Turn()


def attend(x: str, y: str, turn: Turn = ONLY, norm: tuple[str, ...] = ()) -> tuple[Stage, ...]:
    """Return the stages of y = x + attention(x). If `norm` has the names of a norm's weights, they compute
    y = x + attention(norm(x))."""
    at, layer, tokens, heads = turn
    first = "norm_linear" if norm else "linear"
    usual = Stage("heads", "attention", (f"qkv{at}",), (f"o{at}",), with_heads(tokens))
    return (
        Stage("qkv", first, (x, *norm, f"wqkv{layer}", f"bqkv{layer}"), (f"qkv{at}",), to_widths(1, 3, tokens)),
        *(heads or (usual,)),
        Stage(
            "project", "linear_add", (f"o{at}", f"wo{layer}", f"bo{layer}", x), (y,), to_widths(1, 1, tokens)
        ),
    )


def block(x: str, y: str, turn: Turn = ONLY) -> tuple[Stage, ...]:
    """Return the stages of one transformer layer: a = x + attention(norm(x)), y = a + ffn(norm(a)). A norm and the
    product after it are one stage."""
    at, layer, tokens, _ = turn
    a = f"a{at}"
    return (
        *attend(x, a, turn, (f"scale1{layer}", f"shift1{layer}")),
        Stage("ffn_in", "norm_linear_gelu",
              (a, f"scale2{layer}", f"shift2{layer}", f"win{layer}", f"bin{layer}"), (f"g{at}",),
              to_widths(1, GROWTH, tokens)),
        Stage("ffn_out", "linear_add", (f"g{at}", f"wout{layer}", f"bout{layer}", a), (y,),
              to_widths(GROWTH, 1, tokens)),
    )  # fmt: skip


ATTENTION_WEIGHTS: dict[str, Values] = {"wqkv": "fan-in", "bqkv": "zeros", "wo": "fan-in", "bo": "zeros"}
FFN = (
    Stage("ffn_in", "linear_gelu", ("x", "win", "bin"), ("g",), to_widths(1, GROWTH)),
    Stage("ffn_out", "linear", ("g", "wout", "bout"), ("y",), to_widths(GROWTH, 1)),
)
FFN_WEIGHTS: dict[str, Values] = {"win": "fan-in", "bin": "zeros", "wout": "fan-in", "bout": "zeros"}
NORM_WEIGHTS: dict[str, Values] = {"scale1": "ones", "shift1": "zeros", "scale2": "ones", "shift2": "zeros"}
BLOCK_WEIGHTS: dict[str, Values] = {**NORM_WEIGHTS, **ATTENTION_WEIGHTS, **FFN_WEIGHTS}


ffn = workload(
    name="ffn", group="network", summary="gelu(x win + bin) wout + bout",
    params=PARAMS, sizes=SIZES, options=WIDE, stages=FFN,
    inputs={"x": "normal"}, weights=FFN_WEIGHTS, outputs={"y": "activation"},
)  # fmt: skip


multi_head_attention = workload(
    name="multi_head_attention", group="network", summary="x + attention(x wqkv + bqkv) wo + bo, causal",
    params=PARAMS, sizes=SIZES,
    options=HEADED, stages=attend("x", "y"), inputs={"x": "normal"}, weights=ATTENTION_WEIGHTS,
    outputs={"y": "activation"},
)  # fmt: skip


transformer_block = workload(
    name="transformer_block", group="network", summary="one layer of a GPT of n tokens",
    params=PARAMS, sizes=SIZES, options=HEADED,
    stages=block("x", "y"), inputs={"x": "normal"}, weights=BLOCK_WEIGHTS, outputs={"y": "activation"},
)  # fmt: skip


# ---------------------------------------------------------------- the perceptron

PIXELS, HIDDEN, CLASSES = 784, 512, 10
MLP_PARAMS = {"n": "rows in the batch"}
MLP_SIZES = Ladder(low=1, high=16384)
MLP_WEIGHTS: dict[str, Values] = {"w1": "fan-in", "b1": "zeros", "w2": "fan-in", "b2": "zeros"}


def _layer(k: int, m: int) -> Callable[[Params], Params]:
    return lambda params: {"n": params["n"], "k": k, "m": m}


def _product(m: int, n: int) -> Callable[[Params], Params]:
    """Return a function from the network's params to those of the product for an m x n gradient of weights."""
    # The product adds up the rows of the batch.
    return lambda params: {"m": m, "n": n, "k": params["n"], "ta": 1}


def _rows(columns: int) -> Callable[[Params], Params]:
    return lambda params: {"n": params["n"], "columns": columns}


FORWARD = (
    Stage("hidden", "linear_relu", ("x", "w1", "b1"), ("h",), _layer(PIXELS, HIDDEN)),
    Stage("logits", "linear", ("h", "w2", "b2"), ("z",), _layer(HIDDEN, CLASSES)),
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
    Stage("grad_h", "linear_grad_relu", ("dz", "w2", "h"), ("dh",), _layer(CLASSES, HIDDEN)),
    Stage("grad_w1", "matmul", ("x", "dh"), ("dw1",), _product(PIXELS, HIDDEN)),
    Stage("grad_b1", "sum_rows", ("dh",), ("db1",), _rows(HIDDEN)),
)  # fmt: skip


mlp_forward = workload(
    name="mlp_forward", group="network", summary="softmax(relu(x w1 + b1) w2 + b2), 784-512-10",
    params=MLP_PARAMS, sizes=MLP_SIZES,
    stages=FORWARD, inputs={"x": "normal"}, weights=MLP_WEIGHTS, outputs={"p": "activation"},
)  # fmt: skip


mlp_backward = workload(
    name="mlp_backward", group="network", summary="gradients of the weights of mlp_forward",
    params=MLP_PARAMS, sizes=MLP_SIZES,
    stages=BACKWARD, inputs={"x": "normal", "h": "relu", "dz": "normal"}, weights={"w2": "fan-in"},
    outputs={"dw2": "weight", "db2": "weight", "dw1": "weight", "db1": "weight"},
)  # fmt: skip


# ---------------------------------------------------------------- inference

_NORM = kernels.load("layernorm")
LAYERS, NEW = 4, 16
CONTEXT = 4096  # the largest number of tokens that the model has positions for


def _length(params: Params) -> int:
    return params["n"] + NEW


def _seen(params: Params) -> int:
    """Return how many tokens the token of a decoding step attends to, itself included."""
    return params["n"] + params["step"] + 1


def _embed(ids: str, place: str, x: str, tokens: Tokens) -> Stage:
    return Stage(
        "embedding", "embedding_at", (ids, "table", "positions", place), (x,),
        lambda params: {
            "n": tokens(params), "width": width(params), "vocabulary": bpe.ENTRIES, "context": CONTEXT,
        },
    )  # fmt: skip


def _append(ids: str, place: str, behind: str, tokens: Tokens) -> Stage:
    return Stage(
        "append", "token_append", (ids, place, "sequence"), ("sequence", behind),
        lambda params: {"n": tokens(params), "room": _length(params)},
    )  # fmt: skip


def _choose(x: str, z: str, token: str, tokens: Tokens) -> tuple[Stage, ...]:
    """Return the stages that choose the next token, by the largest logit of the last row of `x`."""
    return (
        Stage("head", "norm_linear_last", (x, "scale", "shift", "head"), (z,),
              lambda params: {"n": tokens(params), "width": width(params), "vocabulary": bpe.ENTRIES}),
        Stage("choose", "argmax", (z,), (token,), lambda params: {"n": 1, "classes": bpe.ENTRIES}),
    )  # fmt: skip


def _prefill() -> tuple[Stage | Repeat, ...]:
    at = ".{layer}"
    heads = (
        Stage("keep", "cache_append", (f"qkv{at}", "start", "cache.{layer}"), ("cache.{layer}",),
              lambda params: {"n": all_tokens(params), "width": width(params), "room": _length(params)}),
        Stage("heads", "attention", (f"qkv{at}",), (f"o{at}",), with_heads(all_tokens)),
    )  # fmt: skip
    layers = block(f"x{at}", "x.{layer+1}", Turn(at, at, all_tokens, heads))
    return (
        _append("ids", "start", "place.0", all_tokens),
        _embed("ids", "start", "x.0", all_tokens),
        Repeat("layer", LAYERS, layers),
        *_choose(f"x.{LAYERS}", "z", "token.0", all_tokens),
    )


def _decode() -> tuple[Stage | Repeat, ...]:
    at, place = ".{step}.{layer}", "place.{step}"
    seen = with_heads(_seen)
    heads = (
        Stage("heads", "attention_append", (f"qkv{at}", place, "cache.{layer}"), (f"o{at}", "cache.{layer}"),
              lambda params: {**seen(params), "room": _length(params)}),
    )  # fmt: skip
    layers = block(f"x{at}", "x.{step}.{layer+1}", Turn(at, ".{layer}", one, heads))
    return (
        _append("token.{step}", place, "place.{step+1}", one),
        _embed("token.{step}", place, "x.{step}.0", one),
        Repeat("layer", LAYERS, layers),
        *_choose(f"x.{{step}}.{LAYERS}", "z.{step}", "token.{step+1}", one),
    )


GPT_STAGES = (
    Stage("tokenise", "tokenise", ("text",), ("ids",), lambda params: {"n": params["n"]}),
    Repeat("part", 1, _prefill(), name="prefill"),
    Repeat("step", NEW - 1, _decode(), name="decode"),
    Repeat("part", 1, (_append(f"token.{NEW - 1}", f"place.{NEW - 1}", f"place.{NEW}", one),), name="decode"),
)
GPT_WEIGHTS: dict[str, Values] = {
    "start": "zeros", "table": "normal", "positions": "normal",
    **{f"{name}.{layer}": values for layer in range(LAYERS) for name, values in BLOCK_WEIGHTS.items()},
    "scale": "ones", "shift": "zeros", "head": "fan-in",
}  # fmt: skip


def _shortfall(xp: Array, got: Array, text: Array, *weights: Array, n: int, **params: int) -> Array:
    """Return how far each written token's logit is below the largest, as a part of the largest |logit|."""
    by_name = dict(zip(GPT_WEIGHTS, weights, strict=True))
    # infinity for a wrong token in the prompt, and for one that does not exist
    shortfall = xp.where((got >= 0) & (got < bpe.ENTRIES), 0.0, xp.inf)
    shortfall[:n][got[:n] != xp.asarray(bpe.encode(bytes(text))[:n])] = xp.inf
    ids = xp.clip(got, 0, bpe.ENTRIES - 1)
    # one pass over the prompt and the tokens that the device wrote
    x = by_name["table"][ids[:-1]] + by_name["positions"][: len(ids) - 1]
    layer_of = transformer_block.at({"n": len(x), **params}).reference
    assert layer_of is not None
    for layer in range(LAYERS):
        x = layer_of(xp, x, *(by_name[f"{name}.{layer}"] for name in BLOCK_WEIGHTS))
    z = _NORM.expr(xp, x[n - 1 :], by_name["scale"], by_name["shift"]) @ by_name["head"]
    chosen = xp.take_along_axis(z, ids[n:, None], axis=-1)[:, 0]
    shortfall[n:] += (xp.max(z, axis=-1) - chosen) / xp.max(xp.abs(z), axis=-1)
    return shortfall


def _fits(params: Params) -> str | None:
    if params["n"] < 1:
        return "a prompt has at least one token"
    if _length(params) > CONTEXT:
        return f"{params['n']} tokens and {NEW} new ones exceed the {CONTEXT} that the model has positions for"
    return None


# Two logits are compared. Each may be wrong by 8 units of round-off for each stage before it.
_UNITS = 2 * 8 * (2 + LAYERS * len(transformer_block.stages))

inference = workload(
    name="inference", group="network", summary="a GPT of 4 layers reads n tokens of a text and writes 16",
    params={"n": "tokens of the prompt"}, sizes=Ladder(low=16, high=1024, granule=16), options=HEADED,
    stages=GPT_STAGES, inputs={"text": Given(lambda params: bpe.text_of(params["n"]))}, weights=GPT_WEIGHTS,
    outputs={"sequence": "activation"}, state=("sequence", *(f"cache.{layer}" for layer in range(LAYERS))),
    judged={"sequence": Tolerance(_UNITS, shortfall=_shortfall)}, fits=_fits,
    tokens={"prefill": all_tokens, "decode": lambda params: NEW - 1},
)  # fmt: skip
