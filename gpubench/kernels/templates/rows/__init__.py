"""Ops along rows, whose output is as long as the input: one formula of a row, in every language.

- CPU: whole rows for each thread, or parts of a row if there are fewer rows than threads.
- CUDA: the threads of a row hold it in registers, so each element is read only once. They are a part of a warp, a
  warp, a block, or a cluster of blocks with access to each other's shared memory. Rows that are too long for the
  registers are read twice.
- WGSL: `lanes` threads of a group share a row, and each keeps `held` units of every input in registers. Units
  that do not fit are read from memory a second time. Short rows share a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from gpubench.kernels.contract.kernel import Limits, by_backend
from gpubench.kernels.contract.op import (
    Ladder,
    Op,
    Operand,
    Params,
    Shape,
    Split,
    always_fits,
    counted_by,
)
from gpubench.kernels.templates.cpu import compiled_kernels
from gpubench.kernels.templates.rows import cpu, cuda, wgsl
from gpubench.kernels.templates.rows.formula import RowArrays, RowFormula, trace_row

_WIDEST, _NARROWEST, _ONE_ROW = 1024, 32, 65536
_WIDTH = 256
EPSILON = 1e-5  # added to the mean of squares, so that a row of equal elements has a norm


class RowShape(msgspec.Struct, frozen=True):
    """The number and the length of an op's rows, as functions of the op's params."""

    shape: Callable[[Params], tuple[int, int]]  # returns (number of rows, length of a row)
    params: str  # text that says what the size n is
    options: dict[str, str]  # options of the op, each with its meaning
    sizes: Ladder  # default sizes of the op
    part: Callable[[Params, int], Params]  # `part` of the op's split
    fits: Callable[[Params], str | None] = always_fits  # returns why params are not allowed, or None


def _columns(params: Params) -> int:
    """Return the length of a row: the param `columns`, or a divisor of n."""
    n = params["n"]
    if "columns" in params:
        return params["columns"]
    width = next(d for d in range(min(n, _WIDEST), 0, -1) if n % d == 0)
    # if only short rows divide n, as for a prime n, all elements are one row, unless it is too long
    return n if width < _NARROWEST and n <= _ONE_ROW else width


def _fits(params: Params) -> str | None:
    """Return why n elements cannot be divided into rows of `columns` elements, or None."""
    n, width = params["n"], _columns(params)
    return None if n % width == 0 else f"rows of {width} do not divide {n} elements"


def _rows_of(params: Params, units: int) -> Params:
    """Return the params for `units` rows of the length that the rows of `params` have."""
    width = _columns(params)
    return {"n": units * width, "columns": width}


def rows(params: Params) -> tuple[int, int]:
    """Return (n, width): the number and the length of the rows."""
    return params["n"], params.get("width", _WIDTH)


def across(params: Params) -> Shape:
    return rows(params)[1:]


CUT_INTO_ROWS = RowShape(
    shape=lambda params: (params["n"] // _columns(params), _columns(params)),
    params="number of elements (a multiple of 1024 gives rows of 1024)",
    options={"columns": "length of a row; it has to divide n (default: the largest divisor up to 1024)"},
    sizes=Ladder(low=2**10, high=2**24, granule=1024), fits=_fits, part=_rows_of,
)  # fmt: skip
OF_WIDTH = RowShape(
    shape=rows, params="number of rows", options={"width": f"length of a row ({_WIDTH})"},
    sizes=Ladder(low=1, high=65536), part=counted_by("n"),
)  # fmt: skip


def rowwise(
    name: str, inputs: tuple[Operand, ...], formula: Callable[..., Any], flops_per_element: int, *,
    of: RowShape = CUT_INTO_ROWS, **declaration: Any,
) -> Op:  # fmt: skip
    """Return an op that computes each output row from the same row of its inputs. An input has the shape of the
    output or, if it is a weight, a single row for all. `of` gives the shape from the params, and `declaration` are
    further fields of the op."""
    traced = row_formula(name, inputs, formula)

    def by_shape(program: Callable[..., Any]) -> Callable[[Params, str, Limits], Any]:
        return lambda params, dtype, limits: program(traced, *of.shape(params), dtype, limits)

    return Op(
        name=name, params={"n": of.params}, options=of.options, fits=of.fits, sizes=of.sizes,
        inputs=inputs, output=Operand("out", of.shape),
        flops=lambda params: flops_per_element * math.prod(of.shape(params)),
        expr=lambda xp, *arrays: formula(RowArrays(xp), *arrays), split=Split(dict.fromkeys(traced.inputs, 0), of.part),
        tuned=by_backend(
            compiled_kernels(by_shape(cpu.candidates)), by_shape(partial(cuda.program, name)), by_shape(wgsl.program)
        ),
        **declaration,
    )  # fmt: skip


def center(m: Any, x: Any) -> tuple[Any, Any]:
    """Return x - mean and the standard deviation of a row. `m` has the functions of `RowArrays`."""
    rest = x - m.mean(x)
    return rest, m.sqrt(m.mean(rest * rest) + EPSILON)


def layernorm(m: Any, x: Any, g: Any, c: Any) -> Any:
    """Compute layernorm(x) with the gain `g` and the bias `c`. This is a formula of a row."""
    rest, deviation = center(m, x)
    return rest / deviation * g + c


def row_formula(name: str, inputs: tuple[Operand, ...], formula: Callable[..., Any]) -> RowFormula:
    """Return the trace of an op's formula. Raises ValueError if it cannot be traced."""
    whole = [operand.name for operand in inputs if operand.role == "weight"]
    return trace_row(name, formula, [operand.name for operand in inputs if operand.name not in whole], whole)
