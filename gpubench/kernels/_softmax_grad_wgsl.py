"""The derivative of softmax along rows in WGSL: out = y (dy - sum of y dy), both rows in registers.

y is softmax's output and dy the gradient of what came after it. Rows meet threads as in softmax.
"""

from __future__ import annotations

from gpubench.kernels import _rows_wgsl
from gpubench.kernels._rows_wgsl import Rows, kept, loads, store
from gpubench.model.kernel import Limits, WgslProgram

_INPUTS = ("y", "dy")
_MOST_HELD = 4  # units of each input: as many registers as softmax takes


def build(rows: int, columns: int, dtype: str, limits: Limits) -> WgslProgram:
    """One dispatch over rows x columns elements per window. Raises Unsupported for what it cannot do."""
    layout = choose_layout(columns, dtype, limits)
    return _rows_wgsl.program(source, (*_INPUTS, "out"), (rows, columns), dtype, limits, layout)


def choose_layout(columns: int, dtype: str, limits: Limits) -> Rows:
    """The layout of rows of that length within the device's limits."""
    return _rows_wgsl.arrange(columns, dtype, limits, _MOST_HELD)


def source(rows: Rows) -> str:
    """The whole text; it depends on the layout and not on the number or length of the rows."""
    storage = rows.storage
    lines = [*_rows_wgsl.header(rows, _INPUTS, ("sums",)), *loads(rows, _INPUTS)]
    products = [kept(rows, k, product) for k in range(rows.held) for product in _products(rows, k)]
    lines.append(f"  var total = {products[0]};")
    lines += [f"  total += {product};" for product in products[1:]]
    again = [f"    let {name} = {name}_[row + u];" for name in _INPUTS]
    lines += rows.loop([*again, *(f"    total += {product};" for product in _products(rows))])
    lines += [
        f"  sums[thread] = {storage.across('', 'total')};",
        *rows.fold_lanes("sums", "{a} + {b}"),
        f"  let mean = {storage.part}(sums[thread - lane]);",
    ]
    lines += [store(rows, k, _value(rows, k)) for k in range(rows.held)]
    lines += rows.loop([*again, f"    if (live) {{ out_[row + u] = {_value(rows)}; }}"])
    return "\n".join([*lines, "}"]) + "\n"


def _pairs(rows: Rows, k: int | str) -> list[tuple[str, str]]:
    return list(zip(rows.storage.decoded(f"y{k}"), rows.storage.decoded(f"dy{k}"), strict=True))


def _products(rows: Rows, k: int | str = "") -> list[str]:
    return [f"{y} * {dy}" for y, dy in _pairs(rows, k)]


def _value(rows: Rows, k: int | str = "") -> str:
    return rows.storage.encoded(*(f"{y} * ({dy} - mean)" for y, dy in _pairs(rows, k)))
