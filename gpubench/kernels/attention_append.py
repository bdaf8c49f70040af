"""attention_append: the attention of one new token over a cache of keys and values. The launch first appends
the token's own key and value to the cache. `cache_append` appends those of a whole prompt.

The position of the token is an input on the device, so that a network that makes tokens need not wait for the
host. Rows of the cache after the position are not read, except by PyTorch, which masks them. Memory bounds the op.

- CPU: two products by NumPy, for all heads at once.
- CUDA and WGSL: a group for each head goes through the keys in steps. In each step its threads compute the
  scores; if there are few keys, several threads share a key. Then teams of threads, with one thread for each load
  of a value, add up the values of their keys, with a running maximum and a running sum. At the end the teams merge
  their results. A step takes two barriers, so with few keys the time is the latency of memory. The group reads the
  new key and value from the input and also writes them to the cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import CudaProgram, Limits, WgslProgram, by_backend, one_dispatch
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
    start_in,
)
from gpubench.kernels.templates import (
    UNIT,
    GpuText,
    Storage,
    fits_in,
    lanes,
    one_launch,
    require_bindings,
    require_grid,
    require_storage,
    room_of,
    shader,
    whole_units,
)
from gpubench.kernels.templates.attention import (
    ATTENTION_PARAMS,
    HEADS,
    LOWEST,
    Heads,
    by_heads,
    fits,
    softmax,
    whole_values,
    width_of,
)
from gpubench.kernels.templates.cpu import Blocks, Launch


def _room(params: Params) -> int:
    return params.get("room", params["n"])


def _cache(params: Params) -> Shape:
    return (_room(params), 2 * width_of(params))


def _traffic(params: Params, dtype: Dtype) -> int:
    # n rows of the cache, the new key and value, the query, the result, and the position
    return (2 * params["n"] + 4) * width_of(params) * ITEMSIZE[dtype] + ITEMSIZE["int32"]


def _cut(xp: Array, qkv: Array, position: Array, cache: Array, heads: int) -> tuple[Array, Array, Array]:
    """Return views of the query (heads x 1 x e), and of keys and values so far (heads x tokens x e)."""
    seen, width = int(position[0]) + 1, cache.shape[1] // 2
    shape = (seen, heads, width // heads)
    k, v = (xp.moveaxis(xp.reshape(cache[:seen, i * width : (i + 1) * width], shape), 0, 1) for i in range(2))
    return xp.reshape(qkv[:, :width], (heads, 1, width // heads)), k, v


def _weights(xp: Array, q: Array, k: Array) -> Array:
    return softmax(xp, (q / math.sqrt(q.shape[-1])) @ xp.moveaxis(k, -1, -2))


def _expr(xp: Array, qkv: Array, position: Array, cache: Array, heads: int = HEADS) -> tuple[Array, Array]:
    cache[int(position[0])] = qkv[0, qkv.shape[1] // 3 :]
    q, k, v = _cut(xp, qkv, position, cache, heads)
    return xp.reshape(_weights(xp, q, k) @ v, (1, cache.shape[1] // 2)), cache


def _torch(torch: Any, qkv: Array, position: Array, cache: Array, heads: int = HEADS) -> tuple[Array, Array]:
    """Compute with all rows of the cache, masked after the position, which is not copied to the host."""
    cache.index_copy_(0, position.long(), qkv[:, qkv.shape[1] // 3 :])
    room, width = cache.shape[0], cache.shape[1] // 2
    k, v = cache.view(room, 2, heads, width // heads).permute(1, 2, 0, 3)
    q = qkv[:, :width].view(heads, 1, width // heads)
    seen = torch.arange(room, device=cache.device)[None, None] <= position
    values = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=seen[None])
    return values.reshape(1, width), cache


def _scale(xp: Array, qkv: Array, position: Array, cache: Array, heads: int = HEADS) -> Array:
    """Return the scale of each result, as in `attention`: (sum p |v|) (1 + |q| max |k| / sqrt(e))."""
    cache = _expr(xp, qkv, position, cache, heads)[1]
    q, k, v = _cut(xp, qkv, position, cache, heads)
    longest = xp.max(xp.sqrt(xp.sum(k * k, axis=-1)), axis=-1)[:, None, None]
    lengths = xp.sqrt(xp.sum(q * q, axis=-1, keepdims=True))
    spread = (_weights(xp, q, k) @ xp.abs(v)) * (1 + lengths * longest / math.sqrt(q.shape[-1]))
    return xp.reshape(spread, (1, cache.shape[1] // 2))


def _probe(np: Any, params: Params) -> tuple[list[Any], Array]:
    values, results = whole_values(np, Heads(params["n"], 1, width_of(params), 1))
    qkv, cache = np.zeros((1, 3 * width_of(params))), np.zeros(_cache(params))
    qkv[:, 2 * width_of(params) :], cache[: len(values), width_of(params) :] = values[-1:], values
    cache[len(values) - 1] = 0  # the launch writes it
    return [qkv, None, cache], results[-1:]


def _cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    heads = by_heads(params).heads

    def launch(inputs: Sequence[Array], output: Any) -> None:
        qkv, position, _ = inputs
        output, cache = output
        cache[int(position[0])] = qkv[0, qkv.shape[1] // 3 :]
        q, k, v = _cut(np, qkv, position, cache, heads)
        if output.dtype == np.float16:
            q, k, v = (x.astype(np.float32) for x in (q, k, v))
        output[...] = np.matmul(_weights(np, q, k), v).reshape(output.shape)

    return launch


# ---------------------------------------------------------------- groups of threads


_THREADS = 256  # threads for each head, and the most elements of a head


class _Group(NamedTuple):
    """The division of a head among the threads of a group."""

    units: int  # loads for the key or the value of one head and token
    shares: int  # number of threads that compute the score of one key together

    @property
    def teams(self) -> int:
        """The number of teams that add up values, each of `units` threads."""
        return _THREADS // self.units

    @property
    def held(self) -> int:
        """The number of keys in a step."""
        return _THREADS // self.shares


def _group(of: Heads, width: int, room: int) -> _Group:
    """Choose how many threads share a key. A load has `width` elements, the cache `room` rows."""
    if of.e > _THREADS:
        why = f"a head of {of.e} elements exceeds a group of {_THREADS} threads"
        raise Unsupported(why, reason="limit")
    units, shares = of.e // width, 1
    # as many as divide the loads of a key and leave a step room for `room` keys
    while units % (2 * shares) == 0 and 2 * shares * room <= _THREADS:
        shares *= 2
    return _Group(units, shares)


# ---------------------------------------------------------------- CUDA


def _cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    of, room = by_heads(params), _room(params)
    width = math.gcd(of.e, lanes(dtype))
    group = _group(of, width, room)
    source = f"""const real LOWEST = real({LOWEST});
const int E = {of.e}, WIDTH = {width}, UNITS = {group.units}, SHARES = {group.shares};
const int THREADS = {_THREADS}, TEAMS = {group.teams}, HELD = {group.held};

{UNIT}
{_KERNEL}"""
    arguments = ("qkv", "position", "cache", "out", of.width // width, room)
    return one_launch("attention_over_cache", dtype, source, of.heads, _THREADS, arguments)


# LOWEST is the running maximum before the first key, which then multiplies the sums so far by 0.
_KERNEL = """
__device__ __forceinline__ real score_of(const real* parts, int key) {
  real score = 0;
  #pragma unroll
  for (int i = 0; i < SHARES; ++i) score += parts[key * SHARES + i];
  return score;
}

extern "C" __global__ void __launch_bounds__(THREADS)
gpubench_attention_over_cache(const Unit* __restrict__ qkv, const int* __restrict__ position, Unit* cache,
                              Unit* __restrict__ out, long long across, long long room) {
  __shared__ real parts[THREADS], tops[TEAMS], totals[TEAMS], sums[THREADS][WIDTH];
  const int t = threadIdx.x, share = t % SHARES, team = t / UNITS, lane = t % UNITS;
  const long long count = position[0] < room ? position[0] + 1 : room, last = count - 1;
  const long long head = (long long)blockIdx.x * UNITS;
  // A unit of the key (0) or value (1) of token j; those of the last one lie in qkv.
  const auto row_at = [&](long long j, int which, int unit) {
    if (j == last) return qkv[(1 + which) * across + head + unit];
    return Unit(cache[(2 * j + which) * across + head + unit]);
  };
  for (int i = t; i < 2 * UNITS; i += THREADS) {
    const long long which = i / UNITS, unit = head + i % UNITS;
    cache[(2 * last + which) * across + unit] = qkv[(1 + which) * across + unit];
  }
  Unit query[UNITS / SHARES];
  #pragma unroll
  for (int i = 0; i < UNITS / SHARES; ++i) query[i] = qkv[head + share + i * SHARES];
  real top = LOWEST, total = 0, own[WIDTH] = {};
  for (long long base = 0; base < count; base += HELD) {
    const long long j = base + t / SHARES;
    Unit value = row_at(base + team < count ? base + team : count - 1, 1, lane);
    if (j < count) {
      real part = 0;
      #pragma unroll
      for (int i = 0; i < UNITS / SHARES; ++i) {
        const Unit key = row_at(j, 0, share + i * SHARES);
        #pragma unroll
        for (int k = 0; k < WIDTH; ++k) part += wide(query[i].lane[k]) * wide(key.lane[k]);
      }
      parts[t] = part * real(rsqrt(real(E)));
    }
    __syncthreads();
    const int behind = count - base < HELD ? count - base : HELD;
    if (team < TEAMS) {
      const real before = top;
      for (int i = team; i < behind; i += TEAMS) {
        const real score = score_of(parts, i);
        top = score > top ? score : top;
      }
      const real less = exp(before - top);
      total *= less;
      #pragma unroll
      for (int k = 0; k < WIDTH; ++k) own[k] *= less;
      for (int i = team; i < behind; i += TEAMS) {
        const Unit next = row_at(base + i + TEAMS < count ? base + i + TEAMS : count - 1, 1, lane);
        const real power = exp(score_of(parts, i) - top);
        total += power;
        #pragma unroll
        for (int k = 0; k < WIDTH; ++k) own[k] += power * wide(value.lane[k]);
        value = next;
      }
    }
    __syncthreads();
  }
  if (team < TEAMS && lane == 0) tops[team] = top;
  __syncthreads();
  real highest = tops[0];
  #pragma unroll 8
  for (int i = 1; i < TEAMS; ++i) highest = tops[i] > highest ? tops[i] : highest;
  const real less = exp(top - highest);
  #pragma unroll
  for (int k = 0; k < WIDTH; ++k) sums[t][k] = own[k] * less;
  if (team < TEAMS && lane == 0) totals[team] = total * less;
  __syncthreads();
  if (t >= E) return;
  real sum = 0, all = 0;
  #pragma unroll 8
  for (int i = 0; i < TEAMS; ++i) {
    sum += sums[i * UNITS + t / WIDTH][t % WIDTH];
    all += totals[i];
  }
  reinterpret_cast<stored*>(out + head)[t] = narrow(sum / all);
}
"""


# ---------------------------------------------------------------- WGSL


def _wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    of, room = by_heads(params), _room(params)
    require_storage(dtype, limits, threads=_THREADS, exact=False)
    storage = whole_units(dtype, of.e)
    text = _source(_group(of, storage.width, room), storage, of)
    grid = require_grid(limits, of.heads)
    require_bindings({"cache": 2 * room * of.width * ITEMSIZE[dtype]}, limits)
    return one_dispatch(text, grid, ("qkv", "position", "cache", "out"), uniform=(room,))


def _source(group: _Group, storage: Storage, of: Heads) -> str:
    units, shares, parts = group.units, group.shares, range(storage.parts)
    across = of.width // storage.width  # loads of a row of all heads
    mine = range(units // shares)
    queries, products = [], []
    for i in mine:
        place = f"head + share + {i * shares}u"
        queries.append(f"  let query{i} = qkv_[{place}];")
        products.append(f"      let key{i} = row_at(j, count - 1u, 0u, {place});")
        pairs = zip(storage.decode(f"query{i}"), storage.decode(f"key{i}"), strict=True)
        products += [f"      part += {storage.product(a, b)};" for a, b in pairs]
    score = " + ".join(f"scores[{shares}u * i + {s}u]" for s in range(shares))
    lines = {
        "begin": "\n".join(f"  var own{i} = {storage.part}();" for i in parts),
        "less": " ".join(f"own{i} *= less;" for i in parts),
        "add": " ".join(f"own{i} += power * {v};" for i, v in enumerate(storage.decode("value"))),
        "hand": " ".join(f"sums[thread * {storage.parts}u + {i}u] = own{i} * less;" for i in parts),
    }
    handed = f"sums[(i * {units}u + lane) * {storage.parts}u + {{}}u]"
    ended = " ".join(f"sum{i} += {handed.format(i)};" for i in parts)
    before = f"""{chr(10).join(storage.functions)}
var<workgroup> scores: array<f32, {_THREADS}>;
var<workgroup> tops: array<f32, {group.teams}>;
var<workgroup> totals: array<f32, {group.teams}>;
var<workgroup> sums: array<{storage.part}, {_THREADS * storage.parts}>;
// A unit of the key (0) or value (1) of token j; those of the last one are not in the cache yet.
fn row_at(j: u32, last: u32, which: u32, place: u32) -> {storage.unit} {{
  if (j == last) {{ return qkv_[(1u + which) * {across}u + place]; }}
  return cache_[(2u * j + which) * {across}u + place];
}}
fn score_of(i: u32) -> f32 {{ return {score}; }}
"""
    body = f"""
  let head = group.x * {units}u;
  let count = min(u32(position[0]), p.room - 1u) + 1u;
  let share = thread % {shares}u;
  let team = thread / {units}u;
  let lane = thread % {units}u;
  for (var i = thread; i < {2 * units}u; i += {_THREADS}u) {{
    let which = i / {units}u;
    let unit = head + i % {units}u;
    cache_[(2u * count - 2u + which) * {across}u + unit] = qkv_[(1u + which) * {across}u + unit];
  }}
{chr(10).join(queries)}
  var top = f32({LOWEST});
  var total = 0.0;
{lines["begin"]}
  for (var base = 0u; base < count; base += {group.held}u) {{
    let j = base + thread / {shares}u;
    var value = row_at(min(base + team, count - 1u), count - 1u, 1u, head + lane);
    if (j < count) {{
      var part = 0.0;
{chr(10).join(products)}
      scores[thread] = part * {1 / math.sqrt(of.e)!r};
    }}
    workgroupBarrier();
    let behind = min(count - base, {group.held}u);
    if (team < {group.teams}u) {{
      let before = top;
      for (var i = team; i < behind; i += {group.teams}u) {{ top = max(top, score_of(i)); }}
      let less = exp(before - top);
      total *= less;
      {lines["less"]}
      for (var i = team; i < behind; i += {group.teams}u) {{
        let next = row_at(min(base + i + {group.teams}u, count - 1u), count - 1u, 1u, head + lane);
        let power = exp(score_of(i) - top);
        total += power;
        {lines["add"]}
        value = next;
      }}
    }}
    workgroupBarrier();
  }}
  if (team < {group.teams}u && lane == 0u) {{ tops[team] = top; }}
  workgroupBarrier();
  var highest = tops[0];
  for (var i = 1u; i < {group.teams}u; i++) {{ highest = max(highest, tops[i]); }}
  let less = exp(top - highest);
  {lines["hand"]}
  if (team < {group.teams}u && lane == 0u) {{ totals[team] = total * less; }}
  workgroupBarrier();
  if (thread >= {units}u) {{ return; }}
  var all = 0.0;
{chr(10).join(f"  var sum{i} = {storage.part}();" for i in parts)}
  for (var i = 0u; i < {group.teams}u; i++) {{ all += totals[i]; {ended} }}
  out_[head + thread] = {storage.encode(*(f"sum{i} / all" for i in parts))};
"""
    buffers = {"qkv_": storage.unit, "position": "i32", "cache_": storage.unit, "out_": storage.unit}
    return shader(buffers, _THREADS, body, params="room", before=before, writes=("out_", "cache_"))


# ---------------------------------------------------------------- cache_append


def _append_cache(params: Params) -> Shape:
    return (room_of(params), 2 * width_of(params))


def _cache_append_expr(xp: Array, qkv: Array, start: Array, cache: Array) -> Array:
    first = int(start[0])
    cache[first : first + qkv.shape[0], :] = qkv[:, qkv.shape[1] // 3 :]
    return cache


def _cache_append_cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    width = width_of(params)

    def launch(inputs: Sequence[Array], output: Array) -> None:
        qkv, start, _ = inputs
        first = int(start[0])
        output[first : first + len(qkv)] = qkv[:, width:]

    return launch


_APPEND_KERNEL = GpuText(
    "cache_append", {"qkv": "stored", "start": "i32", "cache": "stored"}, ("cache",), "units width", """
  let i = block * 256u + thread;
  if (i >= units) { return; }
  let row = i / (2u * width);
  let column = i - row * 2u * width;
  cache[clamped(u32(start[0]) + row, last) * 2u * width + column] = qkv[row * 3u * width + width + column];
""", bounds="last",
)  # fmt: skip


def _cache_append_cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    units, width = 2 * params["n"] * width_of(params), width_of(params)
    return _APPEND_KERNEL.cuda_program(dtype, units, (units, width))


def _cache_append_wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    require_storage(dtype, limits)
    units, width, room = 2 * params["n"] * width_of(params), width_of(params), room_of(params)
    require_bindings(
        {"qkv": 3 * units // 2 * ITEMSIZE[dtype], "cache": 2 * room * width * ITEMSIZE[dtype]}, limits
    )
    return _APPEND_KERNEL.wgsl_program(dtype, units, (units, width, room - 1), limits)


OPS = (
    Op(
        name="attention_append",
        group="layers",
        summary="cache[position] = k, v of one token; out = softmax(q k^T / sqrt(e)) v over the cache so far",
        params={"n": "number of tokens so far, the new one included"},
        options={
            **{name: ATTENTION_PARAMS["options"][name] for name in ("width", "heads")},
            "room": "rows of the cache (n)",
        },
        sizes=Ladder(low=1, high=16384),
        inputs=(
            Operand("qkv", lambda params: (1, 3 * width_of(params)), "normal"),
            Operand(
                "position",
                lambda params: (1,),
                Given(lambda params: (params["n"] - 1).to_bytes(4, "little")),
                dtype="int32",
            ),
            Operand("cache", _cache, "normal", role="state"),
        ),
        output=Operand("out", lambda params: (1, width_of(params))),
        more_outputs=(Operand("cache", _cache, role="state", tolerance=EXACT),),
        flops=lambda params: (4 * width_of(params) + 5 * by_heads(params).heads) * params["n"],
        traffic=_traffic,
        blas=("numpy", "torch"),
        fits=lambda params: fits(params) or fits_in(_room)(params),
        takes=("heads",),
        expr=_expr,
        library={"torch": _torch},
        tolerance=Tolerance(8, scale=_scale),
        probe=_probe,
        tuned=by_backend(_cpu, _cuda, _wgsl),
    ),
    Op(
        name="cache_append",
        group="layers",
        summary="cache[start : start + n] = the keys and values of qkv, in place",
        params={"n": "number of tokens"},
        options={"width": ATTENTION_PARAMS["options"]["width"], "room": "rows of the cache (twice n)"},
        sizes=Ladder(low=1, high=16384),
        inputs=(
            Operand("qkv", lambda params: (params["n"], 3 * width_of(params)), "normal"),
            start_in(room_of),
            Operand("cache", _append_cache, "normal", role="state"),
        ),
        output=Operand("cache", _append_cache, role="state"),
        flops=lambda params: 0,
        # The appended keys and values, read and written, and the start: rows already in the cache are not moved.
        traffic=lambda params, dtype: 4 * params["n"] * width_of(params) * ITEMSIZE[dtype] + ITEMSIZE["int32"],
        fits=fits_in(room_of),
        expr=_cache_append_expr,
        library={  # `start` stays on the device
            "torch": lambda torch, qkv, start, cache: cache.index_copy_(
                0, start + torch.arange(len(qkv), device=qkv.device), qkv[:, qkv.shape[1] // 3 :]
            )
        },
        tolerance=EXACT,
        tuned=by_backend(_cache_append_cpu, _cache_append_cuda, _cache_append_wgsl),
    ),
)
