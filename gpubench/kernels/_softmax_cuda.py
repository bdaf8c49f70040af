"""Softmax along rows in CUDA: the row in registers through 128-bit loads, warp shuffles, one write.

Long rows of halves stay packed, and their exponentials are computed twice: as floats they would take twice the
registers. On an H200 rows up to 16,384 reach 0.95 to 0.99 of the device copy; the composed CuPy expression 0.12.
"""

from __future__ import annotations

from gpubench.kernels import _rows_cuda
from gpubench.kernels._limits import require_dtype
from gpubench.kernels._types_cuda import DTYPES, MOST_THREADS, options
from gpubench.model.kernel import CudaPass, CudaProgram, Limits
from gpubench.model.op import ITEMSIZE


def build(rows: int, columns: int, dtype: str, limits: Limits) -> CudaProgram:
    """One launch over rows x columns elements, none if there are none. Raises Unsupported for another dtype."""
    require_dtype(dtype, DTYPES, "CUDA")
    if rows * columns == 0:
        return CudaProgram(())
    layout = layout_of(columns, dtype, limits)
    step = CudaPass(
        source(layout, dtype), "gpubench_softmax", (_rows_cuda.blocks(layout, rows), 1, 1), (layout.threads, 1, 1),
        ("x", "out", rows, columns), options=options(dtype),
    )  # fmt: skip
    return CudaProgram((step,))


def layout_of(columns: int, dtype: str, limits: Limits) -> _rows_cuda.Layout:
    """Halves are held as floats where a block of 512 threads can, else packed; the others are what they are."""
    layout = _rows_cuda.layout_of(columns, dtype, limits, itemsize=max(4, ITEMSIZE[dtype]))
    if layout.held and layout.cluster == 1 and layout.threads < MOST_THREADS:
        return layout
    return _rows_cuda.layout_of(columns, dtype, limits, itemsize=ITEMSIZE[dtype])


def source(layout: _rows_cuda.Layout, dtype: str) -> str:
    """The whole translation unit; it depends on the layout and not on the number of rows."""
    as_reals = layout.held * layout.width * max(4, ITEMSIZE[dtype])
    body = _LOOPING
    if layout.held:
        body = _IN_REGISTERS if as_reals <= _rows_cuda.HELD_BYTES else _PACKED
    return _rows_cuda.head(layout, dtype) + _rows_cuda.kernel(layout, "softmax", ("x",), body)


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
