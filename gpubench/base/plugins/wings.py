"""Wings: folders of gpubench and packages of others that bring commands, options of commands and kinds of files.

Nothing imports a wing by name: a wing is the object WING of the module `wing` in its folder, or what an entry point of
the group `gpubench.wings` names. One that cannot be imported costs itself.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpubench.base import plugins

OWN = ("fleet",)


class Wing(NamedTuple):
    """The commands, kinds of files and schemas of a wing."""

    # By the name of a command: the class of its options, for a command of gpubench a subclass of the options it has.
    commands: Mapping[str, type[Any]]
    # By the name in a document's head: the function `module:name` that reads its bytes, and the type for `schema`.
    readers: Mapping[str, str] = {}
    schemas: Mapping[str, tuple[str, str]] = {}


@functools.cache
def own() -> tuple[Wing, ...]:
    """Return the wings whose folders are there."""
    wings = []
    for name in OWN:
        module = f"gpubench.{name}.wing"
        try:
            wings.append(importlib.import_module(module).WING)
        except Exception as error:
            absent = isinstance(error, ModuleNotFoundError) and error.name in (module, f"gpubench.{name}")
            if not absent:
                _tell(name, plugins.described(error))
    return tuple(wings)


@functools.cache
def foreign() -> tuple[Wing, ...]:
    """Return the wings of other packages. Reading what is installed takes 60 ms, so only an unknown command asks."""
    wings = []
    for entry in plugins.entries(plugins.WINGS):
        try:
            wings.append(plugins.load(entry))
        except plugins.PluginError as error:
            _tell(entry.name, str(error))
    return tuple(wings)


def _tell(name: str, why: str) -> None:
    print(f"warning: the wing {name} is left out: {why}", file=sys.stderr)


def find(name: str) -> Any:
    """Return the function or type that `module:name` says."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
