"""cache_append: the keys and values of n tokens join those of the tokens before them, in the cache of a transformer.

A row of qkv holds the query, the key and the value of one token; the last two are kept. The cache is a state: a launch
writes n of its rows, from `start` on, and leaves the others. `start` stays on the device, where the tokens are made.

- CPU: one copy.
- CUDA and WGSL: a thread moves one element; a launch moves kilobytes, and its time is that of a launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpubench.kernels.contract.kernel import CudaProgram, Kernel, Limits, WgslPass, WgslProgram
from gpubench.kernels.contract.op import EXACT, ITEMSIZE, Array, Dtype, Ids, Ladder, Op, Operand, Params, Shape
from gpubench.kernels.templates import ceil_div, fold, require_bindings
from gpubench.kernels.templates.cpu import Blocks, Launch
from gpubench.kernels.templates.cuda import kernel_pass
from gpubench.kernels.templates.elementwise import WORKING_DTYPES
from gpubench.kernels.templates.wgsl import elements, require_storage, shader

_WIDTH = 256
_THREADS = 256


def _width(params: Params) -> int:
    return params.get("width", _WIDTH)


def _room(params: Params) -> int:
    return params.get("room", 2 * params["n"])


def _rows(params: Params) -> Shape:
    return (params["n"], 3 * _width(params))


def _cache(params: Params) -> Shape:
    return (_room(params), 2 * _width(params))


def _fits(params: Params) -> str | None:
    return None if _room(params) >= params["n"] else f"{params['n']} tokens do not fit {_room(params)} rows"


def _traffic(params: Params, dtype: Dtype) -> int:
    """What is read, and the same again: the rows that are there already stay where they are."""
    return 4 * params["n"] * _width(params) * ITEMSIZE[dtype] + ITEMSIZE["int32"]


def _expr(xp: Array, qkv: Array, start: Array, cache: Array) -> Array:
    first = int(start[0])
    cache[first : first + qkv.shape[0], :] = qkv[:, qkv.shape[1] // 3 :]
    return cache


def _torch(torch: Any, qkv: Array, start: Array, cache: Array) -> Array:
    """The place stays on the device."""
    return cache.index_copy_(0, start + torch.arange(len(qkv), device=qkv.device), qkv[:, qkv.shape[1] // 3 :])


def _cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    width = _width(params)

    def launch(inputs: Sequence[Array], output: Array) -> None:
        qkv, start, _ = inputs
        first = int(start[0])
        output[first : first + len(qkv)] = qkv[:, width:]

    return launch


def _cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    """One launch, none without tokens. Raises Unsupported for another dtype, and beyond CUDA's largest grid."""
    units, width = 2 * params["n"] * _width(params), _width(params)
    blocks, arguments = ceil_div(max(units, 1), _THREADS), ("qkv", "start", "cache", units, width)
    step = kernel_pass("cache_append", dtype, _KERNEL, blocks, _THREADS, arguments)
    return CudaProgram((step,) * (units > 0))


_KERNEL = f"""
extern "C" __global__ void __launch_bounds__({_THREADS})
gpubench_cache_append(const stored* __restrict__ qkv, const int* __restrict__ start, stored* __restrict__ cache,
                      long long units, long long width) {{
  const long long i = (long long)blockIdx.x * {_THREADS} + threadIdx.x;
  if (i >= units) return;
  const long long row = i / (2 * width), column = i - row * 2 * width;
  cache[(start[0] + row) * 2 * width + column] = qkv[row * 3 * width + width + column];
}}
"""


def _wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    """One dispatch, none without tokens. Raises Unsupported for what the device does not hold."""
    require_storage(dtype, limits)
    n, width, size = params["n"], _width(params), ITEMSIZE[dtype]
    require_bindings({"qkv": 3 * n * width * size, "cache": 2 * _room(params) * width * size}, limits)
    storage = elements(dtype)
    buffers = {"qkv": storage.stored, "start": "i32", "cache": storage.stored}
    body = f"""
  let i = (group.y * groups.x + group.x) * {_THREADS}u + thread;
  if (i >= p.units) {{ return; }}
  let row = i / (2u * p.width);
  let column = i % (2u * p.width);
  let place = min(u32(start[0]) + row, p.last);
  cache[place * 2u * p.width + column] = qkv[row * 3u * p.width + p.width + column];
"""
    text = shader(buffers, _THREADS, body, params="units width last", writes=("cache",))
    uniform = (2 * n * width, width, _room(params) - 1)
    grid = fold(ceil_div(max(2 * n * width, 1), _THREADS), limits)
    step = WgslPass(text, grid, tuple(buffers), uniform=uniform)
    return WgslProgram((step,) if n else ())


OP = Op(
    name="cache_append",
    group="layers",
    summary="cache[start : start + n] = the keys and values of qkv, in place",
    params={"n": "number of tokens"},
    options={"width": f"elements of a token ({_WIDTH})", "room": "rows of the cache (twice n)"},
    sizes=Ladder(low=1, high=16384),
    dtypes=WORKING_DTYPES,
    inputs=(
        Operand("qkv", _rows, "normal"),
        Operand(
            "start", lambda params: (1,), Ids(lambda params: _room(params) - params["n"] + 1), dtype="int32"
        ),
        Operand("cache", _cache, "normal", role="state"),
    ),
    output=Operand("cache", _cache, role="state"),
    flops=lambda params: 0,
    traffic=_traffic,
    fits=_fits,
    expr=_expr,
    library={"torch": _torch},
    tolerance=EXACT,
    tuned={
        "numpy": (Kernel("numpy", _cpu),),
        "cupy": (Kernel("cuda", _cuda),),
        "wgpu": (Kernel("wgsl", _wgsl),),
    },
)
