"""softmax_grad: y (dy - sum(y dy)) along rows, what frameworks call the backward of softmax; y is its output.

Two reads and one write per element if a row stays on chip. The formula asks nothing of y: its rows need not sum
to one, and here they do not. The rows are those of `templates/rows`. The product y dy is summed in float (double
for double), whatever the elements are stored in.
"""

from __future__ import annotations

from typing import Any

from gpubench.kernels.contract.kernel import Limits
from gpubench.kernels.contract.op import ITEMSIZE, Array, Operand, Tolerance
from gpubench.kernels.templates.rows import NumbaRows, rowwise, shape
from gpubench.kernels.templates.rows.cuda import CudaRowKernel, CudaRows, cuda_rows
from gpubench.kernels.templates.rows.wgsl import WgslRowKernel, WgslRows

_INPUTS = ("y", "dy")

_NUMBA = NumbaRows(
    _INPUTS,
    """
@summing
def products(y_, dy_, start, stop):
    total = real(0)
    for i in range(start, stop):
        total += load(y_[i]) * load(dy_[i])
    return total


@scalar
def inner(y_, dy_, start, stop):
    total = float64(0)
    for first in range(start, stop, 4096):
        total += float64(products(y_, dy_, first, min(first + 4096, stop)))
    return total


@scalar
def statistics(y_, dy_, start, stop):
    return real(inner(y_, dy_, start, stop)), real(0)


@scalar
def element(y_, dy_, i, total, unused):
    return store(load(y_[i]) * (load(dy_[i]) - total))


@scalar
def scale(y_, dy_, out, start, stop, total):
    for i in range(start, stop):
        out[i] = store(load(y_[i]) * (load(dy_[i]) - total))
""",
    row="""scale(y_, dy_, out, base, stop, real(inner(y_, dy_, base, stop)))""",
    part="""partial[own] = inner(y_, dy_, base, stop)""",
    rest="""total = float64(0)
        for k in range(s):
            total += partial[every + k * 8]
        scale(y_, dy_, out, base, stop, real(total))""",
)


def _expr(xp: Array, y: Array, dy: Array) -> Array:
    return y * (dy - xp.sum(y * dy, axis=-1, keepdims=True))


def _reference(xp: Array, y: Array, dy: Array) -> Array:
    """The same as the vector dy times the softmax's Jacobian diag(y) - y y^T, the inner product by einsum."""
    inner = xp.einsum("ij,ij->i", y, dy)
    return y * dy - inner[:, None] * y


def _scale(xp: Array, y: Array, dy: Array) -> Array:
    """|y| (|dy| + sum |y dy|): the terms of the sum may cancel, and so may the difference."""
    return xp.abs(y) * (xp.abs(dy) + xp.sum(xp.abs(y * dy), axis=-1, keepdims=True))


def _torch(torch: Any, y: Any, dy: Any, out: Any) -> Any:
    return torch.ops.aten._softmax_backward_data.out(dy, y, -1, y.dtype, grad_input=out)


# ---------------------------------------------------------------- CUDA: both rows in registers


def _choose_cuda(columns: int, dtype: str, limits: Limits) -> tuple[CudaRows, str]:
    rows = cuda_rows(columns, dtype, limits, itemsize=ITEMSIZE[dtype], arrays=2)
    return rows, _IN_REGISTERS if rows.held else _LOOPING


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

CUDA = CudaRowKernel("softmax_grad", _INPUTS, _choose_cuda)


# ---------------------------------------------------------------- WGSL: both rows in registers


def _source(rows: WgslRows) -> str:
    storage = rows.storage
    lines = rows.loads(_INPUTS)
    products = [rows.kept(k, product) for k in range(rows.held) for product in _products(rows, k)]
    lines.append(f"  var total = {products[0]};")
    lines += [f"  total += {product};" for product in products[1:]]
    again = [f"    let {name} = {name}_[row + u];" for name in _INPUTS]
    lines += rows.loop([*again, *(f"    total += {product};" for product in _products(rows))])
    lines += [
        f"  sums[thread] = {storage.across('', 'total')};",
        *rows.fold_lanes("sums", "{a} + {b}"),
        f"  let mean = {storage.part}(sums[thread - lane]);",
    ]
    lines += [rows.store(k, _value(rows, k)) for k in range(rows.held)]
    lines += rows.loop([*again, f"    if (live) {{ out_[row + u] = {_value(rows)}; }}"])
    return rows.shader(_INPUTS, ("sums",), lines)


def _pairs(rows: WgslRows, k: int | str) -> list[tuple[str, str]]:
    return list(zip(rows.storage.decoded(f"y{k}"), rows.storage.decoded(f"dy{k}"), strict=True))


def _products(rows: WgslRows, k: int | str = "") -> list[str]:
    return [f"{y} * {dy}" for y, dy in _pairs(rows, k)]


def _value(rows: WgslRows, k: int | str = "") -> str:
    return rows.storage.encoded(*(f"{y} * ({dy} - mean)" for y, dy in _pairs(rows, k)))


WGSL = WgslRowKernel(_INPUTS, _source)

OP = rowwise(
    name="softmax_grad",
    group="derivative",
    summary="out = y (dy - sum(y dy)) along rows of up to 1024",
    inputs=tuple(Operand(name, shape) for name in _INPUTS),
    flops_per_element=4,  # multiply, add, subtract, multiply
    expr=_expr,
    reference=_reference,
    library={"torch": _torch},
    tolerance=Tolerance(8, scale=_scale),
    numba=_NUMBA,
    cuda=CUDA,
    wgsl=WGSL,
)
