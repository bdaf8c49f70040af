"""Matrix times vector in CUDA: A is read once in 128-bit accesses, x stays in the caches.

The threads of a row stride through it. In half precision each thread works on four long rows at once, so that
what it unpacks of x serves all of them. Short rows share a warp. Where there are too few rows to fill the device,
each row is cut into parts and a second launch adds these up, in a fixed order.
"""

from __future__ import annotations

import math

import msgspec

from gpubench.errors import Unsupported
from gpubench.kernels._limits import ceil_div, multiprocessors, power_of_two_at_least, require_dtype
from gpubench.kernels._types_cuda import DTYPES, MOST_BLOCKS, lanes, options, prelude
from gpubench.model.kernel import CudaPass, CudaProgram, Limits
from gpubench.model.op import ITEMSIZE

THREADS = 256
_MOST_PARTS = 1024  # blocks along a row; CUDA's limit of the grid in y is 65,535
_UNITS_A_LANE = 2  # loads that a thread makes of a row before more threads pay
_UNITS_A_PART = 4  # and of a part of a row, before more parts pay
_BLOCKS_A_MULTIPROCESSOR = 8


class Layout(msgspec.Struct, frozen=True):
    """`lanes` threads share a row and work on `rows` rows at once; each row is cut into `parts` parts.

    A load has `width` elements: 16 bytes, or the largest part of that which divides the row.
    """

    width: int
    lanes: int
    rows: int
    parts: int

    @property
    def block_rows(self) -> int:
        """Rows of a block."""
        return THREADS // self.lanes * self.rows


def build(m: int, n: int, dtype: str, limits: Limits) -> CudaProgram:
    """out = A x for A of m x n, row by row. No launch if m is 0; zeros if n is.

    Raises Unsupported for another dtype or more rows than a grid holds.
    """
    require_dtype(dtype, DTYPES, "CUDA")
    if m == 0:
        return CudaProgram(())
    return program(layout_of(m, n, dtype, limits), m, n, dtype)


def layout_of(m: int, n: int, dtype: str, limits: Limits) -> Layout:
    """One row a thread, two loads a row; parts so that the device has eight blocks a multiprocessor.

    Four rows where they pay: long ones in half precision, or in loads of less than 16 bytes.
    """
    width = math.gcd(n, lanes(dtype))
    units = n // width
    half = ITEMSIZE[dtype] < 4
    most = THREADS // 2 if half else THREADS
    row_lanes = min(most, power_of_two_at_least(ceil_div(max(1, units), _UNITS_A_LANE)))
    rows = 4 if m >= 4 and row_lanes >= 32 and (half or width < lanes(dtype)) else 1
    row_blocks = ceil_div(m, THREADS // row_lanes * rows)
    wanted = ceil_div(_BLOCKS_A_MULTIPROCESSOR * multiprocessors(limits), row_blocks)
    longest = max(1, units // (row_lanes * _UNITS_A_PART))
    return Layout(width, row_lanes, rows, max(1, min(wanted, longest, _MOST_PARTS)))


def program(layout: Layout, m: int, n: int, dtype: str) -> CudaProgram:
    """The launch, or the two launches, of one layout."""
    blocks = ceil_div(m, layout.block_rows)
    if blocks > MOST_BLOCKS:
        raise Unsupported(f"{m} rows take {blocks} blocks; a CUDA grid has {MOST_BLOCKS}")
    whole = layout.parts == 1
    target = "out" if whole else "partial"
    first = CudaPass(
        source(layout, dtype), "gpubench_gemv", (blocks, layout.parts, 1), (THREADS, 1, 1), ("a", "x", target, m, n),
        options=options(dtype),
    )  # fmt: skip
    if whole:
        return CudaProgram((first,))
    second = CudaPass(
        prelude(dtype) + _ADD_PARTS, "gpubench_gemv_add", (ceil_div(m, THREADS // 32), 1, 1), (THREADS, 1, 1),
        ("partial", "out", m, layout.parts), options=options(dtype),
    )  # fmt: skip
    return CudaProgram((first, second), {"partial": m * layout.parts * max(4, ITEMSIZE[dtype])})


def source(layout: Layout, dtype: str) -> str:
    """The translation unit of the first launch; it depends on the layout only."""
    whole = layout.parts == 1
    return f"""{prelude(dtype)}
const int THREADS = {THREADS}, ROW_THREADS = {layout.lanes}, ROWS = {layout.rows};
const int WIDTH = {layout.width}, UNROLL = {2 if layout.width == lanes(dtype) else 4};
typedef {"stored" if whole else "real"} result;
__device__ __forceinline__ result finish(real value) {{ return {"narrow(value)" if whole else "value"}; }}
{_KERNEL}"""


# Row r of a thread lies THREADS / ROW_THREADS rows behind row r - 1: rows of one load are neighbours.
_KERNEL = """
struct alignas(WIDTH * sizeof(stored)) Unit { stored lane[WIDTH]; };

template <int STEPS> __device__ __forceinline__ void add(
    real (&total)[ROWS], const Unit* const (&a)[ROWS], const Unit* x, long long u) {
  Unit given[STEPS][ROWS], factor[STEPS];
  #pragma unroll
  for (int s = 0; s < STEPS; ++s) {
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) given[s][r] = a[r][u + s * ROW_THREADS];
    factor[s] = x[u + s * ROW_THREADS];
  }
  #pragma unroll
  for (int s = 0; s < STEPS; ++s)
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      const real by = wide(factor[s].lane[j]);
      #pragma unroll
      for (int r = 0; r < ROWS; ++r) total[r] += wide(given[s][r].lane[j]) * by;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) gpubench_gemv(
    const stored* __restrict__ a_, const stored* __restrict__ x_, result* __restrict__ out,
    long long m, long long n) {
  __shared__ real spare[ROWS][32];
  const int lane = threadIdx.x % ROW_THREADS, group = threadIdx.x / ROW_THREADS;
  const int GROUPS = THREADS / ROW_THREADS;
  const long long base = (long long)blockIdx.x * (GROUPS * ROWS) + group;
  const long long units = n / WIDTH, part = (units + gridDim.y - 1) / gridDim.y;
  const long long begin = blockIdx.y * part, end = begin + part < units ? begin + part : units;
  const Unit* x = reinterpret_cast<const Unit*>(x_);
  const Unit* a[ROWS];
  real total[ROWS];
  #pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const long long row = base + r * GROUPS < m ? base + r * GROUPS : m - 1;
    a[r] = reinterpret_cast<const Unit*>(a_ + row * n);
    total[r] = 0;
  }
  long long u = begin + lane;
  for (; u + (UNROLL - 1) * ROW_THREADS < end; u += UNROLL * ROW_THREADS) add<UNROLL>(total, a, x, u);
  #pragma unroll 1
  for (; u < end; u += ROW_THREADS) add<1>(total, a, x, u);
  #pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    #pragma unroll
    for (int far = (ROW_THREADS < 32 ? ROW_THREADS : 32) / 2; far > 0; far /= 2)
      total[r] += __shfl_xor_sync(0xffffffffu, total[r], far);
    if (ROW_THREADS > 32 && threadIdx.x % 32 == 0) spare[r][threadIdx.x / 32] = total[r];
  }
  if (ROW_THREADS > 32) __syncthreads();
  if (lane != 0) return;
  #pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const long long row = base + r * GROUPS;
    for (int i = 1; i < ROW_THREADS / 32; ++i) total[r] += spare[r][threadIdx.x / 32 + i];
    if (row < m) out[row * gridDim.y + blockIdx.y] = finish(total[r]);
  }
}
"""

_ADD_PARTS = """
extern "C" __global__ void gpubench_gemv_add(
    const real* __restrict__ partial, stored* __restrict__ out, long long m, long long parts) {
  const long long row = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= m) return;
  real total = 0;
  for (long long i = threadIdx.x % 32; i < parts; i += 32) total += partial[row * parts + i];
  for (int far = 16; far > 0; far /= 2) total += __shfl_xor_sync(0xffffffffu, total, far);
  if (threadIdx.x % 32 == 0) out[row] = narrow(total);
}
"""
