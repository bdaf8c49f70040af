"""`gpubench ops`: what can be measured, and which backends have it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpubench.suggestions import require_choice

if TYPE_CHECKING:
    from gpubench.model.op import Op, Operand, Shape

FORMATS = ("table", "json", "markdown")
_BACKENDS = ("numpy", "cupy", "wgpu")
# NumPy and CuPy run the array expression of every op; other backends have what is written for them.
_LIBRARY_BACKENDS = ("numpy", "cupy")
_HEADER = (
    "op",
    "group",
    "inputs -> output",
    "FLOPs",
    "bytes (f32)",
    "dtypes",
    "default sizes",
    *_BACKENDS,
    "params",
    "n is",
)
# What a terminal can do without, the first first, where the table is too wide for it.
_LEFT_OUT = ("bytes (f32)", "dtypes", "FLOPs", *_BACKENDS, "inputs -> output", "default sizes")
_LAST_COLUMN = 36  # the last column is wrapped, but not narrower than this
_SHORT_DTYPES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_PROBE = 64  # the size at which a cost is told that no formula fits
_BASE = 1 << 20  # sizes at which a cost is looked at to write it as a formula: this one and a few below


def ops(
    format: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="How to write the list.")
    ] = "table",
) -> None:
    """List the ops: what n means, shapes, FLOPs, bytes, dtypes, default sizes, backends, forms and --params."""
    require_choice(format, FORMATS, "--format")
    from gpubench import kernels

    found = [kernels.load(name) for members in kernels.groups().values() for name in members]
    found += _foreign()
    if format == "json":
        typer.echo(_json(found))
        return
    rows = [_HEADER, *(_row(op) for op in found)]
    rows.append(_preset())
    typer.echo(_markdown(rows) if format == "markdown" else _table(rows, _terminal_width()))


def _foreign() -> list[Op]:
    """The ops of installed packages, by group; one that cannot be loaded is told on stderr."""
    from gpubench import kernels

    found = []
    for name in kernels.foreign():
        try:
            found.append(kernels.load(name))
        except Exception as error:  # a foreign module may raise anything, and costs its own row only
            print(f"the op {name} of another package cannot be loaded: {error}", file=sys.stderr)
    return sorted(found, key=lambda op: (op.group, op.name))


def _preset() -> tuple[str, ...]:
    """The word that stands for two ops, as a row without costs of its own."""
    from gpubench.cli._roofline import SUMMARY, WORD

    return (WORD, "preset", *["-"] * (len(_HEADER) - 3), SUMMARY)


def forms(op: Op, backend: str) -> list[str]:
    """The forms in which `backend` has `op`."""
    if op.overhead is not None:
        return [] if backend == "numpy" else list(op.overhead.forms)
    library = ["library"] if backend in _LIBRARY_BACKENDS else []
    # Where the best kernel is the library call, the tuned form of a device still moves data in a better way.
    regime = "resident" if backend == "numpy" else "transfer-always"
    tuned = any(not kernel.repeats_library(regime) for kernel in op.tuned.get(backend, ()))
    return library + (["tuned"] if tuned else [])


def formula(cost: Callable[[int], int]) -> str:
    """`2 n^3`, `4 n^2 + 8 n`, `n/1024`: a cost as a polynomial in n or a fraction of it, else its value at one size."""
    # Coefficients as the digits of one value: to a base so large that no coefficient, of either sign, reaches half.
    base, probes = _BASE, (_BASE >> 8, _BASE >> 7, _BASE >> 6)
    rest, scales = cost(base), list[int]()
    while rest and len(scales) < 4:
        digit = (rest + base // 2) % base - base // 2
        scales.append(digit)
        rest = (rest - digit) // base
    if not rest and all(cost(n) == sum(scale * n**power for power, scale in enumerate(scales)) for n in probes):
        return _polynomial(scales)
    share = base // (cost(base) or base)
    if share and all(cost(n) * share == n for n in probes):
        return f"n/{share}"
    return f"{cost(_PROBE)} at n={_PROBE}"


def _polynomial(scales: list[int]) -> str:
    """Coefficients of n^0, n^1, ... as text, the highest power first."""
    text = ""
    for power, scale in reversed(list(enumerate(scales))):
        if scale:
            sign = ("- " if scale < 0 else "+ ") if text else "-" if scale < 0 else ""
            unit = "" if power == 0 else "n" if power == 1 else f"n^{power}"
            count = str(abs(scale)) if abs(scale) != 1 or not unit else ""
            text += (" " if text else "") + sign + " ".join(filter(None, (count, unit)))
    return text or "0"


def _shape(shape: Callable[[dict[str, int]], Shape]) -> list[str]:
    """The extents of a shape, each as a formula in n."""
    count = len(shape({"n": _PROBE}))
    return [formula(lambda n, axis=axis: shape({"n": n})[axis]) for axis in range(count)]  # type: ignore[misc]


def _operand(operand: Operand) -> str:
    return f"{operand.name}[{','.join(_shape(operand.shape))}]"


def _bytes(op: Op) -> str:
    return formula(lambda n: op.bytes({"n": n}, "float32"))


def _flops(op: Op) -> str:
    return formula(lambda n: op.flops({"n": n}))


def _row(op: Op) -> tuple[str, ...]:
    shapes = " ".join(_operand(operand) for operand in op.inputs) + " -> " + ",".join(_shape(op.output.shape))
    if op.overhead is not None:
        shapes = "-"  # nothing is computed
    sizes = f"{op.sizes.low}..{op.sizes.high} x{op.sizes.factor}" if op.sizes.high > op.sizes.low else "1"
    dtypes = " ".join(_SHORT_DTYPES[dtype] for dtype in op.dtypes)
    backends = ["+".join(forms(op, backend)) or "-" for backend in _BACKENDS]
    params = " ".join(op.options) or "-"
    return (op.name, op.group, shapes, _flops(op), _bytes(op), dtypes, sizes, *backends, params, op.params["n"])


def _terminal_width() -> int | None:
    """The columns of a terminal; None for a pipe or a file, which get everything."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _table(rows: list[tuple[str, ...]], width: int | None = None) -> str:
    """The rows below each other; inside `width` columns if it is given, with what is left out named below."""
    import textwrap

    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    kept, gone = list(range(len(widths))), list[str]()

    def room() -> int:
        """What the last column may take."""
        return width - sum(widths[i] + 2 for i in kept[:-1]) if width else widths[-1]

    for name in _LEFT_OUT:
        if room() < min(widths[-1], _LAST_COLUMN):
            kept.remove(_HEADER.index(name))
            gone.append(name)
    lines = [line for row in rows for line in _lines([row[i] for i in kept], [widths[i] for i in kept], room())]
    if width and gone:
        note = f"Left out in {width} columns: {', '.join(gone)}; --format markdown has them."
        lines += ["", *textwrap.wrap(note, width)]
    return "\n".join(lines)


def _lines(cells: list[str], widths: list[int], room: int) -> list[str]:
    """One row; a last cell of more than `room` characters goes on in the next line."""
    import textwrap

    first, *others = textwrap.wrap(cells[-1], max(room, 1)) or [""]
    padded = [cell.ljust(width) for cell, width in zip(cells[:-1], widths[:-1], strict=True)]
    indent = " " * sum(width + 2 for width in widths[:-1])
    return ["  ".join([*padded, first]).rstrip(), *(indent + other for other in others)]


def _markdown(rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def _json(found: list[Op]) -> str:
    import msgspec

    document = {"name": "gpubench-ops", "schema_version": 1, "ops": [_plain(op) for op in found]}
    return msgspec.json.format(msgspec.json.encode(document)).decode()


def _plain(op: Op) -> dict[str, Any]:
    return {
        "name": op.name,
        "group": op.group,
        "summary": op.summary,
        "params": dict(op.params),
        "options": dict(op.options),
        "inputs": [{"name": operand.name, "shape": _shape(operand.shape)} for operand in op.inputs],
        "output": {"name": op.output.name, "shape": _shape(op.output.shape)},
        "flops": _flops(op),
        "bytes_float32": _bytes(op),
        "dtypes": list(op.dtypes),
        "default_sizes": op.sizes.sizes(),
        "forms": {backend: forms(op, backend) for backend in _BACKENDS},
        "variants": {backend: [kernel.variant for kernel in tuned] for backend, tuned in op.tuned.items()},
    }
