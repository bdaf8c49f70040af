"""norm_linear_last: the logits of the last of n tokens, layernorm(x[n - 1]) w: all that a model needs to go on writing.

Bound by memory: the weights are read once. Every group of threads makes the norm of the row for itself, which is less
than a launch of its own.

- CPU: the norm, then a product of NumPy's.
- CUDA and WGSL: 16 columns a group; 16 threads share the rows of a column and agree on the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpubench import kernels
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import CudaProgram, Limits, WgslPass, WgslProgram, by_backend
from gpubench.kernels.contract.op import ITEMSIZE, Array, Dtype, Ladder, Op, Operand, Params, Shape, Tolerance
from gpubench.kernels.templates import ceil_div, fold, require_bindings, require_dtype
from gpubench.kernels.templates.cpu import Blocks, Launch
from gpubench.kernels.templates.cuda import DTYPES, kernel_pass
from gpubench.kernels.templates.matmul import norms
from gpubench.kernels.templates.rows import EPSILON, across, rows
from gpubench.kernels.templates.wgsl import elements, fold_lanes, require_storage, shader

_NORM = kernels.load("layernorm")
_VOCABULARY = 2048
_COLUMNS, _SHARES = 16, 16  # of a group, and the threads of a column
_THREADS = _COLUMNS * _SHARES
_HELD_BYTES = 32 * 1024  # of a row, in the memory of a group


def _vocabulary(params: Params) -> int:
    return params.get("vocabulary", _VOCABULARY)


def _weights(params: Params) -> Shape:
    return (rows(params)[1], _vocabulary(params))


def _logits(params: Params) -> Shape:
    return (1, _vocabulary(params))


def _flops(params: Params) -> int:
    width, vocabulary = _weights(params)
    return 7 * width + 2 * width * vocabulary


def _traffic(params: Params, dtype: Dtype) -> int:
    """The last row, what is multiplied with it, and the logits."""
    width, vocabulary = _weights(params)
    return ITEMSIZE[dtype] * (3 * width + width * vocabulary + vocabulary)


def _fits(params: Params) -> str | None:
    if params["n"] < 1:
        return "no row is the last of none: n is at least 1"
    return None if min(_weights(params)) >= 1 else "the weights have at least one row of at least one element"


def _expr(xp: Array, x: Array, g: Array, c: Array, w: Array) -> Array:
    return _NORM.expr(xp, x[-1:], g, c) @ w


def _torch(torch: Any, x: Array, g: Array, c: Array, w: Array) -> Array:
    return _NORM.library["torch"](torch, x[-1:], g, c) @ w


def _scale(xp: Array, x: Array, g: Array, c: Array, w: Array) -> Array:
    """Return the scale of a product, where each element of the row has the error of its norm."""
    of_row = _NORM.tolerance.scale
    assert of_row is not None
    return norms(xp, of_row(xp, x[-1:], g, c), w)


def _cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    def launch(inputs: Sequence[Array], output: Array) -> None:
        x, *weights = inputs
        if output.dtype == np.float16:
            x, *weights = (array.astype(np.float32) for array in (x[-1:], *weights))
        output[...] = _expr(np, x, *weights)

    return launch


def _row_bytes(params: Params, dtype: str) -> int:
    """Raises Unsupported for a row that a group does not hold."""
    size = rows(params)[1] * (8 if dtype == "float64" else 4)
    if size > _HELD_BYTES:
        raise Unsupported(f"a row of {size} bytes exceeds the {_HELD_BYTES} of a group", reason="limit")
    return size


def _cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    """One launch. Raises Unsupported for another dtype, for rows that are too long, and beyond CUDA's largest grid."""
    require_dtype(dtype, DTYPES, "CUDA")
    _row_bytes(params, dtype)
    width, vocabulary = _weights(params)
    text, arguments = f"const int D = {width};\n{_KERNEL}", ("x", "g", "c", "w", "out", params["n"], vocabulary)
    step = kernel_pass("norm_linear_last", dtype, text, ceil_div(vocabulary, _COLUMNS), _THREADS, arguments)
    return CudaProgram((step,))


_KERNEL = f"""
__device__ __forceinline__ real added(real* shared, real value) {{
  const int t = threadIdx.x;
  shared[t] = value;
  __syncthreads();
  #pragma unroll
  for (int half = {_THREADS} / 2; half > 0; half /= 2) {{
    if (t < half) shared[t] += shared[t + half];
    __syncthreads();
  }}
  const real found = shared[0];
  __syncthreads();
  return found;
}}

extern "C" __global__ void __launch_bounds__({_THREADS})
gpubench_norm_linear_last(const stored* __restrict__ x, const stored* __restrict__ g, const stored* __restrict__ c,
                          const stored* __restrict__ w, stored* __restrict__ out, long long n, long long vocabulary) {{
  __shared__ real row[D], shared[{_THREADS}];
  const int t = threadIdx.x;
  const stored* last = x + (n - 1) * D;
  real total = 0;
  for (int i = t; i < D; i += {_THREADS}) total += row[i] = wide(last[i]);
  const real mean = added(shared, total) / real(D);
  real squares = 0;
  for (int i = t; i < D; i += {_THREADS}) squares += (row[i] - mean) * (row[i] - mean);
  const real by = real(1) / sqrt(added(shared, squares) / real(D) + real({EPSILON}));
  for (int i = t; i < D; i += {_THREADS}) row[i] = (row[i] - mean) * by * wide(g[i]) + wide(c[i]);
  __syncthreads();
  const long long column = (long long)blockIdx.x * {_COLUMNS} + t % {_COLUMNS};
  real sum = 0;
  if (column < vocabulary)
    #pragma unroll 4
    for (int i = t / {_COLUMNS}; i < D; i += {_SHARES}) sum += row[i] * wide(w[i * vocabulary + column]);
  shared[t] = sum;
  __syncthreads();
  #pragma unroll
  for (int half = {_THREADS} / 2; half >= {_COLUMNS}; half /= 2) {{
    if (t < half) shared[t] += shared[t + half];
    __syncthreads();
  }}
  if (t < {_COLUMNS} && column < vocabulary) out[column] = narrow(shared[t]);
}}
"""


def _wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    """One dispatch. Raises Unsupported for what the device does not hold."""
    require_storage(dtype, limits, threads=_THREADS)
    held = _row_bytes(params, dtype) + _THREADS * (8 if dtype == "float64" else 4)
    if held > limits.max_workgroup_bytes:
        raise Unsupported(
            f"{held} bytes a group exceed the {limits.max_workgroup_bytes} there are", reason="limit"
        )
    width, vocabulary = _weights(params)
    size = ITEMSIZE[dtype] * width
    require_bindings({"x": params["n"] * size, "w": vocabulary * size}, limits)
    storage, grid = elements(dtype), fold(ceil_div(vocabulary, _COLUMNS), limits)
    real = storage.real
    whole = "\n".join(fold_lanes("sums", "{a} + {b}", _THREADS, "thread"))
    shared = "\n".join(fold_lanes("sums", "{a} + {b}", _SHARES, f"thread % {_SHARES}u"))
    memory = f"var<workgroup> row: array<{real}, {width}>;\nvar<workgroup> sums: array<{real}, {_THREADS}>;"
    body = f"""
  var total = {real}();
  for (var i = thread; i < {width}u; i += {_THREADS}u) {{
    row[i] = {real}(x_[p.base + i]);
    total += row[i];
  }}
  sums[thread] = total;
{whole}
  let mean = sums[0] / {real}({width}.0);
  workgroupBarrier();
  var squares = {real}();
  for (var i = thread; i < {width}u; i += {_THREADS}u) {{ squares += (row[i] - mean) * (row[i] - mean); }}
  sums[thread] = squares;
{whole}
  let by = {real}(1.0) / sqrt(sums[0] / {real}({width}.0) + {real}({EPSILON}));
  for (var i = thread; i < {width}u; i += {_THREADS}u) {{
    row[i] = (row[i] - mean) * by * {real}(g_[i]) + {real}(c_[i]);
  }}
  workgroupBarrier();
  let column = (group.y * groups.x + group.x) * {_COLUMNS}u + thread % {_COLUMNS}u;
  let place = min(column, p.vocabulary - 1u);
  var sum = {real}();
  for (var i = thread / {_COLUMNS}u; i < {width}u; i += {_SHARES}u) {{
    sum += row[i] * {real}(w_[i * p.vocabulary + place]);
  }}
  sums[thread % {_COLUMNS}u * {_SHARES}u + thread / {_COLUMNS}u] = sum;
{shared}
  if (thread < {_COLUMNS}u && column < p.vocabulary) {{
    out_[column] = {storage.stored}(sums[thread * {_SHARES}u]);
  }}
"""
    buffers = dict.fromkeys(("x_", "g_", "c_", "w_", "out_"), storage.stored)
    text = shader(buffers, _THREADS, body, params="base vocabulary", before=memory)
    uniform = ((params["n"] - 1) * width, vocabulary)
    return WgslProgram((WgslPass(text, grid, ("x", "g", "c", "w", "out"), uniform=uniform),))


OPS = (
    Op(
        name="norm_linear_last",
        group="layers",
        summary="out = layernorm(x[n - 1]) w, of the last row alone",
        params={"n": "number of rows"},
        options={"width": "length of a row (256)", "vocabulary": f"columns of the result ({_VOCABULARY})"},
        sizes=Ladder(low=1, high=16384),
        inputs=(
            Operand("x", rows, "normal"),
            Operand("g", across, "normal", role="weight"),
            Operand("c", across, "normal", role="weight"),
            Operand("w", _weights, "fan-in", role="weight"),
        ),
        output=Operand("out", _logits),
        flops=_flops,
        traffic=_traffic,
        blas=("numpy", "torch"),
        fits=_fits,
        expr=_expr,
        library={"torch": _torch},
        tolerance=Tolerance(16, scale=_scale),
        tuned=by_backend(_cpu, _cuda, _wgsl),
    ),
)
