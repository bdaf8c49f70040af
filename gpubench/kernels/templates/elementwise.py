"""Ops whose output element i depends only on element i of each input: one formula, in every language.

An op declares only the formula. Loops, blocks, loads, stores, the tail and the dispatch come from here.

- CPU: a loop that numba compiles around the formula, on all cores.
- CUDA: one 128-bit load of each input and one store per thread, 256 threads a block. On an H200 this reaches 1.01
  of the rate of a device copy (with four loads per thread 0.97). CuPy's elementwise kernels reach 0.40 to 0.60.
- WGSL: 16-byte loads and stores, one or two vectors per thread, and a guarded tail. Rates on an H200 as a share of
  a device copy: 0.97 to 1.01 with four vectors per thread, if neighbouring threads have neighbouring vectors; 0.85
  to 0.93 with one vector per thread; 0.5 to 0.73 with scalars.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from textwrap import indent
from typing import Any

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
)
from gpubench.kernels.contract.op import (
    ITEMSIZE,
    Array,
    Ladder,
    Op,
    Operand,
    Params,
    Shape,
    Split,
    counted_by,
)
from gpubench.kernels.templates import (
    LANES,
    Storage,
    ceil_div,
    fold,
    group_threads,
    kernel_pass,
    lanes,
    log2,
    multiprocessors,
    require_buffers,
    require_storage,
    shader,
    vectors,
    windows,
)
from gpubench.kernels.templates.cpu import (
    STREAMED_BYTES,
    compiled_kernels,
    numba_arguments,
    numba_candidates,
    numba_operands,
    numba_prelude,
    numba_signature,
)
from gpubench.kernels.templates.formula import Formula, require_formula

# 4 KiB to 64 MiB of float32 in eight sizes: from where a launch takes most of the time to where caches no longer help.
LADDER = Ladder(low=2**10, high=2**24)
PARAMS = {"n": "number of elements"}

# The factors of tanh(SCALE (x + CUBIC x^3)) in gelu and its derivative: Hendrycks and Gimpel, arXiv 1606.08415.
GELU_SCALE, GELU_CUBIC = math.sqrt(2 / math.pi), 0.044715


def gelu(m: Any, x: Any) -> Any:
    return x / (1 + m.exp(-2 * GELU_SCALE * m.fma(GELU_CUBIC * x * x, x, x)))


def gelu_tanh(xp: Array, x: Array) -> Array:
    return xp.tanh(GELU_SCALE * (x + GELU_CUBIC * x * x * x))


def gelu_on_arrays(xp: Array, x: Array) -> Array:
    return 0.5 * x * (1 + gelu_tanh(xp, x))


def gelu_scale(xp: Array, x: Array) -> Array:
    """Return the scale of gelu: 0.5 |x| (1 + |tanh|), because the terms of gelu cancel for negative x."""
    return 0.5 * xp.abs(x) * (1 + xp.abs(gelu_tanh(xp, x)))


def vector_shape(params: Params) -> Shape:
    """Return the shape of n numbers: (n,), or rows of `columns` numbers if a stage sets the param `columns`."""
    n, columns = params["n"], params.get("columns")
    return (n,) if columns is None else (n // columns, columns)


def matrix_shape(params: Params) -> tuple[int, int]:
    """Return (m, n): the rows and columns of an n x n matrix, or of an m x n matrix if `m` is given."""
    return params.get("m", params["n"]), params["n"]


def absolute_sum(xp: Array, *terms: Array) -> Array:
    """Return |terms[0]| + |terms[1]| + ..., the scale of a sum whose terms may cancel."""
    total = xp.abs(terms[0])
    for term in terms[1:]:
        total = total + xp.abs(term)
    return total


def operands(inputs: tuple[str | Operand, ...]) -> tuple[Operand, ...]:
    """Return the inputs as operands. A name becomes an operand of n uniform values."""
    return tuple(Operand(x, vector_shape) if isinstance(x, str) else x for x in inputs)


def elementwise(
    *,
    name: str,
    inputs: tuple[str | Operand, ...],
    flops_per_element: int | Callable[[Params], int],
    formula: Callable[..., Any],
    expr: Callable[..., Array] | None = None,
    takes: tuple[str, ...] = (),
    **declared: Any,
) -> Op:
    """Return the op of n elements that applies `formula`, such as `lambda m, x, y: m.exp(x) * y`, to the elements at
    each place of its inputs. Raises ValueError if the formula cannot be traced.

    The formula gives the kernels, the reference and, without `expr(xp, x, y)`, the array expression. It takes
    the params in `takes` as keywords with defaults. An input that is a name has n uniform values. An op with more
    than three inputs has no tuned implementation on the CPU. `declared` are further fields of the op: `group`,
    `summary` and `tolerance` at least.
    """
    arrays = operands(inputs)
    names = [array.name for array in arrays]

    @cache
    def trace_with(*values: int | None) -> Formula:
        chosen = {key: value for key, value in zip(takes, values, strict=True) if value is not None}
        return require_formula(name, partial(formula, **chosen), names)

    def trace_at(params: Params) -> Formula:
        return trace_with(*map(params.get, takes))

    traced = trace_at({})
    on_arrays = traced.on_arrays(formula)
    flops_of = flops_per_element
    return Op(
        name=name, params=PARAMS, sizes=LADDER, inputs=arrays, output=Operand("out", vector_shape), takes=takes,
        flops=lambda params: params["n"] * (flops_of(params) if callable(flops_of) else flops_of),
        expr=expr or on_arrays, reference=None if expr is None else on_arrays,
        split=Split(dict.fromkeys(traced.names, 0), counted_by("n")),
        tuned=by_backend(
            compiled_kernels(
                lambda params, *rest: element_candidates(trace_at(params), params["n"], *rest), len(names)
            ),
            lambda params, dtype, _: build_cuda(name, trace_at(params), params["n"], dtype),
            lambda params, *rest: build_wgsl(trace_at(params), params["n"], *rest),
        ),
        **declared,
    )  # fmt: skip


# ---------------------------------------------------------------- CPU


def element_candidates(formula: Formula, n: int, dtype: str, limits: Limits) -> tuple[Candidate, ...]:
    """Return candidates with different numbers of threads and, for large arrays, with streaming stores."""

    def program(threads: int, streaming: bool) -> NumbaProgram:
        step = NumbaPass("run", numba_operands(formula.names, "out"), n, granule=64)
        return NumbaProgram(_numba_source(formula, dtype, streaming), (step,), threads)

    streamed = n * ITEMSIZE[dtype] >= STREAMED_BYTES
    return numba_candidates(n, limits, program, streamed)


def _numba_source(formula: Formula, dtype: str, streaming: bool) -> str:
    arrays = ", ".join(f"{name}_" for name in formula.names)
    if formula.moved:
        element = f"return {formula.moved}_[i]"  # a value that is only moved is not converted
    else:
        loads = [f"{name} = load({name}_[i])" for name in formula.names]
        element = "\n".join([*loads, formula.statements("python", "return store({})")])
    return f"""{numba_prelude(dtype)}

@scalar
def element({arrays}, i):
{indent(element, "    ")}


{numba_signature(dtype)}
def run({numba_arguments(formula.names)}, out, start, stop, slot, m, s):
    wide_vectors()
{(_NUMBA_STREAMING if streaming else _NUMBA_LOOP).format(arrays=arrays, bytes=ITEMSIZE[dtype])}"""


_NUMBA_LOOP = """    for i in range(start, stop):
        out[i] = element({arrays}, i)
"""
# Blocks are computed in the first cache and written from there. Elements that fill no whole line at the beginning and
# at the end are written by ordinary stores.
_NUMBA_STREAMING = """    block = scratch(out[0])
    i = start
    while i < stop and address(out) + {bytes} * i & 63:
        out[i] = element({arrays}, i)
        i += 1
    lanes = 64 // {bytes}
    while i + lanes <= stop:
        count = min(STREAMED, (stop - i) // lanes * lanes)
        for k in range(count):
            block[k] = element({arrays}, i + k)
        stream(out, i, block, count)
        i += count
    fence()
    for k in range(i, stop):
        out[k] = element({arrays}, k)
"""


# ---------------------------------------------------------------- CUDA

BLOCK_THREADS = 256


def build_cuda(op: str, formula: Formula, n: int, dtype: str) -> CudaProgram:
    """Return the CUDA program that applies the formula to n elements in one launch. Raises Unsupported beyond
    CUDA's largest grid."""
    blocks, arguments = ceil_div(ceil_div(n, lanes(dtype)), BLOCK_THREADS), (*formula.names, "out", n)
    step = kernel_pass(op, dtype, _cuda_source(op, formula), blocks, BLOCK_THREADS, arguments)
    if formula.exact:  # a plain division stays correctly rounded; beside an exponential a short one is no worse
        step = msgspec.structs.replace(step, options=())
    return CudaProgram((step,))


def _cuda_source(op: str, formula: Formula) -> str:
    """Return the translation unit, whose kernel has the inputs, `out` and n (64-bit) as arguments."""
    names = formula.names
    pointers = ", ".join(f"const stored* __restrict__ {name}_" for name in names)
    loads = "\n".join(f"    const Pack {name} = reinterpret_cast<const Pack*>({name}_)[i];" for name in names)

    def value(place: str) -> str:
        # a value that is only moved is not converted, so that each bit pattern is kept
        if formula.moved:
            return place.format(formula.moved)
        return f"narrow(element({', '.join(f'wide({place.format(name)})' for name in names)}))"

    return f"""{"" if formula.moved else formula.cuda("element")}

extern "C" __global__ void gpubench_{op}({pointers}, stored* __restrict__ out_, long long n) {{
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const long long whole = n / LANES;
  if (i < whole) {{
{loads}
    Pack result;
    #pragma unroll
    for (int k = 0; k < LANES; ++k) result.lane[k] = {value("{}.lane[k]")};
    reinterpret_cast<Pack*>(out_)[i] = result;
  }} else if (i == whole) {{
    #pragma unroll 1
    for (long long k = whole * LANES; k < n; ++k) out_[k] = {value("{}_[k]")};
  }}
}}
"""


# ---------------------------------------------------------------- WGSL

VECTORS_PER_THREAD = 2
# With fewer groups per multiprocessor the device is not full, and smaller groups hide latency better.
_FULL_GROUPS = 8


def build_wgsl(formula: Formula, n: int, dtype: str, limits: Limits) -> WgslProgram:
    """Return the WGSL program that applies the formula to n elements, with a dispatch for each window of the
    bindings. Raises Unsupported if the device lacks the dtype, or n exceeds its limits."""
    require_storage(dtype, limits, exact=formula.exact)
    names, size = (*formula.names, "out"), ITEMSIZE[dtype]
    require_buffers(dict.fromkeys(names, n * size), limits)
    passes = []
    for window in windows(n, size, limits):
        threads = group_threads(limits)
        count = ceil_div(window.count, vectors(dtype).width)
        per_thread = VECTORS_PER_THREAD
        if count < threads * per_thread * _FULL_GROUPS * multiprocessors(limits):
            per_thread = 1
        grid = fold(ceil_div(count, threads * per_thread), limits)
        # the text does not depend on n
        text = _wgsl_source(formula, dtype, threads, per_thread)
        passes.append(WgslPass(text, grid, names, uniform=(window.count,), windows=window.of(names, size)))
    return WgslProgram(tuple(passes))


def _wgsl_source(formula: Formula, dtype: str, threads: int, per_thread: int) -> str:
    storage = vectors(dtype)
    before = "\n".join([*_wgsl_functions(formula, storage), *_wgsl_guard(formula, storage)])
    body = "\n".join(_wgsl_main(formula, storage, threads, per_thread))
    buffers = {f"{name}_": storage.unit for name in (*formula.names, "out")}
    return shader(buffers, threads, body, params="n", before=before)


def _wgsl_functions(formula: Formula, storage: Storage) -> list[str]:
    units = ", ".join(f"{name}: {storage.unit}" for name in formula.names)
    start = f"fn apply({units}) -> {storage.unit} {{ return"
    if formula.moved:
        return [f"{start} {formula.moved}; }}"]  # a copy moves bits, NaNs of any kind included
    decoded = [storage.decode(name) for name in formula.names]
    calls = [f"part({', '.join(at)})" for at in zip(*decoded, strict=True)]
    return [
        *storage.functions,
        *formula.wgsl_functions(),
        formula.wgsl("element", storage.real),
        storage.lanewise("part", "element", formula.names),
        f"{start} {storage.encode(*calls)}; }}",
    ]


def _wgsl_guard(formula: Formula, storage: Storage) -> list[str]:
    """Return the lines of a function that stores a unit, or the elements of the tail one by one."""
    loads = ", ".join(f"{name}_[i]" for name in formula.names)
    return [
        "fn guarded(i: u32) {",
        f"  let whole = p.n >> {log2(storage.width)}u;",
        f"  let rest = p.n & {storage.width - 1}u;",
        f"  if (i < whole) {{ out_[i] = apply({loads}); }}",
        "  else if (i == whole && rest > 0u) {",
        f"    let value = apply({loads});",
        *(_wgsl_half_stores() if storage.stored == "f16" else _wgsl_stores(storage)),
        "  }",
        "}",
    ]


def _wgsl_stores(storage: Storage) -> list[str]:
    lanes = enumerate(LANES[: storage.lanes - 1])
    return [f"    if (rest > {k}u) {{ out_[i].{lane} = value.{lane}; }}" for k, lane in lanes]


def _wgsl_half_stores() -> list[str]:
    """Return the statements that store a tail of halves. A half outside the array is not changed."""
    lines = []
    for k, lane in enumerate(LANES):
        lines.append(f"    if (rest > {2 * k + 1}u) {{ out_[i].{lane} = value.{lane}; }}")
        word = f"(out_[i].{lane} & 0xffff0000u) | (value.{lane} & 0xffffu)"
        lines.append(f"    else if (rest > {2 * k}u) {{ out_[i].{lane} = {word}; }}")
    return lines


def _wgsl_main(formula: Formula, storage: Storage, threads: int, per_thread: int) -> list[str]:
    shift = log2(storage.width)
    lines = [
        f"  let base = (group.y * groups.x + group.x) * {threads * per_thread}u;",
        *(f"  let i{k} = base + thread + {k * threads}u;" for k in range(per_thread)),
        f"  if (base + {threads * per_thread}u <= (p.n >> {shift}u)) {{",
    ]
    # All loads stand before the first store, so that they are in flight together.
    for k in range(per_thread):
        lines += [f"    let {name}{k} = {name}_[i{k}];" for name in formula.names]
    for k in range(per_thread):
        lines.append(f"    out_[i{k}] = apply({', '.join(f'{name}{k}' for name in formula.names)});")
    lines.append("  } else {")
    lines += [f"    guarded(i{k});" for k in range(per_thread)]
    return [*lines, "  }"]
