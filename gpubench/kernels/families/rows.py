"""Ops along rows: how n elements are cut into rows, how threads share a row, and how one number is folded per row.

- CPU: blocks of rows that stay in cache, in place in the output.
- CUDA: a row lies in the registers of its threads: of a part of a warp, of a warp, of a block, or of a cluster of
  blocks that reach each other's shared memory. So nothing is read twice, whatever the arithmetic needs.
- WGSL: `lanes` threads of a group share a row and each keeps `held` units of every input in registers; what does not
  fit is read from memory a second time. Short rows share a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gpubench.errors import Unsupported
from gpubench.kernels.families import (
    ceil_div,
    fold,
    group_threads,
    power_of_two_at_least,
    require_buffers,
    require_dtype,
    windows,
)
from gpubench.kernels.families.cpu import (
    STREAMED_BYTES,
    Blocks,
    Launch,
    ThreadScratch,
    compiled_kernel,
    numba_candidates,
    numba_prelude,
    numba_signature,
    widen,
)
from gpubench.kernels.families.cuda import DTYPES, MOST_BLOCKS, MOST_THREADS, lanes, options, prelude
from gpubench.kernels.families.elementwise import WORKING_DTYPES
from gpubench.kernels.families.wgsl import Storage, elements, require_storage, vectors
from gpubench.model.kernel import (
    Candidate,
    CudaPass,
    CudaProgram,
    Kernel,
    Limits,
    NumbaPass,
    NumbaProgram,
    WgslPass,
    WgslProgram,
)
from gpubench.model.op import ITEMSIZE, Array, Ladder, Op, Operand, Params, Split, Tolerance

_PARAMS = {"n": "number of elements (a multiple of 1024 gives rows of 1024)"}
_OPTIONS = {"columns": "length of a row; it has to divide n (default: the largest divisor up to 1024)"}
_LADDER = Ladder(low=2**10, high=2**24, granule=1024)
_WIDEST, _NARROWEST, _ONE_ROW = 1024, 32, 65536


def columns(params: Params) -> int:
    """The length of a row: the param `columns`, or else the largest divisor of n up to 1024.

    If that is below 32 while n is at most 65,536 (a prime n, say), all of n is one row.
    """
    n = params["n"]
    if "columns" in params:
        return params["columns"]
    width = next((d for d in range(min(n, _WIDEST), 0, -1) if n % d == 0), 1)
    return n if width < _NARROWEST and 0 < n <= _ONE_ROW else width


def shape(params: Params) -> tuple[int, int]:
    return (params["n"] // columns(params), columns(params))


def _rows_of(params: Params, units: int) -> Params:
    """So many rows of the same length."""
    width = columns(params)
    return {"n": units * width, "columns": width}


def _fits(params: Params) -> str | None:
    """Why n elements cannot be cut into rows of `columns`; None if they can."""
    n, width = params["n"], columns(params)
    return None if width >= 1 and n % width == 0 else f"rows of {width} do not divide {n} elements"


def rowwise(
    *,
    name: str,
    group: str,
    summary: str,
    inputs: tuple[Operand, ...],
    flops_per_element: int,
    expr: Callable[..., Array],
    reference: Callable[..., Array],
    tolerance: Tolerance,
    cpu: Callable[[Any, Blocks, Params], Launch],
    numba: NumbaRows,
    cuda: CudaRowKernel,
    wgsl: WgslRowKernel,
) -> Op:
    """The op whose output is as long as its inputs, and whose rows do not depend on each other."""
    return Op(
        name=name, group=group, summary=summary, params=_PARAMS, options=_OPTIONS, fits=_fits, sizes=_LADDER,
        dtypes=WORKING_DTYPES, inputs=inputs, output=Operand("out", shape),
        flops=lambda params: flops_per_element * params["n"],
        expr=expr,
        tolerance=tolerance,
        reference=reference,
        split=Split({operand.name: 0 for operand in inputs}, _rows_of),
        tuned={
            "numpy": (
                compiled_kernel(numba.candidates),
                Kernel("numpy", cpu, "numpy"),
            ),
            "cupy": (Kernel("cuda", lambda params, dtype, limits: cuda.build(*shape(params), dtype, limits)),),
            "wgpu": (Kernel("wgsl", lambda params, dtype, limits: wgsl.build(*shape(params), dtype, limits)),),
        },
    )  # fmt: skip


# ---------------------------------------------------------------- CPU, compiled

_PARTIAL_STRIDE = 8  # float64 elements: a cache line for each part of a row


class NumbaRows(msgspec.Struct, frozen=True):
    """Pieces of text. `functions`: loops over one row or a part of it; `statistics(*inputs, start, stop)`, two numbers
    of a row, and `element(*inputs, i, *statistics)`, for streaming stores. `row`: statements that do the row
    [base, stop). `part` and `rest`: the same for the part [base, stop) of a row that several threads share: `part`
    leaves its results from `partial[own]` on; `rest` finds those of all s parts from `partial[every]` on."""

    names: tuple[str, ...]
    functions: str
    row: str
    part: str
    rest: str

    def candidates(self, params: Params, dtype: str, limits: Limits) -> tuple[Candidate, ...]:
        """Whole rows for each thread; parts of rows where there are fewer rows than threads."""
        rows, columns = shape(params)
        arrays: tuple[Any, ...] = (*self.names, *[None] * (2 - len(self.names)))

        def program(threads: int, streaming: bool) -> NumbaProgram:
            if streaming:
                step = NumbaPass("streamed", (*arrays, None, "out"), rows, m=columns)
                return NumbaProgram(_numba_source(self, dtype, _STREAMED_ROWS), (step,), threads)
            whole = NumbaPass("whole", (*arrays, None, "out"), rows, m=columns)
            if rows >= threads or threads == 1:
                return NumbaProgram(_numba_source(self, dtype, _WHOLE_ROWS), (whole,) * (rows > 0), threads)
            parts = ceil_div(threads, rows)
            passes = tuple(
                NumbaPass(kernel, (*arrays, "partial", "out"), rows * parts, m=columns, s=parts)
                for kernel in ("part", "rest")
            )
            source = _numba_source(self, dtype, _SHARED_ROWS)
            return NumbaProgram(source, passes, threads, {"partial": 8 * _PARTIAL_STRIDE * rows * parts})

        size = ITEMSIZE[dtype]
        streamed = (
            rows * columns * size >= STREAMED_BYTES
            and columns * size % 64 == 0
            and rows >= (limits.multiprocessors or 1)
        )
        return numba_candidates(rows * columns, limits, program, streamed)


def _numba_source(body: NumbaRows, dtype: str, kernels: str) -> str:
    text = kernels.format(
        arrays=", ".join([f"{name}_" for name in body.names] + ["unused"] * (2 - len(body.names))),
        given=", ".join(f"{name}_" for name in body.names),
        signature=numba_signature(dtype, "c"), row=body.row, part=body.part, rest=body.rest, stride=_PARTIAL_STRIDE,
        bounds=_PART_OF_A_ROW,
    )  # fmt: skip
    return f"{numba_prelude(dtype)}\n{body.functions}\n{text}"


_WHOLE_ROWS = """
{signature}
def whole({arrays}, partial, out, first, last, slot, m, s):
    wide_vectors()
    for unit in range(first, last):
        base, stop = unit * m, unit * m + m
        {row}
"""
_STREAMED_ROWS = """
{signature}
def streamed({arrays}, partial, out, first, last, slot, m, s):
    wide_vectors()
    block = scratch(out[0])
    at, filled = first * m, 0
    for unit in range(first, last):
        a, b = statistics({given}, unit * m, unit * m + m)
        i, stop = unit * m, unit * m + m
        while i < stop:
            count = min(stop - i, STREAMED - filled)
            for k in range(count):
                block[filled + k] = element({given}, i + k, a, b)
            i += count
            filled += count
            if filled == STREAMED:
                stream(out, at, block, filled)
                at += filled
                filled = 0
    if filled:
        stream(out, at, block, filled)
    fence()
"""
_PART_OF_A_ROW = """row = unit // s
        base = row * m + unit % s * ((m + s - 1) // s)
        stop = min(row * m + (unit % s + 1) * ((m + s - 1) // s), (row + 1) * m)"""
_SHARED_ROWS = """
{signature}
def part({arrays}, partial, out, first, last, slot, m, s):
    wide_vectors()
    for unit in range(first, last):
        {bounds}
        own = unit * {stride}
        {part}


{signature}
def rest({arrays}, partial, out, first, last, slot, m, s):
    wide_vectors()
    for unit in range(first, last):
        {bounds}
        own, every = unit * {stride}, row * s * {stride}
        {rest}
"""


# ---------------------------------------------------------------- CPU, NumPy

# Elements of a block: several passes over it should find it in cache, and last longer than threads wait in line.
_BLOCK = 512 * 1024


def in_blocks(np: Any, blocks: Blocks, rows: Callable[..., None]) -> Launch:
    """`rows(out, *inputs)` over blocks of rows; halves in float32 scratch, rounded once on the way out."""
    scratch = ThreadScratch(np)

    def launch(arrays: Sequence[Array], output: Array) -> None:
        if not output.size:
            return
        count, columns = output.shape
        size = min(count, max(1, _BLOCK // columns))

        def block(start: int, stop: int) -> None:
            parts, out = [array[start:stop] for array in arrays], output[start:stop]
            with np.errstate(all="ignore"):
                if out.dtype != np.float16:
                    rows(out, *parts)
                    return
                wide, *spare = (
                    array[: out.size].reshape(out.shape)
                    for array in scratch.arrays(len(parts) + 1, size * columns, np.float32)
                )
                rows(wide, *(widen(np, part, array) for part, array in zip(parts, spare, strict=True)))
                np.copyto(out, wide, casting="same_kind")

        blocks.run(block, count, size)

    return launch


# ---------------------------------------------------------------- CUDA

# 128 bytes of a row in each thread: 32 registers, which leaves room for two blocks of 512 threads.
HELD_BYTES = 128
# Few large blocks wait at every fold: with 1024 threads and the same bytes in flight a fifth of the rate is lost.
_ROW_THREADS = 512
_FIRST_BYTES = 32  # of a row in memory, that a thread loads before more threads pay
_SHORT_ROW_THREADS = 128  # threads of a block or group that several short rows share
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
        """Blocks of the grid. Raises Unsupported beyond CUDA's largest grid."""
        count = ceil_div(rows, self.threads // self.lanes) * self.cluster
        if count > MOST_BLOCKS:
            raise Unsupported(f"{rows} rows take {count} blocks; a CUDA grid has {MOST_BLOCKS}")
        return count

    def head(self, dtype: str) -> str:
        """Types, the layout as constants, and `across`: depends on the layout, not on the number of rows."""
        cluster = _CLUSTER if self.cluster > 1 else _NO_CLUSTER
        return f"""{prelude(dtype)}
const int THREADS = {self.threads}, ROW_THREADS = {self.lanes}, HELD = {self.held};
const int CLUSTER = {self.cluster}, WIDTH = {self.width};
const bool WHOLE = {"true" if self.held and self.whole else "false"};
struct alignas(WIDTH * sizeof(stored)) Unit {{ stored lane[WIDTH]; }};
struct Larger {{ static __device__ __forceinline__ real of(real a, real b) {{ return a > b ? a : b; }} }};
struct Sum {{ static __device__ __forceinline__ real of(real a, real b) {{ return a + b; }} }};
{cluster}
{_FORGET}
{_ACROSS}"""

    def kernel(self, name: str, inputs: tuple[str, ...], body: str) -> str:
        """The kernel around `body`, which sees `row`, `live`, `lane`, `first` and the rows of each array."""
        arguments = ", ".join(f"const stored* __restrict__ {x}_" for x in inputs)
        rows = "\n".join(f"  const Unit* {x} = reinterpret_cast<const Unit*>({x}_ + row);" for x in inputs)
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
    """A kernel in CUDA: `choose(columns, dtype, limits)` gives its layout, and the body for `CudaRows.kernel`."""

    name: str
    inputs: tuple[str, ...]
    choose: Callable[[int, str, Limits], tuple[CudaRows, str]]

    def build(self, count: int, columns: int, dtype: str, limits: Limits) -> CudaProgram:
        """One launch over count x columns elements, none if there are none. Raises Unsupported for another dtype.

        The text depends on the layout and not on the number of rows.
        """
        require_dtype(dtype, DTYPES, "CUDA")
        if count * columns == 0:
            return CudaProgram(())
        rows, body = self.choose(columns, dtype, limits)
        step = CudaPass(
            rows.head(dtype) + rows.kernel(self.name, self.inputs, body), f"gpubench_{self.name}",
            (rows.blocks(count), 1, 1), (rows.threads, 1, 1), (*self.inputs, "out", count, columns),
            options=options(dtype),
        )  # fmt: skip
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


# ---------------------------------------------------------------- WGSL

_LARGEST_GROUP = 1024
_PER_LANE = 2  # vectors; measured best at 1024 and 4096 columns of float32
_ELEMENTS_PER_LANE = 4  # where a row does not start on 16 bytes
_MOST_HELD = 4  # 16-byte units of each input in a thread's registers, where a kernel does not say it


class WgslRows(msgspec.Struct, frozen=True):
    """Threads of a group and of a row, units held per thread, and how the row's end falls.

    `whole`: lanes x held is exactly the row. `rest`: the row is longer than that, and the rest is looped over.
    """

    storage: Storage
    threads: int
    lanes: int
    held: int
    whole: bool
    rest: bool

    def index(self, k: int) -> str:
        """The unit that a lane holds as its k-th; past the row's end its first, which every row has."""
        return f"u{k}" if self.whole or self.rest else f"select(0u, u{k}, u{k} < p.units)"

    def inside(self, k: int) -> str:
        """The condition that the k-th unit is in a row of its own, or an empty text where it always is."""
        return "" if self.whole or self.rest else f"u{k} < p.units"

    def fold_lanes(self, array: str, joined: str) -> list[str]:
        """Fold a workgroup array over the lanes of a row into its first lane; `joined` is text in {a} and {b}."""
        lines, half = [], self.lanes // 2
        while half:
            text = joined.format(a=f"{array}[thread]", b=f"{array}[thread + {half}u]")
            lines += ["  workgroupBarrier();", f"  if (lane < {half}u) {{ {array}[thread] = {text}; }}"]
            half //= 2
        return [*lines, "  workgroupBarrier();"]

    def loop(self, lines: list[str]) -> list[str]:
        """The lines for every unit u that is not held."""
        if not self.rest:
            return []
        first = f"lane + {self.held * self.lanes}u"
        return [f"  for (var u = {first}; u < p.units; u += {self.lanes}u) {{", *lines, "  }"]

    def header(self, inputs: tuple[str, ...], shared: tuple[str, ...]) -> list[str]:
        """Everything up to `row`, the first unit of the thread's row; `shared` names arrays of one real a thread."""
        storage = self.storage
        spread = self.lanes.bit_length() - 1
        last = len(inputs)
        return [
            *storage.header,
            "struct Params { rows: u32, units: u32, }",
            *(
                f"@group(0) @binding({i}) var<storage, read> {name}_: array<{storage.unit}>;"
                for i, name in enumerate(inputs)
            ),
            f"@group(0) @binding({last}) var<storage, read_write> out_: array<{storage.unit}>;",
            f"@group(0) @binding({last + 1}) var<uniform> p: Params;",
            *(f"var<workgroup> {name}: array<{storage.real}, {self.threads}>;" for name in shared),
            *storage.functions,
            f"@compute @workgroup_size({self.threads})",
            "fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,",
            "        @builtin(local_invocation_index) thread: u32) {",
            f"  let lane = thread & {self.lanes - 1}u;",
            f"  let index = (group.y * groups.x + group.x) * {self.threads // self.lanes}u + (thread >> {spread}u);",
            # A spare row repeats the last one and writes nothing: no thread may leave before a barrier.
            "  let live = index < p.rows;",
            "  let row = min(index, p.rows - 1u) * p.units;",
        ]

    def loads(self, inputs: tuple[str, ...]) -> list[str]:
        """`x0`, `x1`, ... for an input x: the units that this thread holds."""
        lines = [f"  let u{k} = lane + {k * self.lanes}u;" for k in range(self.held)]
        for k in range(self.held):
            lines += [f"  let {name}{k} = {name}_[row + {self.index(k)}];" for name in inputs]
        return lines

    def kept(self, k: int, part: str) -> str:
        """A part of the k-th unit, or zeros where the unit is past the row's end."""
        inside = self.inside(k)
        return f"select({self.storage.part}(), {part}, {inside})" if inside else part

    def store(self, k: int, value: str) -> str:
        """Write the k-th unit of a live row."""
        return f"  if ({' && '.join(filter(None, ['live', self.inside(k)]))}) {{ out_[row + u{k}] = {value}; }}"


class WgslRowKernel(msgspec.Struct, frozen=True):
    """A kernel in WGSL: `source` is its whole text by the layout. It does not depend on the number or length of rows.

    `most_held`: how many 16-byte units of each input fit a thread's registers, by dtype. `exponential`: the text calls
    `exp`, which WGSL does not have in double precision.
    """

    inputs: tuple[str, ...]
    source: Callable[[WgslRows], str]
    most_held: Mapping[str, int] = {}
    exponential: bool = False

    def build(self, count: int, columns: int, dtype: str, limits: Limits) -> WgslProgram:
        """One dispatch over count x columns elements per window. Raises Unsupported for what it cannot do."""
        if self.exponential and dtype == "float64":
            raise Unsupported("WGSL has no exp in double precision", reason="no-dtype")
        rows = self.layout(columns, dtype, limits)
        names, size = (*self.inputs, "out"), columns * ITEMSIZE[dtype]
        require_buffers(dict.fromkeys(names, count * size), limits)
        passes = []
        for window in windows(count, size, limits) if columns else []:
            grid = fold(ceil_div(window.count, rows.threads // rows.lanes), limits)
            uniform = (window.count, columns // rows.storage.width)
            parts = window.of(names, size)
            passes.append(WgslPass(self.source(rows), grid, names, uniform=uniform, windows=parts))
        return WgslProgram(tuple(passes))

    def layout(self, columns: int, dtype: str, limits: Limits) -> WgslRows:
        """The layout for rows of that length. Raises Unsupported for a dtype that the device does not have."""
        require_storage(dtype, limits)
        storage, per_lane, most_held = vectors(dtype), _PER_LANE, self.most_held.get(dtype, _MOST_HELD)
        if columns % storage.width:
            storage, per_lane, most_held = elements(dtype), _ELEMENTS_PER_LANE, 2 * most_held
        most = group_threads(limits, _LARGEST_GROUP)
        units = columns // storage.width
        lanes = min(power_of_two_at_least(ceil_div(units, per_lane)), most)
        held = min(ceil_div(units, lanes), most_held)
        threads = max(lanes, min(_SHORT_ROW_THREADS, most))
        return WgslRows(storage, threads, lanes, held, whole=held * lanes == units, rest=held * lanes < units)
