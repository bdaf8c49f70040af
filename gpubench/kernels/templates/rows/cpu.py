"""Rows compiled for the CPU: whole rows for each thread, or parts of a row if there are fewer rows than
threads.

Within a run of elements, sums are in the type of the arithmetic. Over the runs they are in float64.
"""

from __future__ import annotations

import re
from textwrap import indent

import msgspec

from gpubench.kernels.contract.kernel import Candidate, Limits, NumbaPass, NumbaProgram
from gpubench.kernels.contract.op import ITEMSIZE
from gpubench.kernels.templates import ceil_div
from gpubench.kernels.templates.cpu import (
    STREAMED_BYTES,
    numba_candidates,
    numba_operands,
    numba_prelude,
    numba_signature,
)
from gpubench.kernels.templates.formula import Formula
from gpubench.kernels.templates.rows.formula import RowFormula, RowStep

_STRIDE = 8  # float64 elements between the results of two parts of a row: a cache line
_RUN = 256  # elements of a run
# Most inputs of rows in parts: of a kernel's four arrays, one is the output and one has the results of parts.
_MOST_INPUTS = 2


def candidates(
    formula: RowFormula, count: int, columns: int, dtype: str, limits: Limits, into: str = "out"
) -> tuple[Candidate, ...]:
    """Return candidates for `count` rows of `columns` elements, with different numbers of threads and, for large
    arrays, with streaming stores. All of them write to the array `into`."""
    names, arrays = formula.names, numba_operands(formula.names, into)

    def program(threads: int, streaming: bool) -> NumbaProgram:
        text = _Text(formula, dtype, keeps=not streaming and dtype != "float16")
        if streaming or count >= threads or threads == 1 or len(names) > _MOST_INPUTS:
            whole = NumbaPass("run", arrays, count, m=columns)
            return NumbaProgram(text.rows_module(streaming), (whole,), threads)
        parts, folds = ceil_div(threads, count), [step for step in formula.steps if step.kind != "number"]
        passes = tuple(
            NumbaPass(kernel, (*arrays[:2], "partial", into), count * parts, m=columns, s=parts)
            for kernel in (*(f"part_{step.index}" for step in folds), "rest")
        )
        return NumbaProgram(text.parts_module(), passes, threads, {"partial": 8 * _STRIDE * count * parts})

    size = columns * ITEMSIZE[dtype]
    streamed = count * size >= STREAMED_BYTES and size % 64 == 0 and count >= (limits.multiprocessors or 1)
    return numba_candidates(count * columns, limits, program, streamed)


class _Text(msgspec.Struct, frozen=True):
    """The Python text of a module of kernels."""

    formula: RowFormula  # formula of a row
    dtype: str  # dtype of inputs and output
    keeps: bool  # whether the output holds the powers of a row until they are scaled

    def rows_module(self, streaming: bool) -> str:
        """Return the text of the module whose kernel works on whole rows."""
        made = "".join(map(self._statements, self.formula.steps))
        text = _STREAMED if streaming else _WHOLE
        return self._module(numba_signature(self.dtype), [text.replace("MADE", indent(made, " " * 8))])

    def parts_module(self) -> str:
        """Return the text of the module for rows in parts: a kernel for each fold, then one for the output."""
        kernels, before = {}, ""
        for step in self.formula.steps:
            if step.kind == "number":
                before += self._statements(step)
            else:
                kernels[f"part_{step.index}"] = (
                    before + self._statements(step) + _write_index(_LEFT[step.kind], step)
                )
                before += _write_index(_JOINED[step.kind], step)
        kernels["rest"] = f"{before}write(ROW)"
        parts = [
            _PART.replace("NAME", name).replace("MADE", indent(made, " " * 8)) for name, made in kernels.items()
        ]
        return self._module(numba_signature(self.dtype, 2), parts)

    def _module(self, signature: str, kernels: list[str]) -> str:
        arrays, values = [f"{name}_" for name in self.formula.names], ", ".join(self._values)
        every = ", ".join([*arrays, "out"])
        words = {
            "SIGNATURE": signature, "ELEMENT": self._call("element", self.formula.element),
            "THREE": ", ".join([*arrays, *["unused"] * (2 - len(arrays)), "partial"][:3]),
            "ROW": f"{every}, base, stop, row, {values}", "SPAN": f"{every}, start, stop, row, {values}",
            "ARRAYS": every, "KNOWN": values,
            "NOTHING": ", ".join("real(0)" for _ in self._values), "STRIDE": str(_STRIDE), "RUN": str(_RUN),
        }  # fmt: skip
        folds = [self._fold(step) for step in self.formula.steps if step.kind != "number"]
        text = "\n\n".join([*folds, _function("element", self.formula.element), _WRITE, *kernels])
        text = re.sub(rf"\b({'|'.join(words)})\b", lambda word: words[word[0]], text)
        return f"{numba_prelude(self.dtype)}\n{text}"

    @property
    def _values(self) -> list[str]:
        """The names of the numbers of a row that its loops use."""
        names = {"number": "number", "powers": "top"}
        return [f"{names[step.kind]}_{step.index}" for step in self.formula.steps if step.kind != "total"]

    def _call(self, function: str, formula: Formula) -> str:
        """Return the text that calls a function with the elements at index i."""
        return f"{function}({', '.join(map(self._value, formula.names))})"

    def _value(self, name: str) -> str:
        if name in self.formula.names:
            return f"load({name}_[i{' - row' * (name in self.formula.across)}])"
        if not name.startswith("power_") or self.keeps:
            return "load(out[i])" if name.startswith("power_") else name
        # a rounded power of halves cannot be scaled, so it is computed again
        step = next(step for step in self.formula.steps if name == f"power_{step.index}")
        return f"exp({self._call(f'term_{step.index}', step.formula)} - top_{step.index})"

    def _statements(self, step: RowStep) -> str:
        if step.kind == "number":
            return step.formula.statements("python", f"number_{step.index} = real({{}})\n")
        return _write_index(
            "top_I = finite(largest_I(ROW))\n" * (step.kind == "powers") + "total_I = fold_I(ROW)\n", step
        )

    def _fold(self, step: RowStep) -> str:
        value = self._call(f"term_{step.index}", step.formula)
        text = _FOLD.replace("TERM", value)
        if step.kind == "powers":
            store = "\n        out[i] = store(value)" * self.keeps
            text = _LARGEST.replace("TERM", value) + _FOLD.replace("TERM", f"exp({value} - top_I){store}")
        return _function(f"term_{step.index}", step.formula) + "\n\n" + _write_index(text, step)


def _write_index(text: str, step: RowStep) -> str:
    return re.sub(r"\bI\b|(?<=_)I\b", str(step.index), text)


def _function(name: str, formula: Formula) -> str:
    lines = indent(formula.statements("python", "return {}"), "    ")
    return f"@scalar\ndef {name}({', '.join(formula.names)}):\n{lines}\n"


_LARGEST = """
@scalar
def finite(x):
    return x if x != minus_infinity else real(0)


@summing
def largest_I(SPAN):
    top = minus_infinity
    for i in range(start, stop):
        top = larger(top, TERM)
    return top

"""
_FOLD = """
@summing
def run_I(SPAN):
    total = real(0)
    for i in range(start, stop):
        value = TERM
        total += value
    return total


@scalar
def fold_I(SPAN):
    total = float64(0)
    for first in range(start, stop, RUN):
        total += float64(run_I(ARRAYS, first, min(first + RUN, stop), row, KNOWN))
    return total
"""
_WRITE = """
@scalar
def at(ARRAYS, i, row, KNOWN):
    return store(ELEMENT)


@scalar
def write(SPAN):
    for i in range(start, stop):
        out[i] = at(ARRAYS, i, row, KNOWN)

"""
_WHOLE = """
SIGNATURE
def run(THREE, out, first, last, slot, columns, s):
    wide_vectors()
    KNOWN = NOTHING
    for unit in range(first, last):
        row = base = unit * columns
        stop = base + columns
MADE
        write(ROW)
"""
_STREAMED = """
SIGNATURE
def run(THREE, out, first, last, slot, columns, s):
    wide_vectors()
    KNOWN = NOTHING
    block = scratch(out[0])
    written, filled = first * columns, 0
    for unit in range(first, last):
        row = base = unit * columns
        stop = base + columns
MADE
        while base < stop:
            count = min(stop - base, STREAMED - filled)
            for k in range(count):
                block[filled + k] = at(ARRAYS, base + k, row, KNOWN)
            base += count
            filled += count
            if filled == STREAMED:
                stream(out, written, block, filled)
                written += filled
                filled = 0
    if filled:
        stream(out, written, block, filled)
    fence()
"""
_PART = """
SIGNATURE
def NAME(THREE, out, first, last, slot, columns, s):
    wide_vectors()
    KNOWN = NOTHING
    for unit in range(first, last):
        row, length = unit // s * columns, (columns + s - 1) // s
        base = row + unit % s * length
        stop = min(base + length, row + columns)
        own, every = unit * STRIDE, unit // s * s * STRIDE
MADE
"""
# By kind of fold: the statements with which a part of a row stores its result, and those with which a later kernel
# joins the results of all s parts.
_LEFT = {
    "total": "partial[own + I] = total_I\n",
    "powers": "partial[own + I] = top_I\npartial[own + I + 1] = total_I\n",
}
_JOINED = {
    "total": """total_I = float64(0)
for k in range(s):
    total_I += partial[every + k * STRIDE + I]
""",
    # The total relative to the largest value of the thread's own part, whose powers are stored.
    "powers": """top_I = real(partial[own + I])
total_I = float64(0)
for k in range(s):
    at_k = every + k * STRIDE + I
    if partial[at_k + 1] != float64(0):
        total_I += partial[at_k + 1] * exp64(partial[at_k] - partial[own + I])
""",
}
