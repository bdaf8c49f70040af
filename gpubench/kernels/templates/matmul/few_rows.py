"""Products of a few rows (at most 16) and a matrix of weights, with their epilogue, in one launch.

The time of such products goes into reading the weights and starting launches, not into arithmetic. The threads of a
group share a block of columns. Each thread takes some of the k steps, for all rows of x in its group. It loads 16
bytes of weights at a time if the length of a row of weights allows it. Weights that are stored transposed are read
along their rows, by up to a warp for each column.

Layernorm may be applied to the rows first. Each group then norms the rows that it multiplies, and keeps them in
its memory in the type of the arithmetic. The first weights are loaded meanwhile.

- CUDA: the sum of a row, and then the sum of squares about the mean, are added up by shuffles within each warp, and
  over the warps of the row in shared memory.
- WGSL: without shuffles. Each thread reduces its elements to a pair: their mean, and the sum of squares about this
  mean. The pairs of a row are joined to one in two steps of about equal length, because each step needs a barrier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpubench.kernels.contract.kernel import CudaPass, Limits, WgslProgram, one_dispatch
from gpubench.kernels.contract.op import ITEMSIZE
from gpubench.kernels.templates import (
    MOST_BLOCKS,
    UNIT,
    Storage,
    ceil_div,
    elements,
    fold,
    fold_lanes,
    group_threads,
    kernel_pass,
    lanes,
    log2,
    multiprocessors,
    power_of_two_at_least,
    require_storage,
    shader,
    whole_units,
)
from gpubench.kernels.templates.matmul import Epilogue
from gpubench.kernels.templates.rows import EPSILON
from gpubench.kernels.templates.rows.cuda import folds

# Most units of weights that a thread loads before the norm. They arrive while the norm is computed.
_MOST_AHEAD = 4


class RowNorm(msgspec.Struct, frozen=True):
    """The layernorm of a few rows by the group of threads that then multiplies them by the weights."""

    rows: int  # rows of the group
    k: int  # elements of a row
    threads: int  # threads of the group
    shares: int  # number of threads that divide the k steps of the product among them

    @property
    def held_rows(self) -> int:
        """The number of rows for which the group has memory: `rows`, rounded up to a power of two."""
        # so each row has equally many threads
        return power_of_two_at_least(self.rows)

    @property
    def lanes(self) -> int:
        """The number of threads for each row."""
        return max(1, self.threads // self.held_rows)

    @property
    def elements(self) -> int:
        """The largest number of elements of a row that a thread holds."""
        return ceil_div(self.k, self.lanes)

    @property
    def chunks(self) -> int:
        """The number of pairs (mean, sum of squares) of a row after the first of two joins in WGSL."""
        # a thread combines about equally many pairs in both joins
        return 1 << self.lanes.bit_length() // 2

    # ------------------------------------------------------------ CUDA

    def cuda_bytes(self, real_bytes: int) -> int:
        """Return the bytes of a block's memory that the norm needs."""
        return real_bytes * (self.held_rows * self.k + 2 * ceil_div(self.threads, 32))

    def cuda_head(self) -> str:
        """Return the constants, and the function that adds up over the threads of a row, at least a warp."""
        ahead = min(_MOST_AHEAD, ceil_div(self.k, self.shares))
        return f"""
const int K = {self.k}, HELD_ROWS = {self.held_rows}, ROW_THREADS = {self.lanes}, HELD = {self.elements};
const int AHEAD = {ahead};
{folds()}"""

    # ------------------------------------------------------------ WGSL

    def wgsl_bytes(self, real_bytes: int) -> int:
        """Return the bytes of a group's memory that the norm needs."""
        return real_bytes * (self.held_rows * self.k + 2 * self.threads + 2 * self.held_rows * self.chunks)

    @property
    def wgsl_ahead(self) -> int:
        """The number of units of weights that each thread loads before the norm."""
        return min(_MOST_AHEAD, self.k // self.shares)

    def wgsl_head(self, real: str) -> str:
        """Return the declarations of the group's memory and of two functions. `held(lane)` is the number of elements
        of a row that a thread has, `stands_for(chunk)` the number in a pair after the first join."""
        pair = f"vec2<{real}>"
        return f"""
var<workgroup> rows: array<{real}, {self.held_rows * self.k}>;
var<workgroup> parts: array<{pair}, {self.threads}>;
var<workgroup> chunks: array<{pair}, {self.held_rows * self.chunks}>;
fn held(lane: u32) -> {real} {{ return {self._count(real, self.lanes)}; }}
fn stands_for(chunk: u32) -> {real} {{ return {self._count(real, self.chunks, "chunk")}; }}"""

    def _count(self, real: str, lanes: int, lane: str = "lane") -> str:
        """Return an expression for how many elements the lane `lane` has, if `lanes` lanes divide a row."""
        least, rest = divmod(self.k, lanes)
        return f"{real}({least}u + select(0u, 1u, {lane} < {rest}u))" if rest else f"{real}({least}.0)"

    def wgsl_rows(self, single: Storage, source: str) -> str:
        """Return statements that write the normed rows to `rows`. `source` is the expression for the row of x that a
        thread reads."""
        real, lanes, chunks, places = single.real, self.lanes, self.chunks, range(self.elements)
        partly = self.k % lanes  # lanes that hold an element more than the others

        def inside(place: int, value: str) -> str:
            last = partly and place == self.elements - 1
            return f"select({real}(), {value}, lane < {partly}u)" if last else value

        lines = [
            f"let lane = thread & {lanes - 1}u;",
            f"let own = thread >> {log2(lanes)}u;",
            f"let start = {source} * {self.k}u;",
        ]
        for place in places:
            at = f"lane + {place * lanes}u"
            at = f"min({at}, {self.k - 1}u)" if partly and place == self.elements - 1 else at
            lines += [
                f"let at{place} = {at};",
                f"let v{place} = {single.decode(f'x_in[start + at{place}]')[0]};",
                f"let gain{place} = {single.decode(f'g_in[at{place}]')[0]};",
                f"let shift{place} = {single.decode(f'c_in[at{place}]')[0]};",
            ]
        total = _add([inside(place, f"v{place}") for place in places])
        squares = _add([inside(place, f"(v{place} - middle) * (v{place} - middle)") for place in places])
        lines += [
            f"let middle = {total} / {_some('held(lane)', real)};",
            f"parts[thread] = vec2<{real}>(middle, {squares});",
            "workgroupBarrier();",
            f"let chunk = lane & {chunks - 1}u;",
        ]
        joins = lanes // chunks
        lines += [f"let a{j} = parts[thread - lane + chunk + {j * chunks}u];" for j in range(joins)]
        lines += [f"let n{j} = held(chunk + {j * chunks}u);" for j in range(joins)]
        lines += _join("a", "n", joins, "near", _some("stands_for(chunk)", real))
        lines += [
            f"if (lane < {chunks}u) {{ chunks[own * {chunks}u + chunk] = vec2<{real}>(near, near_squares); }}",
            "workgroupBarrier();",
            *(f"let b{j} = chunks[own * {chunks}u + {j}u];" for j in range(chunks)),
            *(f"let m{j} = stands_for({j}u);" for j in range(chunks)),
            *_join("b", "m", chunks, "mean", f"{real}({self.k}.0)"),
            f"let by = {real}(1.0) / sqrt(mean_squares / {real}({self.k}.0) + {real}({EPSILON}));",
        ]
        for place in places:
            store = f"rows[own * {self.k}u + at{place}] = (v{place} - mean) * by * gain{place} + shift{place};"
            last = partly and place == self.elements - 1
            lines.append(f"if (lane < {partly}u) {{ {store} }}" if last else store)
        return "\n".join(f"  {line}" for line in [*lines, "workgroupBarrier();"])


def _add(terms: Sequence[str]) -> str:
    """Return the expression of the sum of the terms."""
    terms = list(terms)
    # in pairs, so that no addition waits for all earlier ones
    while len(terms) > 1:
        pairs = [f"({a} + {b})" for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(terms) // 2 * 2 :]
    return terms[0]


def _some(count: str, real: str) -> str:
    """Return the expression of a count that is used as a divisor: 1 in place of 0."""
    return f"max({count}, {real}(1.0))"


def _join(pair: str, count: str, joins: int, mean: str, counted: str) -> list[str]:
    """Return WGSL statements that join `joins` pairs (mean, sum of squares about it) into one, `mean`."""
    # `pair` and `count` are the beginnings of the names of the pairs and of their numbers of elements. `counted` is
    # the sum of these numbers
    far = [f"{pair}{j}.y + {count}{j} * ({pair}{j}.x - {mean}) * ({pair}{j}.x - {mean})" for j in range(joins)]
    return [
        f"let {mean} = {_add([f'{count}{j} * {pair}{j}.x' for j in range(joins)])} / {counted};",
        f"let {mean}_squares = {_add([f'({term})' for term in far])};",
    ]


# The norm, and the loop over the weights that is used after it. The kernel for few rows defines `own`, `first`, `unit`
# and `total`.
CUDA_SUMS = """
  const int share = threadIdx.x / UNITS;
  Unit ahead[AHEAD];
  #pragma unroll
  for (int a = 0; a < AHEAD; ++a)
    if (own < m && share + a * SHARES < K)
      ahead[a] = *reinterpret_cast<const Unit*>(w_ + (share + a * SHARES) * m + own);
  __shared__ real rows[HELD_ROWS][K], spare[2][THREADS / 32];
  {
    const int r = threadIdx.x / ROW_THREADS, lane = threadIdx.x % ROW_THREADS;
    const stored* const from = x_ + min(first + r, n - 1) * K;
    real held[HELD], gain[HELD], shift[HELD], sum = 0, squares = 0;
    #pragma unroll
    for (int h = 0; h < HELD; ++h) {
      const int i = lane + h * ROW_THREADS, at = i < K ? i : 0;
      held[h] = wide(from[at]);
      gain[h] = wide(g_[at]);
      shift[h] = wide(c_[at]);
      if (i < K) sum += held[h];
    }
    const real mean = across<Sum>(sum, spare[0]) / real(K);
    #pragma unroll
    for (int h = 0; h < HELD; ++h)
      if (lane + h * ROW_THREADS < K) squares += (held[h] - mean) * (held[h] - mean);
    const real by = real(1) / sqrt(across<Sum>(squares, spare[1]) / real(K) + real(EPSILON));
    #pragma unroll
    for (int h = 0; h < HELD; ++h) {
      const int i = lane + h * ROW_THREADS;
      if (i < K) rows[r][i] = (held[h] - mean) * by * gain[h] + shift[h];
    }
  }
  __syncthreads();
  const auto add = [&](const Unit& w, int i) {
    #pragma unroll
    for (int r = 0; r < ROWS; ++r)
      #pragma unroll
      for (int j = 0; j < WIDTH; ++j) total[r][j] += rows[r][i] * wide(w.lane[j]);
  };
  if (own < m) {
    #pragma unroll
    for (int a = 0; a < AHEAD; ++a)
      if (share + a * SHARES < K) add(ahead[a], share + a * SHARES);
    #pragma unroll 4
    for (int i = share + AHEAD * SHARES; i < K; i += SHARES)
      add(*reinterpret_cast<const Unit*>(w_ + i * m + own), i);
  }
""".replace("EPSILON", str(EPSILON))


NAME = "few rows"
MOST_ROWS = 16
CUDA_ROWS, WGSL_ROWS = 8, 4  # most rows of a group, so that the sums of a thread stay in its registers
_THREADS, _WARP = 256, 32
_SECTOR_BYTES = 32  # least bytes that a GPU fetches
_MOST_COLUMNS = 64  # most columns of a group, which limits the memory for its sums
_CUDA_BYTES = 48 * 1024  # memory of a block that every device allows by default


class WeightedRows(msgspec.Struct, frozen=True):
    """The product of a few rows of x and a matrix of weights."""

    names: tuple[str, str]  # buffers of the rows and of the weights
    n: int  # rows
    m: int  # columns of the weights
    k: int  # elements of a row
    dtype: str  # dtype of all matrices
    turned: bool = False  # whether the weights are stored m x k, not k x m
    epilogue: Epilogue | None = None  # applied to the product
    normed: bool = False  # whether the rows are normed first, by layernorm with the gain g and the shift c
    row: int = 0  # index in x of the first of the rows, which must be `normed` unless this is 0

    @property
    def across(self) -> tuple[str, ...]:
        """The buffers of the norm's gain and shift, if there is a norm."""
        return ("g", "c") if self.normed else ()

    @property
    def along(self) -> int:
        """The length of a row of the weights as they are stored: k if turned, otherwise m."""
        return self.k if self.turned else self.m

    @property
    def operands(self) -> Mapping[str, str]:
        return self.epilogue.operands if self.epilogue else {}

    def block(self, rows: int, width: int, threads: int, limits: Limits) -> ColumnBlock:
        """Return the work of a group of `threads` threads for `rows` rows. A load has `width` elements."""
        # up to a warp of threads shares a column
        if self.turned:
            shares = min(_WARP, power_of_two_at_least(ceil_div(self.k, width)))
            return ColumnBlock(rows, threads // shares, width, shares, self.turned)
        columns, most = max(width, _SECTOR_BYTES // ITEMSIZE[self.dtype]), min(_MOST_COLUMNS, _WARP * width)
        # from one memory sector on, more columns as long as there are more groups than multiprocessors
        while 2 * columns <= most and ceil_div(self.m, columns) > multiprocessors(limits):
            columns *= 2
        units = columns // width
        return ColumnBlock(rows, units, width, threads // units, self.turned)


class ColumnBlock(msgspec.Struct, frozen=True):
    """The work of a group of threads: neighbouring columns, in units, for some rows."""

    rows: int  # rows of the product
    units: int  # units of columns
    width: int  # columns of a unit; if turned, a unit is one column, and this is the length of a load along k
    shares: int  # threads for each unit, which divide the k steps among them
    turned: bool  # whether the weights are stored m x k, not k x m

    @property
    def columns(self) -> int:
        return self.units if self.turned else self.units * self.width

    def norm(self, product: WeightedRows) -> RowNorm | None:
        """Return the norm of the block's rows, or None if `product` does not norm them."""
        return RowNorm(self.rows, product.k, self.units * self.shares, self.shares) if product.normed else None


# ---------------------------------------------------------------- CUDA


def cuda_pass(product: WeightedRows, limits: Limits) -> CudaPass | None:
    """Return the CUDA launch that computes the product. Returns None for no rows and for more than MOST_ROWS, for an
    empty matrix, and if the product exceeds a block's memory or the grid."""
    n, m, k, dtype = product.n, product.m, product.k, product.dtype
    if not 0 < n <= MOST_ROWS or 0 in (m, k):
        return None
    width = lanes(dtype) if product.along % lanes(dtype) == 0 else 1
    block = product.block(min(n, CUDA_ROWS), width, _THREADS, limits)
    blocks = ceil_div(m, block.columns)
    if blocks > MOST_BLOCKS or _cuda_bytes(product, block) > _CUDA_BYTES:
        return None
    begin = (product.row,) if product.row else ()
    arguments = (*product.names, "out", *product.operands, *product.across, n, m, k, *begin)
    grid = (blocks, ceil_div(n, block.rows), 1)
    return kernel_pass("few_rows", dtype, _cuda_source(product, block), grid, _THREADS, arguments)


def _cuda_bytes(product: WeightedRows, of: ColumnBlock) -> int:
    """Return the bytes of a block's memory, 0 without a norm."""
    if (norm := of.norm(product)) is None:
        # without normed rows, the sums always fit
        return 0
    size = 8 if product.dtype == "float64" else 4
    return norm.cuda_bytes(size) + size * _THREADS // _WARP * of.rows * of.columns


def _cuda_source(product: WeightedRows, of: ColumnBlock) -> str:
    """Return the CUDA translation unit of the product. With turned weights there is no norm."""
    arrays = "".join(f", const stored* __restrict__ {name}_" for name in (*product.operands, *product.across))
    index = {"across": "column", "all": "row * m + column"}
    operands = "".join(f", wide({name}_[{index[along]}])" for name, along in product.operands.items())
    finish = product.epilogue.cuda_finish() if product.epilogue else "#define finish(v) v"
    norm, moved = of.norm(product), bool(product.row)
    body = (
        _CUDA_TURNED
        if of.turned
        else _CUDA_STRAIGHT.replace("SUMS", (CUDA_SUMS if norm else _CUDA_SUMS).strip(chr(10)))
    )
    return f"""
const int ROWS = {of.rows}, UNITS = {of.units}, WIDTH = {of.width}, SHARES = {of.shares}, THREADS = {_THREADS};
{UNIT}
{finish}{norm.cuda_head() if norm else ""}
extern "C" __global__ void __launch_bounds__(THREADS)
gpubench_few_rows(const stored* __restrict__ x_, const stored* __restrict__ w_, stored* __restrict__ out_{arrays},
                  long long n, long long m, long long k{", long long row" * moved}) {{
{"  x_ += row * k;" * moved}{chr(10) * moved}  const long long first = (long long)blockIdx.y * ROWS;
{body.replace("GIVEN", operands).strip(chr(10))}
}}
"""


# Rows after the last one repeat it and are not written, so that all threads of a warp reach its shuffles.
_CUDA_STRAIGHT = f"""
  const int COLUMNS = UNITS * WIDTH, WARPS = THREADS / {_WARP};
  __shared__ real sums[WARPS][ROWS][COLUMNS];
  const int unit = threadIdx.x % UNITS;
  const long long begin = (long long)blockIdx.x * COLUMNS, own = begin + unit * WIDTH;
  real total[ROWS][WIDTH] = {{}};
SUMS
  #pragma unroll
  for (int r = 0; r < ROWS; ++r)
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) {{
      #pragma unroll
      for (int step = {_WARP} / 2; step >= UNITS; step /= 2)
        total[r][j] += __shfl_xor_sync(0xffffffff, total[r][j], step);
      if (threadIdx.x % {_WARP} < UNITS) sums[threadIdx.x / {_WARP}][r][unit * WIDTH + j] = total[r][j];
    }}
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {{
    const long long row = first + i / COLUMNS, column = begin + i % COLUMNS;
    if (row >= n || column >= m) continue;
    real v = 0;
    #pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) v += sums[warp][i / COLUMNS][i % COLUMNS];
    out_[row * m + column] = narrow(finish(vGIVEN));
  }}
"""
_CUDA_SUMS = """
  if (own < m)
    #pragma unroll 4
    for (long long i = threadIdx.x / UNITS; i < k; i += SHARES) {
      const Unit w = *reinterpret_cast<const Unit*>(w_ + i * m + own);
      #pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const real x = wide(x_[min(first + r, n - 1) * k + i]);
        #pragma unroll
        for (int j = 0; j < WIDTH; ++j) total[r][j] += x * wide(w.lane[j]);
      }
    }
"""
_CUDA_TURNED = """
  const int share = threadIdx.x % SHARES;
  const long long column = (long long)blockIdx.x * UNITS + threadIdx.x / SHARES, length = k / WIDTH;
  const Unit* const x_units = reinterpret_cast<const Unit*>(x_);
  const Unit* const w_units = reinterpret_cast<const Unit*>(w_);
  real total[ROWS] = {};
  if (column < m)
    #pragma unroll 4
    for (long long i = share; i < length; i += SHARES) {
      const Unit w = w_units[column * length + i];
      #pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const Unit x = x_units[min(first + r, n - 1) * length + i];
        #pragma unroll
        for (int j = 0; j < WIDTH; ++j) total[r] += wide(x.lane[j]) * wide(w.lane[j]);
      }
    }
  #pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    real v = total[r];
    #pragma unroll
    for (int step = SHARES / 2; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffff, v, step);
    const long long row = first + r;
    if (share == 0 && column < m && row < n) out_[row * m + column] = narrow(finish(vGIVEN));
  }
"""


# ---------------------------------------------------------------- WGSL


def wgsl_program(product: WeightedRows, limits: Limits) -> WgslProgram | None:
    """Return the WGSL program of the product, with one dispatch. Returns None if a group's memory holds no row, or,
    with a norm, less than half of the rows that a group should have. Raises Unsupported for a dtype that the device
    lacks."""
    require_storage(product.dtype, limits)
    n, m, k, turned = product.n, product.m, product.k, product.turned
    threads, storage = group_threads(limits, _THREADS), whole_units(product.dtype, product.along)
    most = min(n, WGSL_ROWS)
    blocks = (product.block(rows, storage.width, threads, limits) for rows in range(most, 0, -1))
    block = next(
        (step for step in blocks if _wgsl_bytes(product, step, storage, threads) <= limits.max_workgroup_bytes),
        None,
    )
    if block is None or (product.normed and 2 * block.rows < most):
        return None
    x, y, _ = fold(ceil_div(m, block.columns), limits)
    bindings = (*product.names, "out", *product.operands, *product.across)
    columns, length = (m, k // block.width) if turned else (m // block.width, k)
    text = _wgsl_source(product, block, storage, threads)
    uniform = (n, columns, length, product.row) if product.row else (n, columns, length)
    return one_dispatch(text, (x, y, ceil_div(n, block.rows)), bindings, uniform=uniform)


def _wgsl_bytes(product: WeightedRows, of: ColumnBlock, storage: Storage, threads: int) -> int:
    """Return the bytes of a group's memory: for the sums of its threads, and for normed rows."""
    size = 8 if storage.real == "f64" else 4
    sums = size * threads * of.rows * (1 if of.turned else storage.lanes * storage.parts)
    norm = of.norm(product)
    return sums + (norm.wgsl_bytes(size) if norm else 0)


def _wgsl_source(product: WeightedRows, of: ColumnBlock, storage: Storage, threads: int) -> str:
    """Return the text of the whole shader, for weights in `storage`."""
    single, operands, epilogue = elements(product.dtype), product.operands, product.epilogue
    # turned weights are loaded in units with x, others are in units with the result
    x, out = (storage, single) if of.turned else (single, storage)
    finish = epilogue.finish() if epilogue else "fn finish(v: V) -> V { return v; }"
    norm = of.norm(product)
    kinds = {"x": x.unit, "w": storage.unit, **dict.fromkeys(product.across, single.unit)}
    names = ("x", "w", "out", *operands, *product.across)
    buffers = {f"{name}_in": kinds.get(name, out.unit) for name in names}
    functions = "\n".join(storage.functions)
    inner = of.shares if of.turned else of.units
    low, high = f"thread & {inner - 1}u", f"thread >> {log2(inner)}u"
    share, unit = (low, high) if of.turned else (high, low)
    sums = f"array<{out.part}, {of.rows * out.parts}>"
    joined = ", ".join(f"a[{i}] + b[{i}]" for i in range(of.rows * out.parts))
    before = f"""
alias V = {out.part};
var<workgroup> sums: array<{sums}, {threads}>;
fn joined(a: {sums}, b: {sums}) -> {sums} {{ return {sums}({joined}); }}
{functions}
{finish}{norm.wgsl_head(single.real) if norm else ""}
"""
    body = f"""
  let share = {share};
  let unit = {unit};
  let column = (group.y * groups.x + group.x) * {of.units}u + unit;
  let place = min(column, p.columns - 1u);
  let first = group.z * {of.rows}u;
  var total = {sums}();
{_wgsl_loop(of, storage, x, norm, product.row > 0)}
  let slot = unit * {of.shares}u + share;
  sums[slot] = total;
{chr(10).join(fold_lanes("sums", "joined({a}, {b})", of.shares, f"(thread & {of.shares - 1}u)"))}
  if (share == 0u && column < p.columns) {{
    let found = sums[slot];
{_wgsl_stores(of, out, operands)}
  }}
"""
    words = "n columns length" + " row" * (product.row > 0)
    return shader(buffers, threads, body, params=words, before=before, writes=("out_in",))


def _wgsl_loop(of: ColumnBlock, storage: Storage, x: Storage, norm: RowNorm | None, moved: bool) -> str:
    if norm is not None:
        return _wgsl_norm(of, storage, x, norm, moved)
    lines = [f"  let start{r} = min(first + {r}u, p.n - 1u) * p.length;" for r in range(of.rows)]
    at = "place * p.length + i" if of.turned else "i * p.columns + place"
    lines += [f"  for (var i = share; i < p.length; i += {of.shares}u) {{", f"    let w = w_in[{at}];"]
    lines += _wgsl_products(of, storage, x, [f"x_in[start{r} + i]" for r in range(of.rows)])
    return "\n".join([*lines, "  }"])


def _wgsl_norm(of: ColumnBlock, storage: Storage, x: Storage, norm: RowNorm, moved: bool) -> str:
    """Return the statements that load the first weights, norm the rows and multiply."""
    ahead, k = norm.wgsl_ahead, norm.k
    lines = [f"  let ahead{a} = w_in[(share + {a * of.shares}u) * p.columns + place];" for a in range(ahead)]
    source = "min(first + own, p.n - 1u)"
    lines.append(norm.wgsl_rows(x, f"(p.row + {source})" if moved else source))
    rows = [f"rows[{r * k}u + i]" for r in range(of.rows)]
    for a in range(ahead):
        lines += ["  {", f"    let i = share + {a * of.shares}u;", f"    let w = ahead{a};"]
        lines += [*_wgsl_products(of, storage, x, rows), "  }"]
    if ahead * of.shares < k:
        lines.append(f"  for (var i = share + {ahead * of.shares}u; i < {k}u; i += {of.shares}u) {{")
        lines += ["    let w = w_in[i * p.columns + place];", *_wgsl_products(of, storage, x, rows), "  }"]
    return "\n".join(lines)


def _wgsl_products(of: ColumnBlock, storage: Storage, x: Storage, units: Sequence[str]) -> list[str]:
    """Return statements that add the products of the unit `w` and of each row's unit to the totals."""
    lines = []
    for r, unit in enumerate(units):
        lines.append(f"    let x{r} = {unit};")
        for part, w in enumerate(storage.decode("w")):
            if of.turned:
                lines.append(f"    let y{r}p{part} = {x.decode(f'x{r}')[part]} * {w};")
                lines.append(f"    total[{r}] += {storage.across('', f'y{r}p{part}')};")
            else:
                total = f"total[{r * storage.parts + part}]"
                lines.append(f"    {total} = fma(V({x.decode(f'x{r}')[0]}), {w}, {total});")
    return lines


def _wgsl_stores(of: ColumnBlock, out: Storage, operands: Mapping[str, str]) -> str:
    index = {"across": "column", "all": "at"}
    lines = []
    for r in range(of.rows):
        lines += [f"    if (first + {r}u < p.n) {{", f"      let at = (first + {r}u) * p.columns + column;"]
        lines += [f"      let {name} = {name}_in[{index[along]}];" for name, along in operands.items()]
        values = [
            f"finish({', '.join((f'found[{r * out.parts + i}]', *(out.decode(name)[i] for name in operands)))})"
            for i in range(out.parts)
        ]
        lines += [f"      out_in[at] = {out.encode(*values)};", "    }"]
    return "\n".join(lines)
