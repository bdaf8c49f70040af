"""Rows in the registers of CUDA's threads: how they meet, and how one number is folded per row."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import CudaProgram, Limits
from gpubench.kernels.contract.op import ITEMSIZE
from gpubench.kernels.templates import ceil_div, power_of_two_at_least, require_dtype
from gpubench.kernels.templates.cuda import DTYPES, MOST_THREADS, kernel_pass, lanes

# 128 bytes of a row in each thread: 32 registers, which leaves room for two blocks of 512 threads.
HELD_BYTES = 128
# Few large blocks wait at every fold: with 1024 threads and the same bytes in flight a fifth of the rate is lost.
_ROW_THREADS = 512
_FIRST_BYTES = 32  # of a row in memory, that a thread loads before more threads pay
_SHORT_ROW_THREADS = 128  # threads of a block that several short rows share
_MOST_UNITS = 2**31 - 1 - MOST_THREADS  # the kernels count the loads of a row in 32 bits, a block's step ahead
_MOST_CLUSTER = 8  # blocks of a cluster that every device with clusters can run


class CudaRows(msgspec.Struct, frozen=True):
    """How rows meet threads: `lanes` threads of each of `cluster` blocks share a row of `units` units.

    A unit is `width` elements: 16 bytes, or the largest part of that which divides the row. A thread holds
    `held` units in registers; 0 means that it loops over them and reads the row twice.
    """

    width: int
    units: int
    threads: int
    lanes: int
    held: int
    cluster: int = 1

    @property
    def whole(self) -> bool:
        """Threads and units match exactly, so that no load needs a guard."""
        return self.units == self.lanes * self.held * self.cluster

    def blocks(self, rows: int) -> int:
        """Blocks of the grid."""
        return ceil_div(rows, self.threads // self.lanes) * self.cluster

    def head(self) -> str:
        """Types, the layout as constants, and `across`: depends on the layout, not on the number of rows."""
        cluster = _CLUSTER if self.cluster > 1 else _NO_CLUSTER
        return f"""const int THREADS = {self.threads}, ROW_THREADS = {self.lanes}, HELD = {self.held};
const int CLUSTER = {self.cluster}, WIDTH = {self.width};
const bool WHOLE = {"true" if self.held and self.whole else "false"};
struct alignas(WIDTH * sizeof(stored)) Unit {{ stored lane[WIDTH]; }};
struct Larger {{ static __device__ __forceinline__ real of(real a, real b) {{ return a > b ? a : b; }} }};
struct Sum {{ static __device__ __forceinline__ real of(real a, real b) {{ return a + b; }} }};
{cluster}
{_FORGET}
{_ACROSS}"""

    def kernel(self, name: str, inputs: tuple[str, ...], body: str, across: tuple[str, ...] = ()) -> str:
        """The kernel around `body`, which sees `row`, `live`, `lane`, `first` and the rows of each array; those in
        `across` are one row for all."""
        arguments = ", ".join(f"const stored* __restrict__ {x}_" for x in (*inputs, *across))
        places = [(x, f"{x}_ + row") for x in inputs] + [(x, f"{x}_") for x in across]
        rows = "\n".join(f"  const Unit* {x} = reinterpret_cast<const Unit*>({at});" for x, at in places)
        clustered = f" __cluster_dims__({self.cluster}, 1, 1)" if self.cluster > 1 else ""
        return f"""
extern "C" __global__ void{clustered} __launch_bounds__({self.threads})
gpubench_{name}({arguments}, stored* __restrict__ out_, long long rows, long long columns) {{
  __shared__ real spare[2][32 + 8];  // of each fold: a word per warp, then one per block of the cluster
  enter();
  const int lane = threadIdx.x % ROW_THREADS, first = rank() * (HELD * ROW_THREADS) + lane;
  const long long index = (long long)(blockIdx.x / CLUSTER) * (THREADS / ROW_THREADS) + threadIdx.x / ROW_THREADS;
  const bool live = index < rows;  // a spare row repeats the last one and writes nothing
  const long long row = (live ? index : rows - 1) * columns;
{rows}
  Unit* out = reinterpret_cast<Unit*>(out_ + row);
  const int units = int(columns / WIDTH);
{body}}}
"""


class CudaRowKernel(msgspec.Struct, frozen=True):
    """A kernel in CUDA: `choose(columns, dtype, limits)` gives its layout, and the body for `CudaRows.kernel`. The
    inputs in `across` are one row for all."""

    name: str
    inputs: tuple[str, ...]
    choose: Callable[[int, str, Limits], tuple[CudaRows, str]]
    across: tuple[str, ...] = ()

    def build(self, count: int, columns: int, dtype: str, limits: Limits, into: str = "out") -> CudaProgram:
        """One launch over count x columns elements, none if there are none, which writes the buffer `into`. Raises
        Unsupported for another dtype.

        The text depends on the layout and not on the number of rows.
        """
        require_dtype(dtype, DTYPES, "CUDA")
        if count * columns == 0:
            return CudaProgram(())
        rows, body = self.choose(columns, dtype, limits)
        text = rows.head() + rows.kernel(self.name, self.inputs, body, self.across)
        arguments = (*self.inputs, *self.across, into, count, columns)
        step = kernel_pass(self.name, dtype, text, rows.blocks(count), rows.threads, arguments)
        return CudaProgram((step,))


def cuda_rows(columns: int, dtype: str, limits: Limits, *, itemsize: int, arrays: int = 1) -> CudaRows:
    """The layout for rows of `columns` elements in each of `arrays`, which take `itemsize` bytes in registers.

    32 bytes a thread first, which hides the latency of memory; more once the row has 512 threads, then
    clusters, then 1024 threads, and the loop for what even those cannot hold. Raises Unsupported for rows that the
    kernels cannot count.
    """
    width = math.gcd(columns, lanes(dtype))
    units = columns // width
    if units > _MOST_UNITS:
        raise Unsupported(
            f"a row of {columns} elements takes {units} loads; the kernel counts up to {_MOST_UNITS}",
            reason="limit",
        )
    unit_bytes = arrays * max(4, itemsize * width)  # half a register is not to be had
    most = max(1, HELD_BYTES // unit_bytes)
    wanted = min(most, _FIRST_BYTES // (width * ITEMSIZE[dtype]))
    spread = power_of_two_at_least(ceil_div(units, wanted))
    row_threads = max(min(spread, _ROW_THREADS), min(32, power_of_two_at_least(units)))
    if units <= row_threads * most:
        threads = max(row_threads, _SHORT_ROW_THREADS)
        return CudaRows(width, units, threads, row_threads, ceil_div(units, row_threads))
    for row_threads in (_ROW_THREADS, MOST_THREADS):
        cluster = power_of_two_at_least(ceil_div(units, row_threads * most))
        if cluster <= (_MOST_CLUSTER if limits.clusters else 1):
            held = ceil_div(units, row_threads * cluster)
            return CudaRows(width, units, row_threads, row_threads, held, cluster)
    return CudaRows(width, units, MOST_THREADS, MOST_THREADS, 0)


# What was computed from packed halves is computed again where it is needed again: kept, it would take twice their
# registers. `nothing` is a 0 that the compiler does not know.
_FORGET = """
__device__ __forceinline__ void forget(Unit& unit, long long nothing) {
  if (sizeof(stored) != 2) return;
  unsigned* words = reinterpret_cast<unsigned*>(&unit);
  #pragma unroll
  for (int w = 0; w < WIDTH / 2; ++w) words[w] ^= (unsigned)nothing;
}"""

# Every thread of a row gets the value folded over the row: shuffles in a warp, one word per warp in shared
# memory, one word per block of the cluster. Each fold of a kernel has its own words: nothing is overwritten.
_ACROSS = """
template <class Join> __device__ __forceinline__ real across(real value, real* spare) {
  #pragma unroll
  for (int far = (ROW_THREADS < 32 ? ROW_THREADS : 32) / 2; far > 0; far /= 2)
    value = Join::of(value, __shfl_xor_sync(0xffffffffu, value, far));
  if (ROW_THREADS > 32) {
    if (threadIdx.x % 32 == 0) spare[threadIdx.x / 32] = value;
    __syncthreads();
    const int begin = threadIdx.x / ROW_THREADS * (ROW_THREADS / 32);
    value = spare[begin];
    #pragma unroll
    for (int i = 1; i < ROW_THREADS / 32; ++i) value = Join::of(value, spare[begin + i]);
  }
  return over_cluster<Join>(value, spare + 32);
}
"""

_NO_CLUSTER = """__device__ __forceinline__ void enter() {}
__device__ __forceinline__ void entered() {}
__device__ __forceinline__ int rank() { return 0; }
template <class Join> __device__ __forceinline__ real over_cluster(real value, real*) { return value; }"""

# Arriving on entry and waiting before the first fold makes sure that the other blocks run by then.
_CLUSTER = """__device__ __forceinline__ void arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void enter() { arrive(); }
__device__ __forceinline__ void entered() { wait(); }
__device__ __forceinline__ int rank() {
  int r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ __forceinline__ void put(unsigned to, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(to), "f"(value) : "memory");
}
__device__ __forceinline__ void put(unsigned to, double value) {
  asm volatile("st.shared::cluster.f64 [%0], %1;" :: "r"(to), "d"(value) : "memory");
}
template <class Join> __device__ __forceinline__ real over_cluster(real value, real* slots) {
  if (threadIdx.x < CLUSTER) {
    unsigned there;
    const unsigned here = (unsigned)__cvta_generic_to_shared(slots + rank());
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(threadIdx.x));
    put(there, value);
  }
  __syncwarp();
  arrive();
  wait();
  value = slots[0];
  #pragma unroll
  for (int i = 1; i < CLUSTER; ++i) value = Join::of(value, slots[i]);
  return value;
}"""
