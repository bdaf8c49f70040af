"""Causal attention compiled for the CPU: four queries of a head at once, so that a key in the first cache serves four.

The keys of a head are copied into blocks of 256, each element's values side by side, and the values into rows of their
own: all loops run along memory. A unit of work is the first and the last four queries of a head, then those next to
them: each has as many keys as any other, so that equal shares take equal times.
"""

from __future__ import annotations

from gpubench.kernels.contract.kernel import Candidate, Limits, NumbaPass, NumbaProgram
from gpubench.kernels.contract.op import ITEMSIZE
from gpubench.kernels.templates import ceil_div
from gpubench.kernels.templates.attention import Heads
from gpubench.kernels.templates.cpu import numba_candidates, numba_prelude

_KEYS = 256
_QUERIES = 4
_WORK = 8  # elements of an elementwise op that a pair of tokens costs as much as, for the number of threads


def candidates(of: Heads, dtype: str, limits: Limits) -> tuple[Candidate, ...]:
    """Keys and values copied, then the queries, on each number of threads worth a trial."""
    blocks, size = ceil_div(max(of.n, 1), _KEYS), max(4, ITEMSIZE[dtype])
    pairs = ceil_div(ceil_div(of.n, _QUERIES), 2)
    source = _SOURCE.format(
        prelude=numba_prelude(dtype), dtype=dtype, real="float32" if dtype == "float16" else dtype, keys=_KEYS,
        e=of.e, scale=1 / of.e**0.5, **_FOUR,
    )  # fmt: skip

    def program(threads: int, streaming: bool) -> NumbaProgram:
        passes = (
            NumbaPass("pack", ("qkv", "packed", None, None), of.heads * blocks, m=of.n, s=of.heads),
            NumbaPass("attend", ("qkv", "packed", "scores", "out"), of.heads * pairs, m=of.n, s=of.heads),
        )
        scratch = {
            "packed": of.heads * blocks * 2 * _KEYS * of.e * size,
            "scores": threads * _QUERIES * (blocks * _KEYS + of.e) * size,
        }
        return NumbaProgram(source, passes * (of.n > 0), threads, scratch)

    return numba_candidates(_WORK * of.heads * of.n * (of.n + 1) // 2, limits, program, streamed=False)


def _four(line: str, indentation: int) -> str:
    """The line for each of the four queries: its name Q, its `row` in qkv, and where its SCORES and its SUM lie."""
    queries = (("a", "q", "", ""), ("b", "r1", "KEYS + ", "E + "), ("c", "r2", "2 * KEYS + ", "2 * E + "),
               ("e", "r3", "3 * KEYS + ", "3 * E + "))  # fmt: skip
    return "\n".join(
        " " * indentation + line.format(q=name, row=row, scores=scores, sum=place)
        for name, row, scores, place in queries
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
            k = (start + j) * 3 * line + line + head * E
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
    q = row * 3 * line + head * E
    r1, r2 = min(row + 1, last) * 3 * line + head * E, min(row + 2, last) * 3 * line + head * E
    r3 = last * 3 * line + head * E
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
            out[(row + r) * line + head * E + d] = store(scores[result + r * E + d])


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
