"""Files that hold results: one run, or a fleet of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpubench import store
from gpubench.store import limits
from gpubench.store.document import RESULT_NAME

if TYPE_CHECKING:
    from gpubench.analysis.fleet import Fleet, Node
    from gpubench.model.result import Run


class _Name(msgspec.Struct):
    """What a document says it is."""

    name: Any = None


def read(path: str) -> tuple[list[Run], list[Node], int | None]:
    """The runs in `path` (`-`: standard input), the nodes of it that brought none, and how many nodes a fleet
    expects (None: the file is a result). Raises InputError."""
    data, source = store.read(path)
    try:
        name = msgspec.json.decode(data, type=_Name).name
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        name = RESULT_NAME  # the reader of results says what is wrong with it
    if name == RESULT_NAME:  # what fleets take is not loaded for it
        return [store.loads(data, source)], [], None
    from gpubench.analysis.fleet import NAME, VERSION, Fleet, members

    if name != NAME:
        return [store.loads(data, source)], [], None
    fleet = store.loads_as(Fleet, data, source, name=NAME, newest=VERSION)
    runs, failed = members(fleet)
    limits.require_runs(runs, source)
    return [store.checked(run, source) for run in runs], failed, fleet.nodes_expected


def save(fleet: Fleet, path: str) -> None:
    """Replace `path` by the document. Raises GpubenchError."""
    store.replace(path, store.dumps(fleet))
