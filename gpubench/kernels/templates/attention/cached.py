"""The attention of one new token over a cache of the keys and values of all tokens so far, whose own join them before
(`cache_append`) or in the same launch.

The token's place stays on the device, where the tokens are made: rows behind it are not read. Bound by memory.

- CPU: two products of NumPy's, all heads at once.
- CUDA and WGSL: a group for each head goes through the keys in steps. In each step its threads make the scores, a
  few threads a key where there are few keys. Then teams of threads, each as wide as a value, add up the values of
  their own keys, with a running maximum and a running sum. At the end the teams merge. That is two barriers a step:
  over few keys the time is that of memory's answers, one after the other. A group that appends reads its head's key
  and value of the new token where they lie, and writes them into the cache beside that: no other group reads them in
  this launch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from gpubench.kernels.contract.kernel import CudaProgram, Kernel, Limits, WgslProgram
from gpubench.kernels.contract.op import (
    EXACT,
    ITEMSIZE,
    Array,
    Dtype,
    Given,
    Ladder,
    Op,
    Operand,
    Params,
    Shape,
    Tolerance,
)
from gpubench.kernels.templates.attention import Heads, cached_cuda, cached_wgsl
from gpubench.kernels.templates.cpu import Blocks, Launch
from gpubench.kernels.templates.elementwise import WORKING_DTYPES

_WIDTH, _HEADS = 256, 8


def _width(params: Params) -> int:
    return params.get("width", _WIDTH)


def _heads(params: Params) -> int:
    return params.get("heads", _HEADS)


def _room(params: Params) -> int:
    return params.get("room", params["n"])


def _fits(params: Params) -> str | None:
    width, heads = _width(params), _heads(params)
    if not (heads >= 1 and width >= heads and width % heads == 0):
        return f"{heads} heads do not divide a width of {width}"
    if params["n"] < 1:
        return "a token sees itself: n is at least 1"
    return None if _room(params) >= params["n"] else f"{params['n']} tokens do not fit {_room(params)} rows"


def _cache(params: Params) -> Shape:
    return (_room(params), 2 * _width(params))


def _traffic(append: bool, params: Params, dtype: Dtype) -> int:
    """The rows that are seen, a query and a result; and what joins the cache, written."""
    return (2 * params["n"] + 2 + 2 * append) * _width(params) * ITEMSIZE[dtype] + ITEMSIZE["int32"]


def _cut(xp: Array, qkv: Array, position: Array, cache: Array, heads: int) -> tuple[Array, Array, Array]:
    """q, and k and v of the tokens that it sees, as heads x n x e: views."""
    seen, width = int(position[0]) + 1, cache.shape[1] // 2
    shape = (seen, heads, width // heads)
    k, v = (xp.moveaxis(xp.reshape(cache[:seen, i * width : (i + 1) * width], shape), 0, 1) for i in range(2))
    return xp.reshape(qkv[:, :width], (heads, 1, width // heads)), k, v


def _weights(xp: Array, q: Array, k: Array) -> Array:
    scores = (q / math.sqrt(q.shape[-1])) @ xp.moveaxis(k, -1, -2)
    powers = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    return powers / xp.sum(powers, axis=-1, keepdims=True)


def _expr(xp: Array, qkv: Array, position: Array, cache: Array, heads: int = _HEADS) -> Array:
    q, k, v = _cut(xp, qkv, position, cache, heads)
    return xp.reshape(_weights(xp, q, k) @ v, (1, cache.shape[1] // 2))


def _appended(xp: Array, qkv: Array, position: Array, cache: Array, heads: int = _HEADS) -> tuple[Array, Array]:
    cache[int(position[0])] = qkv[0, qkv.shape[1] // 3 :]
    return _expr(xp, qkv, position, cache, heads), cache


def _torch(torch: Any, qkv: Array, position: Array, cache: Array, heads: int = _HEADS) -> Array:
    """All rows of the cache, those behind the token masked: its position stays on the device."""
    room, width = cache.shape[0], cache.shape[1] // 2
    k, v = cache.view(room, 2, heads, width // heads).permute(1, 2, 0, 3)
    q = qkv[:, :width].view(heads, 1, width // heads)
    seen = torch.arange(room, device=cache.device)[None, None] <= position
    found = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=seen[None])
    return found.reshape(1, width)


def _torch_appended(
    torch: Any, qkv: Array, position: Array, cache: Array, heads: int = _HEADS
) -> tuple[Array, Array]:
    cache.index_copy_(0, position.long(), qkv[:, qkv.shape[1] // 3 :])
    return _torch(torch, qkv, position, cache, heads), cache


def _scale(xp: Array, qkv: Array, position: Array, cache: Array, heads: int = _HEADS) -> Array:
    """(sum p |v|) (1 + |q| max |k| / sqrt(e)), as of `attention`."""
    q, k, v = _cut(xp, qkv, position, cache, heads)
    longest = xp.max(xp.sqrt(xp.sum(k * k, axis=-1)), axis=-1)[:, None, None]
    lengths = xp.sqrt(xp.sum(q * q, axis=-1, keepdims=True))
    spread = (_weights(xp, q, k) @ xp.abs(v)) * (1 + lengths * longest / math.sqrt(q.shape[-1]))
    return xp.reshape(spread, (1, cache.shape[1] // 2))


def _scale_appended(xp: Array, qkv: Array, position: Array, cache: Array, heads: int = _HEADS) -> Array:
    return _scale(xp, qkv, position, _appended(xp, qkv, position, cache, heads)[1], heads)


def _cpu(append: bool, np: Any, blocks: Blocks, params: Params) -> Launch:
    heads = _heads(params)

    def launch(inputs: Sequence[Array], output: Any) -> None:
        qkv, position, cache = inputs
        if append:
            output, cache = output
            cache[int(position[0])] = qkv[0, qkv.shape[1] // 3 :]
        q, k, v = _cut(np, qkv, position, cache, heads)
        if output.dtype == np.float16:
            q, k, v = (x.astype(np.float32) for x in (q, k, v))
        output[...] = np.matmul(_weights(np, q, k), v).reshape(output.shape)

    return launch


# ---------------------------------------------------------------- GPU


def _of(params: Params) -> Heads:
    return Heads(params["n"], _heads(params), _width(params) // _heads(params))


def _cuda(append: bool, params: Params, dtype: str, limits: Limits) -> CudaProgram:
    return cached_cuda.build(append, _of(params), _room(params), dtype)


def _wgsl(append: bool, params: Params, dtype: str, limits: Limits) -> WgslProgram:
    return cached_wgsl.build(append, _of(params), _room(params), dtype, limits)


def attention_over_cache(*, append: bool, **declared: Any) -> Op:
    """The op; `append`: the token's key and value are not in the cache yet, and join it."""
    return Op(
        params={"n": "number of tokens so far, the new one included"},
        options={
            "width": f"elements of a token ({_WIDTH})",
            "heads": f"heads, which divide the width ({_HEADS})",
            "room": "rows of the cache (n)",
        },
        sizes=Ladder(low=1, high=16384),
        dtypes=WORKING_DTYPES,
        inputs=(
            Operand("qkv", lambda params: (1, 3 * _width(params)), "normal"),
            Operand(
                "position",
                lambda params: (1,),
                Given(lambda params: (params["n"] - 1).to_bytes(4, "little")),
                dtype="int32",
            ),
            Operand("cache", _cache, "normal", role="state"),
        ),
        output=Operand("out", lambda params: (1, _width(params))),
        more_outputs=(Operand("cache", _cache, role="state", tolerance=EXACT),) * append,
        flops=lambda params: (4 * _width(params) + 5 * _heads(params)) * params["n"],
        traffic=partial(_traffic, append),
        blas=("numpy", "torch"),
        fits=_fits,
        takes=("heads",),
        expr=_appended if append else _expr,
        library={"torch": _torch_appended if append else _torch},
        tolerance=Tolerance(8, scale=_scale_appended if append else _scale),
        tuned={
            "numpy": (Kernel("numpy", partial(_cpu, append)),),
            "cupy": (Kernel("cuda", partial(_cuda, append)),),
            "wgpu": (Kernel("wgsl", partial(_wgsl, append)),),
        },
        **declared,
    )
