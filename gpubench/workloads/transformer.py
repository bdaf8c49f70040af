"""The stages of a transformer's block: attention with its projections, and the two layers behind it.

ffn: the two layers behind the attention of a transformer, width -> 4 width -> width, gelu between them.

multi_head_attention: attention of n tokens with its projections, and x added; `attention` is the core alone.

transformer_block: one layer of a GPT: norm, attention, norm, two layers, with what goes in added twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpubench.kernels.contract.op import Ladder, Params, Stage, Values
from gpubench.workloads.workload import workload

WIDTH, HEADS, GROWTH = 256, 8, 4
PARAMS = {"n": "tokens"}
SIZES = Ladder(low=1, high=4096)
WIDE = {"width": f"width of a token ({WIDTH})"}
HEADED = {**WIDE, "heads": f"heads, which divide the width ({HEADS})"}

Tokens = Callable[[Params], int]


def width(params: Params) -> int:
    return params.get("width", WIDTH)


def given(params: Params) -> int:
    """Return as many tokens as the size says."""
    return params["n"]


def one(params: Params) -> int:
    return 1


def headed(tokens: Tokens) -> Callable[[Params], Params]:
    return lambda params: {
        "n": tokens(params), "width": width(params), "heads": params.get("heads", HEADS),
    }  # fmt: skip


def _linear(k: int, m: int, tokens: Tokens = given) -> Callable[[Params], Params]:
    """From k widths of a token to m."""
    return lambda params: {"n": tokens(params), "k": k * width(params), "m": m * width(params)}


class Turn(NamedTuple):
    """Which of several blocks it is: `at` ends the names of the values between its stages, `layer` those of its
    weights. `heads`, if there are any, come in place of the attention, from qkv to o."""

    at: str = ""
    layer: str = ""
    tokens: Tokens = given
    heads: tuple[Stage, ...] = ()


ONLY = Turn()


def attend(x: str, y: str, turn: Turn = ONLY, norm: tuple[str, ...] = ()) -> tuple[Stage, ...]:
    """y = x + attention(x), or attention(norm(x)) with the weights of a norm, which is made with queries, keys and
    values."""
    at, layer, tokens, heads = turn
    first = "norm_linear" if norm else "linear"
    usual = Stage("heads", "attention", (f"qkv{at}",), (f"o{at}",), headed(tokens))
    return (
        Stage("qkv", first, (x, *norm, f"wqkv{layer}", f"bqkv{layer}"), (f"qkv{at}",), _linear(1, 3, tokens)),
        *(heads or (usual,)),
        Stage("project", "linear_add", (f"o{at}", f"wo{layer}", f"bo{layer}", x), (y,), _linear(1, 1, tokens)),
    )


def block(x: str, y: str, turn: Turn = ONLY) -> tuple[Stage, ...]:
    """One layer: y = a + ffn(norm(a)), a = x + attention(norm(x)). Each norm is made with the product behind it."""
    at, layer, tokens, _ = turn
    a = f"a{at}"
    return (
        *attend(x, a, turn, (f"scale1{layer}", f"shift1{layer}")),
        Stage("ffn_in", "norm_linear_gelu",
              (a, f"scale2{layer}", f"shift2{layer}", f"win{layer}", f"bin{layer}"), (f"g{at}",),
              _linear(1, GROWTH, tokens)),
        Stage("ffn_out", "linear_add", (f"g{at}", f"wout{layer}", f"bout{layer}", a), (y,),
              _linear(GROWTH, 1, tokens)),
    )  # fmt: skip


ATTENTION_WEIGHTS: dict[str, Values] = {"wqkv": "fan-in", "bqkv": "zeros", "wo": "fan-in", "bo": "zeros"}
FFN = (
    Stage("ffn_in", "linear_gelu", ("x", "win", "bin"), ("g",), _linear(1, GROWTH)),
    Stage("ffn_out", "linear", ("g", "wout", "bout"), ("y",), _linear(GROWTH, 1)),
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
