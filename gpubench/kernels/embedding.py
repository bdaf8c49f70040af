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

from gpubench.kernels.contract.kernel import CudaProgram, Limits, WgslProgram, by_backend
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
from gpubench.kernels.templates.cuda import lanes
from gpubench.kernels.templates.gpu_text import GpuText
from gpubench.kernels.templates.wgsl import require_storage, whole_units

_WIDTH, _VOCABULARY = 256, 2048
_BLOCK = 256 * 1024  # elements that one thread takes at a time


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
        sizes=Ladder(low=16, high=65536),
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
        tuned=by_backend(_cpu, partial(_cuda, started), partial(_wgsl, started)),
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


# A thread moves a unit of a row.
_CUDA_UNIT = """struct alignas(WIDTH * sizeof(stored)) Unit { stored lane[WIDTH]; };
__device__ __forceinline__ Unit sum_of(const Unit a, Unit b) {
  #pragma unroll
  for (int j = 0; j < WIDTH; ++j) b.lane[j] = narrow(wide(a.lane[j]) + wide(b.lane[j]));
  return b;
}"""


def _kernel(started: bool, cuda: str = "", wgsl: str = "") -> GpuText:
    # In WGSL `first` is 0 without a start. Through Vulkan an H200 takes 5 % less for it than for the plain i.
    place = "clamped(u32(start[0]), first) * across + i" if started else "first * across + i" if wgsl else "i"
    start = {"start": "i32"} if started else {}
    return GpuText(
        "embedding", {"ids": "i32", "table": "Unit", "positions": "Unit", **start, "out": "Unit"}, ("out",),
        "units across", f"""
  let i = block * 256u + thread;
  if (i >= units) {{ return; }}
  let row = i / across;
  let entry = table[clamped(u32(ids[row]), last) * across + (i - row * across)];
  out[i] = sum_of(entry, positions[{place}]);
""", bounds="last first", cuda=cuda, wgsl=wgsl,
    )  # fmt: skip


def _cuda(started: bool, params: Params, dtype: str, limits: Limits) -> CudaProgram:
    """One launch, none without ids. Raises Unsupported for another dtype, and beyond CUDA's largest grid."""
    n, width = params["n"], math.gcd(_width(params), lanes(dtype))
    units, kernel = n * _width(params) // width, _kernel(started, f"const int WIDTH = {width};\n{_CUDA_UNIT}")
    step = kernel.cuda_pass(dtype, ceil_div(max(units, 1), kernel.threads), (units, _width(params) // width))
    return CudaProgram((step,) * (n > 0))


def _wgsl(started: bool, params: Params, dtype: str, limits: Limits) -> WgslProgram:
    """One dispatch, none without ids. Raises Unsupported for what the device does not hold."""
    require_storage(dtype, limits)
    n, width = _rows(params)
    sizes = {
        "table": _vocabulary(params) * width,
        "positions": math.prod(_positions(started, params)),
        "out": n * width,
    }
    require_bindings({name: size * ITEMSIZE[dtype] for name, size in sizes.items()}, limits)
    storage = whole_units(dtype, width)
    across = width // storage.width
    parts = (f"{a} + {b}" for a, b in zip(storage.decode("a"), storage.decode("b"), strict=True))
    functions = [
        f"alias Unit = {storage.unit};", *storage.functions,
        f"fn sum_of(a: Unit, b: Unit) -> Unit {{ return {storage.encode(*parts)}; }}",
    ]  # fmt: skip
    kernel, latest = _kernel(started, wgsl="\n".join(functions)), _context(params) - n if started else 0
    grid = fold(ceil_div(max(n * across, 1), kernel.threads), limits)
    return WgslProgram(
        (kernel.wgsl_pass(dtype, grid, (n * across, across, _vocabulary(params) - 1, latest)),) * (n > 0)
    )


OPS = (
    embedding(name="embedding", group="network", summary="out = table[ids] + positions"),
    embedding(
        name="embedding_at",
        group="layers",
        summary="out = table[ids] + positions[start : start + n]",
        started=True,
    ),  # fmt: skip
)
