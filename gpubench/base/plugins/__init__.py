"""Entry points of installed packages. A broken entry point is left out and reported with its package's name."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING, Any

from gpubench.base import disk
from gpubench.base.errors import BadPlugin

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

OPS, BACKENDS, WINGS = "gpubench.ops", "gpubench.backends", "gpubench.wings"
SECTIONS = "gpubench.sections"
_NOUNS = {OPS: "op", BACKENDS: "backend"}


# Text about a package that uses something that no longer exists.
EARLIER = "; it was written for an earlier contract: docs/extending.md says what changed, and what to write now"


class PluginError(Exception):
    """Error: code that is not gpubench's, such as an entry point, is broken. The text is one sentence."""


def entries(group: str, name: str | None = None) -> list[EntryPoint]:
    """Return the entry points of a group (OPS, BACKENDS, WINGS or SECTIONS), in the order in which their
    packages were found. With `name`, returns only the entry points of this name."""
    return [
        entry for entry in _all_entries(tuple(sys.path)) if entry.group == group and name in (None, entry.name)
    ]


def find_namesakes(group: str, built_in: Collection[str]) -> dict[str, BadPlugin]:
    """Return an error for each entry point of `group` (OPS or BACKENDS) whose name is taken, by that name. The
    names of gpubench (`built_in`) and of packages that were found earlier are taken."""
    first: dict[str, EntryPoint] = {}
    namesakes: dict[str, BadPlugin] = {}
    for entry in entries(group):
        holder = "gpubench" if entry.name in built_in else None
        if holder is None and (other := first.setdefault(entry.name, entry)) is not entry:
            holder = f"the package {package(other)}"
        if holder is not None:
            brings = package(entry)
            namesakes[entry.name] = BadPlugin(
                "bad-plugin", f"the {_NOUNS[group]} {entry.name} of the package {brings} is left out",
                why=f"{holder} has one of that name, which is used; its entry point is {entry.name} = {entry.value}",
                hint=f"give it another name in the package {brings}, or uninstall {brings}",
            )  # fmt: skip
    return namesakes


def names(group: str) -> list[str]:
    """Return the sorted names of a group's entry points, each once. No entry point is imported."""
    return sorted({entry.name for entry in entries(group)})


@cache
def _all_entries(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of all packages on the path, or none if none is for gpubench. Of packages with one
    name the first counts."""
    # importlib.metadata takes long to import, so it is imported only if it may be needed.
    if not any(map(_may_have_ours, path)):
        return ()
    from importlib.metadata import distributions  # it loads the parser of e-mail

    first: dict[str, list[EntryPoint]] = {}
    for package in distributions():
        with contextlib.suppress(Exception):  # a package whose metadata cannot be read is left out
            first.setdefault(package.name, list(package.entry_points))
    return tuple(entry for entries in first.values() for entry in entries)


def _may_have_ours(folder: str) -> bool:
    """Return whether a package in the folder may have entry points for gpubench."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir(folder or ".")
    for name in names:
        with contextlib.suppress(OSError):
            file = os.path.join(folder, name, "entry_points.txt")
            if name.lower().endswith("-info") and b"[gpubench." in disk.read_regular(file):
                return True
    # An archive may always have some.
    return os.path.isfile(folder)


def package(entry: EntryPoint) -> str:
    """Return the name of the package of the entry point, or the value of the entry point if the package is
    unknown."""
    return entry.dist.name if entry.dist is not None else entry.value


def load(entry: EntryPoint) -> Any:
    """Import the object that the entry point names, then restore the state of this process. Raises PluginError
    if the import fails."""
    from gpubench.base.plugins.containment import contain

    try:
        with contain():
            return entry.load()
    except SystemExit as error:
        raise PluginError(f"its import calls sys.exit({error.code!r})") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        earlier = isinstance(error, ImportError | AttributeError) and _lacking(error).startswith("gpubench")
        raise PluginError(f"its import raises {error_text(error)}" + EARLIER * earlier) from error


def _lacking(error: ImportError | AttributeError) -> str:
    """Return the name of the module that is missing or lacks the imported name, or of the module, class or function
    that lacks the attribute. Return an empty text if it has no name."""
    name = error.name if isinstance(error, ImportError) else getattr(error.obj, "__name__", None)
    return name if isinstance(name, str) else ""


def error_text(error: BaseException) -> str:
    """Return a line such as `ValueError: text`, of at most 1000 characters, which any stream can write."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # it has no text
        text = ""
    name = type(error).__name__
    return (f"{name}: {text}" if text else name).encode("utf-8", "backslashreplace").decode()[:1000]
