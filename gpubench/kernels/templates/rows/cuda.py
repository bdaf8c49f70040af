"""CUDA kernels whose threads hold rows in registers: how rows are assigned to threads, and how a row is reduced to
one number."""

from __future__ import annotations

import math
import re

import msgspec

from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import CudaProgram, Limits
from gpubench.kernels.contract.op import ITEMSIZE
from gpubench.kernels.templates import (
    MOST_THREADS,
    UNIT,
    ceil_div,
    lanes,
    one_launch,
    power_of_two_at_least,
)
from gpubench.kernels.templates.formula import Formula
from gpubench.kernels.templates.rows.formula import RowFormula, RowStep

# Most bytes of a row in the registers of a thread. These 32 registers leave room for two blocks of 512 threads.
HELD_BYTES = 128
# Threads of a block that has one row. With 1024 threads a fifth of the rate is lost, because few large blocks wait
# at every fold.
_ROW_THREADS = 512
_FIRST_BYTES = 32  # bytes of a row for each thread, until _ROW_THREADS threads are used
_SHORT_ROW_THREADS = 128  # threads of a block that several short rows share
_MOST_UNITS = 2**31 - 1 - MOST_THREADS  # the kernels count the units of a row, plus one step, in 32 bits
_MOST_CLUSTER = 8  # blocks of a cluster that every device with clusters supports


class CudaRows(msgspec.Struct, frozen=True):
    """The assignment of rows to threads. A *unit* is the data that one load reads."""

    width: int  # elements of a unit: the largest power of two in 16 bytes that divides the row's length
    units: int  # units of a row
    threads: int  # threads of a block
    lanes: int  # threads that share a row, in each of its blocks
    held: int  # units that a thread keeps in registers; 0 if it reads the row twice in a loop
    cluster: int = 1  # blocks that share a row

    @property
    def whole(self) -> bool:
        """Whether the held units of all threads are exactly a row, so that no load needs a guard."""
        return self.units == self.lanes * self.held * self.cluster

    def blocks(self, rows: int) -> int:
        """Return the number of blocks of the grid."""
        return ceil_div(rows, self.threads // self.lanes) * self.cluster

    def head(self) -> str:
        """Return CUDA text with the types, the layout as constants, and the function `across`, which reduces the
        numbers that the threads of a row have to one."""
        return f"""const int THREADS = {self.threads}, ROW_THREADS = {self.lanes}, HELD = {self.held};
const int CLUSTER = {self.cluster}, WIDTH = {self.width};
const bool WHOLE = {int(self.whole)};
{UNIT}
{folds(clustered=self.cluster > 1)}
{_FORGET}
"""

    def kernel(self, name: str, formula: RowFormula, body: str) -> str:
        """Return the text of a kernel with the statements `body`. They use `row`, `live`, `lane`, `first` and, by
        its name, the row of each array."""
        arguments = ", ".join(f"const stored* __restrict__ {x}_" for x in formula.names)
        places = [(x, f"{x}_ + row") for x in formula.inputs] + [(x, f"{x}_") for x in formula.across]
        rows = "\n".join(f"  const Unit* {x} = reinterpret_cast<const Unit*>({at});" for x, at in places)
        terms = [step.formula.cuda(f"term_{step.index}") for step in formula.steps if step.kind != "number"]
        functions = "\n".join([*terms, formula.element.cuda("element")])
        clustered = f" __cluster_dims__({self.cluster}, 1, 1)" if self.cluster > 1 else ""
        return f"""
{functions}
extern "C" __global__ void{clustered} __launch_bounds__({self.threads})
gpubench_{name}({arguments}, stored* __restrict__ out_, long long rows, long long columns) {{
  __shared__ real spare[{body.count("spare[")}][32 + 8];  // a word per warp, then one per block of the cluster
  arrive();
  const int lane = threadIdx.x % ROW_THREADS, first = rank() * (HELD * ROW_THREADS) + lane;
  const long long index = (long long)(blockIdx.x / CLUSTER) * (THREADS / ROW_THREADS) + threadIdx.x / ROW_THREADS;
  const bool live = index < rows;  // a spare row repeats the last one and writes nothing
  const long long row = (live ? index : rows - 1) * columns;
{rows}
  Unit* out = reinterpret_cast<Unit*>(out_ + row);
  const int units = int(columns / WIDTH);
{body}}}
"""


def folds(*, clustered: bool = False) -> str:
    """Return CUDA text with the function `across`, which reduces the numbers that the threads of a row have to one, by
    `Larger` or by `Sum`. ROW_THREADS is defined before."""
    return f"{_JOINS}{_CLUSTER if clustered else _NO_CLUSTER}{_ACROSS}"


def program(
    name: str, formula: RowFormula, count: int, columns: int, dtype: str, limits: Limits, into: str = "out"
) -> CudaProgram:
    """Return the CUDA program for `count` rows of `columns` elements, with one launch, which writes to the buffer
    `into`. Its text does not depend on `count`. Raises Unsupported for too many or too long rows."""
    arrays = len(formula.inputs)
    rows = cuda_rows(columns, dtype, limits, arrays=arrays)
    # powers are held as floats if there is room; otherwise, only the elements of several inputs stay packed
    packed = rows.held * rows.width * max(4, ITEMSIZE[dtype]) > HELD_BYTES if formula.powers else arrays > 1
    text = rows.head() + rows.kernel(name, formula, _Body(formula, bool(rows.held), packed).source())
    arguments = (*formula.names, into, count, columns)
    return one_launch(name, dtype, text, rows.blocks(count), rows.threads, arguments)


class _Body(msgspec.Struct, frozen=True):
    """The statements of a kernel."""

    formula: RowFormula  # formula of a row
    held: bool  # whether a thread keeps its units in registers; if not, it loops over them
    packed: bool  # whether registers hold halves as they are; if not, as floats

    def source(self) -> str:
        make = {"number": _number, "total": self._total, "powers": self._powers}
        return "".join(
            [self._load() * self.held, *(make[step.kind](step) for step in self.formula.steps), self._store()]
        )

    def _call(self, function: str, formula: Formula) -> str:
        """Return the text that calls `function` for one element of the row."""
        # for element j of the k-th unit that the thread holds, or of unit u in a loop
        return f"{function}({', '.join(map(self._value, formula.names))})"

    def _value(self, name: str) -> str:
        if name in self.formula.inputs:
            return f"wide({name}_held[k].lane[j])" if self.held else f"wide({name}_unit.lane[j])"
        if name in self.formula.across:
            return f"wide({name}[u].lane[j])"
        if not name.startswith("power_"):
            return name
        if self.held and not self.packed:
            return f"{name}[k][j]"
        step = next(step for step in self.formula.steps if name == f"power_{step.index}")
        return f"exp({self._term(step)} - top_{step.index})"

    def _term(self, step: RowStep) -> str:
        return self._call(f"term_{step.index}", step.formula)

    def _load(self) -> str:
        """Return the loads of the units that a thread holds, which come before any arithmetic."""
        units = ", ".join(f"{name}_held[HELD]" for name in self.formula.inputs)
        loads = ", ".join(f"{name}_held[k] = {name}[u]" for name in self.formula.inputs)
        return f"  Unit {units};\n{_UNITS}    if (WHOLE || u < units) {loads};\n  }}\n"

    def _unit(self) -> str:
        units = ", ".join(f"{name}_unit = {name}[u]" for name in self.formula.inputs)
        return f"    const Unit {units};\n"

    def _forget(self, nothing: str) -> str:
        if not self.packed:
            return ""
        return "".join(f"    forget({name}_held[k], {nothing} >> 62);\n" for name in self.formula.inputs)

    def _each(self, statement: str, forget: str = "") -> str:
        """Return the loop that runs the statement for each element of the row."""
        loop = f"#pragma unroll\n      for (int j = 0; j < WIDTH; ++j) {statement}\n  }}\n"
        if self.held:
            return f"{_UNITS}{forget}    if (WHOLE || u < units)\n      {loop}"
        return f"  for (int u = lane; u < units; u += ROW_THREADS) {{\n{self._unit()}      {loop}"

    def _total(self, step: RowStep) -> str:
        return _write_words(_TOTAL, step).replace(
            "ADDED\n", self._each(f"total_{step.index} += {self._term(step)};")
        )

    def _powers(self, step: RowStep) -> str:
        text = _HELD_POWERS if self.held else _LOOPING_POWERS
        if self.held and self.packed:
            term = self._term(step)
            largest = self._each(f"top = Larger::of({term}, top);")
            added = self._each(f"total += exp({term} - top);", self._forget("rows"))
            text = _PACKED_POWERS.replace("LARGEST\n", largest).replace("ADDED\n", added)
        return _write_words(text.replace("UNIT\n", self._unit()).replace("TERM", self._term(step)), step)

    def _store(self) -> str:
        """Return the statements that compute and store the row."""
        element = self._call("element", self.formula.element)
        result = f"""    Unit result;
{self._forget("columns" if self.formula.powers else "rows") if self.held else self._unit()}    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) result.lane[j] = narrow({element});
"""
        if not self.held:
            # from its end to its beginning, because its end is still in the cache
            return f"{_BACKWARDS}{result}    out[u] = result;\n  }}\n"
        # inputs that are a single row are loaded here, so units outside the row are left out
        if self.formula.across:
            return f"{_UNITS}    if (!live || (!WHOLE && u >= units)) continue;\n{result}    out[u] = result;\n  }}\n"
        return f"{_UNITS}{result}    if (live && (WHOLE || u < units)) out[u] = result;\n  }}\n"


def _number(step: RowStep) -> str:
    return f"  {step.formula.statements('cuda', f'const real number_{step.index} = {{}};')}\n"


def _write_words(text: str, step: RowStep) -> str:
    """Return the text of a fold with its variables named for `step`."""
    text = re.sub(r"\b(top|total|power)\b", rf"\1_{step.index}", text)
    # the first fold waits until the other blocks of a cluster have started
    text = text.replace("  WAIT\n", "" if step.index else "  wait();\n")
    return text.replace("FIRST", str(step.index)).replace("SECOND", str(step.index + 1))


_UNITS = """  #pragma unroll
  for (int k = 0; k < HELD; ++k) {
    const int u = first + k * ROW_THREADS;
"""
_BACKWARDS = """  const int last = (units - 1 - lane) / ROW_THREADS * ROW_THREADS + lane;
  for (int u = last; live && lane < units && u >= 0; u -= ROW_THREADS) {
"""
_TOTAL = """  real total = 0;
ADDED
  WAIT
  total = across<Sum>(total, spare[FIRST]);
"""

# Lanes after the end of a row have the value -inf, for which exp gives 0.
_HELD_POWERS = """  real power[HELD][WIDTH], top = minus_infinity(), total = 0;
  #pragma unroll
  for (int k = 0; k < HELD; ++k)
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      power[k][j] = WHOLE || first + k * ROW_THREADS < units ? TERM : minus_infinity();
      top = Larger::of(power[k][j], top);
    }
  WAIT
  top = across<Larger>(top, spare[FIRST]);
  #pragma unroll
  for (int k = 0; k < HELD; ++k)
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) total += power[k][j] = exp(power[k][j] - top);
  total = across<Sum>(total, spare[SECOND]);
"""
_PACKED_POWERS = """  real top = minus_infinity(), total = 0;
LARGEST
  WAIT
  top = across<Larger>(top, spare[FIRST]);
ADDED
  total = across<Sum>(total, spare[SECOND]);
"""
# The running sum is rescaled when a larger maximum turns up. The maximum starts at a finite number, since
# -inf - -inf would be a NaN; a row of nothing but -inf still ends in 0 x infinity, the NaN that NumPy gives.
_LOOPING_POWERS = """  real highest = real(-3.4028234e38f), total = 0;
  for (int u = lane; u < units; u += ROW_THREADS) {
UNIT
    real higher = highest, part = 0;
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) higher = Larger::of(TERM, higher);
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) part += exp(TERM - higher);
    total = total * exp(highest - higher) + part;
    highest = higher;
  }
  WAIT
  const real top = across<Larger>(highest, spare[FIRST]);
  total = across<Sum>(total * exp(highest - top), spare[SECOND]);
"""


def cuda_rows(columns: int, dtype: str, limits: Limits, *, arrays: int) -> CudaRows:
    """Return the layout for rows of `columns` elements in `arrays` inputs. Raises Unsupported for rows that are
    longer than the kernels can count."""
    width = math.gcd(columns, lanes(dtype))
    units = columns // width
    if units > _MOST_UNITS:
        raise Unsupported(
            f"a row of {columns} elements takes {units} loads; the kernel counts up to {_MOST_UNITS}",
            reason="limit",
        )
    unit_bytes = arrays * max(4, ITEMSIZE[dtype] * width)  # a register has 4 bytes
    most = HELD_BYTES // unit_bytes
    # 32 bytes of a row for each thread hide the latency of memory
    least_units = min(most, _FIRST_BYTES // (width * ITEMSIZE[dtype]))
    spread = power_of_two_at_least(ceil_div(units, least_units))
    row_threads = max(min(spread, _ROW_THREADS), min(32, power_of_two_at_least(units)))
    if units <= row_threads * most:
        threads = max(row_threads, _SHORT_ROW_THREADS)
        return CudaRows(width, units, threads, row_threads, ceil_div(units, row_threads))
    # longer rows: a cluster of blocks, of 512 threads each and then of 1024
    for row_threads in (_ROW_THREADS, MOST_THREADS):
        cluster = power_of_two_at_least(ceil_div(units, row_threads * most))
        if cluster <= (_MOST_CLUSTER if limits.clusters else 1):
            held = ceil_div(units, row_threads * cluster)
            return CudaRows(width, units, row_threads, row_threads, held, cluster)
    # not held in registers: the threads loop
    return CudaRows(width, units, MOST_THREADS, MOST_THREADS, 0)


# Makes the compiler compute values from packed halves again at their next use, because to keep the values would take
# twice the registers. `nothing` is 0, which the compiler does not know.
_FORGET = """
__device__ __forceinline__ void forget(Unit& unit, long long nothing) {
  if (sizeof(stored) != 2) return;
  unsigned* words = reinterpret_cast<unsigned*>(&unit);
  #pragma unroll
  for (int w = 0; w < WIDTH / 2; ++w) words[w] ^= (unsigned)nothing;
}"""

_JOINS = """
struct Larger { static __device__ __forceinline__ real of(real a, real b) { return a > b ? a : b; } };
struct Sum { static __device__ __forceinline__ real of(real a, real b) { return a + b; } };
"""
# Every thread of a row gets the value folded over the row, by shuffles in a warp, one word of shared memory for each
# warp, and one word for each block of the cluster. Each fold of a kernel has other words, so none is overwritten.
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

_NO_CLUSTER = """__device__ __forceinline__ void arrive() {}
__device__ __forceinline__ void wait() {}
__device__ __forceinline__ int rank() { return 0; }
template <class Join> __device__ __forceinline__ real over_cluster(real value, real*) { return value; }"""

# Each block arrives when it starts and waits before its first fold, so that all blocks of the cluster run by then.
_CLUSTER = """__device__ __forceinline__ void arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
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
