"""The file by which a run tells its children where the user's functions are, and what is known of them."""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
from typing import Literal

import msgspec

from gpubench.functions.describe import Description

# The variable that has the file's path: every child process inherits it.
VARIABLE = "_GPUBENCH_FUNCTIONS"


class CodeSource(msgspec.Struct, frozen=True):
    """The place of functions: a file, a module, or a pickled function; `path` are folders to import from."""

    name: str
    kind: Literal["file", "module", "pickle"]
    place: str
    path: tuple[str, ...] = ()
    only: str = ""  # the one function that a pickle holds


class Manifest(msgspec.Struct):
    """All functions of a process and their sources, the latest of a name alone."""

    sources: list[CodeSource] = []
    functions: list[Description] = []


_known = Manifest()
_path = ""


def read() -> Manifest:
    """The manifest of the parent; an empty one if it has none."""
    path = os.environ.get(VARIABLE)
    if not path:
        return Manifest()
    with open(path, "rb") as file:
        return msgspec.json.decode(file.read(), type=Manifest)


def add(source: CodeSource, functions: list[Description]) -> None:
    """Tell children of these functions from now on."""
    global _path
    _known.sources = [*(entry for entry in _known.sources if entry.name != source.name), source]
    ids = {function.id for function in functions}
    _known.functions = [*(entry for entry in _known.functions if entry.id not in ids), *functions]
    if not _path:
        descriptor, _path = tempfile.mkstemp(prefix="gpubench-functions-", suffix=".json")
        os.close(descriptor)
        atexit.register(_remove, _path, os.getpid())
        os.environ[VARIABLE] = _path
    with open(_path, "wb") as file:
        file.write(msgspec.json.encode(_known))


def _remove(path: str, process: int) -> None:
    if os.getpid() == process:
        with contextlib.suppress(OSError):
            os.unlink(path)
