"""The built-in ops. Each file declares a group of ops that share code, in its tuple `OPS`.

Listing these ops imports nothing, because their names are literals in the files. Other packages add ops through
the entry-point group `gpubench.ops`. Such an op is tried in a child process before it is imported, so that an
op that breaks, hangs or exits harms nothing else. The code of kernels imports only `base`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpubench.base import plugins
from gpubench.base.errors import BadPlugin
from gpubench.base.plugins import wings

if TYPE_CHECKING:
    from gpubench.kernels.contract.op import Op

# The overheads: calls of a session that are timed although they compute nothing.
OVERHEADS = {
    "open": "import the library and open the device, in a fresh process",
    "launch": "enqueue an empty launch, without waiting",
    "roundtrip": "an empty launch and the wait for it",
    "sync": "wait with nothing enqueued",
    "allocate": "take n bytes on the device and give them back: library from the driver, tuned from the pool",
    "upload": "n bytes to the device: library from ordinary memory, tuned pinned or mapped",
    "download": "n bytes to the host: library into ordinary memory, tuned pinned or mapped",
}

# The user's functions as ops, first by file, then by id.
_own: dict[str, dict[str, Op]] = {}

_ROOT = Path(__file__).parents[1]
# The fields of a declaration that a listing shows: literals, one after the other. The pattern begins with a
# literal text, which `re` finds 20 times as fast as a word boundary.
_DECLARED = re.compile(r'name="(\w+)",\s+group="(\w+)",\s+summary="([^"]*)"')

# The groups in the order of listings and reports; groups of other packages come last. Those in ON_REQUEST are
# measured only on request, so `--ops all` leaves them out.
_USUAL = ("vector", "math", "reduction", "matrix", "activation", "derivative")
ON_REQUEST = ("layers", "network", "overhead", "collective")


class ListedOp(NamedTuple):
    """An op's line in a listing."""

    group: str  # heading of its group
    summary: str  # what the op computes, in one sentence


@cache
def _declarations(package: str = "kernels") -> dict[str, tuple[str, ListedOp]]:
    """Map each op declared in this folder of gpubench to its module and its line in a listing."""
    files = (_ROOT / package).glob("*.py")
    return {
        name: (f"gpubench.{package}.{path.stem}", ListedOp(group, summary))
        for path in files
        for name, group, summary in _DECLARED.findall(path.read_text(encoding="utf-8"))
    }


@cache
def names() -> tuple[str, ...]:
    """Return the sorted names of the built-in ops and of the ops of our wings. No module of an op is imported."""
    return tuple(sorted((*_declarations(), *OVERHEADS, *wings.brought("ops"))))


@cache
def listing() -> dict[str, ListedOp]:
    """Map each built-in op and each op of a wing to its line in a listing. A broken op of a wing is left out,
    with a warning."""
    entries = {name: ListedOp("overhead", summary) for name, summary in OVERHEADS.items()}
    packages = {place.split(".")[1] for place in wings.brought("ops").values()}
    for package in ("kernels", *packages):
        entries |= {name: line for name, (_, line) in _declarations(package).items()}
    # ops that wings make; all others are read from the text of the files, without an import
    for name in set(names()) - entries.keys():
        try:
            entries[name] = ListedOp(load(name).group, load(name).summary)
        except BadPlugin as error:
            wings.tell(error.message, error.why)
    return {name: entries[name] for name in names() if name in entries}


def computing_ops() -> tuple[str, ...]:
    """Import all listed ops, and return the names of those that compute something, unlike overheads
    and collectives."""
    return tuple(name for name in listing() if load(name).overhead is None)


def usual() -> tuple[str, ...]:
    """Return the names of the ops that the word `all` selects: all listed ops but those of groups in ON_REQUEST."""
    return tuple(name for name, op in listing().items() if op.group not in ON_REQUEST)


def load(name: str) -> Op:
    """Return the op `name`: a built-in op, a user's function, or an op of an installed package that passed its
    trial. Raises KeyError if there is none, and BadPlugin if it is broken."""
    if name in names():
        return _built_in(name)
    if name in own():
        return own()[name]
    # Deferred: reading entry points costs 30 to 60 ms, so only a name that is not built in pays for it.
    from gpubench.kernels.contract import foreign

    return foreign.load(name)


def add_functions(source: str, ops: Sequence[Op]) -> None:
    """Make the functions of a user's file known to `load`. They replace earlier functions of the same file."""
    _own[source] = {op.name: op for op in ops}


def own() -> dict[str, Op]:
    """Return the user's functions as ops, by id."""
    return {name: op for ops in _own.values() for name, op in ops.items()}


def load_all(requested: Sequence[str]) -> tuple[dict[str, Op], dict[str, BadPlugin]]:
    """Return two mappings by name: the ops that work, and the errors of those that are broken. Raises KeyError
    for a name without an op."""
    ops: dict[str, Op] = {}
    broken: dict[str, BadPlugin] = {}
    others = [name for name in requested if name not in names() and name not in own()]
    if others:
        from gpubench.kernels.contract import foreign

        foreign.try_out(others)
    for name in requested:
        try:
            ops[name] = load(name)
        except BadPlugin as error:
            broken[name] = error
    return ops, broken


def load_without_trial(name: str) -> Op:
    """Load an op of gpubench or of a package, without a trial: the import may end this process. Raises KeyError
    if there is no such op, and PluginError if its package cannot be loaded."""
    if name in names():
        return _built_in(name)
    from gpubench.kernels.contract import foreign

    return foreign.load_without_trial(name)


def _built_in(name: str) -> Op:
    if name in OVERHEADS:
        from gpubench.kernels.contract.op import overhead

        return overhead(name, OVERHEADS[name])
    if name in _declarations():
        ops: tuple[Op, ...] = importlib.import_module(_declarations()[name][0]).OPS
        return next(op for op in ops if op.name == name)
    of_wing: Op = wings.find(wings.brought("ops")[name])
    return of_wing


def groups() -> dict[str, tuple[str, ...]]:
    """Map each group to the sorted names of its listed ops. Groups are in the order of listings."""
    members: dict[str, list[str]] = {group: [] for group in (*_USUAL, *ON_REQUEST)}
    for name, op in listing().items():
        members.setdefault(op.group, []).append(name)
    return {group: tuple(members) for group, members in members.items() if members}


def foreign() -> tuple[str, ...]:
    """Return the sorted names of the ops of installed packages, without importing them. A name that an op of
    gpubench has is left out."""
    return tuple(name for name in plugins.names(plugins.OPS) if name not in names())


def find_namesakes() -> dict[str, BadPlugin]:
    """Return, by name, an error for each op of a package that has the name of another op."""
    return plugins.find_namesakes(plugins.OPS, names())


def elementwise(**declaration: Any) -> Op:
    """Return an op whose output element i depends only on element i of each input. Packages use this function
    to declare ops. The keywords are those of `templates/elementwise.py` (docs/extending.md)."""
    from gpubench.kernels.templates import elementwise as template

    return template.elementwise(**declaration)


def reduction(**declaration: Any) -> Op:
    """Return an op that reduces n elements to one number. The keywords are those of `templates/reduce.py`."""
    from gpubench.kernels.templates import reduce as template

    return template.reduction(**declaration)
