"""attention_grad: the gradient of `attention` with respect to its queries, keys and values. The tuned kernels need
no n x n array.

Let p be the weights of a query and g the gradient of its result. Let dp = g v^T and ds = p (dp - sum(p dp)).
The gradients are dq = ds k / sqrt(e), dk = ds^T q / sqrt(e) and dv = p^T g. Source, also of the two passes: Dao
and others, arXiv 2205.14135.

- CPU: blocks of queries of a head, by BLAS; each thread takes whole heads.
- CUDA and WGSL: the first pass goes over the queries. It writes dq, and for each query the largest score,
  1 / sum(exp(score - largest)) and sum(p dp). The second pass goes over the keys. It computes the weights again
  from these numbers and writes dk and dv. On CUDA eight threads share a query or a key.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from gpubench.kernels.contract.kernel import CudaProgram, Limits, WgslPass, WgslProgram, by_backend
from gpubench.kernels.contract.op import ITEMSIZE, Array, Ladder, Op, Operand, Params, Tolerance
from gpubench.kernels.templates import (
    UNIT,
    Storage,
    ceil_div,
    kernel_pass,
    lanes,
    require_bindings,
    require_grid,
    require_storage,
    shader,
    whole_units,
)
from gpubench.kernels.templates.attention import (
    ATTENTION_PARAMS,
    HEADS,
    LOWEST,
    Heads,
    begin_of,
    by_heads,
    causal_weights,
    cut,
    fits,
    head_by_head,
    join,
    out_shape,
    qkv_shape,
    sequences_text,
    torch_attention,
    weights_by_blocks,
)
from gpubench.kernels.templates.cpu import SLOW_HALVES, Blocks, Launch

_ROWS = 256  # queries that NumPy takes at a time
_STATISTICS = 3  # numbers of a query: its largest score, one over the sum of the powers, sum(p dp)


def _flops(params: Params) -> int:
    """Return the operations: five products for each attended pair, and eleven operations on its score."""
    of = by_heads(params)
    return (10 * of.width + 11 * of.heads) * of.attended_pairs


def _expr(xp: Array, qkv: Array, dout: Array, heads: int = HEADS, tokens: int | None = None) -> Array:
    q, k, v, g = (*cut(xp, qkv, heads, tokens), *cut(xp, dout, heads, tokens, 1))
    by, p = 1 / math.sqrt(q.shape[3]), causal_weights(xp, q, k)
    dp = g @ xp.moveaxis(v, -1, -2)
    ds = p * (dp - xp.sum(p * dp, axis=-1, keepdims=True))
    turned, weights = xp.moveaxis(ds, -1, -2), xp.moveaxis(p, -1, -2)
    return join(xp, ds @ k * by, turned @ q * by, weights @ g)


def _torch(torch: Any, qkv: Any, dout: Any, heads: int = HEADS, tokens: int | None = None) -> Any:
    with torch.enable_grad():
        own = qkv.detach().requires_grad_()
        return torch.autograd.grad(torch_attention(torch, own, heads, tokens), own, dout)[0]


def _gradient(np: Any, q: Array, k: Array, v: Array, g: Array) -> tuple[Array, Array, Array]:
    """Return dq, dk and dv of one head, computed in blocks of queries."""
    by = 1 / math.sqrt(q.shape[1])
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for rows, seen, p in weights_by_blocks(np, q, k, _ROWS):
        dv[seen] += p.T @ g[rows]
        ds = g[rows] @ v[seen].T
        ds -= np.sum(p * ds, axis=1, keepdims=True)
        ds *= p
        dq[rows] = ds @ k[seen] * by
        dk[seen] += ds.T @ (q[rows] * by)
    return dq, dk, dv


def _bound(np: Any, q: Array, k: Array, v: Array, g: Array) -> tuple[Array, Array, Array]:
    """Return the scales of the allowed errors of dq, dk and dv: the sums of their absolute terms."""
    by = 1 / math.sqrt(q.shape[1])
    lengths = [np.sqrt(np.sum(x * x, axis=1)) for x in (q, k, v, g)]
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for rows, seen, p in weights_by_blocks(np, q, k, _ROWS):
        # an error of the score changes the weight
        p *= (1 + lengths[0][rows] * np.max(lengths[1]) * by)[:, None]
        dv[seen] += p.T @ np.abs(g[rows])
        # the bound |g| |v| of dp
        ds = np.outer(lengths[3][rows], lengths[2][seen])
        ds = p * (ds + np.sum(p * ds, axis=1, keepdims=True))
        dq[rows] = ds @ np.abs(k[seen]) * by
        dk[seen] += ds.T @ np.abs(q[rows]) * by
    return dq, dk, dv


def _build_cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    of = by_heads(params)

    def launch(arrays: Any, output: Array) -> None:
        inputs = (*cut(np, arrays[0], of.heads, of.n), *cut(np, arrays[1], of.heads, of.n, 1))
        wide = np.float64 if output.dtype == np.float64 else np.float32
        made = output.reshape(of.sequences, of.n, 3, of.heads, of.e)

        def some(first: int, last: int) -> None:
            for unit in range(first, last):
                at, head = divmod(unit, of.heads)
                parts = _gradient(np, *(np.ascontiguousarray(x[at, head], wide) for x in inputs))
                for place, part in enumerate(parts):
                    made[at, :, place, head] = part

        blocks.multiply(some, of.sequences * of.heads, 1)

    return launch


# ---------------------------------------------------------------- CUDA

_THREADS, _SHARED_BY = 128, 8


def _build_cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    of = by_heads(params)
    text = f"""const int E = {of.e}, SHARED_BY = {_SHARED_BY}, ROWS = {_THREADS // _SHARED_BY};
const int WIDTH = {math.gcd(of.e, lanes(dtype))};
{sequences_text(of)}
const real LOWEST = real({LOWEST});

{UNIT}
{_CUDA}"""
    grid = (ceil_div(of.rows, _THREADS // _SHARED_BY), of.heads, 1)
    arguments = ("qkv", "dout", "out", "statistics", of.rows, of.width)
    steps = tuple(
        kernel_pass(f"attention_grad_{part}", dtype, text, grid, _THREADS, arguments)
        for part in ("queries", "keys")
    )
    size = 8 if dtype == "float64" else 4
    return CudaProgram(steps, {"statistics": _STATISTICS * size * of.heads * of.rows})


_CUDA = """
__device__ __forceinline__ void load(real* to, const stored* from, real by) {
  #pragma unroll
  for (int u = 0; u < E / WIDTH; ++u) {
    const Unit unit = reinterpret_cast<const Unit*>(from)[u];
    #pragma unroll
    for (int i = 0; i < WIDTH; ++i) to[u * WIDTH + i] = wide(unit.lane[i]) * by;
  }
}

__device__ __forceinline__ real product(const real* a, const real* b) {
  real sum = 0;
  #pragma unroll
  for (int i = 0; i < E; ++i) sum += a[i] * b[i];
  return sum;
}

// The threads that share a row add up, and each writes some of its elements.
__device__ __forceinline__ void write(stored* to, const real* sums, int part, bool inside) {
  #pragma unroll
  for (int i = 0; i < E; ++i) {
    real sum = sums[i];
    #pragma unroll
    for (int step = 1; step < SHARED_BY; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (inside && i % SHARED_BY == part) to[i] = narrow(sum);
  }
}

extern "C" __global__ void __launch_bounds__(ROWS * SHARED_BY)
gpubench_attention_grad_queries(const stored* __restrict__ qkv, const stored* __restrict__ dout,
                                stored* __restrict__ out, real* __restrict__ statistics, long long n, long long width) {
  const int part = threadIdx.x % SHARED_BY;
  const long long row = (long long)(gridDim.x - 1 - blockIdx.x) * ROWS + threadIdx.x / SHARED_BY;
  const long long read = row < n ? row : n - 1, head = (long long)blockIdx.y * E, line = 3 * width;
  real q[E], g[E], other[E], sums[E] = {};
  load(q, qkv + read * line + head, real(rsqrt(real(E))));
  load(g, dout + read * width + head, real(1));
  real top = LOWEST, total = 0, slope = 0;
  for (long long j = BEGIN(read) + part; j <= read; j += SHARED_BY) {
    load(other, qkv + j * line + width + head, real(1));
    const real score = product(q, other);
    load(other, qkv + j * line + 2 * width + head, real(1));
    const real highest = score > top ? score : top;
    const real before = exp(top - highest), power = exp(score - highest);
    total = total * before + power;
    slope = slope * before + power * product(g, other);
    top = highest;
  }
  #pragma unroll
  for (int step = 1; step < SHARED_BY; step *= 2) {
    const real other_top = __shfl_xor_sync(0xffffffffu, top, step);
    const real highest = other_top > top ? other_top : top;
    const real mine = exp(top - highest), theirs = exp(other_top - highest);
    total = total * mine + __shfl_xor_sync(0xffffffffu, total, step) * theirs;
    slope = slope * mine + __shfl_xor_sync(0xffffffffu, slope, step) * theirs;
    top = highest;
  }
  const real by = real(1) / total;
  slope *= by;
  for (long long j = BEGIN(read) + part; j <= read; j += SHARED_BY) {
    load(other, qkv + j * line + 2 * width + head, real(1));
    const real dp = product(g, other);
    load(other, qkv + j * line + width + head, real(1));
    const real ds = exp(product(q, other) - top) * by * (dp - slope) * real(rsqrt(real(E)));
    #pragma unroll
    for (int i = 0; i < E; ++i) sums[i] += ds * other[i];
  }
  write(out + read * line + head, sums, part, row < n);
  if (row < n && part == 0) {
    real* own = statistics + (blockIdx.y * n + row) * 3;
    own[0] = top;
    own[1] = by;
    own[2] = slope;
  }
}

extern "C" __global__ void __launch_bounds__(ROWS * SHARED_BY)
gpubench_attention_grad_keys(const stored* __restrict__ qkv, const stored* __restrict__ dout,
                             stored* __restrict__ out, real* __restrict__ statistics, long long n, long long width) {
  const int part = threadIdx.x % SHARED_BY;
  const long long row = (long long)blockIdx.x * ROWS + threadIdx.x / SHARED_BY;
  const long long read = row < n ? row : n - 1, head = (long long)blockIdx.y * E, line = 3 * width;
  real k[E], v[E], q[E], g[E], dk[E] = {}, dv[E] = {};
  load(k, qkv + read * line + width + head, real(1));
  load(v, qkv + read * line + 2 * width + head, real(1));
  for (long long i = read + part; i < END(read); i += SHARED_BY) {
    load(q, qkv + i * line + head, real(rsqrt(real(E))));
    load(g, dout + i * width + head, real(1));
    const real* own = statistics + (blockIdx.y * n + i) * 3;
    const real p = exp(product(q, k) - own[0]) * own[1];
    const real ds = p * (product(g, v) - own[2]);
    #pragma unroll
    for (int e = 0; e < E; ++e) {
      dk[e] += ds * q[e];
      dv[e] += p * g[e];
    }
  }
  write(out + read * line + width + head, dk, part, row < n);
  write(out + read * line + 2 * width + head, dv, part, row < n);
}
"""


# ---------------------------------------------------------------- WGSL

_GROUP = 64


def _build_wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    require_storage(dtype, limits, exact=False)
    of, names = by_heads(params), ("qkv", "dout", "out", "statistics")
    size, held = ITEMSIZE[dtype] * of.rows * of.width, 4 * _STATISTICS * of.heads * of.rows
    require_bindings({"qkv": 3 * size, "dout": size, "out": 3 * size, "statistics": held}, limits)
    grid = require_grid(limits, ceil_div(of.rows, _GROUP), of.heads)
    sources = _wgsl_sources(of, whole_units(dtype, of.e))
    return WgslProgram(
        tuple(WgslPass(text, grid, names, uniform=(of.rows,)) for text in sources), {"statistics": held}
    )


def _wgsl_sources(of: Heads, storage: Storage) -> tuple[str, str]:
    """Return the texts of the pass over the queries and of the pass over the keys."""
    units = of.e // storage.width
    parts, across = units * storage.parts, of.heads * units
    kind, by = f"array<{storage.part}, {parts}>", repr(1 / math.sqrt(of.e))

    def loader(buffer: str) -> str:
        loads = (part for u in range(units) for part in storage.decode(f"{buffer}_[at + {u}u]"))
        return f"fn load_{buffer}(at: u32) -> {kind} {{ return {kind}({', '.join(loads)}); }}"

    def write(name: str, which: int) -> str:
        values = [f"{name}[{i}]" for i in range(parts)]
        units_of = [values[u * storage.parts : (u + 1) * storage.parts] for u in range(units)]
        at = f"row * {3 * across}u + {which * across}u + head"
        return "\n".join(f"  out_[{at} + {u}u] = {storage.encode(*unit)};" for u, unit in enumerate(units_of))

    def add(name: str, factor: str, other: str) -> str:
        return "\n".join(f"    {name}[{i}] += {factor} * {other}[{i}];" for i in range(parts))

    products = " + ".join(storage.product(f"a[{i}]", f"b[{i}]") for i in range(parts))
    before = "\n".join([
        *storage.functions, loader("qkv"), loader("dout"),
        f"fn product(a: {kind}, b: {kind}) -> f32 {{ return {products}; }}",
    ])  # fmt: skip
    begin = f"""  let head = group.y * {units}u;
  if (row >= p.n) {{ return; }}"""
    token = f"{3 * across}u + head"
    several, own = of.sequences > 1, begin_of("row", of)
    oldest, behind = (own, f"{own} + {of.n}u") if several else ("0u", "p.n")
    queries = f"""  let row = (groups.x - 1u - group.x) * {_GROUP}u + thread;
{begin}
  let q = load_qkv(row * {token});
  let g = load_dout(row * {across}u + head);
  var top = f32({LOWEST});
  var total = 0.0;
  var slope = 0.0;
  for (var j = {oldest}; j <= row; j++) {{
    let score = product(q, load_qkv(j * {token} + {across}u)) * {by};
    let highest = max(top, score);
    let before = exp(top - highest);
    let power = exp(score - highest);
    total = total * before + power;
    slope = slope * before + power * product(g, load_qkv(j * {token} + {2 * across}u));
    top = highest;
  }}
  slope = slope / total;
  var dq = {kind}();
  for (var j = {oldest}; j <= row; j++) {{
    let k = load_qkv(j * {token} + {across}u);
    let dp = product(g, load_qkv(j * {token} + {2 * across}u));
    let ds = exp(product(q, k) * {by} - top) / total * (dp - slope) * {by};
{add("dq", "ds", "k")}
  }}
{write("dq", 0)}
  let own = (group.y * p.n + row) * 3u;
  statistics_[own] = top;
  statistics_[own + 1u] = 1.0 / total;
  statistics_[own + 2u] = slope;"""
    keys = f"""  let row = group.x * {_GROUP}u + thread;
{begin}
  let k = load_qkv(row * {token} + {across}u);
  let v = load_qkv(row * {token} + {2 * across}u);
  var dk = {kind}();
  var dv = {kind}();
  for (var i = row; i < {behind}; i++) {{
    let q = load_qkv(i * {token});
    let g = load_dout(i * {across}u + head);
    let own = (group.y * p.n + i) * 3u;
    let weight = exp(product(q, k) * {by} - statistics_[own]) * statistics_[own + 1u];
    let ds = weight * (product(g, v) - statistics_[own + 2u]) * {by};
{add("dk", "ds", "q")}
{add("dv", "weight", "g")}
  }}
{write("dk", 1)}
{write("dv", 2)}"""
    buffers = {"qkv_": storage.unit, "dout_": storage.unit, "out_": storage.unit, "statistics_": "f32"}
    writes = ("out_", "statistics_")
    first, second = (
        shader(buffers, _GROUP, body, params="n", before=before, writes=writes) for body in (queries, keys)
    )
    return first, second


OPS = (
    Op(
        name="attention_grad",
        group="layers",
        summary="the gradient of attention by qkv, from that of its result",
        **ATTENTION_PARAMS,
        sizes=Ladder(low=1, high=4096),
        inputs=(Operand("qkv", qkv_shape, "normal"), Operand("dout", out_shape, "normal")),
        output=Operand("out", qkv_shape),
        flops=_flops,
        blas=("numpy", "torch"),
        fits=fits,
        expr=_expr,
        reference=partial(head_by_head, _gradient),
        library={"torch": _torch},
        tolerance=Tolerance(8, scale=partial(head_by_head, _bound)),
        slow=SLOW_HALVES,
        tuned=by_backend(_build_cpu, _build_cuda, _build_wgsl),
    ),
)
