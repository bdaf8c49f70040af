"""WGSL kernels whose threads hold rows in registers: how rows are assigned to threads, and how a row is reduced to
one number."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpubench.kernels.contract.kernel import Limits, WgslPass, WgslProgram
from gpubench.kernels.contract.op import ITEMSIZE
from gpubench.kernels.templates import (
    Storage,
    ceil_div,
    elements,
    fold,
    fold_lanes,
    group_threads,
    log2,
    part_function,
    power_of_two_at_least,
    require_buffers,
    require_storage,
    shader,
    vectors,
    windows,
)
from gpubench.kernels.templates.formula import Formula
from gpubench.kernels.templates.rows.formula import RowFormula, RowStep

_LARGEST_GROUP = 1024
_SHORT_ROW_THREADS = 128  # threads of a group that several short rows share
_PER_LANE = 2  # vectors for each thread; measured best at 1024 and 4096 columns of float32
_ELEMENTS_PER_LANE = 4  # elements for each thread if rows do not begin at multiples of 16 bytes
# Most 16-byte units of each input in a thread's registers, and the most for a single float32 input. With 1024
# threads a group, a thread has only 64 registers.
_MOST_HELD, _MOST_HELD_ALONE = 4, 8
_LOWEST = "-3.4028234e38"


class WgslRows(msgspec.Struct, frozen=True):
    """The assignment of rows to the threads of a group."""

    storage: Storage  # unit of a load
    threads: int  # threads of a group
    lanes: int  # threads of a row
    held: int  # units that a thread keeps in registers
    whole: bool  # whether a row has exactly lanes x held units
    rest: bool  # whether a row has more than lanes x held units; a loop reads the others

    def index(self, k: int) -> str:
        """Return the expression for the index of the k-th unit that a lane holds. After the row's end it is 0, the
        first unit."""
        return f"u{k}" if self.whole or self.rest else f"select(0u, u{k}, u{k} < p.units)"

    def inside(self, k: int) -> str:
        """Return the condition that the k-th unit of a lane is within the row, or "" if it always is."""
        return "" if self.whole or self.rest else f"u{k} < p.units"

    def loop(self, lines: list[str]) -> list[str]:
        """Return a loop that runs `lines` for each unit u that is not in registers, or no lines if there is none."""
        if not self.rest:
            return []
        first = f"lane + {self.held * self.lanes}u"
        return [f"  for (var u = {first}; u < p.units; u += {self.lanes}u) {{", *lines, "  }"]

    def shader(
        self, inputs: tuple[str, ...], shared: tuple[str, ...], functions: list[str], lines: list[str]
    ) -> str:
        """Return the text of the whole shader. `lines` are the statements of its body. They can use `row`, the index
        of the first unit of the thread's row, and must write only if `live` is true. `shared` names workgroup
        arrays with one number per thread."""
        storage, spread = self.storage, log2(self.lanes)
        memory = [f"var<workgroup> {name}: array<{storage.real}, {self.threads}>;" for name in shared]
        begin = [
            f"  let lane = thread & {self.lanes - 1}u;",
            f"  let index = (group.y * groups.x + group.x) * {self.threads // self.lanes}u + (thread >> {spread}u);",
            # A spare row repeats the last one and writes nothing: no thread may leave before a barrier.
            "  let live = index < p.rows;",
            "  let row = min(index, p.rows - 1u) * p.units;",
        ]
        buffers = {f"{name}_": storage.unit for name in (*inputs, "out")}
        before = "\n".join([*memory, *storage.functions, *functions])
        return shader(buffers, self.threads, "\n".join([*begin, *lines]), params="rows units", before=before)

    def loads(self, inputs: tuple[str, ...], across: tuple[str, ...]) -> list[str]:
        """Return the loads of `x0`, `x1`, ... for each input x: the units that this thread holds. Inputs in
        `across` are a single row."""
        lines = [f"  let u{k} = lane + {k * self.lanes}u;" for k in range(self.held)]
        for k in range(self.held):
            lines += [f"  let {name}{k} = {name}_[row + {self.index(k)}];" for name in inputs]
            lines += [f"  let {name}{k} = {name}_[{self.index(k)}];" for name in across]
        return lines

    def mask(self, k: int, part: str) -> str:
        """Return an expression that is `part`, a part of the k-th unit of a lane, or zeros after the row's end."""
        inside = self.inside(k)
        return f"select({self.storage.part}(), {part}, {inside})" if inside else part

    def store(self, k: int, value: str) -> str:
        """Return the statement that writes `value` as the k-th unit of a lane, if row and unit exist."""
        return f"  if ({' && '.join(filter(None, ['live', self.inside(k)]))}) {{ out_[row + u{k}] = {value}; }}"


def program(
    formula: RowFormula, count: int, columns: int, dtype: str, limits: Limits, into: str = "out"
) -> WgslProgram:
    """Return the WGSL program for `count` rows of `columns` elements, which writes to the buffer `into`. It has a
    dispatch for each window of the bindings. Raises Unsupported if the device lacks the dtype, or the arrays exceed
    its limits."""
    require_storage(dtype, limits, exact=not formula.powers)
    rows = layout(formula, columns, dtype, limits)
    names, size = (*formula.names, into), columns * ITEMSIZE[dtype]
    cut = (*formula.inputs, into)
    require_buffers(dict.fromkeys(cut, count * size), limits)
    passes = []
    for window in windows(count, size, limits):
        grid = fold(ceil_div(window.count, rows.threads // rows.lanes), limits)
        uniform = (window.count, columns // rows.storage.width)
        parts = window.of(cut, size)
        passes.append(WgslPass(_Text(formula, rows).source(), grid, names, uniform=uniform, windows=parts))
    return WgslProgram(tuple(passes))


def layout(formula: RowFormula, columns: int, dtype: str, limits: Limits) -> WgslRows:
    """Return the layout for rows of `columns` elements."""
    storage, per_lane = vectors(dtype), _PER_LANE
    most_held = _MOST_HELD_ALONE if dtype == "float32" and len(formula.names) == 1 else _MOST_HELD
    if columns % storage.width:
        storage, per_lane, most_held = elements(dtype), _ELEMENTS_PER_LANE, 2 * most_held
    most = group_threads(limits, _LARGEST_GROUP)
    units = columns // storage.width
    lanes = min(power_of_two_at_least(ceil_div(units, per_lane)), most)
    held = min(ceil_div(units, lanes), most_held)
    threads = max(lanes, min(_SHORT_ROW_THREADS, most))
    return WgslRows(storage, threads, lanes, held, whole=held * lanes == units, rest=held * lanes < units)


class _Text(msgspec.Struct, frozen=True):
    """The text of a kernel. For an input x, `x0` and `x1` are units in registers, `x` is that of a loop."""

    formula: RowFormula  # formula of a row
    rows: WgslRows  # threads and units of a row

    def source(self) -> str:
        formula, rows = self.formula, self.rows
        make = {"number": self._number, "total": self._total, "powers": self._powers}
        lines = rows.loads(formula.inputs, formula.across)
        lines.append(f"  let columns = {rows.storage.real}(p.units * {rows.storage.width}u);")
        lines += [line for step in formula.steps for line in make[step.kind](step)]
        lines += [rows.store(k, self._element(k)) for k in range(rows.held)]
        lines += self._loop(formula.element, [f"if (live) {{ out_[row + u] = {self._element('')}; }}"])
        functions = [
            f"alias V = {rows.storage.part};",
            *part_function("element", formula.element, rows.storage),
        ]
        for step in formula.steps:
            if step.kind != "number":
                functions += part_function(f"term_{step.index}", step.formula, rows.storage)
        return rows.shader(formula.names, ("tops", "sums")[not formula.powers :], functions, lines)

    def _each(self, function: str, formula: Formula, k: int | str) -> list[str]:
        """Return a call of `function` for each part of a unit. `k` is its number, or "" in a loop."""
        values = [self._parts(name, k) for name in formula.names]
        return [f"{function}({', '.join(part)})" for part in zip(*values, strict=True)]

    def _parts(self, name: str, k: int | str) -> Sequence[str]:
        """Return the expressions of `name` for each part of unit `k`."""
        if name in self.formula.names:
            return self.rows.storage.decode(f"{name}{k}")
        parts = range(self.rows.storage.parts)
        if not name.startswith("power_"):
            return [name for _ in parts]
        if k != "":
            return [f"{name}_{k}_{part}" for part in parts]
        step = next(step for step in self.formula.steps if name == f"power_{step.index}")
        return self._raise(step, k, f"top_{step.index}")

    def _terms(self, step: RowStep, k: int | str) -> list[str]:
        return self._each(f"term_{step.index}", step.formula, k)

    def _raise(self, step: RowStep, k: int | str, top: str) -> list[str]:
        return [f"exp({term} - V({top}))" for term in self._terms(step, k)]

    def _element(self, k: int | str) -> str:
        return self.rows.storage.encode(*self._each("element", self.formula.element, k))

    def _loop(self, formula: Formula, lines: Sequence[str]) -> list[str]:
        """Return a loop over units that are not held. It loads the inputs and runs `lines`."""
        loads = [f"let {name} = {name}_[row + u];" for name in self.formula.inputs]
        loads += [f"let {name} = {name}_[u];" for name in self.formula.across if name in formula.names]
        return self.rows.loop([f"    {line}" for line in (*loads, *lines)])

    def _number(self, step: RowStep) -> list[str]:
        return [f"  {step.formula.statements('wgsl', f'let number_{step.index} = V({{}});')}"]

    def _total(self, step: RowStep) -> list[str]:
        rows, name = self.rows, f"part_{step.index}"
        held = [rows.mask(k, term) for k in range(rows.held) for term in self._terms(step, k)]
        return [
            f"  var {name} = {' + '.join(held)};",
            *self._loop(step.formula, [f"{name} += {term};" for term in self._terms(step, "")]),
            # All threads have read the sum before.
            *(["  workgroupBarrier();"] if step.index else []),
            f"  sums[thread] = {rows.storage.across('', name)};",
            *fold_lanes("sums", "{a} + {b}", rows.lanes),
            f"  let total_{step.index} = sums[thread - lane];",
        ]

    def _powers(self, step: RowStep) -> list[str]:
        rows, top = self.rows, f"top_{step.index}"
        across = rows.storage.across
        first, *others = [term for k in range(rows.held) for term in self._terms(step, k)]
        lines = [f"  var v = {first};", *(f"  v = max(v, {term});" for term in others)]
        lines.append(
            # at least the lowest finite number: -inf - -inf would be NaN
            f"  var highest = max({_LOWEST}, {across('max', 'v')});"
            if rows.rest
            else f"  let highest = {across('max', 'v')};"
        )
        terms = self._terms(step, "")
        lines += ["  var total = 0.0;"] * rows.rest
        lines += self._loop(
            step.formula,
            [
                f"let w = {terms[0] if len(terms) == 1 else f'max({terms[0]}, {terms[1]})'};",
                f"let higher = max(highest, {across('max', 'w')});",
                f"let e = {' + '.join(self._raise(step, '', 'higher'))};",
                # rescaled whenever a larger value occurs
                f"total = fma(total, exp(highest - higher), {across('', 'e')});",
                "highest = higher;",
            ],
        )
        lines += [
            "  tops[thread] = highest;",
            *fold_lanes("tops", "max({a}, {b})", rows.lanes),
            f"  let {top} = tops[thread - lane];",
        ]
        names = []
        for k in range(rows.held):
            for part, power in enumerate(self._raise(step, k, top)):
                names.append(f"power_{step.index}_{k}_{part}")
                # After the row's end a lane has the first unit: the maximum stays, and the mask keeps it off the sum.
                lines.append(f"  let {names[-1]} = {rows.mask(k, power)};")
        rest = f" + total * exp(highest - {top})" * rows.rest
        return [
            *lines,
            f"  let e = {' + '.join(names)};",
            f"  sums[thread] = {across('', 'e')}{rest};",
            *fold_lanes("sums", "{a} + {b}", rows.lanes),
            f"  let total_{step.index} = sums[thread - lane];",
        ]
