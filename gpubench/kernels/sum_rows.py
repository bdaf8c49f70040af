"""sum_rows: the sum of n rows, what the gradient of a bias is. Every element is read once, so bound by memory.

- CPU: BLAS, as a vector of ones times the matrix; halves are added in float32, block by block.
- CUDA and WGSL: neighbouring threads take neighbouring columns, so that every load of a group is one piece of memory.
  Eight lanes of a group share a column and add up at the end. Where there are too few columns to fill the device the
  rows are cut into chunks and a second pass adds these up, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import CudaPass, CudaProgram, Kernel, Limits, WgslPass, WgslProgram
from gpubench.kernels.contract.op import (
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
from gpubench.kernels.templates import ceil_div, multiprocessors, require_bindings, require_dtype
from gpubench.kernels.templates.cpu import Blocks, Launch, ThreadScratch, widen
from gpubench.kernels.templates.cuda import DTYPES, kernel_pass
from gpubench.kernels.templates.elementwise import WORKING_DTYPES
from gpubench.kernels.templates.wgsl import elements, real_dtype, require_storage, shader

_COLUMNS = 256
_BLOCK = 256 * 1024  # halves that one thread widens at a time


def sides(params: Params) -> Shape:
    return (params["n"], params.get("columns", _COLUMNS))


def _expr(xp: Array, x: Array) -> Array:
    """NumPy adds the rows of halves in halves unless it is asked to do better."""
    if x.dtype == xp.float16:
        return xp.sum(x, axis=0, dtype=xp.float32).astype(x.dtype)
    return xp.sum(x, axis=0)


def _cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    """Ones times the matrix; halves in blocks, whose sums are added in float32."""
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
        parts = np.zeros((max(1, ceil_div(len(x), rows)), x.shape[1]), np.float32)

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
_FEWEST_ROWS = 4  # that a thread adds, before more groups pay
_GROUPS_A_MULTIPROCESSOR = 8


class RowChunks(msgspec.Struct, frozen=True):
    """`across` groups along a row; the rows are cut into `chunks` of `rows` each."""

    across: int
    chunks: int
    rows: int


def chunked(n: int, columns: int, limits: Limits) -> RowChunks:
    """As many chunks as fill the device eight times, of four rows a thread or more."""
    across = ceil_div(columns, _ACROSS)
    wanted = ceil_div(_GROUPS_A_MULTIPROCESSOR * multiprocessors(limits), across)
    rows = ceil_div(n, max(1, min(wanted, n // (_DOWN * _FEWEST_ROWS))))
    return RowChunks(across, ceil_div(n, rows), rows)


def build_cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    """One launch, or two; none where there are no columns. Raises Unsupported for another dtype."""
    require_dtype(dtype, DTYPES, "CUDA")
    n, columns = sides(params)
    if columns == 0:
        return CudaProgram(())
    cut = chunked(max(n, 1), columns, limits)
    whole = cut.chunks == 1

    def step(given: str, taken: str, rows: int, grid: tuple[int, int, int], chunk: int) -> CudaPass:
        types = {"partial": "real"}
        text = _cuda_source(types.get(given, "stored"), types.get(taken, "stored"))
        arguments = (given, taken, rows, columns, chunk)
        return kernel_pass("sum_rows", dtype, text, grid, _ACROSS * _DOWN, arguments)

    first = step("x", "out" if whole else "partial", n, (cut.across, cut.chunks, 1), cut.rows)
    if whole:
        return CudaProgram((first,))
    second = step("partial", "out", cut.chunks, (cut.across, 1, 1), cut.chunks)
    return CudaProgram((first, second), {"partial": cut.chunks * columns * max(4, ITEMSIZE[dtype])})


def _cuda_source(given: str, taken: str) -> str:
    read = "wide(x[row * columns + column])" if given == "stored" else "x[row * columns + column]"
    return f"""const int ACROSS = {_ACROSS}, DOWN = {_DOWN};
extern "C" __global__ void __launch_bounds__(ACROSS * DOWN)
gpubench_sum_rows(const {given}* __restrict__ x, {taken}* __restrict__ out, long long rows, long long columns,
                  long long chunk) {{
  __shared__ real sums[DOWN][ACROSS];
  const int lane = threadIdx.x % ACROSS, slice = threadIdx.x / ACROSS;
  const long long column = (long long)blockIdx.x * ACROSS + lane;
  const long long begin = blockIdx.y * chunk, end = begin + chunk < rows ? begin + chunk : rows;
  real total = 0;
  if (column < columns) {{
    #pragma unroll 4
    for (long long row = begin + slice; row < end; row += DOWN) total += {read};
  }}
  sums[slice][lane] = total;
  __syncthreads();
  if (slice != 0 || column >= columns) return;
  #pragma unroll
  for (int s = 1; s < DOWN; ++s) total += sums[s][lane];
  out[blockIdx.y * columns + column] = {"narrow(total)" if taken == "stored" else "total"};
}}
"""


def build_wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    """One dispatch, or two. Raises Unsupported for a dtype or a matrix that the device does not take."""
    require_storage(dtype, limits, threads=_ACROSS * _DOWN)
    n, columns = sides(params)
    cut, real = chunked(max(n, 1), columns, limits), real_dtype(dtype)
    require_bindings(
        {"x": n * columns * ITEMSIZE[dtype], "partial": cut.chunks * columns * ITEMSIZE[real]}, limits
    )
    if cut.across > limits.max_groups_per_dimension:
        raise Unsupported(f"{columns} columns take {cut.across} groups", reason="limit")
    if columns == 0:
        return WgslProgram(())

    def step(given: str, taken: str, rows: int, chunks: int, chunk: int) -> WgslPass:
        text = _wgsl_source(dtype, wide_in=given == "partial", wide_out=taken == "partial")
        uniform = (rows, columns, chunk)
        return WgslPass(text, (cut.across, chunks, 1), (given, taken), uniform=uniform)

    if cut.chunks == 1:
        return WgslProgram((step("x", "out", n, 1, cut.rows),))
    first = step("x", "partial", n, cut.chunks, cut.rows)
    second = step("partial", "out", cut.chunks, 1, cut.chunks)
    return WgslProgram((first, second), {"partial": ceil_div(cut.chunks * columns * ITEMSIZE[real], 16) * 16})


def _wgsl_source(dtype: str, *, wide_in: bool, wide_out: bool) -> str:
    storage = elements(dtype)
    given, taken = (storage.real if wide else storage.stored for wide in (wide_in, wide_out))
    shared = f"var<workgroup> sums: array<{storage.real}, {_ACROSS * _DOWN}>;"
    body = f"""
  let column = group.x * {_ACROSS}u + (thread & {_ACROSS - 1}u);
  let read = min(column, p.columns - 1u);
  let end = min((group.y + 1u) * p.chunk, p.rows);
  var total = {storage.real}();
  for (var row = group.y * p.chunk + thread / {_ACROSS}u; row < end; row += {_DOWN}u) {{
    total += {storage.real}(x_[row * p.columns + read]);
  }}
  sums[thread] = total;
  workgroupBarrier();
  if (thread >= {_ACROSS}u || column >= p.columns) {{ return; }}
  for (var slice = 1u; slice < {_DOWN}u; slice++) {{ total += sums[slice * {_ACROSS}u + thread]; }}
  out_[group.y * p.columns + column] = {taken}(total);
"""
    buffers = {"x_": given, "out_": taken}
    return shader(buffers, _ACROSS * _DOWN, body, params="rows columns chunk", before=shared)


OP = Op(
    name="sum_rows",
    group="layers",
    summary="out = the sum of n rows",
    params={"n": "number of rows"},
    options={"columns": f"length of a row ({_COLUMNS})"},
    sizes=Ladder(low=1, high=65536),
    dtypes=WORKING_DTYPES,
    inputs=(Operand("x", sides, "normal"),),
    output=Operand("out", lambda params: sides(params)[1:]),
    flops=lambda params: params["n"] * sides(params)[1],
    expr=_expr,
    library={"torch": lambda torch, x: torch.sum(x, 0)},
    tolerance=Tolerance(64, scale=lambda xp, x: xp.sum(xp.abs(x), axis=0)),
    split=Split({"x": 0}, counted_by("n"), join="add"),
    tuned={
        "numpy": (Kernel("numpy", _cpu),),
        "cupy": (Kernel("cuda", build_cuda),),
        "wgpu": (Kernel("wgsl", build_wgsl),),
    },
)
