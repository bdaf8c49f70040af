"""Softmax along rows in WGSL: the row in registers, maximum, exponentials, sum, one write.

On an H200 this reaches 0.97 of the device copy with 2 to 4 vec4 a thread; three passes over memory reach
0.77 to 0.96, one thread a row 0.08. Of a row too long for registers the rest is read twice, with its sum
rescaled whenever a larger maximum turns up.
"""

from __future__ import annotations

from gpubench.errors import Unsupported
from gpubench.kernels import _rows_wgsl
from gpubench.kernels._rows_wgsl import Rows, kept, loads, store
from gpubench.model.kernel import Limits, WgslProgram

_LOWEST = "-3.4028234e38"
_MOST_HELD = {
    "float32": 8,
    "float16": 4,
}  # 32 numbers: with 1024 threads a group, 64 registers are all there are


def build(rows: int, columns: int, dtype: str, limits: Limits) -> WgslProgram:
    """One dispatch over rows x columns elements per window. Raises Unsupported for what it cannot do."""
    if dtype == "float64":
        raise Unsupported("WGSL has no exp in double precision", reason="no-dtype")
    return _rows_wgsl.program(
        source, ("x", "out"), (rows, columns), dtype, limits, choose_layout(columns, dtype, limits)
    )


def choose_layout(columns: int, dtype: str, limits: Limits) -> Rows:
    """The layout of rows of that length within the device's limits."""
    return _rows_wgsl.arrange(columns, dtype, limits, _MOST_HELD.get(dtype, 4))


def source(rows: Rows) -> str:
    """The whole text; it depends on the layout and not on the number or length of the rows."""
    lines = [
        *_rows_wgsl.header(rows, ("x",), ("tops", "sums")),
        *loads(rows, ("x",)),
        *_maximum(rows),
        *_sum(rows),
        *_output(rows),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _maximum(rows: Rows) -> list[str]:
    """`row_top`, the row's largest element; with a rest, `total` is the rest's sum below `top`.

    The running maximum starts at the lowest finite number: -inf - -inf would be a NaN.
    """
    storage = rows.storage
    parts = [part for k in range(rows.held) for part in storage.decoded(f"x{k}")]
    lines = [f"  var v = {parts[0]};", *(f"  v = max(v, {part});" for part in parts[1:])]
    top = storage.across("max", "v")
    if rows.rest:
        values = storage.decoded("x")
        inner = [
            "    let x = x_[row + u];",
            f"    let w = {values[0] if len(values) == 1 else f'max({values[0]}, {values[1]})'};",
            f"    let higher = max(top, {storage.across('max', 'w')});",
            f"    let e = {' + '.join(_exponential(rows, value, 'higher') for value in values)};",
            f"    total = fma(total, exp(top - higher), {storage.across('', 'e')});",
            "    top = higher;",
        ]
        lines += [f"  var top = max({_LOWEST}, {top});", "  var total = 0.0;", *rows.loop(inner)]
        top = "top"
    lines += [f"  tops[thread] = {top};", *rows.fold_lanes("tops", "max({a}, {b})")]
    lines.append("  let row_top = tops[thread - lane];")
    return [*lines, "  total *= exp(top - row_top);"] if rows.rest else lines


def _exponential(rows: Rows, part: str, top: str) -> str:
    return f"exp({part} - {rows.storage.part}({top}))"


def _sum(rows: Rows) -> list[str]:
    """`scale`, one over the row's sum of exponentials, which the held units keep as `e0_0`, `e0_1`, ..."""
    lines, names = [], []
    for k in range(rows.held):
        for i, part in enumerate(rows.storage.decoded(f"x{k}")):
            # Past the row's end stands its first unit: it cannot change the maximum and is kept off the sum.
            lines.append(f"  let e{k}_{i} = {kept(rows, k, _exponential(rows, part, 'row_top'))};")
            names.append(f"e{k}_{i}")
    total = " + total" if rows.rest else ""
    return [
        *lines,
        f"  let e = {' + '.join(names)};",
        f"  sums[thread] = {rows.storage.across('', 'e')}{total};",
        *rows.fold_lanes("sums", "{a} + {b}"),
        "  let scale = 1.0 / sums[thread - lane];",
    ]


def _output(rows: Rows) -> list[str]:
    storage = rows.storage
    lines = []
    for k in range(rows.held):
        lines.append(store(rows, k, storage.encoded(*(f"e{k}_{i} * scale" for i in range(storage.parts)))))
    values = [f"{_exponential(rows, value, 'row_top')} * scale" for value in storage.decoded("x")]
    again = ["    let x = x_[row + u];", f"    if (live) {{ out_[row + u] = {storage.encoded(*values)}; }}"]
    return [*lines, *rows.loop(again)]
