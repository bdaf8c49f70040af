"""transpose: out[i, j] = x[j, i], not as a view of x but in new memory, with one read and one write per element.

x is n x n, or `m` x n if the param `m` is given.
"""

from __future__ import annotations

from functools import partial
from textwrap import indent

from gpubench.kernels.contract.kernel import (
    Candidate,
    CudaProgram,
    Limits,
    NumbaPass,
    NumbaProgram,
    WgslProgram,
    by_backend,
    one_dispatch,
)
from gpubench.kernels.contract.op import EXACT, ITEMSIZE, Ladder, Op, Operand, Params, Split
from gpubench.kernels.templates import (
    LANES,
    Storage,
    ceil_div,
    elements,
    group_threads,
    lanes,
    log2,
    one_launch,
    require_bindings,
    require_grid,
    require_storage,
    shader,
    vectors,
)
from gpubench.kernels.templates.cpu import (
    STREAMED_BYTES,
    compiled_kernels,
    numba_candidates,
    numba_prelude,
    numba_signature,
    thread_counts,
)
from gpubench.kernels.templates.elementwise import matrix_shape

# ---------------------------------------------------------------- CPU


def numba_transposes(rows: int, columns: int, dtype: str, limits: Limits) -> tuple[Candidate, ...]:
    """Return candidates with ordinary stores and, for a large output whose rows are whole cache lines, also with
    streaming stores."""
    size = ITEMSIZE[dtype]

    def program(threads: int, down: int, across: int, streaming: bool) -> NumbaProgram:
        units = ceil_div(rows, down) * ceil_div(columns, across)
        step = NumbaPass("run", ("x", None, None, "out"), units, m=rows, s=columns)
        return NumbaProgram(_numba_source(dtype, down, across, streaming), (step,), threads)

    plain = numba_candidates(
        rows * columns, limits, lambda threads, _: program(threads, _SQUARE, _SQUARE, False), False
    )
    # A tile of halves is half of a line, which no streaming store writes.
    if rows * columns * size < STREAMED_BYTES // 4 or rows * size % 64 or dtype == "float16":
        return plain
    short, long = _SHORT_BYTES // size, _LONG_BYTES // size
    threads = thread_counts(rows * columns, limits)[0]

    def stream(down: int, across: int) -> Candidate:
        name = f"{plain[0].name}, streaming stores by {down} x {across}"
        return Candidate(name, lambda: program(threads, down, across, True))

    return (*plain, stream(short, long), stream(long, short))


_SQUARE = 128
# The bytes of the sides of a rectangle that streaming stores write. Its tiles go along the short side, so that two
# neighbouring lines are read, or written, at once. Measured on 16 cores as a share of the all-core copy, for
# rectangles with few rows, with few columns, and for squares of 128: 0.63, 0.57, 0.51 for 8192 x 8192 floats; 0.57,
# 0.85, 0.65 for 4096 x 4096; 0.95 to 1.05, 0.74 to 0.83, 0.78 to 0.85 for sides that are no power of two. A prefetch
# of the next rectangle, squares transposed in scratch memory, and bands of columns were each slower for some sizes.
_SHORT_BYTES, _LONG_BYTES = 128, 2048


def _numba_source(dtype: str, down: int, across: int, streaming: bool) -> str:
    """Return the Python text of the module that transposes x in rectangles of `down` rows by
    `across` columns."""
    side = min(16, 64 // ITEMSIZE[dtype])
    by_columns, by_rows = f"j in range(left, whole_columns, {side})", f"i in range(top, whole_rows, {side})"
    outer, inner = (by_rows, by_columns) if down > across else (by_columns, by_rows)

    def tiles(*, streamed: bool) -> str:
        return f"for {outer}:\n    for {inner}:\n        transpose_tile(x, i * s + j, s, out, j * m + i, m, {streamed})"

    loops = tiles(streamed=False)
    if streaming:  # a part of an array may begin within a line, where a streaming store is not allowed
        past = indent(tiles(streamed=True), "    ")
        loops = f"if address(out) & 63:\n{indent(loops, '    ')}\nelse:\n{past}"
    return f"""{numba_prelude(dtype)}

{numba_signature(dtype)}
def run(x, unused_b, unused_c, out, start, stop, slot, m, s):
    across = (s + {across - 1}) // {across}
    for unit in range(start, stop):
        top, left = unit // across * {down}, unit % across * {across}
        bottom, right = min(top + {down}, m), min(left + {across}, s)
        whole_rows, whole_columns = top + (bottom - top) // {side} * {side}, left + (right - left) // {side} * {side}
{indent(loops, "        ")}
        for j in range(left, right):
            for i in range(top if j >= whole_columns else whole_rows, bottom):
                out[j * m + i] = x[i * s + j]
    fence()
"""


# ---------------------------------------------------------------- CUDA


def build_cuda(rows: int, columns: int, dtype: str) -> CudaProgram:
    """Return the CUDA program that transposes a rows x columns matrix, with one launch. It moves squares of
    16-byte vectors if both sides are whole numbers of vectors, otherwise single elements."""
    width = lanes(dtype)
    if rows % width == 0 and columns % width == 0:
        text, block, side = _SQUARES, (256, 1, 1), 16 * width
    else:
        text, block, side = _BY_ELEMENT, (32, 8, 1), 32
    blocks = ceil_div(columns, side) * ceil_div(rows, side)
    return one_launch("transpose", dtype, text, blocks, block, ("x", "out", rows, columns))


# The grid has one dimension, because CUDA's second dimension is limited to 65,535 blocks. Neighbouring blocks write to
# neighbouring memory, instead of reading from it, which gains 0.02 to 0.05 of the copy.
_SQUARES = """
const int DOWN = 16, ACROSS = 16, THREADS = DOWN * ACROSS;
extern "C" __global__ void __launch_bounds__(THREADS) gpubench_transpose(
    const stored* __restrict__ x_, stored* __restrict__ out_, long long rows, long long columns) {
  __shared__ Pack tile[ACROSS * LANES][DOWN];
  const long long wide_rows = rows / LANES, wide_columns = columns / LANES;
  const unsigned down = int((wide_rows + DOWN - 1) / DOWN), across = blockIdx.x / down;
  // The block's first square.
  const long long left = (long long)across * ACROSS, top = (long long)(blockIdx.x - across * down) * DOWN;
  const Pack* x = reinterpret_cast<const Pack*>(x_);
  Pack* out = reinterpret_cast<Pack*>(out_);
  Pack given[LANES];
  const int thread = threadIdx.x, row = thread / ACROSS, column = thread % ACROSS;
  if (top + row < wide_rows && left + column < wide_columns)
    #pragma unroll
    for (int k = 0; k < LANES; ++k) given[k] = x[((top + row) * LANES + k) * wide_columns + left + column];
  #pragma unroll
  for (int k = 0; k < LANES; ++k) {
    Pack turned;
    #pragma unroll
    for (int l = 0; l < LANES; ++l) turned.lane[l] = given[l].lane[k];
    tile[column * LANES + k][row ^ (column & 7)] = turned;
  }
  __syncthreads();
  #pragma unroll
  for (int s = 0; s < LANES; ++s) {
    const int q = thread + s * THREADS, j = q / DOWN, i = q % DOWN;
    if (left + j / LANES < wide_columns && top + i < wide_rows)
      out[(left * LANES + j) * wide_rows + top + i] = tile[j][i ^ (j / LANES & 7)];
  }
}
"""

# One element of padding keeps a column of the tile out of a single memory bank. Loads come before stores.
_BY_ELEMENT = """
const int SIDE = 32, STEPS = 4, STEP = SIDE / STEPS;
extern "C" __global__ void __launch_bounds__(SIDE * STEP) gpubench_transpose(
    const stored* __restrict__ x, stored* __restrict__ out, long long rows, long long columns) {
  __shared__ stored tile[SIDE][SIDE + 1];
  const unsigned across = int((columns + SIDE - 1) / SIDE), down = blockIdx.x / across;
  const long long top = (long long)down * SIDE, left = (long long)(blockIdx.x - down * across) * SIDE;
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


# ---------------------------------------------------------------- WGSL

_BINDINGS = ("x", "out")
_SHADER = partial(shader, params="rows columns step_x step_y")
_SIDE = 32


_TILE_SIDES = (16, 8)  # threads along a side of a group, each with a square of vectors


def build_wgsl(rows: int, columns: int, dtype: str, limits: Limits) -> WgslProgram:
    """Return the WGSL program that transposes a rows x columns matrix, with one dispatch. Raises Unsupported if
    the device lacks the dtype, or an array exceeds its limits."""
    require_storage(dtype, limits)
    require_bindings(dict.fromkeys(_BINDINGS, rows * columns * ITEMSIZE[dtype]), limits)
    storage = vectors(dtype)
    threads = 0 if rows % storage.width or columns % storage.width else tile_side(storage, limits)
    side = storage.width * threads or _SIDE
    grid, step_x, step_y = _grid(ceil_div(columns, side), ceil_div(rows, side), limits)
    uniform = (rows, columns, step_x, step_y)
    text = _vector_source(storage, threads) if threads else _element_source(dtype, limits)
    return one_dispatch(text, grid, _BINDINGS, uniform=uniform)


def _grid(across: int, down: int, limits: Limits) -> tuple[tuple[int, int, int], int, int]:
    """Return a grid of across x down groups, and the steps in x and y of a group for each z."""
    most = limits.max_groups_per_dimension
    z = ceil_div(max(across, down), most)
    require_grid(limits, z, min(across, down))
    # a side that is too long for its dimension continues in z
    if across > most:
        return (ceil_div(across, z), down, z), ceil_div(across, z), 0
    return (across, ceil_div(down, z), z), 0, ceil_div(down, z)


def tile_side(storage: Storage, limits: Limits) -> int:
    """Return the first of _TILE_SIDES that the device's threads and workgroup memory allow, or 0 if they allow
    none."""
    for side in _TILE_SIDES:
        if (
            16 * storage.width * side**2 <= limits.max_workgroup_bytes
            and side**2 <= limits.max_workgroup_threads
        ):
            return side
    return 0


def _turn(storage: Storage, names: list[str]) -> list[str]:
    """Return an expression for each column of the square whose rows are the vectors `names`."""
    if storage.stored != "f16":
        return [
            f"{storage.unit}({', '.join(f'{name}.{lane}' for name in names)})"
            for lane in LANES[: storage.width]
        ]
    columns = []
    for j in range(storage.width):
        lane = LANES[j // 2]
        pairs = zip(names[::2], names[1::2], strict=True)
        words = [
            f"({a}.{lane} >> 16u) | ({b}.{lane} & 0xffff0000u)"
            if j & 1
            else f"({a}.{lane} & 0xffffu) | ({b}.{lane} << 16u)"
            for a, b in pairs
        ]
        columns.append(f"vec4<u32>({', '.join(words)})")
    return columns


def _vector_source(storage: Storage, side: int) -> str:
    """Return the text for sides that are whole numbers of vectors."""
    width = storage.width
    bits = log2(width)
    names = [f"r{i}" for i in range(width)]
    loads = "\n".join(f"    let {name} = x_[start + {i}u * across];" for i, name in enumerate(names))
    puts = "\n".join(
        f"    tile[({width}u * c + {j}u) * {side}u + (r ^ (c & {side - 1}u))] = {text};"
        for j, text in enumerate(_turn(storage, names))
    )
    stores = "\n".join(
        f"""  let k{j} = k + {j * side}u;
  if (top + k{j} < p.columns && left < down) {{
    out_[(top + k{j}) * down + left] = tile[k{j} * {side}u + (v ^ ((k{j} >> {bits}u) & {side - 1}u))];
  }}"""
        for j in range(width)
    )
    shared = f"var<workgroup> tile: array<{storage.unit}, {width * side**2}>;"
    body = f"""
  let across = p.columns >> {bits}u;
  let down = p.rows >> {bits}u;
  let c = thread & {side - 1}u;
  let r = thread >> {log2(side)}u;
  let group_x = group.x + group.z * p.step_x;
  let group_y = group.y + group.z * p.step_y;
  let x = group_x * {side}u + c;
  let y = group_y * {side}u + r;
  if (x < across && y < down) {{
    let start = {width}u * y * across + x;
{loads}
{puts}
  }}
  workgroupBarrier();
  let v = thread & {side - 1}u;
  let k = thread >> {log2(side)}u;
  let top = group_x * {width * side}u;
  let left = group_y * {side}u + v;
{stores}
"""
    return _SHADER({"x_": storage.unit, "out_": storage.unit}, side**2, body, before=shared)


def _element_source(dtype: str, limits: Limits) -> str:
    """Return the text for any size: a 32 x 32 tile, read along rows and written along columns."""
    storage, rows = elements(dtype), group_threads(limits) // _SIDE
    # rows one element longer, so that the elements of a column are in different memory banks
    shared = f"var<workgroup> tile: array<array<{storage.stored}, {_SIDE + 1}>, {_SIDE}>;"
    body = f"""
  let x = (group.x + group.z * p.step_x) * {_SIDE}u;
  let y = (group.y + group.z * p.step_y) * {_SIDE}u;
  for (var i = local.y; i < {_SIDE}u; i += {rows}u) {{
    if (y + i < p.rows && x + local.x < p.columns) {{
      tile[i][local.x] = x_[(y + i) * p.columns + x + local.x];
    }}
  }}
  workgroupBarrier();
  for (var i = local.y; i < {_SIDE}u; i += {rows}u) {{
    if (x + i < p.columns && y + local.x < p.rows) {{
      out_[(x + i) * p.rows + y + local.x] = tile[local.x][i];
    }}
  }}
"""
    buffers = {"x_": storage.stored, "out_": storage.stored}
    return _SHADER(buffers, f"{_SIDE}, {rows}", body, before=shared)


def _columns(params: Params, units: int) -> Params:
    """Return the params for `units` columns of x, which are rows of the output."""
    return {"n": units, "m": matrix_shape(params)[0]}


OPS = (
    Op(
        name="transpose",
        group="matrix",
        summary="out = x^T of an n x n matrix, contiguous",
        params={"n": "side of the square matrix"},
        options={"m": "rows of x; n is its columns (default: n)"},
        sizes=Ladder(low=64, high=4096),
        inputs=(Operand("x", matrix_shape),),
        output=Operand("out", lambda params: matrix_shape(params)[::-1]),
        flops=lambda params: 0,
        # x.T alone is a view: nothing would move, and nothing would be measured.
        expr=lambda xp, x: xp.ascontiguousarray(x.T),
        library={"torch": lambda torch, x, out: out.copy_(x.T)},
        tolerance=EXACT,
        split=Split({"x": 1}, _columns),
        tuned=by_backend(
            compiled_kernels(
                lambda params, dtype, limits: numba_transposes(*matrix_shape(params), dtype, limits)
            ),
            lambda params, dtype, limits: build_cuda(*matrix_shape(params), dtype),
            lambda params, dtype, limits: build_wgsl(*matrix_shape(params), dtype, limits),
        ),
    ),
)
