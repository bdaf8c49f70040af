"""Transpose in CUDA: every thread turns small squares of 128-bit accesses; shared memory joins them to long rows.

A square is as wide as 16 bytes hold elements: 4 x 4 floats, 2 x 2 doubles, 8 x 8 halves. It is read by rows,
turned in registers and laid down in shared memory, from where whole rows of the output are written. The
position within a row is mixed with the row's number, so that neither side meets a memory bank twice. Sides
that are no multiple of the square go by element. CuPy's own copy reaches 0.28 of an H200's device copy.
"""

from __future__ import annotations

import msgspec

from gpubench.errors import Unsupported
from gpubench.kernels._limits import ceil_div, require_dtype
from gpubench.kernels._types_cuda import DTYPES, MOST_BLOCKS, lanes, options, prelude
from gpubench.model.kernel import CudaPass, CudaProgram
from gpubench.model.op import ITEMSIZE


class Tile(msgspec.Struct, frozen=True):
    """Squares of a block's tile, down and across, and its threads.

    `by_rows`: neighbouring blocks read on; else they write on, which is worth 0.02 to 0.05 of the copy.
    """

    down: int = 16
    across: int = 16
    threads: int = 256
    by_rows: bool = False


_ELEMENT_SIDE, _ELEMENT_BLOCK = 32, (32, 8, 1)


def build(rows: int, columns: int, dtype: str, tile: Tile | None = None) -> CudaProgram:
    """One launch from rows x columns to columns x rows, none if there are no elements.

    Raises Unsupported for another dtype.
    """
    require_dtype(dtype, DTYPES, "CUDA")
    if rows * columns == 0:
        return CudaProgram(())
    width = lanes(dtype)
    block: tuple[int, int, int]
    if rows % width == 0 and columns % width == 0:
        tile = tile or Tile()
        text, block = squares(dtype, tile), (tile.threads, 1, 1)
        across, down = ceil_div(columns, tile.across * width), ceil_div(rows, tile.down * width)
    else:
        text, block = prelude(dtype) + _BY_ELEMENT, _ELEMENT_BLOCK
        across, down = ceil_div(columns, _ELEMENT_SIDE), ceil_div(rows, _ELEMENT_SIDE)
    if across * down > MOST_BLOCKS:
        raise Unsupported(f"{across * down} blocks exceed CUDA's {MOST_BLOCKS}")
    step = CudaPass(
        text,
        "gpubench_transpose",
        (across * down, 1, 1),
        block,
        ("x", "out", rows, columns),
        options=options(dtype),
    )
    return CudaProgram((step,))


def squares(dtype: str, tile: Tile) -> str:
    """The translation unit of sides that are multiples of a square."""
    shared = tile.down * tile.across * lanes(dtype) ** 2 * ITEMSIZE[dtype]
    if shared > 48 << 10:
        raise Unsupported(
            f"a tile of {shared} bytes exceeds the 49152 bytes of shared memory that every device has"
        )
    return f"""{prelude(dtype)}
const int DOWN = {tile.down}, ACROSS = {tile.across}, THREADS = {tile.threads};
const bool BY_ROWS = {"true" if tile.by_rows else "false"};
const int SQUARES = DOWN * ACROSS / THREADS;
{_SQUARES}"""


# The grid has one dimension, because CUDA's second one ends at 65,535 blocks.
_PLACE = """
__device__ __forceinline__ void place(int across, int down, bool by_rows, unsigned& x, unsigned& y) {
  const unsigned side = by_rows ? across : down, major = blockIdx.x / side, minor = blockIdx.x - major * side;
  x = by_rows ? minor : major;
  y = by_rows ? major : minor;
}
"""

_SQUARES = (
    _PLACE
    + """
extern "C" __global__ void __launch_bounds__(THREADS) gpubench_transpose(
    const stored* __restrict__ x_, stored* __restrict__ out_, long long rows, long long columns) {
  __shared__ Pack tile[ACROSS * LANES][DOWN];
  const long long wide_rows = rows / LANES, wide_columns = columns / LANES;
  unsigned bx, by;
  place(int((wide_columns + ACROSS - 1) / ACROSS), int((wide_rows + DOWN - 1) / DOWN), BY_ROWS, bx, by);
  const long long left = (long long)bx * ACROSS, top = (long long)by * DOWN;  // in squares
  const Pack* x = reinterpret_cast<const Pack*>(x_);
  Pack* out = reinterpret_cast<Pack*>(out_);
  Pack given[SQUARES][LANES];
  #pragma unroll
  for (int s = 0; s < SQUARES; ++s) {
    const int q = threadIdx.x + s * THREADS, i = q / ACROSS, j = q % ACROSS;
    if (top + i < wide_rows && left + j < wide_columns)
      #pragma unroll
      for (int k = 0; k < LANES; ++k) given[s][k] = x[((top + i) * LANES + k) * wide_columns + left + j];
  }
  #pragma unroll
  for (int s = 0; s < SQUARES; ++s) {
    const int q = threadIdx.x + s * THREADS, i = q / ACROSS, j = q % ACROSS;
    #pragma unroll
    for (int k = 0; k < LANES; ++k) {
      Pack turned;
      #pragma unroll
      for (int l = 0; l < LANES; ++l) turned.lane[l] = given[s][l].lane[k];
      tile[j * LANES + k][i ^ (j & 7)] = turned;
    }
  }
  __syncthreads();
  #pragma unroll
  for (int s = 0; s < SQUARES * LANES; ++s) {
    const int q = threadIdx.x + s * THREADS, j = q / DOWN, i = q % DOWN;
    if (left + j / LANES < wide_columns && top + i < wide_rows)
      out[(left * LANES + j) * wide_rows + top + i] = tile[j][i ^ (j / LANES & 7)];
  }
}
"""
)

# One element of padding keeps a column of the tile out of a single memory bank. Loads come before stores.
_BY_ELEMENT = (
    _PLACE
    + """
const int SIDE = 32, STEPS = 4, STEP = SIDE / STEPS;
extern "C" __global__ void __launch_bounds__(SIDE * STEP) gpubench_transpose(
    const stored* __restrict__ x, stored* __restrict__ out, long long rows, long long columns) {
  __shared__ stored tile[SIDE][SIDE + 1];
  unsigned bx, by;
  place(int((columns + SIDE - 1) / SIDE), int((rows + SIDE - 1) / SIDE), true, bx, by);
  const long long top = (long long)by * SIDE, left = (long long)bx * SIDE;
  stored given[STEPS];
  #pragma unroll
  for (int s = 0; s < STEPS; ++s) {
    const int i = threadIdx.y + s * STEP;
    if (top + i < rows && left + threadIdx.x < columns) given[s] = x[(top + i) * columns + left + threadIdx.x];
  }
  #pragma unroll
  for (int s = 0; s < STEPS; ++s) tile[threadIdx.y + s * STEP][threadIdx.x] = given[s];
  __syncthreads();
  #pragma unroll
  for (int s = 0; s < STEPS; ++s) {
    const int i = threadIdx.y + s * STEP;
    if (left + i < columns && top + threadIdx.x < rows)
      out[(left + i) * rows + top + threadIdx.x] = tile[threadIdx.x][i];
  }
}
"""
)
