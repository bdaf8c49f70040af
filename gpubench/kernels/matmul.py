"""matmul and gemv: a matrix times a matrix, and a matrix times a vector.

matmul: C = A B. It does 2 n^3 operations on 3 n^2 elements, so arithmetic bounds large sizes. A and B are n x n.
With the params `m` and `k`, A is m x k and B is k x n. With `batch`, one launch computes that many separate
products, and A and B have one more axis, the first. `ta` = 1 (or `tb` = 1) means that A (or B) is stored
transposed, as a backward pass needs it. The WGSL kernels are in `templates/matmul`.

gemv: out = A x. It reads every element of A once, so memory bounds it. A is n x n, or `m` x n if `m` is given. Its
kernels:

- CPU: BLAS. Halves are multiplied as float32, in blocks of rows, by einsum, which takes no lock and starts no
  threads.
- CUDA and WGSL: neighbouring threads share a row, and several short rows share a warp or a group. A thread may
  work on several rows, for which it reads x once. If there are too few rows to fill the device, rows are divided
  into parts, and a second launch adds up the parts in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from gpubench.kernels.contract.kernel import (
    CudaProduct,
    CudaProgram,
    Kernel,
    Limits,
    WgslPass,
    WgslProgram,
    by_backend,
    one_dispatch,
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
    Tolerance,
    counted_by,
)
from gpubench.kernels.templates import (
    UNIT,
    Storage,
    ceil_div,
    elements,
    fold,
    group_threads,
    kernel_pass,
    lanes,
    log2,
    multiprocessors,
    power_of_two_at_least,
    real_dtype,
    require_bindings,
    require_storage,
    shader,
    whole_units,
)
from gpubench.kernels.templates.cpu import SLOW_HALVES, Blocks, Launch, ThreadScratch, widen
from gpubench.kernels.templates.elementwise import matrix_shape, vector_shape
from gpubench.kernels.templates.matmul import wgsl

_TURNS = ("ta", "tb")
_BLOCK = 256 * 1024  # halves that one thread converts at a time, so that they stay in cache


def sides(params: Params) -> tuple[int, int, int]:
    """Return (m, n, k): rows of C, columns of C, length of the inner products."""
    return (*matrix_shape(params), params.get("k", params["n"]))


def _batch(params: Params) -> Shape:
    return (params["batch"],) if "batch" in params else ()


def _shape_a(params: Params) -> Shape:
    m, _, k = sides(params)
    return (*_batch(params), *((k, m) if params.get("ta") else (m, k)))


def _shape_b(params: Params) -> Shape:
    _, n, k = sides(params)
    return (*_batch(params), *((n, k) if params.get("tb") else (k, n)))


def _shape_out(params: Params) -> Shape:
    m, n, _ = sides(params)
    return (*_batch(params), m, n)


def _turns(params: Params) -> tuple[bool, bool]:
    """Return whether A and B are stored transposed."""
    return bool(params.get("ta")), bool(params.get("tb"))


def _flops(params: Params) -> int:
    m, n, k = sides(params)
    return 2 * params.get("batch", 1) * m * n * k


def _fits(params: Params) -> str | None:
    odd = next((name for name in _TURNS if params.get(name, 0) not in (0, 1)), None)
    return None if odd is None else f"{odd} is 1 where the matrix is stored transposed, else 0"


def _split(params: Params) -> Split:
    """Divide A and C by rows, or a batch by whole products."""
    if "batch" in params:
        return Split({"a": 0, "b": 0}, counted_by("batch"))
    return Split({"a": 1 if params.get("ta") else 0}, counted_by("m"))


def _rows(xp: Array, a: Array, b: Array, ta: int, tb: int) -> tuple[Array, Array]:
    """Return views of A and B, transposed if they are stored transposed."""
    return xp.moveaxis(a, -1, -2) if ta else a, xp.moveaxis(b, -1, -2) if tb else b


def _expr(xp: Array, a: Array, b: Array, ta: int = 0, tb: int = 0) -> Array:
    a, b = _rows(xp, a, b, ta, tb)
    return a @ b


def _torch(torch: Any, a: Any, b: Any, ta: int = 0, tb: int = 0, out: Any = None) -> Any:
    product = torch.mm if a.dim() == 2 else torch.bmm
    return product(a.mT if ta else a, b.mT if tb else b, out=out)


def _scale(xp: Array, a: Array, b: Array, ta: int = 0, tb: int = 0) -> Array:
    """Return the scale of the error of each element of C."""
    x, w = _rows(xp, a, b, ta, tb)
    k = x.shape[-1]
    # The root of the sum of three squares. The first is the square of (norm of the row of A times norm of the
    # column of B). The others are for the k roundings of partial sums, and count if a few terms are much larger
    # than the rest, or if all have one sign. A rounding of a sum s has the mean square (u s)^2 / 3. Averaged
    # over all orders of the terms, k roundings add k/18 of the squared terms and k/9 of the squared whole sum.
    # The whole sum is taken to be (sum of the row * sum of the column / k), plus k/9 of the squared terms.
    squares_x, squares_w = xp.sum(x * x, axis=-1, keepdims=True), xp.sum(w * w, axis=-2, keepdims=True)
    largest_x, largest_w = (xp.max(y * y, axis=axis, keepdims=True) for y, axis in ((x, -1), (w, -2)))
    sums = xp.sum(x, axis=-1, keepdims=True) * xp.sum(w, axis=-2, keepdims=True) / k
    terms = xp.minimum(squares_x * largest_w, largest_x * squares_w)
    return xp.sqrt(squares_x * squares_w + k / 6 * terms + k / 9 * sums * sums)


def _product(params: Params, dtype: str) -> wgsl.Product:
    return wgsl.Product(*sides(params), params.get("batch", 1), dtype, *_turns(params))


def _rung(text: str, params: Params, dtype: str, limits: Limits) -> WgslProgram:
    return wgsl.ladder(text, _product(params, dtype), limits)


def _cublas(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    """Return the CUDA program of matmul: a call of cuBLAS, which writes to the output's buffer."""
    own = CudaProduct("a", "b", "out", *sides(params), *_turns(params), params.get("batch", 1))
    return CudaProgram((own,))


def _blas(np: Any, blocks: Blocks, params: Params) -> Launch:
    """Return a launch of BLAS, which reads a transposed matrix in place and uses all cores."""
    turns = _turns(params)
    # not by `blocks`: several threads that call BLAS would compete for BLAS's own threads
    return lambda inputs, output: np.matmul(*_rows(np, inputs[0], inputs[1], *turns), out=output)


def multiply_halves(np: Any, blocks: Blocks, params: Params) -> Launch:
    """Return a launch of matmul on halves: they are converted to float32 and multiplied by BLAS."""
    turns = _turns(params)

    def widen_all(halves: Array) -> Array:
        half, wide = halves.reshape(-1), np.empty(halves.size, np.float32)
        blocks.run(lambda start, stop: widen(np, half[start:stop], wide[start:stop]), half.size, _BLOCK)
        return wide.reshape(halves.shape)

    def launch(arrays: Sequence[Array], output: Array) -> None:
        (a, b), flat_output = map(widen_all, arrays), output.reshape(-1)
        # NumPy's own product of halves is a plain loop
        product = np.matmul(*_rows(np, a, b, *turns)).reshape(-1)

        def narrow(start: int, stop: int) -> None:
            with np.errstate(all="ignore"):
                np.copyto(flat_output[start:stop], product[start:stop], casting="same_kind")

        blocks.run(narrow, output.size, _BLOCK)

    return launch


# ---------------------------------------------------------------- CPU


def build_cpu_halves(np: Any, blocks: Blocks, params: Params) -> Launch:
    """Return a launch of gemv on halves, in blocks of rows that are computed in float32."""
    scratch = ThreadScratch(np)

    def launch(arrays: Sequence[Array], output: Array) -> None:
        a, x = arrays[0], arrays[1].astype(np.float32)
        rows = max(1, _BLOCK // a.shape[1])

        def block(start: int, stop: int) -> None:
            part = a[start:stop]
            wide = scratch.arrays(1, rows * a.shape[1], np.float32)[0]
            part = widen(np, part, wide[: part.size].reshape(part.shape))
            with np.errstate(all="ignore"):
                output[start:stop] = np.einsum("ij,j->i", part, x)

        blocks.run(block, a.shape[0], rows)

    return launch


# ---------------------------------------------------------------- CUDA

_THREADS = 256
_MOST_PARTS = 1024  # blocks along a row; CUDA's limit of the grid in y is 65,535
_UNITS_A_LANE = 2  # least loads of a row for each thread, in WGSL too
_UNITS_A_PART = 4  # least loads of a part of a row for each thread
_BLOCKS_A_MULTIPROCESSOR = 8


class CudaGemv(msgspec.Struct, frozen=True):
    """The assignment of rows to threads in CUDA."""

    width: int  # elements of a load: the largest power of two in 16 bytes that divides the row's length
    lanes: int  # threads that share a row
    rows: int  # rows that a thread computes at once
    parts: int  # parts of a row, each with threads of its own

    @property
    def block_rows(self) -> int:
        return _THREADS // self.lanes * self.rows


def build_cuda(m: int, n: int, dtype: str, limits: Limits) -> CudaProgram:
    """Return the CUDA program of gemv, out = A x for A of m x n. It has one launch, or two if rows are divided
    into parts. Raises Unsupported for more rows than a grid holds."""
    layout = cuda_layout(m, n, dtype, limits)
    blocks = (ceil_div(m, layout.block_rows), layout.parts, 1)
    whole = layout.parts == 1
    target = "out" if whole else "partial"
    first = kernel_pass("gemv", dtype, _cuda_source(layout, dtype), blocks, _THREADS, ("a", "x", target, m, n))
    if whole:
        return CudaProgram((first,))
    arguments = ("partial", "out", m, layout.parts)
    second = kernel_pass("gemv_add", dtype, _ADD_PARTS, ceil_div(m, _THREADS // 32), _THREADS, arguments)
    return CudaProgram((first, second), {"partial": m * layout.parts * max(4, ITEMSIZE[dtype])})


def cuda_layout(m: int, n: int, dtype: str, limits: Limits) -> CudaGemv:
    """Choose the layout. Each of a row's threads makes about two loads of the row. Long rows get so many parts that
    each multiprocessor has eight blocks."""
    width = math.gcd(n, lanes(dtype))
    units = n // width
    half = ITEMSIZE[dtype] < 4
    most = _THREADS // 2 if half else _THREADS
    row_lanes = min(most, power_of_two_at_least(ceil_div(units, _UNITS_A_LANE)))
    # four rows at once if rows are long, and elements are halves or loads have less than 16 bytes
    rows = 4 if m >= 4 and row_lanes >= 32 and (half or width < lanes(dtype)) else 1
    row_blocks = ceil_div(m, _THREADS // row_lanes * rows)
    busy = ceil_div(_BLOCKS_A_MULTIPROCESSOR * multiprocessors(limits), row_blocks)
    longest = max(1, units // (row_lanes * _UNITS_A_PART))
    return CudaGemv(width, row_lanes, rows, min(busy, longest, _MOST_PARTS))


def _cuda_source(layout: CudaGemv, dtype: str) -> str:
    """Return the translation unit of the first launch. It depends on m and n only through the layout."""
    whole = layout.parts == 1
    return f"""const int THREADS = {_THREADS}, ROW_THREADS = {layout.lanes}, ROWS = {layout.rows};
const int WIDTH = {layout.width}, UNROLL = {2 if layout.width == lanes(dtype) else 4};
typedef {"stored" if whole else "real"} result;
__device__ __forceinline__ result finish(real value) {{ return {"narrow(value)" if whole else "value"}; }}

{UNIT}
{_KERNEL}"""


# A thread's row r lies THREADS / ROW_THREADS rows after its row r - 1, so that threads load from neighbouring rows
# together.
_KERNEL = """
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


# ---------------------------------------------------------------- WGSL

_ROWS = 4  # rows of a thread, for which x is read once
_FULL_GROUPS = 8  # per multiprocessor
_MOST_CHUNKS = 1024


class WgslGemv(msgspec.Struct, frozen=True):
    """The assignment of rows to the threads of a group in WGSL."""

    threads: int  # threads of a group
    lanes: int  # threads that share a row
    rows: int  # rows that a thread computes

    @property
    def group_rows(self) -> int:
        return self.threads // self.lanes * self.rows


def build_wgsl(m: int, n: int, dtype: str, limits: Limits) -> WgslProgram:
    """Return the WGSL program of gemv, out = A x for A of m x n. It has one dispatch, or two for few rows. Raises
    Unsupported if the device lacks the dtype, or an array exceeds its limits."""
    require_storage(dtype, limits)
    size = ITEMSIZE[dtype]
    require_bindings({"a": m * n * size, "x": n * size, "out": m * size}, limits)
    storage = whole_units(dtype, n)
    units = n // storage.width
    layout = wgsl_layout(m, units, limits)
    span, parts = chunks(m, units, layout, limits)
    x, y, _ = fold(ceil_div(m, layout.group_rows), limits)
    uniform = (m, units, span, parts)
    if parts == 1:
        text = _wgsl_source(storage, storage.stored, layout)
        return one_dispatch(text, (x, y, 1), ("a", "x", "out"), uniform=uniform)
    text = _wgsl_source(storage, storage.real, layout)
    first = WgslPass(text, (x, y, parts), ("a", "x", "partials"), uniform=uniform)
    partial = elements(real_dtype(dtype))
    rest = wgsl_layout(m, parts, limits)
    text = _wgsl_source(partial, storage.stored, rest, weighted=False)
    grid = fold(ceil_div(m, rest.group_rows), limits)
    second = WgslPass(text, grid, ("partials", "out"), uniform=(m, parts, parts, 1))
    size = m * parts * ITEMSIZE[real_dtype(dtype)]
    return WgslProgram((first, second), scratch={"partials": size})


def wgsl_layout(m: int, units: int, limits: Limits) -> WgslGemv:
    """Choose the number of threads of a row by the row's length in loads, `units`. A thread takes four rows, or
    one if there are few rows."""
    threads = group_threads(limits)
    lanes = min(power_of_two_at_least(ceil_div(units, _UNITS_A_LANE)), threads)
    rows = _ROWS if ceil_div(m, threads // lanes * _ROWS) >= 2 * multiprocessors(limits) else 1
    return WgslGemv(threads, lanes, rows)


def chunks(m: int, units: int, layout: WgslGemv, limits: Limits) -> tuple[int, int]:
    """Return (units of a chunk, chunks of a row). A row is divided into several chunks if whole rows would leave
    the device partly idle."""
    groups = ceil_div(m, layout.group_rows)
    most = min(_FULL_GROUPS * multiprocessors(limits) // groups, _MOST_CHUNKS)
    longest = units // (layout.lanes * _UNITS_A_LANE)
    count = max(1, min(most, longest, limits.max_groups_per_dimension))
    span = ceil_div(ceil_div(units, count), layout.lanes) * layout.lanes
    return span, ceil_div(units, span)


def _wgsl_source(storage: Storage, result: str, layout: WgslGemv, *, weighted: bool = True) -> str:
    """Return the text of one pass: A times x if `weighted`, otherwise the sum of each row of A."""
    # The result of chunk z of row r goes to out_[r * chunks + z], as the type `result`.
    names = ("a_", "x_") if weighted else ("a_",)
    sums = f"var<workgroup> sums: array<{storage.real}, {layout.threads * layout.rows}>;"
    return shader(
        {**dict.fromkeys(names, storage.unit), "out_": result}, layout.threads,
        _main(storage, result, layout, weighted), params="m units span chunks",
        before="\n".join([sums, *storage.functions]),
    )  # fmt: skip


def _main(storage: Storage, result: str, layout: WgslGemv, weighted: bool) -> str:
    threads, lanes, rows = layout.threads, layout.lanes, range(layout.rows)
    apart = threads // lanes  # rows that neighbouring groups of lanes work on at a time
    lines = [
        f"  let lane = thread & {lanes - 1}u;",
        f"  let row = (group.y * groups.x + group.x) * {layout.group_rows}u + (thread >> {log2(lanes)}u);",
        "  let end = min((group.z + 1u) * p.span, p.units);",
    ]
    for r in rows:
        # Rows past the last repeat it and write nothing: no thread may leave before a barrier.
        lines.append(f"  let start{r} = min(row + {r * apart}u, p.m - 1u) * p.units;")
        lines.append(f"  var total{r} = {storage.part}();")
    lines.append(f"  for (var u = group.z * p.span + lane; u < end; u += {lanes}u) {{")
    lines += ["    let x = x_[u];"] if weighted else []
    lines += [f"    let a{r} = a_[start{r} + u];" for r in rows]
    for r in rows:
        for i, a in enumerate(storage.decode(f"a{r}")):
            added = f"fma({a}, {storage.decode('x')[i]}, total{r})" if weighted else f"total{r} + {a}"
            lines.append(f"    total{r} = {added};")
    lines.append("  }")
    lines += [f"  sums[thread + {r * threads}u] = {storage.across('', f'total{r}')};" for r in rows]
    half = lanes // 2
    while half:
        lines += ["  workgroupBarrier();", f"  if (lane < {half}u) {{"]
        for r in rows:
            at = f"thread + {r * threads}u"
            lines.append(f"    sums[{at}] += sums[{at} + {half}u];")
        lines.append("  }")
        half //= 2
    for r in rows:
        value = f"{result}(sums[thread + {r * threads}u])"
        guard = f"lane == 0u && row + {r * apart}u < p.m"
        lines.append(f"  if ({guard}) {{ out_[(row + {r * apart}u) * p.chunks + group.z] = {value}; }}")
    return "\n".join(lines)


# ---------------------------------------------------------------- the op


OPS = (
    Op(
        name="matmul",
        group="matrix",
        summary="C = A B of n x n matrices",
        params={"n": "side of the square matrices"},
        options={
            "m": "rows of A and C",
            "k": "columns of A, rows of B",
            "batch": "products in one launch, each of its own A and B",
            "ta": "1: A is stored transposed",
            "tb": "1: B is stored transposed",
        },
        fits=_fits,
        takes=_TURNS,
        sizes=Ladder(low=32, high=4096, factor=2, granule=8),
        inputs=(Operand("a", _shape_a), Operand("b", _shape_b)),
        output=Operand("out", _shape_out),
        flops=_flops,
        expr=_expr,
        library={"torch": _torch},
        tolerance=Tolerance(8, scale=_scale),
        split=_split,
        terms=lambda params: {"a": -2 if params.get("ta") else -1, "b": -1 if params.get("tb") else -2},
        blas=("numpy", "torch"),
        tf32=("cupy", "torch"),
        slow=SLOW_HALVES,
        tuned=by_backend(
            (
                Kernel("numpy", _blas, library=True, dtypes=("float32", "float64")),
                Kernel("numpy", multiply_halves, variant="widened", dtypes=("float16",)),
            ),
            Kernel("cuda", _cublas, library=True),
            (
                wgsl.kernel(_product),
                Kernel("wgsl", partial(_rung, wgsl.TILED), variant="tiled"),
                Kernel("wgsl", partial(_rung, wgsl.NAIVE), variant="naive"),
            ),
        ),
    ),
    Op(
        name="gemv",
        group="matrix",
        summary="out = A x, A n x n",
        params={"n": "side of the square matrix A"},
        options={"m": "rows of A; n is its columns (default: n)"},
        sizes=Ladder(low=64, high=4096, granule=8),
        inputs=(Operand("a", matrix_shape), Operand("x", vector_shape)),
        output=Operand("out", lambda params: matrix_shape(params)[:1]),
        flops=lambda params: 2 * math.prod(matrix_shape(params)),
        expr=lambda xp, a, x: a @ x,
        library={"torch": lambda torch, a, x, out: torch.mv(a, x, out=out)},
        # The norm of a row of A times the norm of x.
        tolerance=Tolerance(8, scale=lambda xp, a, x: xp.sqrt(xp.sum(a * a, axis=1)) * xp.sqrt(xp.sum(x * x))),
        reference=lambda xp, a, x: xp.sum(a * x, axis=1),
        blas=("numpy", "torch"),
        split=Split({"a": 0}, counted_by("m")),
        terms=lambda params: {"a": 1, "x": 0},
        tuned=by_backend(
            (
                Kernel("numpy", _blas, library=True, dtypes=("float32", "float64")),
                Kernel("numpy", build_cpu_halves, variant="widened", dtypes=("float16",)),
            ),
            lambda params, dtype, limits: build_cuda(*matrix_shape(params), dtype, limits),
            lambda params, dtype, limits: build_wgsl(*matrix_shape(params), dtype, limits),
        ),
    ),
)
