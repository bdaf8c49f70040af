"""embedding: out = table[ids] + positions, what a transformer does to the ids of its tokens. Bound by memory.

Of the table only the rows that are asked for travel: `traffic` counts the expected number of distinct ones.

- CPU: NumPy's `take` into the output, block by block, and the positions added while the block is in cache.
- CUDA and WGSL: a thread moves 16 bytes of a row, or an element where the rows are not whole ones of those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpubench.errors import Unsupported
from gpubench.kernels.families import ceil_div, fold, require_bindings, require_dtype
from gpubench.kernels.families.cpu import Blocks, Launch
from gpubench.kernels.families.cuda import DTYPES, MOST_BLOCKS, lanes, options, prelude
from gpubench.kernels.families.elementwise import WORKING_DTYPES
from gpubench.kernels.families.wgsl import elements, require_storage, vectors
from gpubench.model.kernel import CudaPass, CudaProgram, Kernel, Limits, WgslPass, WgslProgram
from gpubench.model.op import ITEMSIZE, Array, Dtype, Ids, Ladder, Op, Operand, Params, Shape, Tolerance

_WIDTH, _VOCABULARY = 256, 2048
_BLOCK = 256 * 1024  # elements that one thread takes at a time
_THREADS = 256


def _width(params: Params) -> int:
    return params.get("width", _WIDTH)


def _vocabulary(params: Params) -> int:
    return params.get("vocabulary", _VOCABULARY)


def _rows(params: Params) -> Shape:
    return (params["n"], _width(params))


def _traffic(params: Params, dtype: Dtype) -> int:
    """Ids, positions and the output, and each distinct row of the table once."""
    n, entries = params["n"], _vocabulary(params)
    distinct = entries * (1 - (1 - 1 / entries) ** n)
    return round(ITEMSIZE[dtype] * _width(params) * (2 * n + distinct)) + ITEMSIZE["int32"] * n


def _fits(params: Params) -> str | None:
    whole = _width(params) >= 1 and _vocabulary(params) >= 1
    return None if whole else "the table has at least one row of at least one element"


def _cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    def launch(inputs: Sequence[Array], output: Array) -> None:
        ids, table, positions = inputs

        def block(start: int, stop: int) -> None:
            out = output[start:stop]
            np.take(
                table, ids[start:stop], axis=0, out=out, mode="clip"
            )  # other modes copy the output once more
            np.add(out, positions[start:stop], out=out)

        blocks.run(block, len(ids), max(1, _BLOCK // table.shape[1]))

    return launch


def _cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    """One launch, none without ids. Raises Unsupported for another dtype, and beyond CUDA's largest grid."""
    require_dtype(dtype, DTYPES, "CUDA")
    n, width = params["n"], math.gcd(_width(params), lanes(dtype))
    units = n * _width(params) // width
    blocks = ceil_div(max(units, 1), _THREADS)
    if blocks > MOST_BLOCKS:
        raise Unsupported(f"{units} units take {blocks} blocks; a CUDA grid has {MOST_BLOCKS}", reason="limit")
    if n == 0:
        return CudaProgram(())
    step = CudaPass(
        f"{prelude(dtype)}\nconst int WIDTH = {width};\n{_KERNEL}", "gpubench_embedding", (blocks, 1, 1),
        (_THREADS, 1, 1), ("ids", "table", "positions", "out", units, _width(params) // width), options=options(dtype),
    )  # fmt: skip
    return CudaProgram((step,))


_KERNEL = f"""
struct alignas(WIDTH * sizeof(stored)) Unit {{ stored lane[WIDTH]; }};
extern "C" __global__ void __launch_bounds__({_THREADS})
gpubench_embedding(const int* __restrict__ ids, const stored* __restrict__ table, const stored* __restrict__ positions,
                   stored* __restrict__ out, long long units, long long across) {{
  const long long i = (long long)blockIdx.x * {_THREADS} + threadIdx.x;
  if (i >= units) return;
  const long long row = i / across;
  const Unit entry = reinterpret_cast<const Unit*>(table)[ids[row] * across + (i - row * across)];
  Unit unit = reinterpret_cast<const Unit*>(positions)[i];
  #pragma unroll
  for (int j = 0; j < WIDTH; ++j) unit.lane[j] = narrow(wide(entry.lane[j]) + wide(unit.lane[j]));
  reinterpret_cast<Unit*>(out)[i] = unit;
}}
"""


def _wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    """One dispatch, none without ids. Raises Unsupported for what the device does not hold."""
    require_storage(dtype, limits)
    n, width = _rows(params)
    size = ITEMSIZE[dtype] * width
    require_bindings({"table": _vocabulary(params) * size, "positions": n * size, "out": n * size}, limits)
    storage = vectors(dtype)
    storage = storage if width % storage.width == 0 else elements(dtype)
    across = width // storage.width
    parts = zip(storage.decoded("entry"), storage.decoded("position"), strict=True)
    head = "\n".join([*storage.header, *storage.functions])
    text = f"""{head}
struct Params {{ units: u32, across: u32, last: u32, }}
@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<storage, read> table: array<{storage.unit}>;
@group(0) @binding(2) var<storage, read> positions: array<{storage.unit}>;
@group(0) @binding(3) var<storage, read_write> out_: array<{storage.unit}>;
@group(0) @binding(4) var<uniform> p: Params;
@compute @workgroup_size({_THREADS})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {{
  let i = (group.y * groups.x + group.x) * {_THREADS}u + thread;
  if (i >= p.units) {{ return; }}
  let row = i / p.across;
  let entry = table[min(u32(ids[row]), p.last) * p.across + i % p.across];
  let position = positions[i];
  out_[i] = {storage.encoded(*(f"{a} + {b}" for a, b in parts))};
}}
"""
    uniform = (n * across, across, _vocabulary(params) - 1)
    grid = fold(ceil_div(max(n * across, 1), _THREADS), limits)
    names = ("ids", "table", "positions", "out")
    return WgslProgram((WgslPass(text, grid, names, uniform=uniform),) if n else ())


def _expr(xp: Array, ids: Array, table: Array, positions: Array) -> Array:
    return xp.take(table, ids, axis=0) + positions


OP = Op(
    name="embedding",
    group="network",
    summary="out = table[ids] + positions",
    params={"n": "number of ids"},
    options={
        "width": f"length of a row ({_WIDTH})",
        "vocabulary": f"rows of the table ({_VOCABULARY})",
    },
    sizes=Ladder(low=16, high=65536),
    dtypes=WORKING_DTYPES,
    inputs=(
        Operand("ids", lambda params: (params["n"],), Ids(_vocabulary), dtype="int32"),
        Operand("table", lambda params: (_vocabulary(params), _width(params)), "normal", role="weight"),
        Operand("positions", _rows, "normal", role="weight"),
    ),
    output=Operand("out", _rows),
    flops=lambda params: params["n"] * _width(params),
    traffic=_traffic,
    fits=_fits,
    expr=_expr,
    torch=lambda torch, ids, table, positions: torch.nn.functional.embedding(ids, table) + positions,
    tolerance=Tolerance(
        4, scale=lambda xp, ids, table, positions: _expr(xp, ids, xp.abs(table), xp.abs(positions))
    ),
    tuned={
        "numpy": (Kernel("numpy", _cpu),),
        "cupy": (Kernel("cuda", _cuda),),
        "wgpu": (Kernel("wgsl", _wgsl),),
    },
)
