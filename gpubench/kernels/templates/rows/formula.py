"""The formula of an op along rows: folds over a row, and the output element that is computed from them.

    lambda m, y, dy: y * (dy - m.total(y * dy))

`m` has the functions of `templates/formula.py`, and three functions of a row: `total(x)`, `mean(x)` and
`powers(x)`, which returns exp(x - the row's largest x) and the total of these powers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from gpubench.kernels.contract.op import Array
from gpubench.kernels.templates.formula import Arrays, Formula, Namespace, Symbol, order, require_formula


class RowStep(msgspec.Struct, frozen=True):
    """A value of a row, which later formulas use by its name."""

    # "number" is `number_I`, computed from totals and the length `columns`. "total" is `total_I`, the sum of the
    # formula's values. "powers" is three values: `top_I`, the largest of the formula's values, `power_I` = exp(value
    # - `top_I`) and `total_I`, the sum of these powers
    kind: Literal["number", "total", "powers"]
    index: int  # the I in these names
    formula: Formula  # formula of the number, or of an element


class RowFormula(msgspec.Struct, frozen=True):
    """All steps of an op along rows, from the inputs to the output."""

    inputs: tuple[str, ...]  # inputs along a row
    across: tuple[str, ...]  # inputs that are a single row, used for all rows
    steps: tuple[RowStep, ...]  # values of a row, each computed from earlier ones
    element: Formula  # formula of an output element

    @property
    def names(self) -> tuple[str, ...]:
        """All inputs, in the order of the arguments."""
        return (*self.inputs, *self.across)

    @property
    def powers(self) -> bool:
        """Whether the formula raises e to a power."""
        return any(step.kind == "powers" for step in self.steps)


class _RowNamespace(Namespace):
    """The stand-in for the array library while the formula of a row is traced."""

    def __init__(self) -> None:
        # the kind of each fold and the value that is folded, by the fold's index
        self.folds: dict[int, tuple[Literal["total", "powers"], Any]] = {}
        self.count = 0  # the index of the next fold

    def powers(self, term: Any) -> tuple[Symbol, Symbol]:
        self.folds[self.count] = ("powers", term)
        # the largest value and the total
        self.count += 2
        return Symbol(f"power_{self.count - 2}"), Symbol(f"total_{self.count - 2}")

    def total(self, term: Any) -> Symbol:
        self.folds[self.count] = ("total", term)
        self.count += 1
        return Symbol(f"total_{self.count - 1}")

    def mean(self, term: Any) -> Any:
        return self.total(term) / Symbol("columns")  # type: ignore[operator]


def trace_row(
    op: str, function: Callable[..., Any], inputs: Sequence[str], across: Sequence[str]
) -> RowFormula:
    """Call the formula of an op once with symbols and return its trace. Raises ValueError if it cannot be
    traced."""
    space = _RowNamespace()
    steps: list[RowStep] = []
    result = require_formula(op, lambda _, *rows: function(space, *rows), [*inputs, *across]).result
    elements = [*inputs, *across, *(f"power_{index}" for index in space.folds)]
    numbers: dict[Symbol, int] = {}

    def apart(value: Symbol) -> Formula:
        """Return the formula of a value, and add the new numbers that it uses to `steps`."""
        first = len(numbers)
        formula = _apart(value, elements, numbers)
        steps.extend(RowStep("number", i, Formula.of(made)) for made, i in numbers.items() if i >= first)
        return formula

    for index, (kind, term) in space.folds.items():
        formula = apart(term)
        steps.append(RowStep(kind, index, formula))
    element = apart(result)
    return RowFormula(tuple(inputs), tuple(across), tuple(steps), element)


def _apart(result: Symbol, elements: Sequence[str], numbers: dict[Symbol, int]) -> Formula:
    """Return the formula of `result` for one element. Subexpressions that are equal along the row become inputs,
    named by their index in `numbers`."""
    made: dict[int, Symbol] = {}

    def differs(value: Any) -> bool:
        return isinstance(value, Symbol) and (id(value) in made or value.call in elements)

    def part(value: Any) -> Any:
        if differs(value) or not isinstance(value, Symbol):
            return made.get(id(value), value)
        return Symbol(f"number_{numbers.setdefault(value, len(numbers))}")

    for step in order(result):
        if any(map(differs, step.operands)):
            call, operands = step.call, step.operands
            if call == "divide" and not differs(operands[1]):
                # one division per row is enough
                call, operands = "multiply", (operands[0], Symbol("divide", (1.0, operands[1])))
            made[id(step)] = Symbol(call, tuple(map(part, operands)))
    return Formula.of(made.get(id(result), result), elements)


class RowArrays(Arrays):
    """An array library with the functions of formulas of a row. Rows are along the last axis."""

    def total(self, x: Array) -> Array:
        return self._xp.sum(x, axis=-1, keepdims=True)

    def mean(self, x: Array) -> Array:
        return self._xp.mean(x, axis=-1, keepdims=True)

    def powers(self, x: Array) -> tuple[Array, Array]:
        power = self._xp.exp(x - self._xp.max(x, axis=-1, keepdims=True))
        return power, self.total(power)
