"""`gpubench ops`: the ops that can be measured, and the backends that have them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gpubench.base import streams
from gpubench.base.errors import require_choice
from gpubench.base.streams import fill, inert_json, visible
from gpubench.cli.options import PRESETS, OpsOptions

if TYPE_CHECKING:
    from gpubench.kernels.contract.kernel import Kernel
    from gpubench.kernels.contract.op import Op, Operand

_MOST_INPUTS = 6  # a table shows no shapes of an op with more inputs
_PROBE = 64  # the size at which a cost is shown if no formula fits
_SIZES = 1 << 40, 1 << 33  # the sizes at which a cost is evaluated to find its formula, and to try it


def ops(options: OpsOptions) -> None:
    """List the ops; or tell of some what n means, their shapes, FLOPs, bytes, dtypes, sizes, implementations
    and --params."""
    format = options.format
    if format == "table" and not options.names:
        streams.put(listing() + "\n")
        return
    from gpubench import backends

    for error in backends.find_namesakes().values():
        print(f"warning: {visible(error.message)}: {visible(error.why or '')}", file=sys.stderr)
    ops, broken = _show_words(options.names, partial(_plain, backends=listed_backends()))
    if format == "json":
        text = _json(ops, broken)
    else:
        rows = [*map(_facts, ops)]
        rows += [{"op": name, "group": "bad-plugin", "computes": why} for name, why in broken.items()]
        if not options.names:
            rows += [{"op": word, "group": "preset", "computes": text} for word, text in PRESETS.items()]
        text = (
            _markdown(rows) if format == "markdown" else _two_columns([list(facts.items()) for facts in rows])
        )
    streams.put(text + "\n")


def listing() -> str:
    """Return the ops by group, with the name and one sentence of each op."""
    from gpubench import kernels

    groups: dict[str, list[tuple[str, str]]] = {group: [] for group in kernels.groups()}
    for name, entry in kernels.listing().items():
        groups[entry.group].append((name, entry.summary))
    foreign, broken = _show(kernels.foreign(), lambda op: (op.group, (op.name, op.summary)))
    for group, line in foreign:
        groups.setdefault(group, []).append(line)
    groups["preset"] = list(PRESETS.items())
    groups["bad-plugin"] = list(broken.items())
    blocks = [
        [(group, ""), *((f"  {name}", text) for name, text in ops)] for group, ops in groups.items() if ops
    ]
    return _two_columns([*blocks, [("`gpubench ops NAME` tells all of an op, or of a group.", "")]])


def _markdown(rows: Sequence[Mapping[str, str]]) -> str:
    from gpubench.base.table import Column, Table, cells, markdown_table

    headings = list(rows[0])
    lines = [cells(*(visible(facts.get(heading, "-")) for heading in headings)) for facts in rows]
    return markdown_table(Table(tuple(map(Column, headings)), tuple(lines)))


def _two_columns(blocks: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Return blocks of pairs (word, text) in two columns, wrapped to the terminal."""
    import shutil

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 80
    room = 2 + max(len(word) for block in blocks for word, text in block if text)
    lines = [
        "\n".join(fill(f"{visible(word):{room}}{visible(text)}".rstrip(), width, indent=" " * room))
        for block in blocks
        for word, text in (*block, ("", ""))
    ]
    return "\n".join(lines[:-1])


def _show_words(words: Sequence[str] | None, show: Callable[[Op], Any]) -> tuple[list[Any], dict[str, str]]:
    """Apply `show` to the ops of these names and groups. Return the results and, by name, why ops cannot be
    shown. Raises UsageError for an unknown word."""
    from gpubench import kernels

    groups, foreign = kernels.groups(), kernels.foreign()
    for word in words or []:
        require_choice(word, [*groups, *kernels.names(), *foreign], "NAME", listing="gpubench ops")
    named = [name for word in words or [*groups, *foreign] for name in groups.get(word, (word,))]
    shown, broken = _show(named, show)
    return shown, {name: why for name, why in broken.items() if not words or name in named}


def _show(names: Sequence[str], show: Callable[[Op], Any]) -> tuple[list[Any], dict[str, str]]:
    """Apply `show` to the named ops. Return the results and, by name, why ops cannot be shown."""
    from gpubench import kernels
    from gpubench.base import plugins

    ops, bad = kernels.load_all(names)
    broken = {name: f"{error.message}: {error.why}" for name, error in (kernels.find_namesakes() | bad).items()}
    shown = []
    for op in ops.values():
        try:
            shown.append(show(op))
        except (Exception, SystemExit) as error:  # of its own functions, at the sizes that a formula is made of
            broken[op.name] = f"it cannot be listed: {plugins.error_text(error)}"
    return shown, dict(sorted(broken.items()))


class Listed(NamedTuple):
    """A backend, which is a column of the list."""

    name: str  # name of the backend
    implementations: tuple[str, ...]  # the implementations that it can have of an op
    brought: Mapping[str, tuple[Kernel, ...]]  # the kernels that the backend brings, by op
    kind: str  # `cpu` if all of its devices are CPUs, else `gpu`


def listed_backends() -> list[Listed]:
    """Return the backends that `auto` tries. A worker asks the backends of other packages for their facts."""
    from gpubench import backends

    facts = {name: backends.facts(name) for name in backends.usual()}
    listed = [
        Listed(name, own.implementations, own.kernels, _kind(own.kinds)) for name, own in facts.items() if own
    ]
    others = [name for name, own in facts.items() if own is None]
    if not others:
        return listed
    from gpubench.measure.targets import list_devices

    for listing in list_devices(others):
        kind = _kind([device.kind for device in listing.devices])
        listed.append(Listed(listing.backend, listing.implementations, listing.brought, kind))
    return listed


def _kind(kinds: Sequence[str]) -> str:
    return "cpu" if {*kinds} == {"cpu"} else "gpu"


def implementations(op: Op, backend: Listed) -> list[str]:
    """Return the names of the implementations of `op` that the backend has. Ops of device groups have none
    here."""
    if op.collective is not None:
        return []  # device groups run it
    if op.overhead is not None:
        return [] if backend.kind == "cpu" else list(op.overhead.implementations)
    if op.host is not None:
        return ["library"] if backend.name == "numpy" and "library" in backend.implementations else []
    from gpubench.result.case import RESIDENT

    op = op.with_kernels(backend.name, backend.brought.get(op.name, ()))
    # Where the best kernel is the library call, the tuned implementation of a device still moves data in a better way.
    regime = RESIDENT if backend.kind == "cpu" else "transfer-always"
    tuned = any(not kernel.repeats_library(regime) for kernel in op.tuned.get(backend.name, ()))
    return [
        implementation for implementation in backend.implementations if implementation == "library" or tuned
    ]


def formula(cost: Callable[[int], int]) -> str:
    """Return a cost as a polynomial in n or as a fraction of n: `2 n^3`, `4 n^2 + 8 n`, `n/1024`.

    A cost that is neither is shown by its value at one size, as `384 at n=64`.
    """
    # The coefficients are the digits of one value in a base so large that each coefficient is less than half of
    # it.
    base, probe = _SIZES
    rest, scales = cost(base), list[int]()
    while rest and len(scales) < 4:
        digit = (rest + base // 2) % base - base // 2
        scales.append(digit)
        rest = (rest - digit) // base
    if not rest and cost(probe) == sum(scale * probe**power for power, scale in enumerate(scales)):
        return _polynomial(scales)
    share = base // (cost(base) or base)
    if share and cost(probe) * share == probe:
        return f"n/{share}"
    return _at_one_size(cost)


def _at_one_size(cost: Callable[[int], int]) -> str:
    return f"{cost(_PROBE)} at n={_PROBE}"


def _polynomial(scales: list[int]) -> str:
    """Return the polynomial with these coefficients, the lowest power first, as text."""
    text = ""
    for power, scale in reversed(list(enumerate(scales))):
        if scale:
            sign = ("- " if scale < 0 else "+ ") if text else "-" if scale < 0 else ""
            unit = "" if power == 0 else "n" if power == 1 else f"n^{power}"
            count = str(abs(scale)) if abs(scale) != 1 or not unit else ""
            text += (" " if text else "") + sign + " ".join(filter(None, (count, unit)))
    return text or "0"


def _shape(operand: Operand) -> list[str]:
    """Return the extents of the operand, each as a formula in n."""
    written, shape = _writer([operand]), operand.shape
    return [written(lambda n, axis=axis: shape({"n": n})[axis]) for axis in range(len(shape({"n": _PROBE})))]


def _writer(operands: Sequence[Operand]) -> Callable[..., str]:
    """Return the function that writes a cost as text: `formula`, or `_at_one_size` for ops that work on
    text."""
    # The cost of a text is no formula of n, and finding that out would encode the whole text.
    return _at_one_size if any(operand.dtype == "uint8" for operand in operands) else formula


def _facts(op: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of an op for a table, by their headings."""
    from gpubench.base.units import truncate
    from gpubench.result.case import SHORT_DTYPES

    inputs, outputs = (
        [f"{operand['name']}[{','.join(operand['shape'])}]" for operand in operands]
        for operands in (op["inputs"], [op["output"], *op["more_outputs"]])
    )
    sizes = op["default_sizes"]
    return {
        "op": op["name"],
        "group": op["group"],
        "computes": op["summary"],
        "inputs -> output": f"{truncate(inputs, _MOST_INPUTS, between=' ')} -> {' '.join(outputs)}"
        if inputs
        else "-",
        "FLOPs": op["flops"],
        "bytes (f32)": op["bytes_float32"],
        "dtypes": " ".join(SHORT_DTYPES[dtype] for dtype in op["dtypes"]),
        "default sizes": f"{sizes[0]}..{sizes[-1]} ({len(sizes)})" if len(sizes) > 1 else str(sizes[0]),
        **{
            backend: "+".join(implementations) or "-"
            for backend, implementations in op["implementations"].items()
        },
        "n is": op["params"]["n"],
        "params": "; ".join(f"{name}: {meaning}" for name, meaning in op["options"].items()) or "-",
    }


def _json(ops: list[dict[str, Any]], broken: dict[str, str]) -> str:
    import msgspec

    from gpubench.report.document import OpList

    left_out = [{"name": name, "reason": "bad-plugin", "detail": why} for name, why in broken.items()]
    document = OpList(ops=ops, broken=left_out)
    return inert_json(msgspec.json.format(msgspec.json.encode(document))).decode()


def _plain(op: Op, backends: Sequence[Listed]) -> dict[str, Any]:
    """Return the fields of an op for JSON."""

    def shapes(operands: Sequence[Operand]) -> list[dict[str, Any]]:
        return [{"name": operand.name, "shape": _shape(operand)} for operand in operands]

    equipped = op
    for backend in backends:
        equipped = equipped.with_kernels(backend.name, backend.brought.get(op.name, ()))
    return {
        "name": op.name,
        "group": op.group,
        "summary": op.summary,
        "params": dict(op.params),
        "options": dict(op.options),
        "inputs": shapes(op.inputs),
        "output": shapes([op.output])[0],
        "more_outputs": shapes(op.more_outputs),
        "flops": formula(lambda n: op.flops({"n": n})),
        "bytes_float32": _writer(op.operands)(lambda n: op.bytes({"n": n}, "float32")),
        "dtypes": list(op.dtypes),
        "default_sizes": op.sizes.sizes(),
        "implementations": {backend.name: implementations(op, backend) for backend in backends},
        "variants": {
            backend: [kernel.variant for kernel in tuned] for backend, tuned in equipped.tuned.items()
        },
    }
