"""attention: softmax(q k^T / sqrt(e), causal) v for each head, the core of a transformer, without an n x n
array.

A row of qkv holds the query, the key and the value of one token, each divided into heads of e elements. A token
attends to itself and to the tokens before it, so half of the n x n scores are needed. Sources: Dao and others,
arXiv 2205.14135, for the fused implementations; Milakov and Gimelshein, arXiv 1805.02867, for the running maximum.

- CPU: compiled, four queries at a time; keys are in blocks in which the values of each element are adjacent.
- CUDA and WGSL: a thread holds queries and their results in registers and goes through the keys
  (`templates/attention`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from gpubench.kernels.contract.kernel import Candidate, Limits, NumbaPass, NumbaProgram, by_backend
from gpubench.kernels.contract.op import ITEMSIZE, Array, Ladder, Op, Operand, Params, Tolerance
from gpubench.kernels.templates import ceil_div
from gpubench.kernels.templates.attention import (
    ATTENTION_PARAMS,
    HEADS,
    Heads,
    build_cuda,
    build_wgsl,
    by_heads,
    causal_weights,
    cut,
    fits,
    head_by_head,
    join,
    out_shape,
    qkv_shape,
    torch_attention,
    weights_by_blocks,
    whole_values,
)
from gpubench.kernels.templates.cpu import SLOW_HALVES, compiled_kernels, numba_candidates, numba_prelude

# Least and most queries that the float64 reference takes at a time, and the most weights of such a block. A core's
# cache holds two blocks.
_FEWEST_ROWS, _MOST_ROWS, _BLOCK = 16, 256, 64 * 1024


def _flops(params: Params) -> int:
    """Return the operations for all pairs of a token and one that it attends to."""
    of = by_heads(params)
    # two products, and for each score: subtract, exp, add, divide, maximum
    return (4 * of.width + 5 * of.heads) * of.attended_pairs


def _expr(xp: Array, qkv: Array, heads: int = HEADS, tokens: int | None = None) -> Array:
    q, k, v = cut(xp, qkv, heads, tokens)
    return join(xp, causal_weights(xp, q, k) @ v)


def _weigh(xp: Array, q: Array, k: Array, v: Array) -> Array:
    """Return the attention of one head: for each query the sum of the weighted rows of v."""
    out, most = xp.empty_like(v), max(_FEWEST_ROWS, min(_MOST_ROWS, _BLOCK // len(v)))
    # blocks that stay in the caches
    for rows, seen, weights in weights_by_blocks(xp, q, k, most):
        out[rows] = weights @ v[seen]
    return out


def _scale(xp: Array, q: Array, k: Array, v: Array) -> Array:
    """Return the scale of each result of one head: (sum p |v|) (1 + |q| max |k| / sqrt(e))."""
    lengths, longest = (xp.sqrt(xp.sum(x * x, axis=-1)) for x in (q, k))
    # errors of the scores change the weights p
    slack = 1 + lengths * xp.max(longest) / math.sqrt(q.shape[-1])
    return _weigh(xp, q, k, xp.abs(v)) * slack[:, None]


def _probe(np: Any, params: Params) -> tuple[list[Array], Array]:
    values, results = whole_values(np, by_heads(params))
    return [np.concatenate((0 * values, 0 * values, values), axis=1)], results


def _with_heads(build: Callable[[Heads, str, Limits], Any]) -> Callable[[Params, str, Limits], Any]:
    return lambda params, dtype, limits: build(by_heads(params), dtype, limits)


# ---------------------------------------------------------------- CPU


_KEYS = 256
_QUERIES = 4
_WORK = 8  # a pair of tokens costs as much as this many elements of an elementwise op


def _compile(of: Heads, dtype: str, limits: Limits) -> tuple[Candidate, ...]:
    """Return a candidate for each number of threads that is worth a trial."""
    blocks, size = ceil_div(of.n, _KEYS), max(4, ITEMSIZE[dtype])
    heads, pairs = of.sequences * of.heads, ceil_div(ceil_div(of.n, _QUERIES), 2)
    source = _SOURCE.format(
        prelude=numba_prelude(dtype), dtype=dtype, real="float32" if dtype == "float16" else dtype, keys=_KEYS,
        e=of.e, scale=1 / of.e**0.5, **_FOUR,
    )  # fmt: skip

    def program(threads: int, streaming: bool) -> NumbaProgram:
        passes = (
            # copies keys and values
            NumbaPass("pack", ("qkv", "packed", None, None), heads * blocks, m=of.n, s=of.heads),
            NumbaPass("attend", ("qkv", "packed", "scores", "out"), heads * pairs, m=of.n, s=of.heads),
        )
        scratch = {
            "packed": heads * blocks * 2 * _KEYS * of.e * size,
            "scores": threads * _QUERIES * (blocks * _KEYS + of.e) * size,
        }
        return NumbaProgram(source, passes, threads, scratch)

    return numba_candidates(_WORK * of.heads * of.attended_pairs, limits, program, streamed=False)


def _four(line: str, indentation: int) -> str:
    """Return `line` for each of the four queries that a thread computes."""
    # name, row in qkv, and the offsets of its scores and of its sum
    queries = (("a", "q", "", ""), ("b", "r1", "KEYS + ", "E + "), ("c", "r2", "2 * KEYS + ", "2 * E + "),
               ("e", "r3", "3 * KEYS + ", "3 * E + "))  # fmt: skip
    return "\n".join(
        " " * indentation + line.format(q=name, row=r, scores=scores, sum=place)
        for name, r, scores, place in queries
    )


_FOUR = {
    "zeros": _four("scores[to + {scores}j] = real(0)", 8),
    "pairs": _four("{q}0, {q}1 = load(qkv[{row} + d]) * scale, load(qkv[{row} + d + 1]) * scale", 8),
    "products": _four("scores[to + {scores}j] += {q}0 * k0 + {q}1 * k1", 12),
    "rest": _four("scores[to + {scores}j] += {q}0 * packed[at + j]", 12),
    "weights": _four("{q}0, {q}1 = scores[p + {scores}j], scores[p + {scores}j + 1]", 8),
    "sums": _four("scores[result + {sum}d] += {q}0 * v0 + {q}1 * v1", 12),
}
_SOURCE = """{prelude}
KEYS, E, BOTH = {keys}, {e}, 2 * {keys} * {e}


@kernel({dtype!r}, {real!r}, {real!r}, {dtype!r})
def pack(qkv, packed, unused, out, first, last, slot, m, s):
    wide_vectors()
    blocks, line = (m + KEYS - 1) // KEYS, s * E
    for unit in range(first, last):
        head, start = unit // blocks, unit % blocks * KEYS
        at = unit * BOTH
        for j in range(min(KEYS, m - start)):
            k = (head // s * m + start + j) * 3 * line + line + head % s * E
            for d in range(E):
                packed[at + d * KEYS + j] = load(qkv[k + d])
                packed[at + KEYS * E + j * E + d] = load(qkv[k + line + d])


@scalar
def score(qkv, q, r1, r2, r3, packed, k, scores, to, count):
    for j in range(count):
{zeros}
    scale = real({scale!r})
    d = 0
    while d + 2 <= E:
{pairs}
        at = k + d * KEYS
        for j in range(count):
            k0, k1 = packed[at + j], packed[at + KEYS + j]
{products}
        d += 2
    if d < E:
        a0, b0 = load(qkv[q + d]) * scale, load(qkv[r1 + d]) * scale
        c0, e0 = load(qkv[r2 + d]) * scale, load(qkv[r3 + d]) * scale
        at = k + d * KEYS
        for j in range(count):
{rest}


@summing
def largest(scores, to, count, top):
    for j in range(count):
        top = larger(top, scores[to + j])
    return top


@summing
def exponentials(scores, to, count, top):
    total = real(0)
    for j in range(count):
        power = exp(scores[to + j] - top)
        scores[to + j] = power
        total += power
    return total


@scalar
def softmax(scores, base, row):
    top = minus_infinity
    for start in range(0, row + 1, KEYS):
        top = largest(scores, base + start * 4, min(KEYS, row + 1 - start), top)
    total = float64(0)
    for start in range(0, row + 1, KEYS):
        total += float64(exponentials(scores, base + start * 4, min(KEYS, row + 1 - start), top))
    return real(float64(1) / total)


@scalar
def add(scores, p, packed, v, result, count):
    j = 0
    while j + 2 <= count:
{weights}
        at = v + j * E
        for d in range(E):
            v0, v1 = packed[at + d], packed[at + E + d]
{sums}
        j += 2
    while j < count:
        at = v + j * E
        for r in range(4):
            for d in range(E):
                scores[result + r * E + d] += scores[p + r * KEYS + j] * packed[at + d]
        j += 1


@scalar
def four(qkv, packed, scores, out, head, row, blocks, base, result, m, line):
    last = min(row + 3, m - 1)
    column, begin = head * E % line, head * E // line * m
    at = begin * 3 * line + column
    q, r3 = at + row * 3 * line, at + last * 3 * line
    r1, r2 = at + min(row + 1, last) * 3 * line, at + min(row + 2, last) * 3 * line
    for start in range(0, last + 1, KEYS):
        k = (head * blocks + start // KEYS) * BOTH
        score(qkv, q, r1, r2, r3, packed, k, scores, base + start * 4, min(KEYS, last + 1 - start))
    for r in range(4):
        own = min(row + r, last)
        by = softmax(scores, base + r * KEYS, own)
        for j in range(own + 1, last + 1):
            scores[base + j // KEYS * KEYS * 4 + r * KEYS + j % KEYS] = real(0)
        for start in range(0, own + 1, KEYS):
            for j in range(min(KEYS, own + 1 - start)):
                scores[base + start * 4 + r * KEYS + j] *= by
    for d in range(4 * E):
        scores[result + d] = real(0)
    for start in range(0, last + 1, KEYS):
        v = (head * blocks + start // KEYS) * BOTH + KEYS * E
        add(scores, base + start * 4, packed, v, result, min(KEYS, last + 1 - start))
    for r in range(last + 1 - row):
        for d in range(E):
            out[(begin + row + r) * line + column + d] = store(scores[result + r * E + d])


@kernel({dtype!r}, {real!r}, {real!r}, {dtype!r})
def attend(qkv, packed, scores, out, first, last, slot, m, s):
    wide_vectors()
    blocks, line = (m + KEYS - 1) // KEYS, s * E
    fours = (m + 3) // 4
    pairs = (fours + 1) // 2
    result = slot * 4 * (blocks * KEYS + E)
    base = result + 4 * E
    for half in range(2 * first, 2 * last):
        head, early = half // 2 // pairs, half // 2 % pairs
        place = fours - 1 - early if half % 2 else early
        if half % 2 == 0 or place != early:
            four(qkv, packed, scores, out, head, place * 4, blocks, base, result, m, line)
"""


OPS = (
    Op(
        name="attention",
        group="layers",
        summary="out = softmax(q k^T / sqrt(e)) v for each head, of each token and those before it",
        **ATTENTION_PARAMS,
        sizes=Ladder(low=1, high=4096),
        inputs=(Operand("qkv", qkv_shape, "normal"),),
        output=Operand("out", out_shape),
        flops=_flops,
        blas=("numpy", "torch"),
        fits=fits,
        expr=_expr,
        reference=partial(head_by_head, _weigh),
        library={"torch": torch_attention},
        tolerance=Tolerance(8, scale=partial(head_by_head, _scale)),
        probe=_probe,
        slow=SLOW_HALVES,
        tuned=by_backend(
            compiled_kernels(_with_heads(_compile)), _with_heads(build_cuda), _with_heads(build_wgsl)
        ),
    ),
)
