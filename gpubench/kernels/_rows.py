"""How n elements are cut into rows for the ops that work along rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gpubench.model.kernel import CudaProgram, Limits, WgslProgram
from gpubench.model.op import Ladder, Params

Program = TypeVar("Program", WgslProgram, CudaProgram)

PARAMS = {"n": "number of elements (a multiple of 1024 gives rows of 1024)"}
OPTIONS = {"columns": "length of a row; it has to divide n (default: the largest divisor up to 1024)"}
LADDER = Ladder(low=2**10, high=2**24, granule=1024)
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
    """(rows, columns)."""
    return (params["n"] // columns(params), columns(params))


def rows_of(params: Params, units: int) -> Params:
    """So many rows of the same length."""
    width = columns(params)
    return {"n": units * width, "columns": width}


def fits(params: Params) -> str | None:
    """Why n elements cannot be cut into rows of `columns`; None if they can."""
    n, width = params["n"], columns(params)
    return None if width >= 1 and n % width == 0 else f"rows of {width} do not divide {n} elements"


def by_rows(build: Callable[[int, int, str, Limits], Program]) -> Callable[[Params, str, Limits], Program]:
    """A kernel's `build` from one that takes rows and columns."""
    return lambda params, dtype, limits: build(*shape(params), dtype, limits)
