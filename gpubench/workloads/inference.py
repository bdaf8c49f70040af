"""inference: a small GPT reads a prompt of n tokens and writes 16 more, each one its best guess at that place.

The host cuts the text into tokens; the rest is one launch. `prefill` reads the whole prompt, `decode` writes a token a
step, over the keys and values that it keeps. The place and the token stay on the device: no step waits for the host.
The weights are random, and the head is not the table turned round: with that, such a model repeats one token, which
would hide a decoder that is stuck.
"""

from __future__ import annotations

from gpubench import kernels
from gpubench.kernels.contract.op import Array, Given, Ladder, Params, Repeat, Stage, Tolerance, Values
from gpubench.kernels.templates import bpe
from gpubench.workloads.transformer import BLOCK_WEIGHTS, HEADED, Tokens, Turn, block, given, headed, one, width
from gpubench.workloads.workload import workload

_LAYER, _NORM = kernels.load("transformer_block"), kernels.load("layernorm")
LAYERS, NEW = 4, 16
CONTEXT = 4096  # tokens that the model has positions for


def _length(params: Params) -> int:
    return params["n"] + NEW


def _seen(params: Params) -> int:
    """Tokens that the one of a step sees."""
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
    """The token with the largest logit behind the last one."""
    return (
        Stage("head", "norm_linear_last", (x, "scale", "shift", "head"), (z,),
              lambda params: {"n": tokens(params), "width": width(params), "vocabulary": bpe.ENTRIES}),
        Stage("choose", "argmax", (z,), (token,), lambda params: {"n": 1, "classes": bpe.ENTRIES}),
    )  # fmt: skip


def _prefill() -> tuple[Stage | Repeat, ...]:
    at = ".{layer}"
    heads = (
        Stage("keep", "cache_append", (f"qkv{at}", "start", "cache.{layer}"), ("cache.{layer}",),
              lambda params: {"n": given(params), "width": width(params), "room": _length(params)}),
        Stage("heads", "attention", (f"qkv{at}",), (f"o{at}",), headed(given)),
    )  # fmt: skip
    layers = block(f"x{at}", "x.{layer+1}", Turn(at, at, given, heads))
    return (
        _append("ids", "start", "place.0", given),
        _embed("ids", "start", "x.0", given),
        Repeat("layer", LAYERS, layers),
        *_choose(f"x.{LAYERS}", "z", "token.0", given),
    )


def _decode() -> tuple[Stage | Repeat, ...]:
    at, place = ".{step}.{layer}", "place.{step}"
    seen = headed(_seen)
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


STAGES = (
    Stage("tokenise", "tokenise", ("text",), ("ids",), lambda params: {"n": params["n"]}),
    Repeat("part", 1, _prefill(), name="prefill"),
    Repeat("step", NEW - 1, _decode(), name="decode"),
    Repeat("part", 1, (_append(f"token.{NEW - 1}", f"place.{NEW - 1}", f"place.{NEW}", one),), name="decode"),
)
WEIGHTS: dict[str, Values] = {
    "start": "zeros", "table": "normal", "positions": "normal",
    **{f"{name}.{layer}": values for layer in range(LAYERS) for name, values in BLOCK_WEIGHTS.items()},
    "scale": "ones", "shift": "zeros", "head": "fan-in",
}  # fmt: skip


def _shortfall(xp: Array, got: Array, text: Array, *weights: Array, n: int, **params: int) -> Array:
    """Return, by one pass over the prompt and the device's own tokens, how far the logit of each token lies below the
    largest one, over the largest number among them. Of the prompt each id has to be right."""
    given = dict(zip(WEIGHTS, weights, strict=True))
    found = xp.where((got >= 0) & (got < bpe.ENTRIES), 0.0, xp.inf)
    found[:n][got[:n] != xp.asarray(bpe.encode(bytes(text))[:n])] = xp.inf
    ids = xp.clip(got, 0, bpe.ENTRIES - 1)
    x = given["table"][ids[:-1]] + given["positions"][: len(ids) - 1]
    layer_of = _LAYER.at({"n": len(x), **params}).reference
    assert layer_of is not None
    for layer in range(LAYERS):
        x = layer_of(xp, x, *(given[f"{name}.{layer}"] for name in BLOCK_WEIGHTS))
    z = _NORM.expr(xp, x[n - 1 :], given["scale"], given["shift"]) @ given["head"]
    chosen = xp.take_along_axis(z, ids[n:, None], axis=-1)[:, 0]
    found[n:] += (xp.max(z, axis=-1) - chosen) / xp.max(xp.abs(z), axis=-1)
    return found


def _fits(params: Params) -> str | None:
    if params["n"] < 1:
        return "a prompt has at least one token"
    if _length(params) > CONTEXT:
        return f"{params['n']} tokens and {NEW} new ones exceed the {CONTEXT} that the model has positions for"
    return None


# Two logits that are compared may each be wrong by 8 units for each stage before them.
_UNITS = 2 * 8 * (2 + LAYERS * len(_LAYER.stages))

inference = workload(
    name="inference", group="network", summary="a GPT of 4 layers reads n tokens of a text and writes 16",
    params={"n": "tokens of the prompt"}, sizes=Ladder(low=16, high=1024, granule=16), options=HEADED,
    stages=STAGES, inputs={"text": Given(lambda params: bpe.text_of(params["n"]))}, weights=WEIGHTS,
    outputs={"sequence": "activation"}, state=("sequence", *(f"cache.{layer}" for layer in range(LAYERS))),
    judged={"sequence": Tolerance(_UNITS, shortfall=_shortfall)}, fits=_fits,
    tokens={"prefill": given, "decode": lambda params: NEW - 1},
)  # fmt: skip
