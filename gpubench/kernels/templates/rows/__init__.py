"""Ops along rows: how n elements are cut into rows, how threads share a row, and how one number is folded per row.

- CPU: whole rows for each thread, or parts of a row where there are fewer rows than threads.
- CUDA: a row lies in the registers of its threads: of a part of a warp, of a warp, of a block, or of a cluster of
  blocks that reach each other's shared memory. So nothing is read twice, whatever the arithmetic needs.
- WGSL: `lanes` threads of a group share a row and each keeps `held` units of every input in registers; what does not
  fit is read from memory a second time. Short rows share a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gpubench.kernels.contract.kernel import Candidate, Kernel, Limits, NumbaPass, NumbaProgram
from gpubench.kernels.contract.op import ITEMSIZE, Array, Ladder, Op, Operand, Params, Split, Tolerance
from gpubench.kernels.templates import ceil_div
from gpubench.kernels.templates.cpu import (
    STREAMED_BYTES,
    compiled_kernel,
    numba_candidates,
    numba_prelude,
    numba_signature,
)
from gpubench.kernels.templates.elementwise import WORKING_DTYPES
from gpubench.kernels.templates.rows.cuda import CudaRowKernel
from gpubench.kernels.templates.rows.wgsl import WgslRowKernel

_PARAMS = {"n": "number of elements (a multiple of 1024 gives rows of 1024)"}
_OPTIONS = {"columns": "length of a row; it has to divide n (default: the largest divisor up to 1024)"}
_LADDER = Ladder(low=2**10, high=2**24, granule=1024)
_WIDEST, _NARROWEST, _ONE_ROW = 1024, 32, 65536


def columns(params: Params) -> int:
    """The length of a row: the param `columns`, or else the largest divisor of n up to 1024.

    If that is below 32 while n is at most 65,536 (a prime n, say), all of n is one row.
    """
    n = params["n"]
    if "columns" in params:
        return params["columns"]
    width = next((d for d in range(min(n, _WIDEST), 0, -1) if n % d == 0), 1)
    return n if width < _NARROWEST and 0 < n <= _ONE_ROW else width


def shape(params: Params) -> tuple[int, int]:
    return (params["n"] // columns(params), columns(params))


def _rows_of(params: Params, units: int) -> Params:
    """So many rows of the same length."""
    width = columns(params)
    return {"n": units * width, "columns": width}


def _fits(params: Params) -> str | None:
    """Why n elements cannot be cut into rows of `columns`; None if they can."""
    n, width = params["n"], columns(params)
    return None if width >= 1 and n % width == 0 else f"rows of {width} do not divide {n} elements"


def rowwise(
    *,
    name: str,
    group: str,
    summary: str,
    inputs: tuple[Operand, ...],
    flops_per_element: int,
    expr: Callable[..., Array],
    reference: Callable[..., Array],
    tolerance: Tolerance,
    numba: NumbaRows,
    cuda: CudaRowKernel,
    wgsl: WgslRowKernel,
    library: Mapping[str, Callable[..., Any]],
) -> Op:
    """The op whose output is as long as its inputs, and whose rows do not depend on each other."""
    return Op(
        name=name, group=group, summary=summary, params=_PARAMS, options=_OPTIONS, fits=_fits, sizes=_LADDER,
        dtypes=WORKING_DTYPES, inputs=inputs, output=Operand("out", shape),
        flops=lambda params: flops_per_element * params["n"],
        expr=expr,
        tolerance=tolerance,
        reference=reference,
        library=library,
        split=Split({operand.name: 0 for operand in inputs}, _rows_of),
        tuned={
            "numpy": (compiled_kernel(numba.candidates),),
            "cupy": (Kernel("cuda", lambda params, dtype, limits: cuda.build(*shape(params), dtype, limits)),),
            "wgpu": (Kernel("wgsl", lambda params, dtype, limits: wgsl.build(*shape(params), dtype, limits)),),
        },
    )  # fmt: skip


# ---------------------------------------------------------------- CPU

_PARTIAL_STRIDE = 8  # float64 elements: a cache line for each part of a row


class NumbaRows(msgspec.Struct, frozen=True):
    """Pieces of text. `functions`: loops over one row or a part of it; `statistics(*inputs, start, stop)`, two numbers
    of a row, and `element(*inputs, i, *statistics)`, for streaming stores. `row`: statements that do the row
    [base, stop). `part` and `rest`: the same for the part [base, stop) of a row that several threads share: `part`
    leaves its results from `partial[own]` on; `rest` finds those of all s parts from `partial[every]` on."""

    names: tuple[str, ...]
    functions: str
    row: str
    part: str
    rest: str

    def candidates(self, params: Params, dtype: str, limits: Limits) -> tuple[Candidate, ...]:
        """Whole rows for each thread; parts of rows where there are fewer rows than threads."""
        rows, columns = shape(params)
        arrays: tuple[Any, ...] = (*self.names, *[None] * (2 - len(self.names)))

        def program(threads: int, streaming: bool) -> NumbaProgram:
            if streaming:
                step = NumbaPass("streamed", (*arrays, None, "out"), rows, m=columns)
                return NumbaProgram(_numba_source(self, dtype, _STREAMED_ROWS), (step,), threads)
            whole = NumbaPass("whole", (*arrays, None, "out"), rows, m=columns)
            if rows >= threads or threads == 1:
                return NumbaProgram(_numba_source(self, dtype, _WHOLE_ROWS), (whole,) * (rows > 0), threads)
            parts = ceil_div(threads, rows)
            passes = tuple(
                NumbaPass(kernel, (*arrays, "partial", "out"), rows * parts, m=columns, s=parts)
                for kernel in ("part", "rest")
            )
            source = _numba_source(self, dtype, _SHARED_ROWS)
            return NumbaProgram(source, passes, threads, {"partial": 8 * _PARTIAL_STRIDE * rows * parts})

        size = ITEMSIZE[dtype]
        streamed = (
            rows * columns * size >= STREAMED_BYTES
            and columns * size % 64 == 0
            and rows >= (limits.multiprocessors or 1)
        )
        return numba_candidates(rows * columns, limits, program, streamed)


def _numba_source(body: NumbaRows, dtype: str, kernels: str) -> str:
    text = kernels.format(
        arrays=", ".join([f"{name}_" for name in body.names] + ["unused"] * (2 - len(body.names))),
        given=", ".join(f"{name}_" for name in body.names),
        signature=numba_signature(dtype, "c"), row=body.row, part=body.part, rest=body.rest, stride=_PARTIAL_STRIDE,
        bounds=_PART_OF_A_ROW,
    )  # fmt: skip
    return f"{numba_prelude(dtype)}\n{body.functions}\n{text}"


_WHOLE_ROWS = """
{signature}
def whole({arrays}, partial, out, first, last, slot, m, s):
    wide_vectors()
    for unit in range(first, last):
        base, stop = unit * m, unit * m + m
        {row}
"""
_STREAMED_ROWS = """
{signature}
def streamed({arrays}, partial, out, first, last, slot, m, s):
    wide_vectors()
    block = scratch(out[0])
    at, filled = first * m, 0
    for unit in range(first, last):
        a, b = statistics({given}, unit * m, unit * m + m)
        i, stop = unit * m, unit * m + m
        while i < stop:
            count = min(stop - i, STREAMED - filled)
            for k in range(count):
                block[filled + k] = element({given}, i + k, a, b)
            i += count
            filled += count
            if filled == STREAMED:
                stream(out, at, block, filled)
                at += filled
                filled = 0
    if filled:
        stream(out, at, block, filled)
    fence()
"""
_PART_OF_A_ROW = """row = unit // s
        base = row * m + unit % s * ((m + s - 1) // s)
        stop = min(row * m + (unit % s + 1) * ((m + s - 1) // s), (row + 1) * m)"""
_SHARED_ROWS = """
{signature}
def part({arrays}, partial, out, first, last, slot, m, s):
    wide_vectors()
    for unit in range(first, last):
        {bounds}
        own = unit * {stride}
        {part}


{signature}
def rest({arrays}, partial, out, first, last, slot, m, s):
    wide_vectors()
    for unit in range(first, last):
        {bounds}
        own, every = unit * {stride}, row * s * {stride}
        {rest}
"""
