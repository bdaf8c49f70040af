"""Reductions to one number: a formula of the inputs at each place, and a join of two partial results.

- CPU: partial results of blocks on all cores; halves are reduced in float32.
- CUDA: one launch. Blocks stride through the vectors, and each writes one partial result. An atomic counter tells
  which block ends last; that block joins the results in a fixed order, so every launch gives the same number. Few
  large blocks reach 0.99 of the rate of a device copy on an H200, 4096 blocks of 256 threads 0.91.
- WGSL: groups stride through the vectors by 16-byte loads and write partial results to scratch memory, then one
  group joins them. On an H200, 512 to 4096 groups reach 1.01 of a device copy. A short vector takes a single pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from textwrap import indent
from typing import Any, Literal

import msgspec

from gpubench.kernels.contract.kernel import (
    Candidate,
    CudaProgram,
    Limits,
    NumbaPass,
    NumbaProgram,
    WgslPass,
    WgslProgram,
    by_backend,
    one_dispatch,
)
from gpubench.kernels.contract.op import ITEMSIZE, Array, Op, Operand, Params, Split, counted_by
from gpubench.kernels.templates import (
    LANES,
    Storage,
    ceil_div,
    fold_lanes,
    group_threads,
    kernel_pass,
    lanes,
    log2,
    part_function,
    real_dtype,
    require_buffers,
    require_storage,
    shader,
    vectors,
    windows,
)
from gpubench.kernels.templates.cpu import (
    compiled_kernels,
    numba_arguments,
    numba_candidates,
    numba_operands,
    numba_prelude,
    numba_signature,
)
from gpubench.kernels.templates.elementwise import LADDER, PARAMS, operands
from gpubench.kernels.templates.formula import Formula, require_formula, trace

# Name, in array libraries, of the function that joins two results.
Join = Literal["add", "maximum"]
_ARRAY_JOINS = {"add": "sum", "maximum": "max"}


def reduction(
    *,
    name: str,
    inputs: tuple[str | Operand, ...],
    flops_per_element: int,
    formula: Callable[..., Any],
    join: Join,
    expr: Callable[..., Array] | None = None,
    linear: bool = False,
    **declared: Any,
) -> Op:
    """Return the op that computes `formula(m, x, y)` at each of n places and joins the results to one number.
    Raises ValueError if the formula cannot be traced.

    An input that is a name has n uniform values. `expr(xp, x, y)` replaces the array expression. `linear` says
    that the formula is linear in each input, so that the gate also finds a single missing term. An op with more
    than three inputs has no tuned implementation on the CPU. `declared` are further fields of the op: `group`,
    `summary` and `tolerance` at least.
    """
    own = operands(inputs)
    axes = dict.fromkeys((x.name for x in own), 0)
    element = require_formula(name, formula, [x.name for x in own])
    on_arrays = element.on_arrays(formula)

    def reduce(xp: Array, *arrays: Array) -> Array:
        return getattr(xp, _ARRAY_JOINS[join])(on_arrays(xp, *arrays))

    return Op(
        name=name, params=PARAMS, sizes=LADDER, inputs=own, output=Operand("out", lambda params: ()),
        flops=lambda params: flops_per_element * params["n"],
        expr=expr or reduce, reference=None if expr is None else reduce,
        split=Split(axes, counted_by("n"), join=join), terms=(lambda params: axes) if linear else None,
        tuned=by_backend(
            compiled_kernels(partial(reduction_candidates, element, join), len(inputs)),
            partial(build_cuda, name, element, join),
            partial(build_wgsl, element, join),
        ),
        **declared,
    )  # fmt: skip


# ---------------------------------------------------------------- CPU

_PARTIAL_STRIDE = 8  # float64 elements between the results of two slices: a cache line
_STREAMS, _RUN = 2, 1 << 17  # places at which a thread reads at once, and most elements between two joins


def reduction_candidates(
    element: Formula, join: Join, params: Params, dtype: str, limits: Limits
) -> tuple[Candidate, ...]:
    """Return candidates with different numbers of threads. Each thread reduces one slice, and then one thread
    joins the partial results."""
    n, names = params["n"], element.names
    source = _numba_source(element, join, dtype)

    def program(threads: int, streaming: bool) -> NumbaProgram:
        fold = NumbaPass("fold", numba_operands(names, "partial"), n, granule=64)
        last = NumbaPass("join", ("partial", None, None, "out"), 1, m=threads, slices=1)
        return NumbaProgram(source, (fold, last), threads, {"partial": 8 * _PARTIAL_STRIDE * threads})

    return numba_candidates(n, limits, program, streamed=False)


def _numba_source(element: Formula, join: Join, dtype: str) -> str:
    # Sums within a block are in the type of the arithmetic (float32 for halves), and over the blocks in
    # float64: the error of a few additions at the speed of the narrow type. The compiler may reorder additions
    # (`summing`), so it keeps several partial results in registers. A block is read at two places at once, many
    # pages apart: a single stream waits at every page, and short streams restart the prefetcher. (Two cores of an
    # EPYC read 30 GB/s as four streams of 8 KiB, 36 as two of 256 KiB.)
    names = element.names
    arrays = ", ".join(f"{name}_" for name in names)
    adds = join == "add"
    streams = range(_STREAMS)

    def at(place: str, total: str) -> str:
        loads = "\n".join(f"{name} = load({name}_[{place}])" for name in names)
        joined = f"{total} += {{}}"
        # The fast instruction for the maximum is undefined for NaNs. So NaNs are counted, and if there is one the
        # result is NaN.
        if not adds:
            joined = f"value = {{}}\n{total} = larger({total}, value)\nbad += value != value"
        return indent(f"{loads}\n{element.statements('python', joined)}", "        ")

    start = "real(0)" if adds else "minus_infinity"
    starts = "; ".join(f"r{k} = {start}" for k in streams)
    steps = "\n".join(at(f"i + {k} * length", f"r{k}") for k in streams)
    ends = " + ".join(f"r{k}" for k in streams) if adds else "larger(r0, r1)"
    result = "r0" if adds else "r0 if bad == 0 else real(nan)"
    return f"""{numba_prelude(dtype)}
nan = float64("nan")


@summing
def block({arrays}, start, length):
    bad = 0
    {starts}
    for i in range(start, start + length):
{steps}
    r0 = {ends}
    return {result}


@summing
def tail({arrays}, start, stop):
    bad = 0
    r0 = {start}
    for i in range(start, stop):
{at("i", "r0")}
    return {result}


{numba_signature(dtype, 3)}
def fold({numba_arguments(names)}, out, start, stop, slot, m, s):
    wide_vectors()
    length = min({_RUN // _STREAMS}, (stop - start) // {64 * _STREAMS} * 64)
    run = length * {_STREAMS}
    whole = (stop - start) // run * run if run else 0
    result = float64(tail({arrays}, start + whole, stop))
    for first in range(start, start + whole, max(1, run)):
        one = float64(block({arrays}, first, length))
        result = {"result + one" if adds else "maximum(result, one)"}
    out[slot * {_PARTIAL_STRIDE}] = result


@kernel("float64", "float64", "float64", {dtype!r})
def join(partial, b, c, out, start, stop, slot, m, s):
    result = partial[0]
    for k in range(1, m):
        one = partial[k * {_PARTIAL_STRIDE}]
        result = {"result + one" if adds else "maximum(result, one)"}
    out[0] = store(real(result))
"""


# ---------------------------------------------------------------- CUDA

# For each join: the function of a and b, and its neutral value. `larger(a, b)` is NaN if either is NaN.
_CUDA_JOINS = {"add": ("a + b", "real(0)"), "maximum": ("larger(a, b)", "minus_infinity()")}


def build_cuda(
    op: str, element: Formula, join: Join, params: Params, dtype: str, limits: Limits
) -> CudaProgram:
    """Return the CUDA program of the reduction, with one launch. Raises Unsupported beyond CUDA's largest grid."""
    n, arrays = params["n"], len(element.names)
    # four 16-byte loads in flight per thread; smaller blocks if there would be too few large ones
    grid = ReductionGrid(1024, max(1, 4 // arrays), 1056 * arrays)
    if grid.tiles(n, dtype) < grid.blocks:
        grid = ReductionGrid(256, 4, 4096)
    text = _cuda_source(op, element, join, dtype, grid)
    blocks, arguments = min(grid.tiles(n, dtype), grid.blocks), (*element.names, "out", "partial", "ticket", n)
    step = kernel_pass(op, dtype, text, blocks, grid.threads, arguments)
    return CudaProgram((step,), {"partial": grid.blocks * max(4, ITEMSIZE[dtype]), "ticket": 16})


class ReductionGrid(msgspec.Struct, frozen=True):
    """The assignment of elements to blocks."""

    threads: int  # threads of a block
    vectors: int  # vectors that a thread loads at once
    blocks: int  # largest number of blocks

    def tiles(self, n: int, dtype: str) -> int:
        """Return the number of blocks for n elements if each block loads only once."""
        return ceil_div(n, lanes(dtype) * self.threads * self.vectors)


def _cuda_source(op: str, element: Formula, join_name: Join, dtype: str, grid: ReductionGrid) -> str:
    """Return the CUDA translation unit of the reduction, which does not depend on n."""
    names = element.names
    join, start = _CUDA_JOINS[join_name]
    pointers = ", ".join(f"const stored* __restrict__ {name}_" for name in names)
    loads = " ".join(f"{name}[k] = reinterpret_cast<const Pack*>({name}_)[i + k * THREADS];" for name in names)
    packs = ", ".join(f"{name}[VECTORS]" for name in names)
    values = ", ".join(f"wide({name}[k].lane[j])" for name in names)
    scalars = ", ".join(f"wide({name}_[whole * LANES + threadIdx.x])" for name in names)
    return f"""const int THREADS = {grid.threads}, VECTORS = {grid.vectors};
{_LARGER["double" if dtype == "float64" else "float"]}
__device__ __forceinline__ real join(real a, real b) {{ return {join}; }}
{element.cuda("element")}
{_FOLD}
extern "C" __global__ void __launch_bounds__(THREADS) gpubench_{op}(
    {pointers}, stored* __restrict__ out, real* partial, unsigned* ticket, long long n) {{
  __shared__ real spare[32];
  __shared__ bool last;
  const real start = {start};
  const long long whole = n / LANES, stride = (long long)gridDim.x * (THREADS * VECTORS);
  real folded[LANES];
  #pragma unroll
  for (int j = 0; j < LANES; ++j) folded[j] = start;
  long long i = (long long)blockIdx.x * (THREADS * VECTORS) + threadIdx.x;
  for (; i + (VECTORS - 1) * THREADS < whole; i += stride) {{
    Pack {packs};
    #pragma unroll
    for (int k = 0; k < VECTORS; ++k) {{ {loads} }}
    #pragma unroll
    for (int k = 0; k < VECTORS; ++k)
      #pragma unroll
      for (int j = 0; j < LANES; ++j) folded[j] = join(folded[j], element({values}));
  }}
  #pragma unroll 1
  for (; i < whole; i += THREADS) {{  // the last, shorter tile
    const int k = 0;
    Pack {packs.replace("VECTORS", "1")};
    {loads}
    #pragma unroll
    for (int j = 0; j < LANES; ++j) folded[j] = join(folded[j], element({values}));
  }}
  if (blockIdx.x == 0 && threadIdx.x < n - whole * LANES) folded[0] = join(folded[0], element({scalars}));
  #pragma unroll
  for (int far = LANES / 2; far > 0; far /= 2)
    #pragma unroll
    for (int j = 0; j < far; ++j) folded[j] = join(folded[j], folded[j + far]);
  real total = fold(folded[0], start, spare);
  if (gridDim.x > 1) {{
    if (threadIdx.x == 0) {{
      partial[blockIdx.x] = total;
      __threadfence();
      last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;  // and 0 again for the next launch
    }}
    __syncthreads();
    if (!last) return;
    __threadfence();
    total = start;
    #pragma unroll 4
    for (int b = threadIdx.x; b < gridDim.x; b += THREADS) total = join(total, __ldcg(partial + b));
    total = fold(total, start, spare);
  }}
  if (threadIdx.x == 0) *out = narrow(total);
}}
"""


_LARGER = {
    "float": """__device__ __forceinline__ float larger(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
#else
  return a != a || a > b ? a : b;
#endif
}""",
    "double": "__device__ __forceinline__ double larger(double a, double b) { return a != a || a > b ? a : b; }",
}

_FOLD = """
// The value of all threads of the block, folded: right in thread 0.
__device__ __forceinline__ real fold(real value, real start, real* spare) {
  #pragma unroll
  for (int far = 16; far > 0; far /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, far));
  __syncthreads();
  if (threadIdx.x % 32 == 0) spare[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x >= 32) return value;
  value = threadIdx.x < THREADS / 32 ? spare[threadIdx.x] : start;
  #pragma unroll
  for (int far = 16; far > 0; far /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, far));
  return value;
}
"""


# ---------------------------------------------------------------- WGSL

# Up to this many vectors (64 KiB per input) a second pass would cost more than it saves.
_ONE_GROUP_VECTORS = 4096
_MOST_GROUPS = 4096
_UNROLL = 4  # loads in flight per thread and input
# The bits of minus infinity are passed with the sizes, because WGSL has no literal for it.
_MINUS_INFINITY_BITS = 0xFF800000


# For each join: the function of a and b, which are numbers or vectors, and its neutral value. The maximum is `a` if
# `a` is NaN or b <= a, otherwise `b`.
_WGSL_JOINS = {
    "add": ("a + b", "0.0"),
    "maximum": ("select(a, b, !(b <= a) & (a == a))", "bitcast<f32>(p.low)"),
}
_PARTIAL = trace(lambda m, x: x, ["x"])


def build_wgsl(element: Formula, join: Join, params: Params, dtype: str, limits: Limits) -> WgslProgram:
    """Return the WGSL program of the reduction. A short input has one dispatch. A longer one has a dispatch for each
    window of the bindings, and a last dispatch that joins the partial results. Raises Unsupported if the device
    lacks the dtype, or n exceeds its limits."""
    n, names = params["n"], element.names
    require_storage(dtype, limits, exact=element.exact)
    require_buffers(dict.fromkeys(names, n * ITEMSIZE[dtype]), limits)
    threads = group_threads(limits)
    data, partial = vectors(dtype), vectors(real_dtype(dtype))
    if ceil_div(n, data.width) <= _ONE_GROUP_VECTORS:
        text = _wgsl_source(element, join, data, data.stored, threads)
        return one_dispatch(text, (1, 1, 1), (*names, "out"), uniform=_uniform(n))
    text, passes, first = _wgsl_source(element, join, data, data.real, threads), [], 0
    for window in windows(n, ITEMSIZE[dtype], limits):
        whole = ceil_div(window.count, data.width)
        groups = min(_MOST_GROUPS, ceil_div(whole, threads * _UNROLL), limits.max_groups_per_dimension)
        parts = window.of(names, ITEMSIZE[dtype])
        uniform = _uniform(window.count, first)
        passes.append(WgslPass(text, (groups, 1, 1), (*names, "partials"), uniform=uniform, windows=parts))
        first += groups
    text = _wgsl_source(_PARTIAL, join, partial, data.stored, threads)
    passes.append(WgslPass(text, (1, 1, 1), ("partials", "out"), uniform=_uniform(first)))
    size = first * ITEMSIZE[real_dtype(dtype)]
    return WgslProgram(tuple(passes), scratch={"partials": size})


def _uniform(n: int, first: int = 0) -> tuple[int, int, int]:
    return (n, first, _MINUS_INFINITY_BITS)


def _wgsl_source(element: Formula, join_name: Join, storage: Storage, result: str, threads: int) -> str:
    """Return the text of one pass, whose group g writes its partial result to out_[first + g]."""
    names, (join, start) = element.names, _WGSL_JOINS[join_name]
    before = [
        f"var<workgroup> shared_: array<{storage.real}, {threads}>;",
        *storage.functions,
        f"fn join_parts(a: {storage.part}, b: {storage.part}) -> {storage.part} {{ return {join}; }}",
        f"fn join(a: {storage.real}, b: {storage.real}) -> {storage.real} {{ return {join}; }}",
        *part_function("element", element, storage),
    ]
    buffers = {**{f"{name}_": storage.unit for name in names}, "out_": result}
    main = _main(names, start, storage, result, threads)
    return shader(buffers, threads, main, params="n first low", before="\n".join(before))


def _elements(names: Sequence[str], storage: Storage, index: str) -> list[str]:
    """Return, for each part of the unit at `index`, the expression that computes the formula."""
    decoded = [storage.decode(f"{name}_[{index}]") for name in names]
    return [f"element({', '.join(at)})" for at in zip(*decoded, strict=True)]


def _join_all(values: list[str]) -> str:
    """Return an expression that joins all values, by nested calls of `join_parts`."""
    return values[0] if len(values) == 1 else f"join_parts({values[0]}, {_join_all(values[1:])})"


def _main(names: Sequence[str], start: str, storage: Storage, result: str, threads: int) -> str:
    accumulators = [f"a{k}" for k in range(_UNROLL)]
    lines = [
        f"  let whole = p.n >> {log2(storage.width)}u;",
        f"  let rest = p.n & {storage.width - 1}u;",
        f"  let stride = groups.x * {threads}u;",
        f"  var i = group.x * {threads}u + thread;",
        f"  let start = {storage.part}({storage.real}({start}));",
        *(f"  var {a} = start;" for a in accumulators),
        # As many accumulators as loads: all are in flight before the first one is needed.
        f"  for (; i + {_UNROLL - 1}u * stride < whole; i += {_UNROLL}u * stride) {{",
        *(
            f"    {a} = {_join_all([a, *_elements(names, storage, f'i + {k}u * stride')])};"
            for k, a in enumerate(accumulators)
        ),
        "  }",
        f"  for (; i < whole; i += stride) {{ a0 = {_join_all(['a0', *_elements(names, storage, 'i')])}; }}",
        f"  var a = {_join_all(accumulators)};",
        *_tail(names, storage),
        f"  shared_[thread] = {storage.across('join', 'a')};",
        *fold_lanes("shared_", "join({a}, {b})", threads, "thread"),
        f"  if (thread == 0u) {{ out_[p.first + group.x] = {result}(shared_[0]); }}",
    ]
    return "\n".join(lines)


def _tail(names: Sequence[str], storage: Storage) -> list[str]:
    """Return WGSL statements for the last elements, which do not fill a unit."""
    # the one thread whose index has reached `whole`, the number of whole units
    lines = ["  if (i == whole && rest > 0u) {"]
    lines += [f"    let e{k} = {text};" for k, text in enumerate(_elements(names, storage, "i"))]
    for k in range(storage.width - 1):
        lane = LANES[k % storage.lanes]
        value = f"join(a.{lane}, e{k // storage.lanes}.{lane})"
        lines.append(f"    if (rest > {k}u) {{ a.{lane} = {value}; }}")
    return [*lines, "  }"]
