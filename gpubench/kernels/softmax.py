"""softmax along rows: exp(x - max) / sum of it; one read and one write per element if a row stays on chip.

The rows are those of `templates/rows`: of 1024 for sizes that are multiples of it, or as long as `columns` says.
"""

from __future__ import annotations

from gpubench.kernels.contract.kernel import Limits
from gpubench.kernels.contract.op import ITEMSIZE, Array, Operand, Tolerance
from gpubench.kernels.templates.cuda import MOST_THREADS
from gpubench.kernels.templates.rows import NumbaRows, rowwise, shape
from gpubench.kernels.templates.rows.cuda import HELD_BYTES, CudaRowKernel, CudaRows, cuda_rows
from gpubench.kernels.templates.rows.wgsl import WgslRowKernel, WgslRows


def _expr(xp: Array, x: Array) -> Array:
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def _reference(xp: Array, x: Array) -> Array:
    """The same as exp(z - log(sum(exp(z)))) of the shifted rows z: no division."""
    z = x - xp.max(x, axis=-1, keepdims=True)
    return xp.exp(z - xp.log(xp.sum(xp.exp(z), axis=-1, keepdims=True)))


# A row that holds a NaN need not find it in the maximum: its exponential is a NaN, and so is the sum.
# Three loops: the maximum, exponentials and their sum, the scaling. Long rows add up blocks of 4096 in float64. A
# shared row is scaled by its parts' maxima and sums, as in the softmax of a stream. Halves compute each exponential
# twice: one that was rounded to a half could not be scaled.
_NUMBA = NumbaRows(
    ("x",),
    """
@summing
def largest(x_, start, stop):
    top = minus_infinity
    for i in range(start, stop):
        top = larger(top, load(x_[i]))
    return top


@summing
def exponentials(x_, out, start, stop, top):
    total = real(0)
    for i in range(start, stop):
        e = exp(load(x_[i]) - top)
        out[i] = store(e)
        total += e
    return total


@scalar
def raised(x_, out, start, stop, top):
    total = float64(0)
    for first in range(start, stop, 4096):
        total += float64(exponentials(x_, out, first, min(first + 4096, stop), top))
    return total


@summing
def sum_block(x_, start, stop, top):
    total = real(0)
    for i in range(start, stop):
        total += exp(load(x_[i]) - top)
    return total


@scalar
def statistics(x_, start, stop):
    top = largest(x_, start, stop)
    total = float64(0)
    for first in range(start, stop, 4096):
        total += float64(sum_block(x_, first, min(first + 4096, stop), top))
    return top, real(float64(1) / total)


@scalar
def element(x_, i, top, factor):
    return store(exp(load(x_[i]) - top) * factor)


@scalar
def scale(x_, out, start, stop, top, factor):
    for i in range(start, stop):
        out[i] = store((exp(load(x_[i]) - top) if is_half else load(out[i])) * factor)
""",
    row="""top = largest(x_, base, stop)
        total = raised(x_, out, base, stop, top)
        scale(x_, out, base, stop, top, real(float64(1) / total))""",
    part="""top = largest(x_, base, stop)
        partial[own] = float64(top)
        partial[own + 1] = raised(x_, out, base, stop, top if top != minus_infinity else real(0))""",
    rest="""top = partial[every]
        for k in range(1, s):
            top = maximum(top, partial[every + k * 8])
        total = float64(0)
        for k in range(s):
            if partial[every + k * 8 + 1] != float64(0):
                total += partial[every + k * 8 + 1] * exp64(partial[every + k * 8] - top)
        own_top = real(partial[own])
        factor = real(exp64(partial[own] - top) / total)
        scale(x_, out, base, stop, own_top if own_top != minus_infinity else real(0), factor)""",
)


# ---------------------------------------------------------------- CUDA: the row in registers, shuffles, one write
#
# Long rows of halves stay packed, and their exponentials are computed twice: as floats they would take twice the
# registers. On an H200 rows up to 16,384 reach 0.95 to 0.99 of the device copy; the composed CuPy expression 0.12.


def _choose_cuda(columns: int, dtype: str, limits: Limits) -> tuple[CudaRows, str]:
    """Halves are held as floats where a block of 512 threads can, else packed; the others are what they are."""
    real_bytes = max(4, ITEMSIZE[dtype])
    rows = cuda_rows(columns, dtype, limits, itemsize=real_bytes)
    if not rows.held or rows.cluster > 1 or rows.threads >= MOST_THREADS:
        rows = cuda_rows(columns, dtype, limits, itemsize=ITEMSIZE[dtype])
    if not rows.held:
        return rows, _LOOPING
    return rows, _IN_REGISTERS if rows.held * rows.width * real_bytes <= HELD_BYTES else _PACKED


_LOAD = """  Unit given[HELD];
  #pragma unroll
  for (int k = 0; k < HELD; ++k) {
    const int u = first + k * ROW_THREADS;
    if (WHOLE || u < units) given[k] = x[u];
  }
"""

# All loads come before the first arithmetic. Lanes past the end hold -inf: exp makes 0 of it.
_IN_REGISTERS = (
    _LOAD
    + """  real v[HELD][WIDTH], top = minus_infinity(), total = 0;
  #pragma unroll
  for (int k = 0; k < HELD; ++k)
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      v[k][j] = WHOLE || first + k * ROW_THREADS < units ? wide(given[k].lane[j]) : minus_infinity();
      top = Larger::of(v[k][j], top);
    }
  entered();
  top = across<Larger>(top, spare[0]);
  #pragma unroll
  for (int k = 0; k < HELD; ++k)
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) total += v[k][j] = exp(v[k][j] - top);
  const real scale = real(1) / across<Sum>(total, spare[1]);
  #pragma unroll
  for (int k = 0; k < HELD; ++k) {
    Unit result;
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) result.lane[j] = narrow(v[k][j] * scale);
    const int u = first + k * ROW_THREADS;
    if (live && (WHOLE || u < units)) out[u] = result;
  }
"""
)

# Packed units take half the registers of floats; widening and exponential are done again where they are needed.
_PACKED = (
    _LOAD
    + """  real top = minus_infinity(), total = 0;
  #pragma unroll
  for (int k = 0; k < HELD; ++k)
    if (WHOLE || first + k * ROW_THREADS < units)
      #pragma unroll
      for (int j = 0; j < WIDTH; ++j) top = Larger::of(wide(given[k].lane[j]), top);
  entered();
  top = across<Larger>(top, spare[0]);
  #pragma unroll
  for (int k = 0; k < HELD; ++k) {
    forget(given[k], rows >> 62);
    if (WHOLE || first + k * ROW_THREADS < units)
      #pragma unroll
      for (int j = 0; j < WIDTH; ++j) total += exp(wide(given[k].lane[j]) - top);
  }
  const real scale = real(1) / across<Sum>(total, spare[1]);
  #pragma unroll
  for (int k = 0; k < HELD; ++k) {
    Unit result;
    forget(given[k], columns >> 62);
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) result.lane[j] = narrow(exp(wide(given[k].lane[j]) - top) * scale);
    const int u = first + k * ROW_THREADS;
    if (live && (WHOLE || u < units)) out[u] = result;
  }
"""
)

# The running sum is rescaled when a larger maximum turns up. The maximum starts at a finite number, since
# -inf - -inf would be a NaN; a row of nothing but -inf still ends in 0 x infinity, the NaN that NumPy gives.
# The second reading goes backwards: what was read last is still in the cache.
_LOOPING = """  real top = real(-3.4028234e38f), total = 0;
  for (int u = lane; u < units; u += ROW_THREADS) {
    const Unit v = x[u];
    real higher = top, part = 0;
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) higher = Larger::of(wide(v.lane[j]), higher);
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) part += exp(wide(v.lane[j]) - higher);
    total = total * exp(top - higher) + part;
    top = higher;
  }
  entered();
  const real row_top = across<Larger>(top, spare[0]);
  const real scale = real(1) / across<Sum>(total * exp(top - row_top), spare[1]);
  const int last = (units - 1 - lane) / ROW_THREADS * ROW_THREADS + lane;
  for (int u = last; live && lane < units && u >= 0; u -= ROW_THREADS) {
    const Unit v = x[u];
    Unit result;
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) result.lane[j] = narrow(exp(wide(v.lane[j]) - row_top) * scale);
    out[u] = result;
  }
"""

CUDA = CudaRowKernel("softmax", ("x",), _choose_cuda)


# ---------------------------------------------------------------- WGSL: the row in registers, one write
#
# On an H200 this reaches 0.97 of the device copy with 2 to 4 vec4 a thread; three passes over memory reach
# 0.77 to 0.96, one thread a row 0.08. Of a row too long for registers the rest is read twice, with its sum
# rescaled whenever a larger maximum turns up.

_LOWEST = "-3.4028234e38"


def _source(rows: WgslRows) -> str:
    lines = [
        *rows.loads(("x",)),
        *_maximum(rows),
        *_sum(rows),
        *_output(rows),
    ]
    return rows.shader(("x",), ("tops", "sums"), lines)


def _maximum(rows: WgslRows) -> list[str]:
    """`row_top`, the row's largest element; with a rest, `total` is the rest's sum below `top`.

    The running maximum starts at the lowest finite number: -inf - -inf would be a NaN.
    """
    storage = rows.storage
    parts = [part for k in range(rows.held) for part in storage.decoded(f"x{k}")]
    lines = [f"  var v = {parts[0]};", *(f"  v = max(v, {part});" for part in parts[1:])]
    top = storage.across("max", "v")
    if rows.rest:
        values = storage.decoded("x")
        inner = [
            "    let x = x_[row + u];",
            f"    let w = {values[0] if len(values) == 1 else f'max({values[0]}, {values[1]})'};",
            f"    let higher = max(top, {storage.across('max', 'w')});",
            f"    let e = {' + '.join(_exponential(rows, value, 'higher') for value in values)};",
            f"    total = fma(total, exp(top - higher), {storage.across('', 'e')});",
            "    top = higher;",
        ]
        lines += [f"  var top = max({_LOWEST}, {top});", "  var total = 0.0;", *rows.loop(inner)]
        top = "top"
    lines += [f"  tops[thread] = {top};", *rows.fold_lanes("tops", "max({a}, {b})")]
    lines.append("  let row_top = tops[thread - lane];")
    return [*lines, "  total *= exp(top - row_top);"] if rows.rest else lines


def _exponential(rows: WgslRows, part: str, top: str) -> str:
    return f"exp({part} - {rows.storage.part}({top}))"


def _sum(rows: WgslRows) -> list[str]:
    """`scale`, one over the row's sum of exponentials, which the held units keep as `e0_0`, `e0_1`, ..."""
    lines, names = [], []
    for k in range(rows.held):
        for i, part in enumerate(rows.storage.decoded(f"x{k}")):
            # Past the row's end stands its first unit: it cannot change the maximum and is kept off the sum.
            lines.append(f"  let e{k}_{i} = {rows.kept(k, _exponential(rows, part, 'row_top'))};")
            names.append(f"e{k}_{i}")
    total = " + total" if rows.rest else ""
    return [
        *lines,
        f"  let e = {' + '.join(names)};",
        f"  sums[thread] = {rows.storage.across('', 'e')}{total};",
        *rows.fold_lanes("sums", "{a} + {b}"),
        "  let scale = 1.0 / sums[thread - lane];",
    ]


def _output(rows: WgslRows) -> list[str]:
    storage = rows.storage
    lines = []
    for k in range(rows.held):
        lines.append(rows.store(k, storage.encoded(*(f"e{k}_{i} * scale" for i in range(storage.parts)))))
    values = [f"{_exponential(rows, value, 'row_top')} * scale" for value in storage.decoded("x")]
    again = ["    let x = x_[row + u];", f"    if (live) {{ out_[row + u] = {storage.encoded(*values)}; }}"]
    return [*lines, *rows.loop(again)]


# 32 numbers: with 1024 threads a group, 64 registers are all there are.
WGSL = WgslRowKernel(("x",), _source, most_held={"float32": 8}, exponential=True)

OP = rowwise(
    name="softmax",
    group="activation",
    summary="out = exp(x - max(x)) / sum(exp(x - max(x))) along rows of up to 1024",
    inputs=(Operand("x", shape, values="normal"),),
    flops_per_element=5,  # max, subtract, exp, add, divide
    expr=_expr,
    reference=_reference,
    library={"torch": lambda torch, x, out=None: torch.softmax(x, -1, out=out)},
    tolerance=Tolerance(64),
    numba=_NUMBA,
    cuda=CUDA,
    wgsl=WGSL,
)
