"""The stages of a transformer's block: attention with its projections, and the two layers behind it."""

from __future__ import annotations

from collections.abc import Callable

from gpubench.model.op import Ladder, Params, Stage, Values

WIDTH, HEADS, GROWTH = 256, 8, 4
PARAMS = {"n": "tokens"}
SIZES = Ladder(low=1, high=4096)
WIDE = {"width": f"width of a token ({WIDTH})"}
HEADED = {**WIDE, "heads": f"heads, which divide the width ({HEADS})"}


def _width(params: Params) -> int:
    return params.get("width", WIDTH)


def _linear(k: int, m: int) -> Callable[[Params], Params]:
    """From k widths of a token to m."""
    return lambda params: {"n": params["n"], "k": k * _width(params), "m": m * _width(params)}


def _heads(params: Params) -> Params:
    return {"n": params["n"], "width": _width(params), "heads": params.get("heads", HEADS)}


def _rows(params: Params) -> Params:
    return {"n": params["n"], "width": _width(params)}


def attend(x: str, source: str, y: str) -> tuple[Stage, ...]:
    """y = x + attention(source)."""
    return (
        Stage("qkv", "linear", (source, "wqkv", "bqkv"), ("qkv",), _linear(1, 3)),
        Stage("heads", "attention", ("qkv",), ("o",), _heads),
        Stage("project", "linear_add", ("o", "wo", "bo", x), (y,), _linear(1, 1)),
    )


ATTENTION_WEIGHTS: dict[str, Values] = {"wqkv": "fan-in", "bqkv": "zeros", "wo": "fan-in", "bo": "zeros"}
FFN = (
    Stage("ffn_in", "linear_gelu", ("x", "win", "bin"), ("g",), _linear(1, GROWTH)),
    Stage("ffn_out", "linear", ("g", "wout", "bout"), ("y",), _linear(GROWTH, 1)),
)
FFN_WEIGHTS: dict[str, Values] = {"win": "fan-in", "bin": "zeros", "wout": "fan-in", "bout": "zeros"}
BLOCK = (
    Stage("norm1", "layernorm", ("x", "scale1", "shift1"), ("u",), _rows),
    *attend("x", "u", "a"),
    Stage("norm2", "layernorm", ("a", "scale2", "shift2"), ("v",), _rows),
    Stage("ffn_in", "linear_gelu", ("v", "win", "bin"), ("g",), _linear(1, GROWTH)),
    Stage("ffn_out", "linear_add", ("g", "wout", "bout", "a"), ("y",), _linear(GROWTH, 1)),
)
NORM_WEIGHTS: dict[str, Values] = {"scale1": "ones", "shift1": "zeros", "scale2": "ones", "shift2": "zeros"}
