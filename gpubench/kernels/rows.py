"""Ops along rows: softmax and layernorm with their derivatives, rmsnorm, cross_entropy and argmax.

The kernels of most of these ops are in `templates/rows`; those of cross_entropy and argmax are here. cross_entropy
has two outputs: the loss of each row of logits z, log(sum exp z) - z[label], and the gradient of the mean loss,
(softmax z - [label]) / n.

- CPU: cross_entropy is compiled and takes a row at a time; argmax is NumPy's, over blocks of rows.
- CUDA and WGSL: 32 threads share a row, or a whole group in argmax with few rows. cross_entropy reads a row three
  times, the second and third time from the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from gpubench.kernels.contract.op import (
    EXACT,
    ITEMSIZE,
    Array,
    Ids,
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
    ceil_div,
    elements,
    fold,
    fold_lanes,
    group_threads,
    one_launch,
    require_bindings,
    require_storage,
    shader,
)
from gpubench.kernels.templates.cpu import Blocks, Launch, compiled_kernels, numba_candidates, numba_prelude
from gpubench.kernels.templates.elementwise import vector_shape
from gpubench.kernels.templates.rows import CUT_INTO_ROWS, EPSILON, OF_WIDTH, across, center, layernorm, rowwise
from gpubench.kernels.templates.rows.cuda import folds
from gpubench.kernels.templates.rows.formula import RowArrays


def _softmax_formula(m: Any, x: Any) -> Any:
    power, total = m.powers(x)
    return power / total


def _softmax_scale(xp: Array, y: Array, dy: Array) -> Array:
    """Return the scale of softmax's gradient: |y| (|dy| + sum |y dy|)."""
    return xp.abs(y) * (xp.abs(dy) + RowArrays(xp).total(xp.abs(y * dy)))


def _layernorm_scale(xp: Array, x: Array, g: Array, c: Array) -> Array:
    """Return the scale of layernorm: |g| (|x| + mean |x|) / deviation + |c|."""
    return xp.abs(g) * _unit_scale(xp, x)[1] + xp.abs(c)


def _layernorm_grad(m: Any, x: Any, dy: Any, g: Any) -> Any:
    rest, deviation = center(m, x)
    unit, slope = rest / deviation, dy * g
    return (slope - m.mean(slope) - unit * m.mean(slope * unit)) / deviation


def _layernorm_grad_g(m: Any, x: Any, dy: Any) -> Any:
    rest, deviation = center(m, x)
    return dy * (rest / deviation)


def _unit_scale(xp: Array, x: Array) -> tuple[Array, Array]:
    """Return the standard deviation of each row, and (|x| + mean |x|) / deviation, the scale of normed elements."""
    rows = RowArrays(xp)
    deviation = center(rows, x)[1]
    return deviation, (xp.abs(x) + rows.mean(xp.abs(x))) / deviation


def _layernorm_grad_scale(xp: Array, x: Array, dy: Array, g: Array) -> Array:
    deviation, unit = _unit_scale(xp, x)
    slope = xp.abs(dy * g)
    rows = RowArrays(xp)
    return (slope + rows.mean(slope) + unit * rows.mean(slope * unit)) / deviation


def _layernorm_grad_torch(torch: Any, x: Any, dy: Any, g: Any) -> Any:
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    inverse, only = torch.rsqrt(variance + EPSILON), [True, False, False]
    return torch.ops.aten.native_layer_norm_backward(dy, x, x.shape[-1:], mean, inverse, g, None, only)[0]


_CLASSES = 10
_STEP = 256  # a power of two, so that a division by it does not round
_LANES, _ROWS = 32, 4  # threads of a row, and rows of a group


def _classes(params: Params) -> int:
    return params.get("classes", _CLASSES)


def _logits(params: Params) -> Shape:
    return (params["n"], _classes(params))


def _expr(xp: Array, z: Array, labels: Array) -> tuple[Array, Array]:
    rows = xp.arange(z.shape[0])
    z = z - xp.max(z, axis=-1, keepdims=True)
    powers = xp.exp(z)
    total = xp.sum(powers, axis=-1, keepdims=True)
    loss = xp.log(total[:, 0]) - z[rows, labels]
    gradient = powers / total
    gradient[rows, labels] -= 1
    # In two steps: float16 has no number above 65,504, and a division by infinity gives 0.
    return loss, gradient / _STEP / (z.shape[0] / _STEP)


def _torch(torch: Any, z: Array, labels: Array) -> tuple[Array, Array]:
    labels = labels.long()
    loss = torch.nn.functional.cross_entropy(z, labels, reduction="none")
    gradient = torch.softmax(z, -1)
    gradient[torch.arange(len(z), device=z.device), labels] -= 1
    return loss, gradient.div_(len(z))


def _loss_scale(xp: Array, z: Array, labels: Array) -> Array:
    """Return the scale of the loss: |z[label]| + max |z| + log(sum), whose terms may cancel."""
    largest = xp.max(z, axis=-1)
    total = xp.sum(xp.exp(z - largest[:, None]), axis=-1)
    return xp.abs(z[xp.arange(z.shape[0]), labels]) + xp.max(xp.abs(z), axis=-1) + xp.log(total)


def _gradient_scale(xp: Array, z: Array, labels: Array) -> Array:
    """Return the scale of the gradient: (softmax + [label]) / n, where [label] is 1 at the label, else 0."""
    powers = xp.exp(z - xp.max(z, axis=-1, keepdims=True))
    shares = powers / xp.sum(powers, axis=-1, keepdims=True)
    return (shares + (xp.arange(z.shape[1]) == labels[:, None])) / z.shape[0]


# ---------------------------------------------------------------- CPU


def _compile(params: Params, dtype: str, limits: Limits) -> tuple[Candidate, ...]:
    n, classes = _logits(params)
    source = _NUMBA.format(prelude=numba_prelude(dtype), dtype=dtype)

    def program(threads: int, streaming: bool) -> NumbaProgram:
        step = NumbaPass("run", ("z", "labels", "loss", "dz"), n, m=classes, s=n)
        return NumbaProgram(source, (step,), threads)

    return numba_candidates(4 * n * classes, limits, program, streamed=False)


# For halves each exponential is computed twice: one that was stored would have been rounded to a half.
_NUMBA = """import math

{prelude}

@summing
def largest(z, start, stop):
    top = minus_infinity
    for i in range(start, stop):
        top = larger(top, load(z[i]))
    return top


@summing
def exponentials(z, dz, start, stop, top):
    total = real(0)
    for i in range(start, stop):
        power = exp(load(z[i]) - top)
        if not is_half:
            dz[i] = store(power)
        total += power
    return total


@scalar
def scale(z, dz, start, stop, top, by):
    for i in range(start, stop):
        dz[i] = store((exp(load(z[i]) - top) if is_half else load(dz[i])) * by)


@kernel({dtype!r}, "int32", {dtype!r}, {dtype!r})
def run(z, labels, loss, dz, first, last, slot, m, s):
    wide_vectors()
    for row in range(first, last):
        base, stop = row * m, row * m + m
        top = largest(z, base, stop)
        total = float64(0)
        for start in range(base, stop, 4096):
            total += float64(exponentials(z, dz, start, min(start + 4096, stop), top))
        at = base + labels[row]
        given = load(z[at])
        loss[row] = store(real(math.log(total) - (float64(given) - float64(top))))
        scale(z, dz, base, stop, top, real(1 / (total * s)))
        dz[at] = store(real((math.exp(float64(given) - float64(top)) / total - 1) / s))
"""


# ---------------------------------------------------------------- GPU


def _cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    n, classes = _logits(params)
    blocks, arguments = ceil_div(n, _ROWS), ("z", "labels", "loss", "dz", n, classes)
    return one_launch("cross_entropy", dtype, _KERNEL, blocks, _LANES * _ROWS, arguments)


_KERNEL = f"""const int ROW_THREADS = {_LANES};
{folds()}
extern "C" __global__ void __launch_bounds__({_LANES * _ROWS})
gpubench_cross_entropy(const stored* __restrict__ z, const int* __restrict__ labels, stored* __restrict__ loss,
                       stored* __restrict__ dz, long long rows, long long columns) {{
  const int lane = threadIdx.x % {_LANES};
  const long long index = (long long)blockIdx.x * {_ROWS} + threadIdx.x / {_LANES};
  const bool live = index < rows;  // a spare row repeats the last one and writes nothing
  const long long row = live ? index : rows - 1;
  const stored* given = z + row * columns;
  real top = minus_infinity();
  for (long long i = lane; i < columns; i += {_LANES}) top = wide(given[i]) > top ? wide(given[i]) : top;
  top = across<Larger>(top, nullptr);
  real total = 0;
  for (long long i = lane; i < columns; i += {_LANES}) total += exp(wide(given[i]) - top);
  total = across<Sum>(total, nullptr);
  if (!live) return;
  const int label = labels[row];
  if (lane == 0) loss[row] = narrow(log(total) - (wide(given[label]) - top));
  const real by = real(1) / real(rows);
  for (long long i = lane; i < columns; i += {_LANES})
    dz[row * columns + i] = narrow((exp(wide(given[i]) - top) / total - (i == label ? real(1) : real(0))) * by);
}}
"""


def _wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    require_storage(dtype, limits, threads=_LANES * _ROWS, exact=False)
    n, classes = _logits(params)
    require_bindings({"z": ITEMSIZE[dtype] * n * classes, "labels": 4 * n}, limits)
    storage, grid = elements(dtype), fold(ceil_div(n, _ROWS), limits)
    body = f"""
  let lane = thread % {_LANES}u;
  let index = (group.y * groups.x + group.x) * {_ROWS}u + thread / {_LANES}u;
  let row = min(index, p.rows - 1u) * p.columns;
  var top = f32(z_[row + min(lane, p.columns - 1u)]);
  for (var i = lane + {_LANES}u; i < p.columns; i += {_LANES}u) {{ top = max(top, f32(z_[row + i])); }}
  folded[thread] = top;
{_fold("max({a}, {b})")}
  top = folded[thread - lane];
  workgroupBarrier();
  var total = 0.0;
  for (var i = lane; i < p.columns; i += {_LANES}u) {{ total += exp(f32(z_[row + i]) - top); }}
  folded[thread] = total;
{_fold("{a} + {b}")}
  total = folded[thread - lane];
  if (index >= p.rows) {{ return; }}
  let label = min(u32(labels[index]), p.columns - 1u);
  if (lane == 0u) {{ loss[index] = {storage.stored}(log(total) - (f32(z_[row + label]) - top)); }}
  let by = 1.0 / f32(p.rows);
  for (var i = lane; i < p.columns; i += {_LANES}u) {{
    dz[row + i] = {storage.stored}((exp(f32(z_[row + i]) - top) / total - select(0.0, 1.0, i == label)) * by);
  }}
"""
    stored = storage.stored
    text = shader(
        {"z_": stored, "labels": "i32", "loss": stored, "dz": stored}, _LANES * _ROWS, body, params="rows columns",
        before=f"var<workgroup> folded: array<f32, {_LANES * _ROWS}>;", writes=("loss", "dz"),
    )  # fmt: skip
    return one_dispatch(text, grid, ("z", "labels", "loss", "dz"), uniform=(n, classes))


def _fold(joined: str) -> str:
    return "\n".join(fold_lanes("folded", joined, _LANES))


_ARGMAX_CLASSES = 2048
_ARGMAX_BLOCK = 256 * 1024  # elements that one thread takes at a time
_ARGMAX_THREADS, _ARGMAX_LANES = 256, 32  # threads of a group, and of a row that a warp takes
_ARGMAX_FEW = 128  # up to so many rows, a whole group takes each, so that the device is not idle


def _argmax_rows(params: Params) -> Shape:
    return (params["n"], params.get("classes", _ARGMAX_CLASSES))


def _argmax_cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    def launch(inputs: Sequence[Array], output: Array) -> None:
        (z,) = inputs

        def block(start: int, stop: int) -> None:
            output[start:stop] = np.argmax(z[start:stop], axis=-1)

        blocks.run(block, len(z), max(1, _ARGMAX_BLOCK // z.shape[1]))

    return launch


def _argmax_cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    n, classes = _argmax_rows(params)
    lanes = _argmax_lanes(n, classes)
    text = f"const int ACROSS = {lanes};\n{_ARGMAX_KERNEL}"
    blocks = ceil_div(n, _ARGMAX_THREADS // lanes)
    return one_launch("argmax", dtype, text, blocks, _ARGMAX_THREADS, ("z", "out", n, classes))


_ARGMAX_KERNEL = f"""
extern "C" __global__ void __launch_bounds__({_ARGMAX_THREADS})
gpubench_argmax(const stored* __restrict__ z, int* __restrict__ out, long long rows, long long columns) {{
  const int lane = threadIdx.x % ACROSS;
  const long long index = (long long)blockIdx.x * ({_ARGMAX_THREADS} / ACROSS) + threadIdx.x / ACROSS;
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
  for (int far = {_ARGMAX_LANES} / 2; far > 0; far /= 2) {{
    const real value = __shfl_xor_sync(0xffffffffu, best, far);
    take(value, __shfl_xor_sync(0xffffffffu, place, far));
  }}
  if (ACROSS > {_ARGMAX_LANES}) {{
    __shared__ real values[ACROSS / {_ARGMAX_LANES}];
    __shared__ int places[ACROSS / {_ARGMAX_LANES}];
    if (lane % {_ARGMAX_LANES} == 0) values[lane / {_ARGMAX_LANES}] = best, places[lane / {_ARGMAX_LANES}] = place;
    __syncthreads();
    for (int i = 0; i < ACROSS / {_ARGMAX_LANES}; ++i) take(values[i], places[i]);
  }}
  if (lane == 0 && index < rows) out[index] = place;
}}
"""


def _argmax_lanes(n: int, classes: int) -> int:
    """Return the number of threads that share a row: a group's if rows are few and long, else a warp's."""
    return _ARGMAX_THREADS if n <= _ARGMAX_FEW and classes > 2 * _ARGMAX_LANES else _ARGMAX_LANES


def _argmax_wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    require_storage(dtype, limits)
    n, classes = _argmax_rows(params)
    require_bindings({"z": ITEMSIZE[dtype] * n * classes}, limits)
    lanes, threads = _argmax_lanes(n, classes), group_threads(limits, _ARGMAX_THREADS)
    lanes, rows = min(lanes, threads), max(threads // lanes, 1)
    storage, grid = elements(dtype), fold(ceil_div(n, rows), limits)
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
    return one_dispatch(text, grid, ("z", "out"), uniform=(n, classes))


_X, _DY = (Operand(name, OF_WIDTH.shape, "normal") for name in ("x", "dy"))
_GAIN, _SHIFT = (Operand(name, across, "normal", role="weight") for name in ("g", "c"))

OPS = (
    rowwise(
        name="softmax",
        group="activation",
        summary="out = exp(x - max(x)) / sum(exp(x - max(x))) along rows of up to 1024",
        inputs=(Operand("x", CUT_INTO_ROWS.shape, values="normal"),),
        formula=_softmax_formula,
        flops_per_element=5,  # max, subtract, exp, add, divide
        library={"torch": lambda torch, x, out=None: torch.softmax(x, -1, out=out)},
        tolerance=Tolerance(64),
    ),
    rowwise(
        name="softmax_grad",
        group="derivative",
        summary="out = y (dy - sum(y dy)) along rows of up to 1024",
        inputs=(Operand("y", CUT_INTO_ROWS.shape), Operand("dy", CUT_INTO_ROWS.shape)),
        formula=lambda m, y, dy: y * (dy - m.total(y * dy)),
        flops_per_element=4,  # multiply, add, subtract, multiply
        library={
            "torch": lambda torch, y, dy, out: torch.ops.aten._softmax_backward_data.out(
                dy, y, -1, y.dtype, grad_input=out
            )
        },
        tolerance=Tolerance(8, scale=_softmax_scale),
    ),
    rowwise(
        name="layernorm",
        group="layers",
        summary="out = (x - mean) / sqrt(variance + 1e-5) g + c of each row",
        inputs=(_X, _GAIN, _SHIFT),
        of=OF_WIDTH,
        formula=layernorm,
        flops_per_element=7,  # add, take the mean off; multiply, add; multiply by the inverse and by g, add c
        library={
            "torch": lambda torch, x, g, c: torch.nn.functional.layer_norm(x, x.shape[-1:], g, c, EPSILON)
        },
        tolerance=Tolerance(8, scale=_layernorm_scale),
    ),
    rowwise(
        name="layernorm_grad",
        group="layers",
        summary="the gradient of layernorm by x, from dy, that of its result",
        inputs=(_X, _DY, _GAIN),
        of=OF_WIDTH,
        formula=_layernorm_grad,
        flops_per_element=14,
        library={"torch": _layernorm_grad_torch},
        tolerance=Tolerance(8, scale=_layernorm_grad_scale),
    ),
    rowwise(
        name="layernorm_grad_g",
        group="layers",
        summary="the terms whose sums over the rows are the gradient of layernorm by g",
        inputs=(_X, _DY),
        of=OF_WIDTH,
        formula=_layernorm_grad_g,
        flops_per_element=6,
        library={
            "torch": lambda torch, x, dy: dy * torch.nn.functional.layer_norm(x, x.shape[-1:], eps=EPSILON)
        },
        tolerance=Tolerance(8, scale=lambda xp, x, dy: xp.abs(dy) * _unit_scale(xp, x)[1]),
    ),
    rowwise(
        name="rmsnorm",
        group="layers",
        summary="out = x / sqrt(mean of squares + 1e-5) g of each row",
        inputs=(_X, _GAIN),
        of=OF_WIDTH,
        formula=lambda m, x, g: x / m.sqrt(m.mean(x * x) + EPSILON) * g,
        flops_per_element=4,
        library={"torch": lambda torch, x, g: torch.nn.functional.rms_norm(x, x.shape[-1:], g, EPSILON)},
        tolerance=Tolerance(8),
    ),
    Op(
        name="cross_entropy",
        group="layers",
        summary="loss = log(sum exp z) - z[label] of each row, and the gradient of its mean",
        params={"n": "number of rows"},
        options={"classes": f"length of a row ({_CLASSES})"},
        sizes=Ladder(low=1, high=65536),
        inputs=(Operand("z", _logits, "normal"), Operand("labels", vector_shape, Ids(_classes), dtype="int32")),
        output=Operand("loss", vector_shape),
        more_outputs=(Operand("dz", _logits, tolerance=Tolerance(64, scale=_gradient_scale)),),
        flops=lambda params: 8 * params["n"] * _classes(params),
        expr=_expr,
        library={"torch": _torch},
        tolerance=Tolerance(8, scale=_loss_scale),
        tuned=by_backend(compiled_kernels(_compile), _cuda, _wgsl),
    ),
    Op(
        name="argmax",
        group="layers",
        summary="out = the place of the largest number of each row, the lowest one of several",
        params={"n": "number of rows"},
        options={"classes": f"length of a row ({_ARGMAX_CLASSES})"},
        sizes=Ladder(low=1, high=16384),
        inputs=(Operand("z", _argmax_rows, "normal"),),
        output=Operand("out", lambda params: _argmax_rows(params)[:1], dtype="int32"),
        flops=lambda params: params["n"] * _argmax_rows(params)[1],
        expr=lambda xp, z: xp.argmax(z, axis=-1).astype(xp.int32),
        library={"torch": lambda torch, z: torch.argmax(z, -1).int()},
        tolerance=EXACT,
        split=Split({"z": 0}, counted_by("n")),
        tuned=by_backend(_argmax_cpu, _argmax_cuda, _argmax_wgsl),
    ),
)
