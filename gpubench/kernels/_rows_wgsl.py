"""Rows in WGSL: how the threads of a group share a row, keep it in registers, and fold one number per row.

Shared by softmax and its derivative. `lanes` threads share a row and each keeps `held` units of every input
in registers; what does not fit is read from memory a second time. Short rows share a group.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gpubench.kernels._limits import (
    ceil_div,
    fold,
    group_threads,
    power_of_two_at_least,
    require_buffers,
    windows,
)
from gpubench.kernels._storage_wgsl import Storage, elements, require_storage, vectors
from gpubench.model.kernel import Limits, WgslPass, WgslProgram
from gpubench.model.op import ITEMSIZE

_SHORT_ROW_THREADS = 128  # threads of a group that several short rows share
_LARGEST_GROUP = 1024
_PER_LANE = 2  # vectors; measured best at 1024 and 4096 columns of float32
_ELEMENTS_PER_LANE = 4  # where a row does not start on 16 bytes


class Rows(msgspec.Struct, frozen=True):
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
        lines, half = [], self.lanes // 2
        while half:
            text = joined.format(a=f"{array}[thread]", b=f"{array}[thread + {half}u]")
            lines += ["  workgroupBarrier();", f"  if (lane < {half}u) {{ {array}[thread] = {text}; }}"]
            half //= 2
        return [*lines, "  workgroupBarrier();"]

    def loop(self, lines: list[str]) -> list[str]:
        """The lines for every unit u that is not held."""
        if not self.rest:
            return []
        first = f"lane + {self.held * self.lanes}u"
        return [f"  for (var u = {first}; u < p.units; u += {self.lanes}u) {{", *lines, "  }"]


def arrange(
    columns: int,
    dtype: str,
    limits: Limits,
    most_held: int,
    per_lane: int = _PER_LANE,
    short: int | None = None,
) -> Rows:
    """The layout for rows of that length; `most_held` 16-byte units of each input fit a thread's registers.

    Raises Unsupported for a dtype that the device does not have.
    """
    require_storage(dtype, limits)
    storage = vectors(dtype)
    if columns % storage.width:
        storage = elements(dtype)
        per_lane, most_held = _ELEMENTS_PER_LANE, 2 * most_held
    most = group_threads(limits, _LARGEST_GROUP)
    units = columns // storage.width
    lanes = min(power_of_two_at_least(ceil_div(units, per_lane)), most)
    held = min(ceil_div(units, lanes), most_held)
    threads = max(lanes, min(short or _SHORT_ROW_THREADS, most))
    return Rows(storage, threads, lanes, held, whole=held * lanes == units, rest=held * lanes < units)


def program(
    text: Callable[[Rows], str], names: tuple[str, ...], shape: tuple[int, int], dtype: str, limits: Limits,
    rows: Rows,
) -> WgslProgram:  # fmt: skip
    """One dispatch over shape = (rows, columns) per window of the bindings. Raises Unsupported."""
    count, columns = shape
    size = columns * ITEMSIZE[dtype]
    require_buffers(dict.fromkeys(names, count * size), limits)
    passes = []
    for window in windows(count, size, limits) if columns else []:
        grid = fold(ceil_div(window.count, rows.threads // rows.lanes), limits)
        uniform = (window.count, columns // rows.storage.width)
        passes.append(WgslPass(text(rows), grid, names, uniform=uniform, windows=window.of(names, size)))
    return WgslProgram(tuple(passes))


def header(rows: Rows, inputs: tuple[str, ...], shared: tuple[str, ...]) -> list[str]:
    """Everything up to `row`, the first unit of the thread's row; `shared` names arrays of one real a thread."""
    storage = rows.storage
    spread = rows.lanes.bit_length() - 1
    last = len(inputs)
    return [
        *storage.header,
        "struct Params { rows: u32, units: u32, }",
        *(
            f"@group(0) @binding({i}) var<storage, read> {name}_: array<{storage.unit}>;"
            for i, name in enumerate(inputs)
        ),
        f"@group(0) @binding({last}) var<storage, read_write> out_: array<{storage.unit}>;",
        f"@group(0) @binding({last + 1}) var<uniform> p: Params;",
        *(f"var<workgroup> {name}: array<{storage.real}, {rows.threads}>;" for name in shared),
        *storage.functions,
        f"@compute @workgroup_size({rows.threads})",
        "fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,",
        "        @builtin(local_invocation_index) thread: u32) {",
        f"  let lane = thread & {rows.lanes - 1}u;",
        f"  let index = (group.y * groups.x + group.x) * {rows.threads // rows.lanes}u + (thread >> {spread}u);",
        # A spare row repeats the last one and writes nothing: no thread may leave before a barrier.
        "  let live = index < p.rows;",
        "  let row = min(index, p.rows - 1u) * p.units;",
    ]


def loads(rows: Rows, inputs: tuple[str, ...]) -> list[str]:
    """`x0`, `x1`, ... for an input x: the units that this thread holds."""
    lines = [f"  let u{k} = lane + {k * rows.lanes}u;" for k in range(rows.held)]
    for k in range(rows.held):
        lines += [f"  let {name}{k} = {name}_[row + {rows.index(k)}];" for name in inputs]
    return lines


def kept(rows: Rows, k: int, part: str) -> str:
    """A part of the k-th unit, or zeros where the unit is past the row's end."""
    inside = rows.inside(k)
    return f"select({rows.storage.part}(), {part}, {inside})" if inside else part


def store(rows: Rows, k: int, value: str) -> str:
    """Write the k-th unit of a live row."""
    return f"  if ({' && '.join(filter(None, ['live', rows.inside(k)]))}) {{ out_[row + u{k}] = {value}; }}"
