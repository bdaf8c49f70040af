"""Norms of rows: each row divided by its deviation or its length, times a gain, and for some a shift added.

Two reads and one write an element if a row stays on chip, which `templates/rows` is for: the sums of a row are folded
over the threads that hold it. The sum of the squares is that of what is left after the mean, so that nothing cancels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpubench.kernels.contract.kernel import Candidate, Kernel, Limits, NumbaPass, NumbaProgram
from gpubench.kernels.contract.op import ITEMSIZE, Ladder, Op, Operand, Params, Shape, Split, counted_by
from gpubench.kernels.templates.cpu import compiled_kernel, numba_candidates, numba_prelude, numba_signature
from gpubench.kernels.templates.elementwise import WORKING_DTYPES
from gpubench.kernels.templates.rows.cuda import CudaRowKernel, CudaRows, cuda_rows
from gpubench.kernels.templates.rows.wgsl import WgslRowKernel, WgslRows

_WIDTH = 256
EPSILON = 1e-5  # added to the mean of the squares: a row of equal elements has a norm, too


def rows(params: Params) -> Shape:
    return (params["n"], params.get("width", _WIDTH))


def across(params: Params) -> Shape:
    return rows(params)[1:]


def norm(*, name: str, centred: bool, **declared: Any) -> Op:
    """The op of rows x, a gain g and, where the mean is taken off first (`centred`), a shift c. `declared` are
    the op's group, summary, `expr`, `library` and `tolerance`."""
    whole = _whole(centred)
    inputs = (
        Operand("x", rows, "normal"),
        *(Operand(other, across, "normal", role="weight") for other in whole),
    )
    return Op(
        name=name, params={"n": "number of rows"},
        options={"width": f"length of a row ({_WIDTH})"}, sizes=Ladder(low=1, high=65536), dtypes=WORKING_DTYPES,
        inputs=inputs, output=Operand("out", rows),
        # Multiply, add; multiply by the inverse and by g. With a mean: add it up, take it off, add c.
        flops=lambda params: (7 if centred else 4) * params["n"] * rows(params)[1],
        fits=lambda params: None if rows(params)[1] >= 1 else "a row has at least one element",
        split=Split({"x": 0}, counted_by("n")),
        tuned={
            "numpy": (compiled_kernel(partial(compiled, centred)),),
            "cupy": (_built("cuda", cuda_kernel(name, centred)),),
            "wgpu": (_built("wgsl", wgsl_kernel(centred)),),
        },
        **declared,
    )  # fmt: skip


def _whole(centred: bool) -> tuple[str, ...]:
    return ("g", "c") if centred else ("g",)


def cuda_kernel(name: str, centred: bool) -> CudaRowKernel:
    return CudaRowKernel(name, ("x",), partial(_choose_cuda, centred), _whole(centred))


def wgsl_kernel(centred: bool) -> WgslRowKernel:
    return WgslRowKernel(("x",), partial(_source, centred), across=_whole(centred))


def _built(language: str, kernel: CudaRowKernel | WgslRowKernel) -> Kernel:
    def build(params: Params, dtype: str, limits: Limits) -> Any:
        count, width = rows(params)
        return kernel.build(count, width, dtype, limits)

    return Kernel(language, build)


# ---------------------------------------------------------------- CPU


def compiled(
    centred: bool, params: Params, dtype: str, limits: Limits, into: str = "out"
) -> tuple[Candidate, ...]:
    """The norm by threads, which share the rows out; it writes the array `into`."""
    count, width = rows(params)
    source = _NUMBA.format(
        prelude=numba_prelude(dtype), signature=numba_signature(dtype), epsilon=EPSILON,
        mean="whole(x_, base, stop, real(0), False)" if centred else "real(0)",
        shift=" + load(c_[i - start])" * centred,
    )  # fmt: skip

    def program(threads: int, streaming: bool) -> NumbaProgram:
        step = NumbaPass("run", ("x", "g", "c" if centred else None, into), count, m=width)
        return NumbaProgram(source, (step,) * (count > 0), threads)

    return numba_candidates(count * width, limits, program, streamed=False)


# Sums go over runs of 256 elements, and over these in float64: the error of a few additions, at the same speed.
_NUMBA = """import math

{prelude}

@summing
def total(x_, start, stop):
    found = real(0)
    for i in range(start, stop):
        found += load(x_[i])
    return found


@summing
def squares(x_, start, stop, mean):
    found = real(0)
    for i in range(start, stop):
        rest = load(x_[i]) - mean
        found += rest * rest
    return found


@scalar
def whole(x_, start, stop, mean, squared):
    found = float64(0)
    for first in range(start, stop, 256):
        last = min(first + 256, stop)
        found += float64(squares(x_, first, last, mean) if squared else total(x_, first, last))
    return real(found / (stop - start))


@scalar
def scale(x_, g_, c_, out, start, stop, mean, by):
    for i in range(start, stop):
        out[i] = store((load(x_[i]) - mean) * by * load(g_[i - start]){shift})


{signature}
def run(x_, g_, c_, out, first, last, slot, m, s):
    wide_vectors()
    for row in range(first, last):
        base, stop = row * m, row * m + m
        mean = {mean}
        by = real(1) / math.sqrt(whole(x_, base, stop, mean, True) + real({epsilon}))
        scale(x_, g_, c_, out, base, stop, mean, by)
"""


# ---------------------------------------------------------------- CUDA: a row in registers


def _choose_cuda(centred: bool, columns: int, dtype: str, limits: Limits) -> tuple[CudaRows, str]:
    found = cuda_rows(columns, dtype, limits, itemsize=ITEMSIZE[dtype])
    text = _IN_REGISTERS if found.held else _LOOPING
    mean = "across<Sum>(total, spare[0]) / real(columns)" if centred else "real(0)"
    shift = " + wide(c[u].lane[j])" * centred
    return found, text.replace("MEAN", mean).replace("SHIFT", shift).replace("EPSILON", f"real({EPSILON})")


_IN_REGISTERS = """  Unit a[HELD];
  real total = 0;
  #pragma unroll
  for (int k = 0; k < HELD; ++k) {
    const int u = first + k * ROW_THREADS;
    if (!WHOLE && u >= units) continue;
    a[k] = x[u];
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) total += wide(a[k].lane[j]);
  }
  entered();
  const real mean = MEAN;
  real squares = 0;
  #pragma unroll
  for (int k = 0; k < HELD; ++k)
    if (WHOLE || first + k * ROW_THREADS < units)
      #pragma unroll
      for (int j = 0; j < WIDTH; ++j) {
        const real rest = wide(a[k].lane[j]) - mean;
        squares += rest * rest;
      }
  squares = across<Sum>(squares, spare[1]);
  const real by = real(1) / sqrt(squares / real(columns) + EPSILON);
  #pragma unroll
  for (int k = 0; k < HELD; ++k) {
    const int u = first + k * ROW_THREADS;
    if (!live || (!WHOLE && u >= units)) continue;
    Unit result;
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j)
      result.lane[j] = narrow((wide(a[k].lane[j]) - mean) * by * wide(g[u].lane[j])SHIFT);
    out[u] = result;
  }
"""

_LOOPING = """  real total = 0;
  for (int u = lane; u < units; u += ROW_THREADS) {
    const Unit a = x[u];
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) total += wide(a.lane[j]);
  }
  entered();
  const real mean = MEAN;
  real squares = 0;
  for (int u = lane; u < units; u += ROW_THREADS) {
    const Unit a = x[u];
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      const real rest = wide(a.lane[j]) - mean;
      squares += rest * rest;
    }
  }
  squares = across<Sum>(squares, spare[1]);
  const real by = real(1) / sqrt(squares / real(columns) + EPSILON);
  for (int u = lane; live && u < units; u += ROW_THREADS) {
    const Unit a = x[u];
    Unit result;
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j)
      result.lane[j] = narrow((wide(a.lane[j]) - mean) * by * wide(g[u].lane[j])SHIFT);
    out[u] = result;
  }
"""


# ---------------------------------------------------------------- WGSL: a row in registers


def _source(centred: bool, found: WgslRows) -> str:
    storage, whole = found.storage, _whole(centred)
    lines = found.loads(("x",), whole)
    lines += [f"  let columns = {storage.real}(p.units * {storage.width}u);"]
    if centred:
        lines += ["  var total = " + _added(found, lambda part: part) + ";"]
        lines += found.loop(["    let x = x_[row + u];", *_each(found, "total", lambda part: part)])
        lines += _folded(found, "total", "mean")
    else:
        lines += [f"  let mean = {storage.real}();"]
    lines += [f"  let middle = {storage.part}(mean);"]
    lines += ["  var squares = " + _added(found, _square) + ";"]
    lines += found.loop(["    let x = x_[row + u];", *_each(found, "squares", _square)])
    if centred:
        lines += ["  workgroupBarrier();"]  # the first sum has been read by all
    lines += _folded(found, "squares", "square")
    lines += [f"  let by = {storage.part}(1.0 / sqrt(square + {EPSILON}));"]
    lines += [found.store(k, _value(found, whole, k)) for k in range(found.held)]
    again = [
        f"    let {name} = {name}_[{at}u];" for name, at in (("x", "row + "), *((name, "") for name in whole))
    ]
    lines += found.loop([*again, f"    if (live) {{ out_[row + u] = {_value(found, whole, '')}; }}"])
    return found.shader(("x", *whole), ("sums",), lines)


def _square(part: str) -> str:
    return f"({part} - middle) * ({part} - middle)"


def _added(found: WgslRows, of: Callable[[str], str]) -> str:
    """The sum of all held parts."""
    return " + ".join(
        found.kept(k, of(part)) for k in range(found.held) for part in found.storage.decoded(f"x{k}")
    )


def _each(found: WgslRows, name: str, of: Callable[[str], str]) -> list[str]:
    return [f"    {name} += {of(part)};" for part in found.storage.decoded("x")]


def _folded(found: WgslRows, total: str, mean: str) -> list[str]:
    """`mean`, the sum over the row divided by its length."""
    return [
        f"  sums[thread] = {found.storage.across('', total)};",
        *found.fold_lanes("sums", "{a} + {b}"),
        f"  let {mean} = sums[thread - lane] / columns;",
    ]


def _value(found: WgslRows, whole: tuple[str, ...], k: int | str) -> str:
    x, g, *c = (found.storage.decoded(f"{name}{k}") for name in ("x", *whole))
    shifts = [f" + {part}" for part in c[0]] if c else [""] * len(x)
    return found.storage.encoded(
        *(f"({part} - middle) * by * {gain}{shift}" for part, gain, shift in zip(x, g, shifts, strict=True))
    )
