"""sum and max of a vector, and sum_rows, the sum of n rows, which is the gradient of a bias. Every element is
read once, so memory bounds these ops. The kernels of sum_rows:

- CPU: BLAS multiplies a vector of ones by the matrix; halves are added in float32, block by block.
- CUDA and WGSL: neighbouring threads take neighbouring columns, and eight share a column. With too few columns
  to fill the device, the rows are divided into chunks, which a second pass adds up in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gpubench.kernels.contract.kernel import CudaProgram, Limits, WgslProgram, by_backend
from gpubench.kernels.contract.op import (
    EXACT,
    ITEMSIZE,
    Array,
    Ladder,
    Op,
    Operand,
    Params,
    Shape,
    Split,
    Tolerance,
    counted_by,
)
from gpubench.kernels.templates import (
    GpuText,
    ceil_div,
    multiprocessors,
    real_dtype,
    require_bindings,
    require_grid,
    require_storage,
)
from gpubench.kernels.templates.cpu import Blocks, Launch, ThreadScratch, widen
from gpubench.kernels.templates.reduce import reduction

_COLUMNS = 256
_BLOCK = 256 * 1024  # halves that one thread widens at a time


def sides(params: Params) -> Shape:
    return (params["n"], params.get("columns", _COLUMNS))


def _expr(xp: Array, x: Array) -> Array:
    """Return the sum of the rows. Halves are added in float32."""
    # NumPy would add them in half precision
    if x.dtype == xp.float16:
        return xp.sum(x, axis=0, dtype=xp.float32).astype(x.dtype)
    return xp.sum(x, axis=0)


def _cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    """Return a launch that multiplies a vector of ones by the matrix, or adds halves block by block."""
    ones: dict[Any, Array] = {}
    scratch = ThreadScratch(np)

    def launch(inputs: Sequence[Array], output: Array) -> None:
        (x,) = inputs
        if x.dtype != np.float16:
            if x.dtype not in ones:
                ones[x.dtype] = np.ones(len(x), x.dtype)
            np.matmul(ones[x.dtype], x, out=output)
            return
        rows = max(1, _BLOCK // x.shape[1])
        parts = np.zeros((ceil_div(len(x), rows), x.shape[1]), np.float32)

        def block(start: int, stop: int) -> None:
            wide = scratch.arrays(1, rows * x.shape[1], np.float32)[0][: x[start:stop].size]
            np.add.reduce(
                widen(np, x[start:stop], wide.reshape(-1, x.shape[1])), axis=0, out=parts[start // rows]
            )

        blocks.run(block, len(x), rows)
        with np.errstate(all="ignore"):
            np.copyto(output, np.add.reduce(parts, axis=0), casting="same_kind")

    return launch


# ---------------------------------------------------------------- GPU

_ACROSS, _DOWN = 32, 8  # threads of a group along a row, and along a column
_FEWEST_ROWS = 4  # least rows that a thread adds
_GROUPS_A_MULTIPROCESSOR = 8


class RowChunks(msgspec.Struct, frozen=True):
    """The division of a matrix into chunks of rows."""

    across: int  # groups along a row
    chunks: int  # chunks of rows
    rows: int  # rows of a chunk


def cut_rows(n: int, columns: int, limits: Limits) -> RowChunks:
    """Divide the rows into chunks: as many as give each multiprocessor eight groups, but so few that each thread
    has at least four rows."""
    across = ceil_div(columns, _ACROSS)
    most = ceil_div(_GROUPS_A_MULTIPROCESSOR * multiprocessors(limits), across)
    rows = ceil_div(n, max(1, min(most, n // (_DOWN * _FEWEST_ROWS))))
    return RowChunks(across, ceil_div(n, rows), rows)


def _kernel(x: str, out: str) -> GpuText:
    """Return the kernel that adds up each chunk of rows. `x` and `out` are the arrays' element types."""
    # "stored" is the dtype of the case, and "real" the type of partial sums
    read, write = {"stored": "wide({})", "real": "{}"}[x], {"stored": "narrow({})", "real": "{}"}[out]
    return GpuText(
        "sum_rows", {"x": x, "out": out}, ("out",), "rows columns chunk", f"""
  let lane = thread % {_ACROSS}u;
  let slice = thread / {_ACROSS}u;
  let column = u32(group.x) * {_ACROSS}u + lane;
  let end = min(group.y * chunk + chunk, rows);
  var total = real();
  if (column < columns) {{
    // unroll 4
    for (var row = group.y * chunk + slice; row < end; row += {_DOWN}u) {{
      total += {read.format("x[row * columns + column]")};
    }}
  }}
  sums[thread] = total;
  workgroupBarrier();
  if (slice != 0u || column >= columns) {{ return; }}
  // unroll
  for (var s = 1u; s < {_DOWN}u; s++) {{ total += sums[s * {_ACROSS}u + lane]; }}
  out[group.y * columns + column] = {write.format("total")};
""", threads=_ACROSS * _DOWN, shared={"sums": _ACROSS * _DOWN},
    )  # fmt: skip


def _steps(step: Callable[..., Any], n: int, columns: int, cut: RowChunks) -> tuple[Any, ...]:
    """Return the passes: one that adds up each chunk and, for several chunks, one that adds up their sums."""
    grid = (cut.across, cut.chunks, 1)
    if cut.chunks == 1:
        return (step(_kernel("stored", "stored"), grid, (n, columns, cut.rows), {}),)
    sizes = (cut.chunks, columns, cut.chunks)
    return (
        step(_kernel("stored", "real"), grid, (n, columns, cut.rows), {"out": "partial"}),
        step(_kernel("real", "stored"), (cut.across, 1, 1), sizes, {"x": "partial"}),
    )


def build_cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    """Return the CUDA program of sum_rows. It has one launch, or two if the rows are divided into chunks."""
    n, columns = sides(params)
    cut = cut_rows(n, columns, limits)
    steps = _steps(lambda kernel, *how: kernel.cuda_pass(dtype, *how), n, columns, cut)
    scratch = {"partial": cut.chunks * columns * max(4, ITEMSIZE[dtype])} if cut.chunks > 1 else {}
    return CudaProgram(steps, scratch)


def build_wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    """Return the WGSL program of sum_rows. It has one dispatch, or two if the rows are divided into chunks.
    Raises Unsupported if the device lacks the dtype, or the matrix exceeds its limits."""
    require_storage(dtype, limits, threads=_ACROSS * _DOWN)
    n, columns = sides(params)
    cut = cut_rows(n, columns, limits)
    partial = cut.chunks * columns * ITEMSIZE[real_dtype(dtype)]
    require_bindings({"x": n * columns * ITEMSIZE[dtype], "partial": partial}, limits)
    require_grid(limits, cut.across)
    steps = _steps(lambda kernel, *how: kernel.wgsl_pass(dtype, *how), n, columns, cut)
    return WgslProgram(steps, {"partial": partial} if cut.chunks > 1 else {})


OPS = (
    reduction(
        name="sum",
        group="reduction",
        summary="out = x[0] + x[1] + ... + x[n - 1]",
        inputs=("x",),
        flops_per_element=1,
        formula=lambda m, x: x,
        linear=True,
        join="add",
        tolerance=Tolerance(4, scale=lambda xp, x: xp.sum(xp.abs(x))),
        library={"torch": lambda torch, x, out: torch.sum(x, 0, out=out)},
    ),
    reduction(
        name="max",
        group="reduction",
        summary="out = largest of x",
        inputs=("x",),
        flops_per_element=1,
        formula=lambda m, x: x,
        linear=True,
        join="maximum",
        tolerance=EXACT,
        library={"torch": lambda torch, x, out: torch.amax(x, 0, out=out)},
    ),
    Op(
        name="sum_rows",
        group="layers",
        summary="out = the sum of n rows",
        params={"n": "number of rows"},
        options={"columns": f"length of a row ({_COLUMNS})"},
        sizes=Ladder(low=1, high=65536),
        inputs=(Operand("x", sides, "normal"),),
        output=Operand("out", lambda params: sides(params)[1:]),
        flops=lambda params: params["n"] * sides(params)[1],
        expr=_expr,
        library={"torch": lambda torch, x: torch.sum(x, 0)},
        tolerance=Tolerance(64, scale=lambda xp, x: xp.sum(xp.abs(x), axis=0)),
        split=Split({"x": 0}, counted_by("n"), join="add"),
        terms=lambda params: {"x": 0},
        tuned=by_backend(_cpu, build_cuda, build_wgsl),
    ),
)
