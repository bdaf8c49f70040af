"""Wings: folders of gpubench and other packages that bring commands, options, files, ops, backends and sections.

No code imports a wing by name. A wing is the object WING of its package, or the object that an entry point of the group
`gpubench.wings` names. A wing that cannot be imported is left out.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpubench.base import plugins
from gpubench.base.errors import BadPlugin

OWN = ("workloads", "multi", "energy", "fleet")


class Wing(NamedTuple):
    """The contents of a wing. Each value names its object as `module:attribute`, like an entry point, so that the
    object is imported only when it is used."""

    # By the name of a command: the class of its options, for a command of gpubench a subclass of the options it has.
    commands: Mapping[str, str] = {}
    # By the name in a document's head: the function that reads its bytes, and the type for `schema`.
    readers: Mapping[str, str] = {}
    schemas: Mapping[str, str] = {}  # document -> its struct
    ops: Mapping[str, str] = {}  # name -> declaration
    backends: Mapping[str, str] = {}  # name -> BACKEND
    # By a field of an op that only this wing understands: what runs such an op in a worker, what times one that
    # computes nothing, and the session that runs it on two sides.
    workspaces: Mapping[str, str] = {}
    timers: Mapping[str, str] = {}  # kind of op -> what samples it
    two_sides: Mapping[str, str] = {}  # kind of op -> the session of a GPU and the CPU that runs it
    # Modules with sections of a report (`gpubench.base.plugins.sections`).
    sections: tuple[str, ...] = ()
    # By a name of its own: the function from an analysis to SharedCalls, which the CPU and a GPU do together.
    shared_calls: Mapping[str, str] = {}
    # By a name of its own: the class, a Companion of `measure`, of what is measured of a run beside its cases.
    companions: Mapping[str, str] = {}
    # By the code of a warning: the function from an analysis to the ids of the cases that it is about.
    warnings: Mapping[str, str] = {}
    # By a name of its own: the function that makes the AnswerPart of an analysis.
    answers: Mapping[str, str] = {}


@functools.cache
def own() -> tuple[Wing, ...]:
    """Return the wings of gpubench whose folders exist."""
    wings = []
    for name in OWN:
        module = f"gpubench.{name}"
        try:
            wings.append(importlib.import_module(module).WING)
        except Exception as error:
            if not (isinstance(error, ModuleNotFoundError) and error.name == module):
                _broken[name] = plugins.error_text(error)
    return tuple(wings)


# Why a wing of gpubench is left out. Who speaks to the user says it; a worker does not.
_broken: dict[str, str] = {}


def tell_broken() -> None:
    """Print which wings are left out, and why."""
    own()
    for name, why in _broken.items():
        tell(f"the wing {name} cannot be used", why)


@functools.cache
def foreign() -> tuple[Wing, ...]:
    """Return the wings of other packages. Reading the installed packages takes 60 ms, so only an unknown command does
    it."""
    wings = []
    for entry in plugins.entries(plugins.WINGS):
        try:
            wings.append(plugins.load(entry))
        except plugins.PluginError as error:
            tell(f"the wing {entry.name} cannot be used", str(error))
    return tuple(wings)


@functools.cache
def tell(what: str, why: str) -> None:
    """Print once on standard error which part of a wing is left out, and why."""
    print(f"warning: {what}: {why}", file=sys.stderr)


@functools.cache
def brought(what: str) -> dict[str, str]:
    """Return the entries of one field of Wing, over all wings of gpubench: places by their names."""
    return {name: place for wing in own() for name, place in getattr(wing, what).items()}


def for_op(what: str, op: object) -> Any:
    """Return the object that a wing brings for an op, else None. `what` is a field of Wing: "workspaces", "timers" or
    "two_sides"."""
    place = next((place for field, place in brought(what).items() if getattr(op, field)), None)
    return None if place is None else find(place)


def find(place: str) -> Any:
    """Return the object that `module:attribute` names. Raises BadPlugin if it cannot be imported."""
    module, _, attribute = place.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        package, _, rest = module.partition(".")
        if package == "gpubench" and rest.partition(".")[0] not in OWN:
            raise  # a bug, which needs its traceback
        raise BadPlugin(
            "bad-plugin", f"the part {module} of a wing cannot be used", why=plugins.error_text(error),
            hint="install gpubench, or the package that brings it, once more",
        ) from error  # fmt: skip


def find_all(places: Mapping[str, str]) -> dict[str, Any]:
    """Return the objects of these places by their names. Print which objects are left out because their import
    fails."""
    objects = {}
    for name, place in places.items():
        try:
            objects[name] = find(place)
        except BadPlugin as error:
            tell(error.message, error.why)
    return objects
