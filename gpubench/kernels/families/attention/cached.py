"""The attention of one new token over a cache of the keys and values of all tokens so far, whose own join them before
(`cache_append`) or in the same launch.

The token's place stays on the device, where the tokens are made: rows behind it are not read. Bound by memory.

- CPU: two products of NumPy's, all heads at once.
- CUDA and WGSL: a group for each head. Its threads share the keys, agree on the maximum and the sum, then share the
  elements of the result. The scores of a head go through scratch memory, so that no length is too much. A group that
  appends reads its head's key and value of the new token where they lie, and writes them into the cache beside that:
  no other group reads them in this launch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from gpubench.errors import Unsupported
from gpubench.kernels.families import require_bindings, require_dtype
from gpubench.kernels.families.cpu import Blocks, Launch
from gpubench.kernels.families.cuda import DTYPES, options, prelude
from gpubench.kernels.families.elementwise import WORKING_DTYPES
from gpubench.kernels.families.wgsl import elements, fold_lanes, require_storage
from gpubench.model.kernel import CudaPass, CudaProgram, Kernel, Limits, WgslPass, WgslProgram
from gpubench.model.op import (
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

_WIDTH, _HEADS = 256, 8
_THREADS = 256  # of a head; as many elements as one may have


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


def _elements(params: Params) -> int:
    """Of a head. Raises Unsupported for more than a group has threads."""
    e = _width(params) // _heads(params)
    if e > _THREADS:
        raise Unsupported(f"a head of {e} elements exceeds a group of {_THREADS} threads", reason="limit")
    return e


def _scratch(params: Params, size: int) -> dict[str, int]:
    return {"scores": _heads(params) * _room(params) * size}


def _cuda(append: bool, params: Params, dtype: str, limits: Limits) -> CudaProgram:
    """One launch. Raises Unsupported for another dtype, and for heads that are too wide."""
    require_dtype(dtype, DTYPES, "CUDA")
    source = f"{prelude(dtype)}\nconst int E = {_elements(params)}, THREADS = {_THREADS};\n{_kernel(append)}"
    entry = f"gpubench_attention_{'append' if append else 'cached'}"
    step = CudaPass(
        source, entry, (_heads(params), 1, 1), (_THREADS, 1, 1),
        ("qkv", "position", "cache", "out", "scores", _width(params), _room(params)), options=options(dtype),
    )  # fmt: skip
    return CudaProgram((step,), scratch=_scratch(params, 8 if dtype == "float64" else 4))


def _kernel(append: bool) -> str:
    if not append:
        return _KERNEL
    changes = {
        "gpubench_attention_cached": "gpubench_attention_append",
        "const stored* __restrict__ cache": "stored* __restrict__ cache",
        "  real top = minus": _CUDA_APPEND + "  real top = minus",
        "key = cache + j * 2 * width + head;": "key = j < last ? cache + j * 2 * width + head : qkv + width + head;",
        "wide(cache[j * 2 * width + width + head + t % E])": "wide((j < last ? cache + j * 2 * width : qkv + width)"
        "[width + head + t % E])",
    }
    text = _KERNEL
    for before, after in changes.items():
        text = text.replace(before, after)
    return text


_CUDA_APPEND = """  const long long last = count - 1;
  if (t < E) {
    stored* const kept = cache + last * 2 * width + head;
    kept[t] = qkv[width + head + t];
    kept[width + t] = qkv[2 * width + head + t];
  }
"""
_KERNEL = """
template <typename Join> __device__ __forceinline__ real folded(real* shared, real value, Join join) {
  const int t = threadIdx.x;
  shared[t] = value;
  __syncthreads();
  #pragma unroll
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (t < half) shared[t] = join(shared[t], shared[t + half]);
    __syncthreads();
  }
  const real found = shared[0];
  __syncthreads();
  return found;
}

extern "C" __global__ void __launch_bounds__(THREADS)
gpubench_attention_cached(const stored* __restrict__ qkv, const int* __restrict__ position,
                          const stored* __restrict__ cache, stored* __restrict__ out, real* scores,
                          long long width, long long room) {
  __shared__ real q[E], shared[THREADS];
  const int t = threadIdx.x;
  const long long head = (long long)blockIdx.x * E;
  const long long count = position[0] < room ? position[0] + 1 : room;
  real* own = scores + blockIdx.x * room;
  if (t < E) q[t] = wide(qkv[head + t]) * real(rsqrt(real(E)));
  __syncthreads();
  real top = minus_infinity();
  for (long long j = t; j < count; j += THREADS) {
    const stored* key = cache + j * 2 * width + head;
    real score = 0;
    #pragma unroll
    for (int i = 0; i < E; ++i) score += q[i] * wide(key[i]);
    own[j] = score;
    top = score > top ? score : top;
  }
  top = folded(shared, top, [](real a, real b) { return a > b ? a : b; });
  real total = 0;
  for (long long j = t; j < count; j += THREADS) total += own[j] = exp(own[j] - top);
  total = folded(shared, total, [](real a, real b) { return a + b; });
  real sum = 0;
  if (t < THREADS / E * E)
    for (long long j = t / E; j < count; j += THREADS / E)
      sum += own[j] * wide(cache[j * 2 * width + width + head + t % E]);
  shared[t] = sum;
  __syncthreads();
  if (t >= E) return;
  for (int other = t + E; other < THREADS / E * E; other += E) sum += shared[other];
  out[head + t] = narrow(sum / total);
}
"""


def _wgsl(append: bool, params: Params, dtype: str, limits: Limits) -> WgslProgram:
    """One dispatch. Raises Unsupported for what the device does not hold."""
    require_storage(dtype, limits)
    if dtype == "float64":
        raise Unsupported("WGSL has no exp in double precision", reason="no-dtype")
    if limits.max_workgroup_threads < _THREADS:
        raise Unsupported(f"{_THREADS} threads a group exceed {limits.max_workgroup_threads}", reason="limit")
    e, width, heads, room = _elements(params), _width(params), _heads(params), _room(params)
    if heads > limits.max_groups_per_dimension:
        raise Unsupported(f"{heads} groups exceed {limits.max_groups_per_dimension}", reason="limit")
    require_bindings({"cache": 2 * room * width * ITEMSIZE[dtype], **_scratch(params, 4)}, limits)
    storage, groups = elements(dtype), _THREADS // e
    header = "\n".join(storage.header)
    old_key, old_value = (
        f"f32(cache_[{at}])" for at in ("key + i", f"j * {2 * width}u + {width}u + head + thread % {e}u")
    )
    value = f"sum += scores[own + j] * {old_value};"
    score = f"for (var i = 0u; i < {e}u; i++) {{ score += q[i] * {old_key}; }}"
    kept = ""
    if append:  # the new token's key and value are read where they lie
        new_score = score.replace(old_key, f"f32(qkv_[{width}u + head + i])")
        score = f"if (j < count - 1u) {{ {score} }} else {{ {new_score} }}"
        new_value = f"f32(qkv_[{2 * width}u + head + thread % {e}u])"
        value = f"if (j < count - 1u) {{ {value} }} else {{ sum += scores[own + j] * {new_value}; }}"
        kept = f"""
  if (thread < {e}u) {{
    let place = (count - 1u) * {2 * width}u + head + thread;
    cache_[place] = qkv_[{width}u + head + thread];
    cache_[place + {width}u] = qkv_[{2 * width}u + head + thread];
  }}"""
    text = f"""{header}
struct Params {{ room: u32, }}
@group(0) @binding(0) var<storage, read> qkv_: array<{storage.stored}>;
@group(0) @binding(1) var<storage, read> position: array<i32>;
@group(0) @binding(2) var<storage, {"read_write" if append else "read"}> cache_: array<{storage.stored}>;
@group(0) @binding(3) var<storage, read_write> out_: array<{storage.stored}>;
@group(0) @binding(4) var<storage, read_write> scores: array<f32>;
@group(0) @binding(5) var<uniform> p: Params;
var<workgroup> q: array<f32, {e}>;
var<workgroup> folded: array<f32, {_THREADS}>;
@compute @workgroup_size({_THREADS})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
  let head = group.x * {e}u;
  let own = group.x * p.room;
  let count = min(u32(position[0]), p.room - 1u) + 1u;
  if (thread < {e}u) {{ q[thread] = f32(qkv_[head + thread]) * {1 / math.sqrt(e)!r}; }}{kept}
  workgroupBarrier();
  var top = f32(-3e38);
  for (var j = thread; j < count; j += {_THREADS}u) {{
    let key = j * {2 * width}u + head;
    var score = 0.0;
    {score}
    scores[own + j] = score;
    top = max(top, score);
  }}
  folded[thread] = top;
{_folded("max({a}, {b})")}
  top = folded[0];
  workgroupBarrier();
  var total = 0.0;
  for (var j = thread; j < count; j += {_THREADS}u) {{
    let power = exp(scores[own + j] - top);
    scores[own + j] = power;
    total += power;
  }}
  folded[thread] = total;
{_folded("{a} + {b}")}
  total = folded[0];
  storageBarrier();
  workgroupBarrier();
  var sum = 0.0;
  if (thread < {groups * e}u) {{
    for (var j = thread / {e}u; j < count; j += {groups}u) {{
      {value}
    }}
  }}
  folded[thread] = sum;
  workgroupBarrier();
  if (thread >= {e}u) {{ return; }}
  for (var other = thread + {e}u; other < {groups * e}u; other += {e}u) {{ sum += folded[other]; }}
  out_[head + thread] = {storage.stored}(sum / total);
}}
"""
    names = ("qkv", "position", "cache", "out", "scores")
    step = WgslPass(text, (heads, 1, 1), names, uniform=(room,))
    return WgslProgram((step,), scratch=_scratch(params, 4))


def _folded(joined: str) -> str:
    return "\n".join(fold_lanes("folded", joined, _THREADS, "thread"))


def attention_over_cache(name: str, summary: str, *, append: bool) -> Op:
    """The op; `append`: the token's key and value are not in the cache yet, and join it."""
    return Op(
        name=name,
        group="layers",
        summary=summary,
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
        torch=_torch_appended if append else _torch,
        tolerance=Tolerance(8, scale=_scale_appended if append else _scale),
        tuned={
            "numpy": (Kernel("numpy", partial(_cpu, append)),),
            "cupy": (Kernel("cuda", partial(_cuda, append)),),
            "wgpu": (Kernel("wgsl", partial(_wgsl, append)),),
        },
    )
