"""The built-in ops, one file each: the file's name is the op's name and its `OP` the declaration.

Listing names imports nothing; other packages add ops through the entry-point group `gpubench.ops`.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any

from gpubench.model.op import Op

ENTRY_POINT_GROUP = "gpubench.ops"
# The order in which listings and reports show the groups; a group of another package comes after these.
_GROUP_ORDER = ("vector", "reduction", "matrix", "activation", "derivative", "overhead")


@cache
def names() -> tuple[str, ...]:
    """The built-in ops by file name, sorted; nothing is imported."""
    here = Path(__file__).parent
    return tuple(sorted(path.stem for path in here.glob("*.py") if not path.stem.startswith("_")))


def computed() -> tuple[str, ...]:
    """The built-in ops that compute something: all but the overheads."""
    return tuple(name for name in names() if load(name).overhead is None)


def load(name: str) -> Op:
    """The op called `name`: built in, or else from an installed package. Raises KeyError if there is none."""
    if name in names():
        op: Op = importlib.import_module(f"{__name__}.{name}").OP
        return op
    return _load_entry_point(name)


def groups() -> dict[str, tuple[str, ...]]:
    """Group -> names of its built-in ops, groups in listing order, names sorted."""
    found: dict[str, list[str]] = {group: [] for group in _GROUP_ORDER}
    for name in names():
        found.setdefault(load(name).group, []).append(name)
    return {group: tuple(members) for group, members in found.items() if members}


def foreign() -> tuple[str, ...]:
    """The ops of installed packages, sorted; their modules are not imported. Costs 30 to 60 ms."""
    from importlib.metadata import entry_points

    return tuple(sorted({entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)} - set(names())))


def elementwise(**declaration: Any) -> Op:
    """The op whose output i depends on element i of each input, for packages that bring ops of their own.

    The keywords are those of `kernels/_elementwise.py`, which docs/extending.md explains.
    """
    from gpubench.kernels import _elementwise

    return _elementwise.elementwise(**declaration)


def _load_entry_point(name: str) -> Op:
    # Deferred: reading entry points costs 30 to 60 ms, so only a name that is not built in pays for it.
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        loaded = entry.load()
        if not isinstance(loaded, Op):
            raise TypeError(f"entry point {entry.value!r} of {ENTRY_POINT_GROUP!r} is no Op")
        return loaded
    raise KeyError(name)
