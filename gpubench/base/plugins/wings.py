"""Wings: folders of gpubench, and other packages, that add commands, options, files, ops, backends and
sections.

No code imports a wing by its name. A wing is the object WING of its package, or the object that an entry point
of the group `gpubench.wings` names. A wing that cannot be imported is left out.
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
    """The contents of a wing. Values name objects as `module:attribute`, like entry points, so that an object is
    imported only when it is used."""

    # By the name of a command: the class of its options. If gpubench has a command of this name, the class is a
    # subclass of that command's options.
    commands: Mapping[str, str] = {}
    # by the format name in the head of a document: the function that reads the document's bytes
    readers: Mapping[str, str] = {}
    schemas: Mapping[str, str] = {}  # by the format name: the struct type of the document
    ops: Mapping[str, str] = {}  # by name: the declaration
    backends: Mapping[str, str] = {}  # by name: the object BACKEND
    # By a field of Op that only this wing uses: the class of the workspaces of ops in which it is set.
    workspaces: Mapping[str, str] = {}
    timers: Mapping[str, str] = {}  # by such a field: the class of the timers of these ops
    # by such a field: the class of the session that runs these ops on the CPU and a GPU
    two_sides: Mapping[str, str] = {}
    sections: tuple[str, ...] = ()  # modules with sections of a report (`gpubench.base.plugins.sections`)
    # By any name: a function from an analysis to SharedCalls, the calls that the CPU and a GPU do together.
    shared_calls: Mapping[str, str] = {}
    # By any name: a subclass of Companion (`measure`), which measures something besides the cases of a run.
    companions: Mapping[str, str] = {}
    # By the code of a warning: a function from an analysis to the ids of the cases that the warning is about.
    warnings: Mapping[str, str] = {}
    answers: Mapping[str, str] = {}  # by any name: a function from an analysis to an AnswerPart


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


# By the name of a wing of gpubench that is left out: the reason. Commands report it; workers do not.
_broken: dict[str, str] = {}


def tell_broken() -> None:
    """Print which wings of gpubench are left out, and why."""
    own()
    for name, why in _broken.items():
        tell(f"the wing {name} cannot be used", why)


@functools.cache
def foreign() -> tuple[Wing, ...]:
    """Return the wings of other packages. Those that cannot be imported are left out, and a warning says so."""
    wings = []
    for entry in plugins.entries(plugins.WINGS):
        try:
            wings.append(plugins.load(entry))
        except plugins.PluginError as error:
            tell(f"the wing {entry.name} cannot be used", str(error))
    return tuple(wings)


@functools.cache
def tell(what: str, why: str) -> None:
    """Print the warning `what: why` on standard error, once for each text. `what` says which part of a wing is
    left out."""
    print(f"warning: {what}: {why}", file=sys.stderr)


@functools.cache
def brought(what: str) -> dict[str, str]:
    """Return what the wings of gpubench have in the field `what` of Wing, as {name: "module:attribute"}."""
    return {name: place for wing in own() for name, place in getattr(wing, what).items()}


def for_op(what: str, op: object) -> Any:
    """Return the object that a wing brings for this op, or None if no wing does. `what` is a field of Wing with
    attributes of ops as keys: an entry serves the ops whose attribute is not empty. Raises BadPlugin if the
    object cannot be imported."""
    place = next((place for field, place in brought(what).items() if getattr(op, field)), None)
    return None if place is None else find(place)


def find(place: str) -> Any:
    """Return the object that `place`, a text `module:attribute`, names. Raises BadPlugin if it cannot be
    imported. The error of a module of gpubench outside the wings is raised as it is."""
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
    """Return the objects that `places` names as `module:attribute`, by the same keys. An object that cannot be
    imported is left out, with a message on standard error."""
    objects = {}
    for name, place in places.items():
        try:
            objects[name] = find(place)
        except BadPlugin as error:
            tell(error.message, error.why)
    return objects
