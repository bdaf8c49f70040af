"""Rows in the registers of WGSL's threads: how they meet, and how one number is folded per row."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from gpubench.kernels.contract.kernel import Limits, WgslPass, WgslProgram
from gpubench.kernels.contract.op import ITEMSIZE
from gpubench.kernels.templates import (
    ceil_div,
    fold,
    group_threads,
    log2,
    power_of_two_at_least,
    require_buffers,
    windows,
)
from gpubench.kernels.templates.wgsl import Storage, elements, fold_lanes, require_storage, shader, vectors

_LARGEST_GROUP = 1024
_SHORT_ROW_THREADS = 128  # threads of a group that several short rows share
_PER_LANE = 2  # vectors; measured best at 1024 and 4096 columns of float32
_ELEMENTS_PER_LANE = 4  # where a row does not start on 16 bytes
_MOST_HELD = 4  # 16-byte units of each input in a thread's registers, where a kernel does not say it


class WgslRows(msgspec.Struct, frozen=True):
    """Threads of a group and of a row, units held per thread, and how the row's end falls.

    `whole`: lanes x held is exactly the row. `rest`: the row is longer than that, and the rest is looped over.
    """

    storage: Storage
    threads: int
    lanes: int
    held: int
    whole: bool
    rest: bool

    def index(self, k: int) -> str:
        """The unit that a lane holds as its k-th; past the row's end its first, which every row has."""
        return f"u{k}" if self.whole or self.rest else f"select(0u, u{k}, u{k} < p.units)"

    def inside(self, k: int) -> str:
        """The condition that the k-th unit is in a row of its own, or an empty text where it always is."""
        return "" if self.whole or self.rest else f"u{k} < p.units"

    def fold_lanes(self, array: str, joined: str) -> list[str]:
        """Fold a workgroup array over the lanes of a row into its first lane; `joined` is text in {a} and {b}."""
        return fold_lanes(array, joined, self.lanes)

    def loop(self, lines: list[str]) -> list[str]:
        """The lines for every unit u that is not held."""
        if not self.rest:
            return []
        first = f"lane + {self.held * self.lanes}u"
        return [f"  for (var u = {first}; u < p.units; u += {self.lanes}u) {{", *lines, "  }"]

    def shader(self, inputs: tuple[str, ...], shared: tuple[str, ...], lines: list[str]) -> str:
        """The whole text. `lines` see `row`, the first unit of the thread's row; `shared` names arrays of one real a
        thread."""
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
        before = "\n".join([*memory, *storage.functions])
        return shader(buffers, self.threads, "\n".join([*begin, *lines]), params="rows units", before=before)

    def loads(self, inputs: tuple[str, ...], across: tuple[str, ...] = ()) -> list[str]:
        """`x0`, `x1`, ... for an input x: the units that this thread holds; of one row for all for those `across`."""
        lines = [f"  let u{k} = lane + {k * self.lanes}u;" for k in range(self.held)]
        for k in range(self.held):
            lines += [f"  let {name}{k} = {name}_[row + {self.index(k)}];" for name in inputs]
            lines += [f"  let {name}{k} = {name}_[{self.index(k)}];" for name in across]
        return lines

    def kept(self, k: int, part: str) -> str:
        """A part of the k-th unit, or zeros where the unit is past the row's end."""
        inside = self.inside(k)
        return f"select({self.storage.part}(), {part}, {inside})" if inside else part

    def store(self, k: int, value: str) -> str:
        """Write the k-th unit of a live row."""
        return f"  if ({' && '.join(filter(None, ['live', self.inside(k)]))}) {{ out_[row + u{k}] = {value}; }}"


class WgslRowKernel(msgspec.Struct, frozen=True):
    """A kernel in WGSL: `source` is its whole text by the layout. It does not depend on the number or length of rows.
    The inputs in `across` are one row for all.

    `most_held`: how many 16-byte units of each input fit a thread's registers, by dtype. `exponential`: the text calls
    `exp`, which WGSL does not have in double precision.
    """

    inputs: tuple[str, ...]
    source: Callable[[WgslRows], str]
    most_held: Mapping[str, int] = {}
    exponential: bool = False
    across: tuple[str, ...] = ()

    def build(self, count: int, columns: int, dtype: str, limits: Limits, into: str = "out") -> WgslProgram:
        """One dispatch over count x columns elements per window, which writes the buffer `into`. Raises Unsupported for
        what it cannot do."""
        require_storage(dtype, limits, exact=not self.exponential)
        rows = self.layout(columns, dtype, limits)
        names, size = (*self.inputs, *self.across, into), columns * ITEMSIZE[dtype]
        cut = (*self.inputs, into)
        require_buffers(dict.fromkeys(cut, count * size), limits)
        passes = []
        for window in windows(count, size, limits) if columns else []:
            grid = fold(ceil_div(window.count, rows.threads // rows.lanes), limits)
            uniform = (window.count, columns // rows.storage.width)
            parts = window.of(cut, size)
            passes.append(WgslPass(self.source(rows), grid, names, uniform=uniform, windows=parts))
        return WgslProgram(tuple(passes))

    def layout(self, columns: int, dtype: str, limits: Limits) -> WgslRows:
        """The layout for rows of that length. Raises Unsupported for a dtype that the device does not have."""
        require_storage(dtype, limits)
        storage, per_lane, most_held = vectors(dtype), _PER_LANE, self.most_held.get(dtype, _MOST_HELD)
        if columns % storage.width:
            storage, per_lane, most_held = elements(dtype), _ELEMENTS_PER_LANE, 2 * most_held
        most = group_threads(limits, _LARGEST_GROUP)
        units = columns // storage.width
        lanes = min(power_of_two_at_least(ceil_div(units, per_lane)), most)
        held = min(ceil_div(units, lanes), most_held)
        threads = max(lanes, min(_SHORT_ROW_THREADS, most))
        return WgslRows(storage, threads, lanes, held, whole=held * lanes == units, rest=held * lanes < units)
