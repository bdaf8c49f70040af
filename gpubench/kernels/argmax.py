"""argmax: the place of the largest number of each row, the lowest one of several: how a model chooses its next token.

- CPU: NumPy's own, block by block.
- CUDA and WGSL: 32 threads share a row, or a whole group where the rows are few; each has the best of its own, and
  they agree in steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpubench.kernels.contract.kernel import CudaProgram, Limits, WgslPass, WgslProgram, by_backend
from gpubench.kernels.contract.op import (
    EXACT,
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
from gpubench.kernels.templates import ceil_div, fold, group_threads, require_bindings
from gpubench.kernels.templates.cpu import Blocks, Launch
from gpubench.kernels.templates.cuda import kernel_pass
from gpubench.kernels.templates.wgsl import elements, fold_lanes, require_storage, shader

_CLASSES = 2048
_BLOCK = 256 * 1024  # elements that one thread takes at a time
_THREADS, _LANES = 256, 32  # of a group, and of a row; a warp
_FEW = 128  # rows that leave most of a device idle unless a whole group takes each


def _rows(params: Params) -> Shape:
    return (params["n"], params.get("classes", _CLASSES))


def _cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    def launch(inputs: Sequence[Array], output: Array) -> None:
        (z,) = inputs

        def block(start: int, stop: int) -> None:
            output[start:stop] = np.argmax(z[start:stop], axis=-1)

        blocks.run(block, len(z), max(1, _BLOCK // z.shape[1]))

    return launch


def _cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    """One launch, none without rows. Raises Unsupported for another dtype, and beyond CUDA's largest grid."""
    n, classes = _rows(params)
    lanes = _lanes(n, classes)
    text = f"const int ACROSS = {lanes};\n{_KERNEL}"
    blocks = ceil_div(max(n, 1), _THREADS // lanes)
    step = kernel_pass("argmax", dtype, text, blocks, _THREADS, ("z", "out", n, classes))
    return CudaProgram((step,) * (n > 0))


_KERNEL = f"""
extern "C" __global__ void __launch_bounds__({_THREADS})
gpubench_argmax(const stored* __restrict__ z, int* __restrict__ out, long long rows, long long columns) {{
  const int lane = threadIdx.x % ACROSS;
  const long long index = (long long)blockIdx.x * ({_THREADS} / ACROSS) + threadIdx.x / ACROSS;
  const stored* row = z + (index < rows ? index : rows - 1) * columns;
  real best = minus_infinity();
  int place = 2147483647;
  const auto take = [&](real value, int other) {{
    if (value > best || (value == best && other < place)) best = value, place = other;
  }};
  #pragma unroll 8
  for (int i = lane; i < columns; i += ACROSS) {{
    const real value = wide(row[i]);
    if (value > best || place == 2147483647) best = value, place = i;
  }}
  #pragma unroll
  for (int far = {_LANES} / 2; far > 0; far /= 2) {{
    const real value = __shfl_xor_sync(0xffffffffu, best, far);
    take(value, __shfl_xor_sync(0xffffffffu, place, far));
  }}
  if (ACROSS > {_LANES}) {{
    __shared__ real values[ACROSS / {_LANES}];
    __shared__ int places[ACROSS / {_LANES}];
    if (lane % {_LANES} == 0) values[lane / {_LANES}] = best, places[lane / {_LANES}] = place;
    __syncthreads();
    for (int i = 0; i < ACROSS / {_LANES}; ++i) take(values[i], places[i]);
  }}
  if (lane == 0 && index < rows) out[index] = place;
}}
"""


def _lanes(n: int, classes: int) -> int:
    """Threads that share a row."""
    return _THREADS if n <= _FEW and classes > 2 * _LANES else _LANES


def _wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    """One dispatch, none without rows. Raises Unsupported for what the device does not hold."""
    require_storage(dtype, limits)
    n, classes = _rows(params)
    require_bindings({"z": ITEMSIZE[dtype] * n * classes}, limits)
    lanes, threads = _lanes(n, classes), group_threads(limits, _THREADS)
    lanes, rows = min(lanes, threads), max(threads // lanes, 1)
    storage, grid = elements(dtype), fold(ceil_div(max(n, 1), rows), limits)
    folded = "\n".join(fold_lanes("bests", "better({a}, {b})", lanes))
    before = f"""
struct Best {{ value: {storage.real}, place: u32, }}
var<workgroup> bests: array<Best, {threads}>;
fn better(a: Best, b: Best) -> Best {{
  if (b.value > a.value || (b.value == a.value && b.place < a.place)) {{ return b; }}
  return a;
}}
"""
    body = f"""
  let lane = thread % {lanes}u;
  let index = (group.y * groups.x + group.x) * {rows}u + thread / {lanes}u;
  let row = min(index, p.rows - 1u) * p.columns;
  // A lane past the row's end repeats its last element.
  let first = min(lane, p.columns - 1u);
  var best = Best({storage.real}(z_[row + first]), first);
  for (var i = lane + {lanes}u; i < p.columns; i += {lanes}u) {{
    let value = {storage.real}(z_[row + i]);
    if (value > best.value) {{ best = Best(value, i); }}
  }}
  bests[thread] = best;
{folded}
  if (lane == 0u && index < p.rows) {{ out_[index] = i32(bests[thread].place); }}
"""
    text = shader({"z_": storage.stored, "out_": "i32"}, threads, body, params="rows columns", before=before)
    step = WgslPass(text, grid, ("z", "out"), uniform=(n, classes))
    return WgslProgram((step,) if n else ())


OP = Op(
    name="argmax",
    group="layers",
    summary="out = the place of the largest number of each row, the lowest one of several",
    params={"n": "number of rows"},
    options={"classes": f"length of a row ({_CLASSES})"},
    sizes=Ladder(low=1, high=16384),
    inputs=(Operand("z", _rows, "normal"),),
    output=Operand("out", lambda params: _rows(params)[:1], dtype="int32"),
    flops=lambda params: params["n"] * _rows(params)[1],
    fits=lambda params: None if _rows(params)[1] >= 1 else "a row has at least one element",
    expr=lambda xp, z: xp.argmax(z, axis=-1).astype(xp.int32),
    library={"torch": lambda torch, z: torch.argmax(z, -1).int()},
    tolerance=EXACT,
    split=Split({"z": 0}, counted_by("n")),
    tuned=by_backend(_cpu, _cuda, _wgsl),
)
