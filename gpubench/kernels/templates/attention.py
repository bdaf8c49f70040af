"""Fused causal attention on a GPU, and what the attention ops share.

A thread holds one or two queries of one head and their results in registers. It goes through the keys four at a
time, with a running maximum and a running sum, and writes no scores to memory. All threads of a warp read the same
key in a single access. The warps of a group have the same queries, take the keys in turn and merge their results at
the end, so that few queries still use many threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import CudaProgram, Limits, WgslProgram, one_dispatch
from gpubench.kernels.contract.op import ITEMSIZE, Array, Params, Shape, each
from gpubench.kernels.templates import (
    UNIT,
    Storage,
    ceil_div,
    lanes,
    multiprocessors,
    one_launch,
    require_bindings,
    require_grid,
    require_storage,
    shader,
    whole_units,
)

LANES = 32  # threads that go through the same keys together
# The score of a key that a query does not see, and the running maximum before the first key. The difference of two
# such scores is 0; that of two infinities would be NaN.
LOWEST = "-3e38"
KEYS = 4  # keys of one step; with eight, their loads need so many registers that some spill
_MOST_ELEMENTS = 256  # most elements of a head, because its query and its result are in registers
# Most bytes of registers for two queries and their results. A key is then read once for both.
_TWO_QUERIES_BYTES = 512
_WARPS_A_MULTIPROCESSOR = 32  # includes warps that end early, because their tokens see few keys
_MOST_PARTS = 8


class Heads(msgspec.Struct, frozen=True):
    """The shape of the inputs of an attention."""

    n: int  # tokens of a sequence
    heads: int  # heads of a token
    e: int  # elements of a head
    sequences: int  # number of sequences, which follow each other

    @property
    def rows(self) -> int:
        """The number of tokens in all sequences."""
        return self.sequences * self.n

    @property
    def attended_pairs(self) -> int:
        """The number of pairs of a token and one that it attends to: itself or an earlier one of its sequence."""
        return self.sequences * (self.n * (self.n + 1) // 2)

    @property
    def width(self) -> int:
        """The number of elements of a token."""
        return self.heads * self.e


# ---------------------------------------------------------------- what an op of tokens and heads is

_WIDTH, HEADS = 256, 8
ATTENTION_PARAMS: dict[str, Any] = {
    "params": {"n": "number of tokens"},
    "options": {
        "width": f"elements of a token ({_WIDTH})",
        "heads": f"heads, which divide the width ({HEADS})",
        "tokens": "tokens of a sequence, which divide n; a token sees its own sequence alone (n)",
    },
    "takes": ("heads", "tokens"),
}


def width_of(params: Params) -> int:
    return params.get("width", _WIDTH)


def by_heads(params: Params) -> Heads:
    n, heads = params["n"], params.get("heads", HEADS)
    tokens = params.get("tokens", n)
    return Heads(tokens, heads, width_of(params) // heads, n // tokens)


def fits(params: Params) -> str | None:
    width, heads = width_of(params), params.get("heads", HEADS)
    if width % heads:
        return f"{heads} heads do not divide a width of {width}"
    n, tokens = params["n"], params.get("tokens", params["n"])
    if n % tokens == 0:
        return None
    return f"{n} tokens are no whole number of sequences of {tokens}: choose `tokens` so that it divides n"


def qkv_shape(params: Params) -> Shape:
    return (params["n"], 3 * width_of(params))


def out_shape(params: Params) -> Shape:
    return (params["n"], width_of(params))


def cut(xp: Array, rows: Array, heads: int, tokens: int | None, count: int = 3) -> tuple[Array, ...]:
    """Divide each row of `rows`, one for each token, into `count` parts, such as q, k and v. Return a view for each
    part, of the shape (sequences, heads, tokens, e). `tokens` is the length of a sequence (None: all rows)."""
    n, columns = rows.shape
    tokens = tokens or n
    shape = (n // tokens, tokens, count, heads, columns // (count * heads))
    split = xp.reshape(rows, shape)
    return tuple(xp.moveaxis(split[:, :, i], 1, 2) for i in range(count))


def join(xp: Array, *parts: Array) -> Array:
    """Return one row per token, with the values of all parts, as the inverse of `cut`. Each part has the shape
    (sequences, heads, tokens, e)."""
    sequences, heads, tokens, e = parts[0].shape
    rows = [xp.reshape(xp.moveaxis(part, 1, 2), (sequences * tokens, heads * e)) for part in parts]
    return xp.concatenate(rows, axis=1) if len(rows) > 1 else rows[0]


def head_by_head(
    formula: Callable[..., Any], xp: Array, qkv: Array, *others: Array, heads: int = HEADS,
    tokens: int | None = None,
) -> Array:  # fmt: skip
    """Call `formula(xp, q, k, v, *others)` for one head of one sequence at a time, and return all results as rows
    of tokens. The inputs are rows of tokens, too."""
    inputs = [*cut(xp, qkv, heads, tokens), *(cut(xp, x, heads, tokens, 1)[0] for x in others)]
    shape = inputs[0].shape
    flat = (xp.reshape(x, (shape[0] * heads, *shape[2:])) for x in inputs)
    results = [each(formula(xp, *map(xp.ascontiguousarray, own))) for own in zip(*flat, strict=True)]
    return join(xp, *(xp.reshape(xp.stack(part), shape) for part in zip(*results, strict=True)))


def weights_by_blocks(xp: Array, q: Array, k: Array, most: int) -> Iterator[tuple[slice, slice, Array]]:
    """Yield the weights of one head in blocks of at most `most` queries, as (slice of the queries, slice of the
    keys that they see, weights). The weight of a key that a query does not see is 0."""
    n, by = len(q), 1 / math.sqrt(q.shape[1])
    most = min(most, max(n, 1))
    # the mask of a block: no n x n array is made
    late = xp.triu(xp.ones((most, most), dtype=bool), 1)
    for start in range(0, n, most):
        rows, seen = slice(start, min(start + most, n)), slice(min(start + most, n))
        p = (q[rows] * by) @ k[seen].T
        p[:, start:][late[: len(p), : len(p)]] = -math.inf
        p -= xp.max(p, axis=1, keepdims=True)
        xp.exp(p, out=p)
        p /= xp.sum(p, axis=1, keepdims=True)
        yield rows, seen, p


def softmax(xp: Array, scores: Array) -> Array:
    """Return the softmax of each row of `scores`."""
    powers = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    return powers / xp.sum(powers, axis=-1, keepdims=True)


def causal_weights(xp: Array, q: Array, k: Array) -> Array:
    """Return the weights of each head (... x n x n), from q and k (... x n x e). Later tokens weigh 0."""
    n, e = q.shape[-2:]
    scores = (q / math.sqrt(e)) @ xp.moveaxis(k, -1, -2)
    return softmax(xp, xp.where(xp.tril(xp.ones((n, n), dtype=xp.bool)), scores, -math.inf))


def whole_values(np: Any, of: Heads) -> tuple[Array, Array]:
    """Return (values, results) of an attention whose queries and keys are 0, each tokens x width. All weights of a
    query are then equal, so a single missing key changes the result."""
    random, shape = np.random.default_rng(of.n), (of.sequences, of.n, of.width)
    # sums are multiples of 64, and not 0, so that the results stay normal in float16
    sums = 64 * random.integers(1, 5, shape) * random.choice((-1, 1), shape)
    results = sums / np.arange(1, of.n + 1)[:, None]
    return np.diff(sums, axis=1, prepend=0).reshape(-1, of.width), results.reshape(-1, of.width)


def torch_attention(torch: Any, qkv: Array, heads: int = HEADS, tokens: int | None = None) -> Array:
    q, k, v = cut(torch, qkv, heads, tokens)
    return join(torch, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


# ---------------------------------------------------------------- queries and threads


class QueryLayout(msgspec.Struct, frozen=True):
    """The assignment of queries to the threads of a group."""

    rows: int  # queries of a thread
    parts: int  # warps of a group; each takes the same queries and a part of the keys

    @property
    def threads(self) -> int:
        return LANES * self.parts

    @property
    def group_rows(self) -> int:
        return LANES * self.rows

    @property
    def handed(self) -> int:
        """The number of queries whose results half of the warps store for the other half at once."""
        return self.parts // 2 * self.group_rows

    def words(self, e: int) -> int:
        """Return how many numbers of shared memory a group needs, for heads of `e` elements."""
        # for each result its maximum and its sum
        return self.handed * (e + 2)


def layout(of: Heads, itemsize: int, limits: Limits) -> QueryLayout:
    """Choose how many queries a thread has, 1 or 2, and how many warps divide the keys. `itemsize` is the number of
    bytes of a number in the arithmetic. Raises Unsupported for heads that are too wide for registers."""
    if of.e > _MOST_ELEMENTS:
        why = f"a head of {of.e} elements does not fit a thread's registers; up to {_MOST_ELEMENTS} do"
        raise Unsupported(why, reason="limit")
    rows = 2 if 4 * of.e * itemsize <= _TWO_QUERIES_BYTES and of.rows > LANES else 1
    warps = of.heads * ceil_div(of.rows, LANES * rows)
    queries = QueryLayout(rows, 1)
    # doubled until each multiprocessor has enough warps
    while queries.parts < _MOST_PARTS:
        more = QueryLayout(rows, 2 * queries.parts)
        enough = warps * queries.parts >= _WARPS_A_MULTIPROCESSOR * multiprocessors(limits)
        fits = (
            more.threads <= limits.max_workgroup_threads
            and itemsize * more.words(of.e) <= limits.max_workgroup_bytes
        )
        if enough or not fits or of.n < more.parts * KEYS:
            break
        queries = more
    return queries


def begin_of(token: str, of: Heads) -> str:
    """Return the expression of the first token of the sequence that contains `token`."""
    return f"({token} - {token} % {of.n}u)"


# ---------------------------------------------------------------- CUDA


def sequences_text(of: Heads) -> str:
    """Return CUDA macros for the range of keys that a row sees."""
    # a single sequence needs no instruction for its begin
    single = of.sequences == 1
    return f"""#define BEGIN(row) {"0" if single else begin_of("(row)", of)}
#define END(row) {"n" if single else f"(BEGIN(row) + {of.n})"}
#define SEES(row, key) ((key) <= (row){"" if single else " && (key) >= BEGIN(row)"})"""


def build_cuda(of: Heads, dtype: str, limits: Limits) -> CudaProgram:
    """Return the CUDA program of the attention, with one launch. Raises Unsupported for heads that are too many
    or too wide."""
    queries = layout(of, 8 if dtype == "float64" else 4, limits)
    grid, arguments = (ceil_div(of.rows, queries.group_rows), of.heads, 1), ("qkv", "out", of.rows, of.width)
    return one_launch("attention", dtype, _cuda_source(of, queries, dtype), grid, queries.threads, arguments)


def _cuda_source(of: Heads, queries: QueryLayout, dtype: str) -> str:
    return f"""const int E = {of.e}, ROWS = {queries.rows}, PARTS = {queries.parts};
const real LOWEST = real({LOWEST});
const int ACROSS = {LANES}, KEYS = {KEYS}, WIDTH = {math.gcd(of.e, lanes(dtype))};
{sequences_text(of)}

{UNIT}
{_KERNEL}"""


# The blocks of rows with the most keys come first, so that short ones end last. A key that a query does not see has
# the score LOWEST. If such keys come before the first that it sees, their sums are multiplied by 0 at that key.
_KERNEL = """
struct Queries {
  real q[ROWS][E], o[ROWS][E], top[ROWS], total[ROWS];

  __device__ __forceinline__ void merge(int r, real other_top, real other_total, const real* other) {
    const real highest = top[r] > other_top ? top[r] : other_top;
    const real mine = exp(top[r] - highest), theirs = exp(other_top - highest);
    total[r] = total[r] * mine + other_total * theirs;
    #pragma unroll
    for (int i = 0; i < E; ++i) o[r][i] = o[r][i] * mine + other[i * ACROSS] * theirs;
    top[r] = highest;
  }
};

extern "C" __global__ void __launch_bounds__(ACROSS * PARTS)
gpubench_attention(const stored* __restrict__ qkv, stored* __restrict__ out, long long n, long long width) {
  __shared__ real handed[PARTS > 1 ? PARTS / 2 * ROWS * (E + 2) * ACROSS : 1];
  const int lane = threadIdx.x % ACROSS, part = threadIdx.x / ACROSS;
  const long long first = (long long)(gridDim.x - 1 - blockIdx.x) * (ACROSS * ROWS);
  const long long head = (long long)blockIdx.y * E, line = 3 * width;
  Queries own;
  long long row[ROWS];
  #pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    row[r] = first + r * ACROSS + lane;
    const long long read = row[r] < n ? row[r] : n - 1;
    const Unit* q = reinterpret_cast<const Unit*>(qkv + read * line + head);
    #pragma unroll
    for (int u = 0; u < E / WIDTH; ++u) {
      const Unit unit = q[u];
      #pragma unroll
      for (int j = 0; j < WIDTH; ++j) {
        own.q[r][u * WIDTH + j] = wide(unit.lane[j]) * real(rsqrt(real(E)));
        own.o[r][u * WIDTH + j] = 0;
      }
    }
    own.top[r] = LOWEST;
    own.total[r] = 0;
  }
  const long long behind = first + ACROSS * ROWS < n ? first + ACROSS * ROWS : n;
  #pragma unroll 1
  for (long long j = BEGIN(first) + (long long)part * KEYS; j < behind; j += PARTS * KEYS) {
    real p[ROWS][KEYS];
    #pragma unroll
    for (int t = 0; t < KEYS; ++t) {
      const long long key = j + t < n ? j + t : n - 1;
      const Unit* k = reinterpret_cast<const Unit*>(qkv + key * line + width + head);
      real score[ROWS] = {};
      #pragma unroll
      for (int u = 0; u < E / WIDTH; ++u) {
        const Unit unit = k[u];
        #pragma unroll
        for (int i = 0; i < WIDTH; ++i)
          #pragma unroll
          for (int r = 0; r < ROWS; ++r) score[r] += own.q[r][u * WIDTH + i] * wide(unit.lane[i]);
      }
      #pragma unroll
      for (int r = 0; r < ROWS; ++r) p[r][t] = SEES(row[r], j + t) ? score[r] : LOWEST;
    }
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      real highest = own.top[r];
      #pragma unroll
      for (int t = 0; t < KEYS; ++t) highest = p[r][t] > highest ? p[r][t] : highest;
      const real before = exp(own.top[r] - highest);
      own.top[r] = highest;
      own.total[r] *= before;
      #pragma unroll
      for (int t = 0; t < KEYS; ++t) own.total[r] += p[r][t] = exp(p[r][t] - highest);
      #pragma unroll
      for (int i = 0; i < E; ++i) own.o[r][i] *= before;
    }
    #pragma unroll
    for (int t = 0; t < KEYS; ++t) {
      const long long key = j + t < n ? j + t : n - 1;
      const Unit* v = reinterpret_cast<const Unit*>(qkv + key * line + 2 * width + head);
      #pragma unroll
      for (int u = 0; u < E / WIDTH; ++u) {
        const Unit unit = v[u];
        #pragma unroll
        for (int i = 0; i < WIDTH; ++i)
          #pragma unroll
          for (int r = 0; r < ROWS; ++r) own.o[r][u * WIDTH + i] += p[r][t] * wide(unit.lane[i]);
      }
    }
  }
  #pragma unroll
  for (int half = PARTS / 2; half > 0; half /= 2) {
    if (part >= half && part < 2 * half)
      #pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        real* at = handed + ((part - half) * ROWS + r) * (E + 2) * ACROSS + lane;
        at[0] = own.top[r];
        at[ACROSS] = own.total[r];
        #pragma unroll
        for (int i = 0; i < E; ++i) at[(i + 2) * ACROSS] = own.o[r][i];
      }
    __syncthreads();
    if (part < half)
      #pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const real* at = handed + (part * ROWS + r) * (E + 2) * ACROSS + lane;
        own.merge(r, at[0], at[ACROSS], at + 2 * ACROSS);
      }
    __syncthreads();
  }
  if (part > 0) return;
  #pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (row[r] >= n) continue;
    Unit* to = reinterpret_cast<Unit*>(out + row[r] * width + head);
    const real by = real(1) / own.total[r];
    #pragma unroll
    for (int u = 0; u < E / WIDTH; ++u) {
      Unit unit;
      #pragma unroll
      for (int i = 0; i < WIDTH; ++i) unit.lane[i] = narrow(own.o[r][u * WIDTH + i] * by);
      to[u] = unit;
    }
  }
}
"""


# ---------------------------------------------------------------- WGSL


def build_wgsl(of: Heads, dtype: str, limits: Limits) -> WgslProgram:
    """Return the WGSL program of the attention, with one dispatch. Raises Unsupported if the device lacks the dtype,
    or a head or an array exceeds its limits."""
    require_storage(dtype, limits, exact=False)
    size = ITEMSIZE[dtype] * of.rows * of.width
    require_bindings({"qkv": 3 * size, "out": size}, limits)
    queries = layout(of, 4, limits)
    grid = require_grid(limits, ceil_div(of.rows, queries.group_rows), of.heads)
    storage = whole_units(dtype, of.e)
    return one_dispatch(_Text(of, queries, storage).source(), grid, ("qkv", "out"), uniform=(of.rows,))


class _Text(msgspec.Struct, frozen=True):
    of: Heads  # shapes
    layout: QueryLayout  # queries and threads
    storage: Storage  # unit of a load

    @property
    def units(self) -> int:
        """The number of loads for one head of one token."""
        return self.of.e // self.storage.width

    @property
    def parts(self) -> int:
        """The number of parts (see `Storage`) of one head of one token."""
        return self.units * self.storage.parts

    def source(self) -> str:
        lines = [*self._begin(), *self._queries(), *self._keys()]
        half = self.layout.parts // 2
        while half:
            lines += self._merge(half)
            half //= 2
        body, before = "\n".join([*lines, *self._write()]), [*self._memory(), *self.storage.functions]
        buffers = {"qkv_": self.storage.unit, "out_": self.storage.unit}
        return shader(buffers, self.layout.threads, body, params="n", before="\n".join(before))

    def _memory(self) -> list[str]:
        handed = self.layout.handed
        if not handed:
            return []
        return [
            f"var<workgroup> handed: array<{self.storage.part}, {handed * self.parts}>;",
            f"var<workgroup> tops: array<f32, {handed}>;",
            f"var<workgroup> totals: array<f32, {handed}>;",
        ]

    def _begin(self) -> list[str]:
        return [
            f"  let lane = thread & {LANES - 1}u;",
            f"  let part = thread / {LANES}u;",
            # The blocks of rows with the most keys come first, so that short ones end last.
            f"  let first = (groups.x - 1u - group.x) * {self.layout.group_rows}u;",
            f"  let head = group.y * {self.units}u;",
        ]

    def _line(self, token: str, which: int) -> str:
        """Return the place of the head's first unit in a token's query (0), key (1) or value (2)."""
        across = self.of.heads * self.units
        return f"{token} * {3 * across}u + {which * across}u + head"

    def _parts(self, name: str, start: str) -> list[str]:
        """Return statements that define `name0`, `name1`, ... as the parts of a head from unit `start` on."""
        lines = []
        for u in range(self.units):
            lines.append(f"let {name}_unit{u} = qkv_[{start} + {u}u];")
            for i, part in enumerate(self.storage.decode(f"{name}_unit{u}")):
                lines.append(f"let {name}{u * self.storage.parts + i} = {part};")
        return lines

    def _queries(self) -> list[str]:
        lines = []
        for r in range(self.layout.rows):
            lines += [f"  let row{r} = first + {r * LANES}u + lane;"]
            lines += [f"  let query{r} = {self._line(f'min(row{r}, p.n - 1u)', 0)};"]
            lines += [f"  {line}" for line in self._parts(f"given{r}_", f"query{r}")]
            for i in range(self.parts):
                lines.append(f"  let q{r}_{i} = given{r}_{i} * {1 / math.sqrt(self.of.e)!r};")
                lines.append(f"  var o{r}_{i} = {self.storage.part}();")
            lines += [f"  var top{r} = f32({LOWEST});", f"  var total{r} = 0.0;"]
        return lines

    def _keys(self) -> list[str]:
        rows, step = range(self.layout.rows), self.layout.parts * KEYS
        several = self.of.sequences > 1
        begin = f"{begin_of('first', self.of)} + " if several else ""
        lines = [
            f"  let behind = min(first + {self.layout.group_rows}u, p.n);",
            f"  for (var j = {begin}part * {KEYS}u; j < behind; j += {step}u) {{",
        ]
        for t in range(KEYS):
            lines += [f"    var s{r}_{t}: f32;" for r in rows]
            lines += ["    {", f"      let key = {self._line(f'min(j + {t}u, p.n - 1u)', 1)};"]
            lines += [f"      {line}" for line in self._parts("k", "key")]
            for r in rows:
                score = " + ".join(self.storage.product(f"q{r}_{i}", f"k{i}") for i in range(self.parts))
                seen = f"j + {t}u <= row{r}"
                seen += f" && j + {t}u >= {begin_of(f'row{r}', self.of)}" if several else ""
                lines.append(f"      s{r}_{t} = select(f32({LOWEST}), {score}, {seen});")
            lines.append("    }")
        for r in rows:
            highest = f"top{r}"
            for t in range(KEYS):
                highest = f"max({highest}, s{r}_{t})"
            lines += [f"    let high{r} = {highest};", f"    let before{r} = exp(top{r} - high{r});"]
            lines += [f"    top{r} = high{r};"]
            lines += [f"    let p{r}_{t} = exp(s{r}_{t} - high{r});" for t in range(KEYS)]
            total = " + ".join(f"p{r}_{t}" for t in range(KEYS))
            lines += [f"    total{r} = total{r} * before{r} + ({total});"]
            lines += [f"    o{r}_{i} *= before{r};" for i in range(self.parts)]
        for t in range(KEYS):
            lines += ["    {", f"      let value = {self._line(f'min(j + {t}u, p.n - 1u)', 2)};"]
            lines += [f"      {line}" for line in self._parts("v", "value")]
            lines += [f"      o{r}_{i} += p{r}_{t} * v{i};" for r in rows for i in range(self.parts)]
            lines.append("    }")
        return [*lines, "  }"]

    def _merge(self, half: int) -> list[str]:
        """Return statements that merge the results of warp i + `half` into those of warp i, for i < `half`."""
        lines = ["  workgroupBarrier();", f"  if (part >= {half}u && part < {2 * half}u) {{"]
        lines += [
            f"    {line}" for r in range(self.layout.rows) for line in self._handing(r, f"part - {half}u")
        ]
        lines += ["  }", "  workgroupBarrier();", f"  if (part < {half}u) {{"]
        lines += [f"    {line}" for r in range(self.layout.rows) for line in self._taking(r)]
        return [*lines, "  }"]

    def _place(self, r: int, part: str) -> str:
        return f"(({part}) * {self.layout.rows}u + {r}u) * {LANES}u + lane"

    def _handing(self, r: int, part: str) -> list[str]:
        return [
            f"let at{r} = {self._place(r, part)};",
            f"tops[at{r}] = top{r};",
            f"totals[at{r}] = total{r};",
            *(f"handed[at{r} + {i * self.layout.handed}u] = o{r}_{i};" for i in range(self.parts)),
        ]

    def _taking(self, r: int) -> list[str]:
        return [
            f"let at{r} = {self._place(r, 'part')};",
            f"let high{r} = max(top{r}, tops[at{r}]);",
            f"let mine{r} = exp(top{r} - high{r});",
            f"let theirs{r} = exp(tops[at{r}] - high{r});",
            f"top{r} = high{r};",
            f"total{r} = total{r} * mine{r} + totals[at{r}] * theirs{r};",
            *(
                f"o{r}_{i} = o{r}_{i} * mine{r} + handed[at{r} + {i * self.layout.handed}u] * theirs{r};"
                for i in range(self.parts)
            ),
        ]

    def _write(self) -> list[str]:
        lines = ["  if (part > 0u) { return; }"] if self.layout.parts > 1 else []
        for r in range(self.layout.rows):
            lines += [f"  if (row{r} < p.n) {{", f"    let by{r} = 1.0 / total{r};"]
            for u in range(self.units):
                parts = (f"o{r}_{u * self.storage.parts + i} * by{r}" for i in range(self.storage.parts))
                lines.append(
                    f"    out_[row{r} * {self.of.heads * self.units}u + head + {u}u] = {self.storage.encode(*parts)};"
                )
            lines.append("  }")
        return lines
