"""`gpubench ops`: what can be measured, and which backends have it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gpubench.base import streams
from gpubench.base.errors import require_choice
from gpubench.cli.options import OpsOptions

if TYPE_CHECKING:
    from gpubench.base.table import Column, Table
    from gpubench.kernels.contract.kernel import Kernel
    from gpubench.kernels.contract.op import Op, Operand

EVERYTHING = 1 << 20  # columns that any table fits
_MOST_WEIGHTS = 2  # more of them have no shapes in the table
_PROBE = 64  # the size at which a cost is shown that no formula fits
_BASE = 1 << 40  # sizes at which a cost is looked at to write it as a formula: this one and a few below


def ops(options: OpsOptions) -> None:
    """List the ops: what n means, shapes, FLOPs, bytes, dtypes, default sizes, backends, forms and --params."""
    format = require_choice(options.format, options.declared["format"].choices, "--format")
    from gpubench import backends, kernels
    from gpubench.base.escaping import visible
    from gpubench.base.table import Table, cells, markdown_table

    listed = listed_backends()
    show: Callable[[Op], Any] = partial(_plain if format == "json" else row_of, backends=listed)
    for error in backends.find_namesakes().values():
        print(f"warning: {visible(error.message)}: {visible(error.why or '')}", file=sys.stderr)
    ours = [show(kernels.load(name)) for members in kernels.groups().values() for name in members]
    theirs: list[Any] = []
    broken = _show_foreign(show, theirs)
    if format == "json":
        streams.put(_json([*ours, *theirs], broken) + "\n")
        return
    dashes = ["-"] * (len(columns(listed)) - 3)
    theirs += [(name, "bad-plugin", *dashes, why) for name, why in broken.items()]
    rows = [cells(*map(visible, row)) for row in (*ours, *theirs, *presets(listed))]
    table = Table(columns(listed), tuple(rows), bare=True)
    streams.put(
        (markdown_table(table) if format == "markdown" else table_text(table, _terminal_width())) + "\n"
    )


def _show_foreign(show: Callable[[Op], Any], shown: list[Any]) -> dict[str, str]:
    """Append the ops of installed packages, by group; why those that are broken are not among them, by name."""
    from gpubench import kernels
    from gpubench.base import plugins

    found, bad = kernels.load_all(kernels.foreign())
    broken = {name: f"{error.message}: {error.why}" for name, error in (kernels.find_namesakes() | bad).items()}
    for op in sorted(found.values(), key=lambda op: (op.group, op.name)):
        try:
            shown.append(show(op))
        except (Exception, SystemExit) as error:  # of its own functions, at the sizes that a formula is made of
            broken[op.name] = f"it cannot be listed: {plugins.described(error)}"
    return dict(sorted(broken.items()))


class Listed(NamedTuple):
    """A backend as a column: its forms, and the variants of the kernels that it brings along, by the op's name."""

    name: str
    forms: tuple[str, ...]
    brought: Mapping[str, tuple[Kernel, ...]] = {}
    kind: str | None = None


def listed_backends() -> list[Listed]:
    """Those that `auto` tries. One of another package is asked in a worker."""
    from gpubench import backends

    facts = {name: backends.facts(name) for name in backends.usual()}
    found = [
        Listed(name, known.forms, known.kernels, _kind(known.kinds)) for name, known in facts.items() if known
    ]
    others = [name for name, known in facts.items() if known is None]
    if not others:
        return found
    from gpubench.measure.targets import list_devices

    for listing in list_devices(others):
        kind = _kind([device.kind for device in listing.devices])
        found.append(Listed(listing.backend, listing.forms, listing.kernels, kind))
    return found


def _kind(kinds: Sequence[str]) -> str:
    return "cpu" if {*kinds} == {"cpu"} else "gpu"


def columns(backends: Sequence[Listed]) -> tuple[Column, ...]:
    """Return the headings of the table. A terminal can do without the backends before what they compute."""
    from gpubench.base.table import Column

    return (
        Column("op"), Column("group"), Column("inputs -> output", rank=3), Column("FLOPs", rank=5),
        Column("bytes (f32)", rank=7), Column("dtypes", rank=6), Column("default sizes", rank=2),
        *(Column(backend.name, rank=4) for backend in backends), Column("params", rank=1), Column("n is", least=20),
    )  # fmt: skip


def presets(backends: Sequence[Listed]) -> list[tuple[str, ...]]:
    """The words that stand for some ops, as rows without costs of their own."""
    from gpubench.cli import health, roofline

    none = ["-"] * (len(columns(backends)) - 3)
    return [(one.WORD, "preset", *none, one.SUMMARY) for one in (roofline, health)]


def forms(op: Op, backend: Listed) -> list[str]:
    if op.collective is not None:
        return []  # gangs run it
    if op.overhead is not None:
        return [] if backend.kind == "cpu" else list(op.overhead.forms)
    if op.host is not None:
        return [form for form in backend.forms if backend.name == "numpy" and form == "library"]
    from gpubench.result.case import RESIDENT

    op = op.with_kernels(backend.name, backend.brought.get(op.name, ()))
    # Where the best kernel is the library call, the tuned form of a device still moves data in a better way.
    regime = RESIDENT if backend.kind == "cpu" else "transfer-always"
    tuned = any(not kernel.repeats_library(regime) for kernel in op.tuned.get(backend.name, ()))
    return [form for form in backend.forms if form == "library" or tuned]


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
    return _at_one_size(cost)


def _at_one_size(cost: Callable[[int], int]) -> str:
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


def _shape(operand: Operand) -> list[str]:
    """The extents, each as a formula in n."""
    written, shape = _writer([operand]), operand.shape
    return [written(lambda n, axis=axis: shape({"n": n})[axis]) for axis in range(len(shape({"n": _PROBE})))]


def _operand(operand: Operand) -> str:
    return f"{operand.name}[{','.join(_shape(operand))}]"


def _bytes(op: Op) -> str:
    return _writer(op.operands)(lambda n: op.bytes({"n": n}, "float32"))


def _writer(operands: Sequence[Operand]) -> Callable[..., str]:
    """No formula tells the length of a text: to look for one would encode all of it."""
    return _at_one_size if any(one.dtype == "uint8" for one in operands) else formula


def _flops(op: Op) -> str:
    return formula(lambda n: op.flops({"n": n}))


def _inputs(op: Op) -> str:
    """The shapes of the inputs; many weights are counted."""
    weights = [operand for operand in op.inputs if operand.role == "weight"]
    if len(weights) <= _MOST_WEIGHTS:
        return " ".join(map(_operand, op.inputs))
    others = (operand for operand in op.inputs if operand.role != "weight")
    return f"{' '.join(map(_operand, others))} + {len(weights)} weights"


def _results(op: Op) -> str:
    """The shape of the output; of several with their names."""
    if op.more_outputs:
        return " ".join(_operand(operand) for operand in op.outputs)
    return ",".join(_shape(op.output))


def row_of(op: Op, backends: Sequence[Listed]) -> tuple[str, ...]:
    """What the table says of an op, a text for each column."""
    from gpubench.result.case import SHORT_DTYPES

    shapes = f"{_inputs(op)} -> {_results(op)}"
    if op.overhead is not None:
        shapes = "-"  # nothing is computed
    sizes = f"{op.sizes.low}..{op.sizes.high} x{op.sizes.factor}" if op.sizes.high > op.sizes.low else "1"
    dtypes = " ".join(SHORT_DTYPES[dtype] for dtype in op.dtypes)
    cells = ["+".join(forms(op, backend)) or "-" for backend in backends]
    params = " ".join(op.options) or "-"
    return (op.name, op.group, shapes, _flops(op), _bytes(op), dtypes, sizes, *cells, params, op.params["n"])


def _terminal_width() -> int | None:
    """The columns of a terminal; None for a pipe or a file, which get everything."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_text(table: Table, width: int | None = None) -> str:
    """The rows below each other; inside `width` columns if it is given, with what is left out named below."""
    from gpubench.base.escaping import filled
    from gpubench.base.table import Cell, fitted, line_text, table_lines

    width = width or EVERYTHING
    shown = fitted(table, width).columns
    lines = table_lines(table, width)
    if gone := [column.name for column in table.columns if column not in shown]:
        note = f"Left out in {width} columns: {', '.join(gone)}; --format markdown has them."
        lines += [(Cell(""),), *((Cell(line),) for line in filled(note, width, ""))]
    return "\n".join(map(line_text, lines))


def _json(ops: list[dict[str, Any]], broken: dict[str, str]) -> str:
    import msgspec

    from gpubench.base.escaping import json_in_order

    left_out = [{"name": name, "reason": "bad-plugin", "detail": why} for name, why in broken.items()]
    document = {"name": "gpubench-ops", "schema_version": 1, "ops": ops, "broken": left_out}
    return json_in_order(msgspec.json.format(msgspec.json.encode(document))).decode()


def _plain(op: Op, backends: Sequence[Listed]) -> dict[str, Any]:
    equipped = op
    for backend in backends:
        equipped = equipped.with_kernels(backend.name, backend.brought.get(op.name, ()))
    return {
        "name": op.name,
        "group": op.group,
        "summary": op.summary,
        "params": dict(op.params),
        "options": dict(op.options),
        "inputs": [{"name": operand.name, "shape": _shape(operand)} for operand in op.inputs],
        "output": {"name": op.output.name, "shape": _shape(op.output)},
        "more_outputs": [{"name": operand.name, "shape": _shape(operand)} for operand in op.more_outputs],
        "flops": _flops(op),
        "bytes_float32": _bytes(op),
        "dtypes": list(op.dtypes),
        "default_sizes": op.sizes.sizes(),
        "forms": {backend.name: forms(op, backend) for backend in backends},
        "variants": {
            backend: [kernel.variant for kernel in tuned] for backend, tuned in equipped.tuned.items()
        },
    }
