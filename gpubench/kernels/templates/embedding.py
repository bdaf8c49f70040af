"""Embeddings: out = table[ids] + positions, what a transformer does to the ids of its tokens. Bound by memory.

Of the table only the rows that are asked for travel: `traffic` counts the expected number of distinct ones. Where the
tokens follow others, their positions begin at `start`, which stays on the device, where the tokens are made.

- CPU: NumPy's `take` into the output, block by block, and the positions added while the block is in cache.
- CUDA and WGSL: a thread moves 16 bytes of a row, or an element where the rows are not whole ones of those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from gpubench.kernels.contract.kernel import CudaProgram, Kernel, Limits, WgslPass, WgslProgram
from gpubench.kernels.contract.op import (
    ITEMSIZE,
    Array,
    Dtype,
    Ids,
    Ladder,
    Op,
    Operand,
    Params,
    Shape,
    Split,
    Tolerance,
    counted_by,
)
from gpubench.kernels.templates import ceil_div, fold, require_bindings
from gpubench.kernels.templates.cpu import Blocks, Launch
from gpubench.kernels.templates.cuda import kernel_pass, lanes
from gpubench.kernels.templates.elementwise import WORKING_DTYPES
from gpubench.kernels.templates.wgsl import require_storage, shader, whole_units

_WIDTH, _VOCABULARY = 256, 2048
_BLOCK = 256 * 1024  # elements that one thread takes at a time
_THREADS = 256


def _width(params: Params) -> int:
    return params.get("width", _WIDTH)


def _vocabulary(params: Params) -> int:
    return params.get("vocabulary", _VOCABULARY)


def _rows(params: Params) -> Shape:
    return (params["n"], _width(params))


def _context(params: Params) -> int:
    return params.get("context", 2 * params["n"])


def embedding(*, started: bool = False, **declared: Any) -> Op:
    """The op of n ids. Where it is `started`, there are `context` positions, and those read begin at `start`."""
    first = Operand(
        "start", lambda params: (1,), Ids(lambda params: _context(params) - params["n"] + 1), dtype="int32"
    )
    positions = partial(_positions, started)
    return Op(
        params={"n": "number of ids"},
        options={
            "width": f"length of a row ({_WIDTH})", "vocabulary": f"rows of the table ({_VOCABULARY})",
            **({"context": "rows of positions (twice n)"} if started else {}),
        },
        sizes=Ladder(low=16, high=65536), dtypes=WORKING_DTYPES,
        inputs=(
            Operand("ids", lambda params: (params["n"],), Ids(_vocabulary), dtype="int32"),
            Operand("table", lambda params: (_vocabulary(params), _width(params)), "normal", role="weight"),
            Operand("positions", positions, "normal", role="weight"),
            *((first,) if started else ()),
        ),
        output=Operand("out", _rows),
        flops=lambda params: params["n"] * _width(params),
        split=None if started else Split({"ids": 0, "positions": 0}, counted_by("n")),
        traffic=_traffic, fits=partial(_fits, started), expr=_expr, library={"torch": _torch},
        tolerance=Tolerance(
            4,
            scale=lambda xp, ids, table, positions, *start: _expr(
                xp, ids, xp.abs(table), xp.abs(positions), *start
            ),
        ),
        tuned={
            "numpy": (Kernel("numpy", _cpu),),
            "cupy": (Kernel("cuda", partial(_cuda, started)),),
            "wgpu": (Kernel("wgsl", partial(_wgsl, started)),),
        },
        **declared,
    )  # fmt: skip


def _positions(started: bool, params: Params) -> Shape:
    return (_context(params), _width(params)) if started else _rows(params)


def _traffic(params: Params, dtype: Dtype) -> int:
    """Ids, positions and the output, and each distinct row of the table once."""
    n, entries = params["n"], _vocabulary(params)
    distinct = entries * (1 - (1 - 1 / entries) ** n)
    return round(ITEMSIZE[dtype] * _width(params) * (2 * n + distinct)) + ITEMSIZE["int32"] * n


def _fits(started: bool, params: Params) -> str | None:
    if _width(params) < 1 or _vocabulary(params) < 1:
        return "the table has at least one row of at least one element"
    if started and _context(params) < params["n"]:
        return f"{params['n']} ids do not fit {_context(params)} positions"
    return None


def _expr(xp: Array, ids: Array, table: Array, positions: Array, *start: Array) -> Array:
    first = int(start[0][0]) if start else 0
    return xp.take(table, ids, axis=0) + positions[first : first + ids.shape[0]]


def _torch(torch: Any, ids: Array, table: Array, positions: Array, *start: Array) -> Array:
    """The start stays on the device."""
    if start:
        positions = positions[start[0] + torch.arange(len(ids), device=ids.device)]
    return torch.nn.functional.embedding(ids, table) + positions


def _cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    def launch(inputs: Sequence[Array], output: Array) -> None:
        ids, table, positions, *start = inputs
        first = int(start[0][0]) if start else 0

        def block(start: int, stop: int) -> None:
            out = output[start:stop]
            np.take(
                table, ids[start:stop], axis=0, out=out, mode="clip"
            )  # other modes copy the output once more
            np.add(out, positions[first + start : first + stop], out=out)

        blocks.run(block, len(ids), max(1, _BLOCK // table.shape[1]))

    return launch


def _cuda(started: bool, params: Params, dtype: str, limits: Limits) -> CudaProgram:
    """One launch, none without ids. Raises Unsupported for another dtype, and beyond CUDA's largest grid."""
    n, width = params["n"], math.gcd(_width(params), lanes(dtype))
    units = n * _width(params) // width
    text = f"const int WIDTH = {width};\n{_KERNEL if started else _AT_ZERO}"
    arguments = (*_names(started), units, _width(params) // width)
    step = kernel_pass("embedding", dtype, text, ceil_div(max(units, 1), _THREADS), _THREADS, arguments)
    return CudaProgram((step,) * (n > 0))


_KERNEL = f"""
struct alignas(WIDTH * sizeof(stored)) Unit {{ stored lane[WIDTH]; }};
extern "C" __global__ void __launch_bounds__({_THREADS})
gpubench_embedding(const int* __restrict__ ids, const stored* __restrict__ table, const stored* __restrict__ positions,
                   const int* __restrict__ start, stored* __restrict__ out, long long units, long long across) {{
  const long long i = (long long)blockIdx.x * {_THREADS} + threadIdx.x;
  if (i >= units) return;
  const long long row = i / across;
  const Unit entry = reinterpret_cast<const Unit*>(table)[ids[row] * across + (i - row * across)];
  Unit unit = reinterpret_cast<const Unit*>(positions)[start[0] * across + i];
  #pragma unroll
  for (int j = 0; j < WIDTH; ++j) unit.lane[j] = narrow(wide(entry.lane[j]) + wide(unit.lane[j]));
  reinterpret_cast<Unit*>(out)[i] = unit;
}}
"""
_AT_ZERO = _KERNEL.replace("const int* __restrict__ start, ", "").replace("start[0] * across + ", "")


def _names(started: bool) -> tuple[str, ...]:
    return ("ids", "table", "positions", *(("start",) if started else ()), "out")


def _wgsl(started: bool, params: Params, dtype: str, limits: Limits) -> WgslProgram:
    """One dispatch, none without ids. Raises Unsupported for what the device does not hold."""
    require_storage(dtype, limits)
    n, width = _rows(params)
    size = ITEMSIZE[dtype] * width
    require_bindings(
        {
            "table": _vocabulary(params) * size,
            "positions": math.prod(_positions(started, params)) * ITEMSIZE[dtype],
            "out": n * size,
        },
        limits,
    )
    storage = whole_units(dtype, width)
    across = width // storage.width
    parts = zip(storage.decoded("entry"), storage.decoded("position"), strict=True)
    first = "min(u32(start[0]), p.first)" if started else "p.first"
    kinds = {"ids": "i32", "start": "i32"}
    buffers = {("out_" if name == "out" else name): kinds.get(name, storage.unit) for name in _names(started)}
    body = f"""
  let i = (group.y * groups.x + group.x) * {_THREADS}u + thread;
  if (i >= p.units) {{ return; }}
  let row = i / p.across;
  let entry = table[min(u32(ids[row]), p.last) * p.across + i % p.across];
  let position = positions[{first} * p.across + i];
  out_[i] = {storage.encoded(*(f"{a} + {b}" for a, b in parts))};
"""
    functions = "\n".join(storage.functions)
    text = shader(buffers, _THREADS, body, params="units across last first", before=functions)
    latest = _context(params) - n if started else 0
    uniform = (n * across, across, _vocabulary(params) - 1, latest)
    grid = fold(ceil_div(max(n * across, 1), _THREADS), limits)
    return WgslProgram((WgslPass(text, grid, _names(started), uniform=uniform),) if n else ())
