"""The derivative of softmax along rows in CUDA: out = y (dy - sum over the row of y dy), both rows in registers.

The product y dy is summed in float (double for double), whatever the elements are stored in.
"""

from __future__ import annotations

from gpubench.kernels import _rows_cuda
from gpubench.kernels._limits import require_dtype
from gpubench.kernels._types_cuda import DTYPES, options
from gpubench.model.kernel import CudaPass, CudaProgram, Limits
from gpubench.model.op import ITEMSIZE


def build(rows: int, columns: int, dtype: str, limits: Limits) -> CudaProgram:
    """One launch from the inputs y and dy, rows x columns each; none if there are no elements.

    Raises Unsupported for another dtype.
    """
    require_dtype(dtype, DTYPES, "CUDA")
    if rows * columns == 0:
        return CudaProgram(())
    layout = _rows_cuda.layout_of(columns, dtype, limits, itemsize=ITEMSIZE[dtype], arrays=2)
    step = CudaPass(
        source(layout, dtype), "gpubench_softmax_grad", (_rows_cuda.blocks(layout, rows), 1, 1),
        (layout.threads, 1, 1), ("y", "dy", "out", rows, columns), options=options(dtype),
    )  # fmt: skip
    return CudaProgram((step,))


def source(layout: _rows_cuda.Layout, dtype: str) -> str:
    """The whole translation unit; it depends on the layout and not on the number of rows."""
    body = _IN_REGISTERS if layout.held else _LOOPING
    return _rows_cuda.head(layout, dtype) + _rows_cuda.kernel(layout, "softmax_grad", ("y", "dy"), body)


_IN_REGISTERS = """  Unit a[HELD], b[HELD];
  #pragma unroll
  for (int k = 0; k < HELD; ++k) {
    const int u = first + k * ROW_THREADS;
    if (WHOLE || u < units) a[k] = y[u], b[k] = dy[u];
  }
  real total = 0;
  #pragma unroll
  for (int k = 0; k < HELD; ++k)
    if (WHOLE || first + k * ROW_THREADS < units)
      #pragma unroll
      for (int j = 0; j < WIDTH; ++j) total += wide(a[k].lane[j]) * wide(b[k].lane[j]);
  entered();
  total = across<Sum>(total, spare[0]);
  #pragma unroll
  for (int k = 0; k < HELD; ++k) {
    Unit result;
    forget(a[k], rows >> 62), forget(b[k], rows >> 62);
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) result.lane[j] = narrow(wide(a[k].lane[j]) * (wide(b[k].lane[j]) - total));
    const int u = first + k * ROW_THREADS;
    if (live && (WHOLE || u < units)) out[u] = result;
  }
"""

# The second reading goes backwards: what was read last is still in the cache.
_LOOPING = """  real total = 0;
  for (int u = lane; u < units; u += ROW_THREADS) {
    const Unit a = y[u], b = dy[u];
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) total += wide(a.lane[j]) * wide(b.lane[j]);
  }
  entered();
  total = across<Sum>(total, spare[0]);
  const int last = (units - 1 - lane) / ROW_THREADS * ROW_THREADS + lane;
  for (int u = last; live && lane < units && u >= 0; u -= ROW_THREADS) {
    const Unit a = y[u], b = dy[u];
    Unit result;
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) result.lane[j] = narrow(wide(a.lane[j]) * (wide(b.lane[j]) - total));
    out[u] = result;
  }
"""
