"""Few rows times a matrix of weights, and what is done to the result: bound by memory and by launches, not by products.

A tile would compute 32 or 64 rows to keep one, and cuBLAS leaves the rest to a launch of its own. Here one launch does
all. The threads of a group share a block of columns and fold along k: each reads every so many rows of the weights, 16
bytes at a time where the rows allow it, for all rows of x that the group has. Weights that are stored turned are read
along their rows, a few threads a column. What is multiplied may be the norm of the rows, which each group makes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpubench.kernels.contract.kernel import CudaPass, Limits, WgslPass, WgslProgram
from gpubench.kernels.contract.op import ITEMSIZE
from gpubench.kernels.templates import (
    ceil_div,
    fold,
    group_threads,
    log2,
    multiprocessors,
    power_of_two_at_least,
)
from gpubench.kernels.templates.cuda import MOST_BLOCKS, kernel_pass, lanes
from gpubench.kernels.templates.matmul.epilogue import Epilogue
from gpubench.kernels.templates.matmul.row_norm import CUDA_SUMS, RowNorm
from gpubench.kernels.templates.wgsl import Storage, elements, fold_lanes, require_storage, shader, whole_units

NAME = "few rows"
MOST_ROWS = 16
CUDA_ROWS, WGSL_ROWS = 8, 4  # of a group: the sums of a thread stay in its registers
_THREADS, _WARP = 256, 32
_SECTOR_BYTES = 32  # what a GPU fetches at least
_MOST_COLUMNS = 64  # of a group: more sums than its memory is asked to hold
_CUDA_BYTES = 48 * 1024  # of a block's memory, on every device without asking for more


class WeightedRows(msgspec.Struct, frozen=True):
    """A product of few rows and weights."""

    names: tuple[str, str]  # the buffers of the rows and of the weights
    n: int  # rows
    m: int  # columns of the weights
    k: int  # elements of a row
    dtype: str  # dtype of all matrices
    turned: bool = False  # the weights are stored m x k
    epilogue: Epilogue | None = None  # what is done to the product
    # layernorm of the rows, with the gain g and the shift c, which such weights are multiplied with
    normed: bool = False

    @property
    def across(self) -> tuple[str, ...]:
        """Return what is read of the norm beside the rows."""
        return ("g", "c") if self.normed else ()

    @property
    def along(self) -> int:
        """The length of a row of the weights as they lie."""
        return self.k if self.turned else self.m

    @property
    def operands(self) -> Mapping[str, str]:
        return self.epilogue.operands if self.epilogue else {}

    def block(self, rows: int, width: int, threads: int, limits: Limits) -> ColumnBlock:
        """Return as few columns as whole sectors allow; more where the device has enough groups."""
        if self.turned:
            shares = min(_WARP, power_of_two_at_least(ceil_div(self.k, width)))
            return ColumnBlock(rows, threads // shares, width, shares, self.turned)
        columns, most = max(width, _SECTOR_BYTES // ITEMSIZE[self.dtype]), min(_MOST_COLUMNS, _WARP * width)
        while 2 * columns <= most and ceil_div(self.m, columns) > multiprocessors(limits):
            columns *= 2
        units = columns // width
        return ColumnBlock(rows, units, width, threads // units, self.turned)


class ColumnBlock(msgspec.Struct, frozen=True):
    """The share of a group of threads: units of columns side by side for some rows."""

    rows: int  # rows of the product
    units: int  # units of columns
    width: int  # columns of a unit; neighbours along k where the weights are turned, and a unit is one column
    shares: int  # threads along k behind each unit
    turned: bool  # the weights are stored m x k

    @property
    def columns(self) -> int:
        return self.units if self.turned else self.units * self.width

    def norm(self, product: WeightedRows) -> RowNorm | None:
        """Return the norm of the rows, where the product has one."""
        return RowNorm(self.rows, product.k, self.units * self.shares, self.shares) if product.normed else None


# ---------------------------------------------------------------- CUDA


def cuda_pass(product: WeightedRows, limits: Limits) -> CudaPass | None:
    """One launch; None where it does not pay, or where a block does not hold the rows whose norm it makes."""
    n, m, k, dtype = product.n, product.m, product.k, product.dtype
    if not 0 < n <= MOST_ROWS or 0 in (m, k):
        return None
    width = lanes(dtype) if product.along % lanes(dtype) == 0 else 1
    block = product.block(min(n, CUDA_ROWS), width, _THREADS, limits)
    blocks = ceil_div(m, block.columns)
    if blocks > MOST_BLOCKS or _cuda_bytes(product, block) > _CUDA_BYTES:
        return None
    arguments = (*product.names, "out", *product.operands, *product.across, n, m, k)
    grid = (blocks, ceil_div(n, block.rows), 1)
    return kernel_pass("few_rows", dtype, _cuda_source(product, block), grid, _THREADS, arguments)


def _cuda_bytes(product: WeightedRows, of: ColumnBlock) -> int:
    """Return the bytes that a block holds, rows to be normed among them."""
    if (norm := of.norm(product)) is None:
        return 0  # sums alone: they fit
    size = 8 if product.dtype == "float64" else 4
    return norm.cuda_bytes(size) + size * _THREADS // _WARP * of.rows * of.columns


def _cuda_source(product: WeightedRows, of: ColumnBlock) -> str:
    arrays = "".join(f", const stored* __restrict__ {name}_" for name in (*product.operands, *product.across))
    index = {"across": "column", "all": "row * m + column"}
    operands = "".join(f", wide({name}_[{index[along]}])" for name, along in product.operands.items())
    finish = product.epilogue.cuda_finish() if product.epilogue else "#define finish(v) v"
    norm = of.norm(product)
    body = (
        _CUDA_TURNED
        if of.turned
        else _CUDA_STRAIGHT.replace("SUMS", (CUDA_SUMS if norm else _CUDA_SUMS).strip(chr(10)))
    )
    return f"""
const int ROWS = {of.rows}, UNITS = {of.units}, WIDTH = {of.width}, SHARES = {of.shares}, THREADS = {_THREADS};
struct alignas(WIDTH * sizeof(stored)) Unit {{ stored lane[WIDTH]; }};
{finish}{norm.cuda_head() if norm else ""}
extern "C" __global__ void __launch_bounds__(THREADS)
gpubench_few_rows(const stored* __restrict__ x_, const stored* __restrict__ w_, stored* __restrict__ out_{arrays},
                  long long n, long long m, long long k) {{
  const long long first = (long long)blockIdx.y * ROWS;
{body.replace("GIVEN", operands).strip(chr(10))}
}}
"""


# Rows past the last repeat it and are not written; all threads of a warp reach its shuffles.
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
    """One dispatch; None where a group does not hold half of the rows whose norm it makes. Raises Unsupported for a
    dtype that the device does not have."""
    require_storage(product.dtype, limits)
    n, m, k, turned = product.n, product.m, product.k, product.turned
    threads, storage = group_threads(limits, _THREADS), whole_units(product.dtype, product.along)
    most = min(n, WGSL_ROWS)
    blocks = (product.block(rows, storage.width, threads, limits) for rows in range(most, 0, -1))
    block = next(
        (
            step
            for step in blocks
            if (step.rows == 1 and not product.normed)
            or _wgsl_bytes(product, step, storage, threads) <= limits.max_workgroup_bytes
        ),
        None,
    )
    if block is None or (product.normed and 2 * block.rows < most):
        return None
    x, y, _ = fold(ceil_div(m, block.columns), limits)
    bindings = (*product.names, "out", *product.operands, *product.across)
    columns, length = (m, k // block.width) if turned else (m // block.width, k)
    text = _wgsl_source(product, block, storage, threads)
    step = WgslPass(text, (x, y, ceil_div(n, block.rows)), bindings, uniform=(n, columns, length))
    return WgslProgram((step,))


def _wgsl_bytes(product: WeightedRows, of: ColumnBlock, storage: Storage, threads: int) -> int:
    """Return the bytes that a group holds: the sums of its threads, and rows to be normed."""
    size = 8 if storage.real == "f64" else 4
    sums = size * threads * of.rows * (1 if of.turned else storage.lanes * storage.parts)
    norm = of.norm(product)
    return sums + (norm.wgsl_bytes(size) if norm else 0)


def _wgsl_source(product: WeightedRows, of: ColumnBlock, storage: Storage, threads: int) -> str:
    """`storage` is that of the weights. Where columns are neighbours in it, they are in the result, and elements of x
    are read one by one; else it is the other way round."""
    single, operands, epilogue = elements(product.dtype), product.operands, product.epilogue
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
{_wgsl_loop(of, storage, x, norm)}
  let slot = unit * {of.shares}u + share;
  sums[slot] = total;
{chr(10).join(fold_lanes("sums", "joined({a}, {b})", of.shares, f"(thread & {of.shares - 1}u)"))}
  if (share == 0u && column < p.columns) {{
    let found = sums[slot];
{_wgsl_stores(of, out, operands)}
  }}
"""
    return shader(buffers, threads, body, params="n columns length", before=before, writes=("out_in",))


def _wgsl_loop(of: ColumnBlock, storage: Storage, x: Storage, norm: RowNorm | None) -> str:
    if norm is not None:
        return _wgsl_norm(of, storage, x, norm)
    lines = [f"  let start{r} = min(first + {r}u, p.n - 1u) * p.length;" for r in range(of.rows)]
    at = "place * p.length + i" if of.turned else "i * p.columns + place"
    lines += [f"  for (var i = share; i < p.length; i += {of.shares}u) {{", f"    let w = w_in[{at}];"]
    lines += _wgsl_products(of, storage, x, [f"x_in[start{r} + i]" for r in range(of.rows)])
    return "\n".join([*lines, "  }"])


def _wgsl_norm(of: ColumnBlock, storage: Storage, x: Storage, norm: RowNorm) -> str:
    """The first weights are loaded before the norm, and the others once it is there."""
    ahead, k = norm.wgsl_ahead, norm.k
    lines = [f"  let ahead{a} = w_in[(share + {a * of.shares}u) * p.columns + place];" for a in range(ahead)]
    lines.append(norm.wgsl_rows(x))
    rows = [f"rows[{r * k}u + i]" for r in range(of.rows)]
    for a in range(ahead):
        lines += ["  {", f"    let i = share + {a * of.shares}u;", f"    let w = ahead{a};"]
        lines += [*_wgsl_products(of, storage, x, rows), "  }"]
    if ahead * of.shares < k:
        lines.append(f"  for (var i = share + {ahead * of.shares}u; i < {k}u; i += {of.shares}u) {{")
        lines += ["    let w = w_in[i * p.columns + place];", *_wgsl_products(of, storage, x, rows), "  }"]
    return "\n".join(lines)


def _wgsl_products(of: ColumnBlock, storage: Storage, x: Storage, units: Sequence[str]) -> list[str]:
    """Return what a unit `w` of weights adds to the totals, with the unit of each row that meets it."""
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
