"""attention: softmax(q k^T / sqrt(e), causal) v for each head, the core of a transformer, without an n x n array.

A row of qkv holds the query, the key and the value of one token, each cut into heads of e elements, as the projection
before it writes them. A token attends to itself and to those before it: half of the n x n scores. Source of the fused
forms: Dao and others, arXiv 2205.14135; of the running maximum: Milakov and Gimelshein, arXiv 1805.02867.

- CPU: four queries at once, compiled (`templates/attention/cpu.py`); without a compiler blocks of rows of one head,
  that stop at the diagonal, each multiplied by a BLAS of one thread.
- CUDA and WGSL: a thread has queries and their results in registers and goes through the keys, `templates/attention`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from gpubench.kernels.contract.kernel import Limits, by_backend
from gpubench.kernels.contract.op import Array, Ladder, Op, Operand, Params, Shape, Tolerance
from gpubench.kernels.templates.attention import Heads, build_cuda, build_wgsl, cpu
from gpubench.kernels.templates.cpu import SLOW_HALVES, compiled_kernel

_WIDTH, _HEADS = 256, 8
# Rows of the float64 reference at a time, and numbers of a block: two of those fit a core's cache.
_FEWEST_ROWS, _MOST_ROWS, _BLOCK = 16, 256, 64 * 1024


def _heads(params: Params) -> Heads:
    heads = params.get("heads", _HEADS)
    return Heads(params["n"], heads, params.get("width", _WIDTH) // heads)


def _fits(params: Params) -> str | None:
    width, heads = params.get("width", _WIDTH), params.get("heads", _HEADS)
    whole = heads >= 1 and width >= heads and width % heads == 0
    return None if whole else f"{heads} heads do not divide a width of {width}"


def _qkv(params: Params) -> Shape:
    return (params["n"], 3 * params.get("width", _WIDTH))


def _out(params: Params) -> Shape:
    return (params["n"], params.get("width", _WIDTH))


def _flops(params: Params) -> int:
    """Count the half that is needed: two products, and subtract, exp, add, divide and the maximum of each score."""
    of = _heads(params)
    pairs = of.n * (of.n + 1) // 2
    return 4 * of.width * pairs + 5 * of.heads * pairs


def _cut(xp: Array, qkv: Array, heads: int) -> tuple[Array, Array, Array]:
    """q, k and v as heads x n x e: views."""
    split = xp.reshape(qkv, (qkv.shape[0], 3, heads, qkv.shape[1] // (3 * heads)))
    q, k, v = (xp.moveaxis(split[:, i, :, :], 0, 1) for i in range(3))
    return q, k, v


def _expr(xp: Array, qkv: Array, heads: int = _HEADS) -> Array:
    q, k, v = _cut(xp, qkv, heads)
    n, e = q.shape[1:]
    scores = (q / math.sqrt(e)) @ xp.moveaxis(k, -1, -2)
    scores = xp.where(xp.tril(xp.ones((n, n), dtype=xp.bool)), scores, -math.inf)
    powers = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    out = powers / xp.sum(powers, axis=-1, keepdims=True) @ v
    return xp.reshape(xp.moveaxis(out, 0, 1), (n, heads * e))


def _torch(torch: Any, qkv: Array, heads: int = _HEADS) -> Array:
    q, k, v = qkv.view(len(qkv), 3, heads, -1).permute(1, 2, 0, 3).unsqueeze(1)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out[0].transpose(0, 1).reshape(len(qkv), -1)


def _by_blocks(xp: Array, qkv: Array, heads: int) -> Iterator[tuple[int, slice, Array, Array]]:
    """(head, rows, powers, their sums) of rows that follow each other: no n x n array is needed, and a block stays in
    the caches."""
    q, k, _ = _cut(xp, qkv, heads)
    n, e = q.shape[1:]
    most = max(_FEWEST_ROWS, min(_MOST_ROWS, _BLOCK // max(n, 1)))
    late = xp.triu(xp.ones((most, most), dtype=bool), 1)
    for head in range(heads):
        keys = xp.ascontiguousarray(xp.moveaxis(k[head], 0, 1))
        for start in range(0, n, most):
            stop = min(start + most, n)
            powers = q[head, start:stop] / math.sqrt(e) @ keys[:, :stop]
            powers[:, start:][late[: stop - start, : stop - start]] = -math.inf
            powers -= xp.max(powers, axis=-1, keepdims=True)
            xp.exp(powers, out=powers)
            yield head, slice(start, stop), powers, xp.sum(powers, axis=-1, keepdims=True)


def _weighted(xp: Array, qkv: Array, heads: int, v: Array) -> Array:
    """The sums of the rows of v, heads x n x e, with the weights of each query: n x heads x e."""
    out = xp.empty((v.shape[1], heads, v.shape[2]), dtype=qkv.dtype)
    for head, rows, powers, total in _by_blocks(xp, qkv, heads):
        out[rows, head] = powers @ v[head, : rows.stop] / total
    return out


def _reference(xp: Array, qkv: Array, heads: int = _HEADS) -> Array:
    return xp.reshape(_weighted(xp, qkv, heads, _cut(xp, qkv, heads)[2]), (len(qkv), qkv.shape[1] // 3))


def _scale(xp: Array, qkv: Array, heads: int = _HEADS) -> Array:
    """(sum p |v|) (1 + |q| max |k| / sqrt(e)): a score's error is that of an inner product, and moves the weights."""
    q, k, v = _cut(xp, qkv, heads)
    lengths, longest = (xp.sqrt(xp.sum(x * x, axis=-1)) for x in (q, k))
    slack = 1 + lengths * xp.max(longest, axis=-1, initial=0.0)[:, None] / math.sqrt(q.shape[-1])
    return xp.reshape(_weighted(xp, qkv, heads, xp.abs(v)) * slack.T[:, :, None], (len(qkv), qkv.shape[1] // 3))


def _by_heads(build: Callable[[Heads, str, Limits], Any]) -> Callable[[Params, str, Limits], Any]:
    return lambda params, dtype, limits: build(_heads(params), dtype, limits)


OP = Op(
    name="attention",
    group="layers",
    summary="out = softmax(q k^T / sqrt(e)) v for each head, of each token and those before it",
    params={"n": "number of tokens"},
    options={"width": f"elements of a token ({_WIDTH})", "heads": f"heads, which divide the width ({_HEADS})"},
    sizes=Ladder(low=1, high=4096),
    inputs=(Operand("qkv", _qkv, "normal"),),
    output=Operand("out", _out),
    flops=_flops,
    blas=("numpy", "torch"),
    fits=_fits,
    takes=("heads",),
    expr=_expr,
    reference=_reference,
    library={"torch": _torch},
    tolerance=Tolerance(8, scale=_scale),
    slow=SLOW_HALVES,
    tuned=by_backend(compiled_kernel(_by_heads(cpu.candidates)), _by_heads(build_cuda), _by_heads(build_wgsl)),
)
