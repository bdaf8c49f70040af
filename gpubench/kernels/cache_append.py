"""cache_append: the keys and values of n tokens join those of the tokens before them, in the cache of a transformer.

A row of qkv holds the query, the key and the value of one token; the last two are kept. The cache is a state: a launch
writes n of its rows, from `start` on, and leaves the others. `start` stays on the device, where the tokens are made.

- CPU: one copy.
- CUDA and WGSL: a thread moves one element; a launch moves kilobytes, and its time is that of a launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpubench.kernels.contract.kernel import CudaProgram, Limits, WgslProgram, by_backend
from gpubench.kernels.contract.op import EXACT, ITEMSIZE, Array, Dtype, Ids, Ladder, Op, Operand, Params, Shape
from gpubench.kernels.templates import ceil_div, fold, require_bindings
from gpubench.kernels.templates.cpu import Blocks, Launch
from gpubench.kernels.templates.twin import Twin
from gpubench.kernels.templates.wgsl import require_storage

_WIDTH = 256


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
    """Return the bytes that are read, twice: the rows that are there already stay where they are."""
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


_KERNEL = Twin(
    "cache_append", {"qkv": "stored", "start": "i32", "cache": "stored"}, ("cache",), "units width", """
  let i = block * 256u + thread;
  if (i >= units) { return; }
  let row = i / (2u * width);
  let column = i - row * 2u * width;
  cache[clamped(u32(start[0]) + row, last) * 2u * width + column] = qkv[row * 3u * width + width + column];
""", bounds="last",
)  # fmt: skip


def _cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    """One launch, none without tokens. Raises Unsupported for another dtype, and beyond CUDA's largest grid."""
    units, width = 2 * params["n"] * _width(params), _width(params)
    step = _KERNEL.cuda_pass(dtype, ceil_div(max(units, 1), _KERNEL.threads), (units, width))
    return CudaProgram((step,) * (units > 0))


def _wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    """One dispatch, none without tokens. Raises Unsupported for what the device does not hold."""
    require_storage(dtype, limits)
    units, width, room = 2 * params["n"] * _width(params), _width(params), _room(params)
    require_bindings(
        {"qkv": 3 * units // 2 * ITEMSIZE[dtype], "cache": 2 * room * width * ITEMSIZE[dtype]}, limits
    )
    grid = fold(ceil_div(max(units, 1), _KERNEL.threads), limits)
    return WgslProgram((_KERNEL.wgsl_pass(dtype, grid, (units, width, room - 1)),) * (units > 0))


OP = Op(
    name="cache_append",
    group="layers",
    summary="cache[start : start + n] = the keys and values of qkv, in place",
    params={"n": "number of tokens"},
    options={"width": f"elements of a token ({_WIDTH})", "room": "rows of the cache (twice n)"},
    sizes=Ladder(low=1, high=16384),
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
    tuned=by_backend(_cpu, _cuda, _wgsl),
)
