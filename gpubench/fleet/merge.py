"""`gpubench merge`: several result files become one result, or a fleet."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpubench.base import disk
from gpubench.base.errors import InputError, UsageError
from gpubench.base.escaping import visible
from gpubench.fleet.options import MergeOptions

if TYPE_CHECKING:
    from gpubench.analysis.machine import RunOutline
    from gpubench.fleet.nodes import Fleet, Node
    from gpubench.result.run import Run

_NAMED = 5  # missing nodes that one message names


def merge(options: MergeOptions) -> None:
    """Join result files: of one machine into one result with all sessions, of several into a fleet."""
    from gpubench.result import store

    output, expect = options.output, options.expect
    if not store.is_result_name(output):
        raise UsageError(
            "unknown-suffix", f"--output: {output!r} is no name for a result", why="merge writes JSON"
        )
    store.check_writable(output)
    tolerant = expect is not None or options.nodes is not None
    sources, failed, known = _collected(options.files, tolerant=tolerant)
    from gpubench.analysis.machine import connected, marks
    from gpubench.fleet.nodes import EMBEDDED_NODES, alike, gather, merge_runs, node_of, refuse_twice

    names = parse_nodes(options.nodes)
    expected = expect if expect is not None else known
    refuse_twice([source.outline for source in sources])
    groups = [
        [sources[place] for place in places] for places in connected([marks(one.outline) for one in sources])
    ]
    if expected is None and not names and len(groups) == 1:
        runs = [source.load() for source in groups[0]]
        if len(alike(runs)) == 1:
            store.save(merge_runs(runs), output)
            return
    apart = len(groups) > EMBEDDED_NODES and not options.embed
    nodes: list[Node] = []
    for group in groups:  # one node in memory at a time, where each has files of its own
        runs, broken = _loaded(group, tolerant=tolerant)
        failed += broken
        if runs:
            node = node_of(runs)
            nodes.append(_put_beside(node, output, group) if apart else node)
    fleet = gather(nodes, failed, expected=expected, names=names)
    store.replace(output, store.dumps(fleet))
    if not fleet.complete:
        raise InputError(
            "incomplete-fleet", f"{fleet.nodes_collected} of {fleet.nodes_expected} nodes brought a result",
            why=_missing(fleet) or "no file of the others was named",
            hint=f"{Path(output).name} holds what there is; merge it with the missing files to complete it",
        )  # fmt: skip


class _Source:
    """A run that is merged: in memory, or `on_disk` in a file of which the outline alone is kept."""

    def __init__(self, outline: RunOutline | Run, load: Callable[[], Run], path: str, *, on_disk: bool) -> None:
        self.outline, self.load, self.path = outline, load, path
        self.on_disk = on_disk


def _put_beside(node: Node, output: str, sources: Sequence[_Source]) -> Node:
    """`node` with its results in files of the folder beside the fleet, in place of the results themselves. The file of
    a node that has but one is copied: encoding takes longer than all the rest."""
    import hashlib

    import msgspec

    from gpubench.fleet.journal import beside, file_stem
    from gpubench.fleet.nodes import NodeFile
    from gpubench.result import store

    folder = beside(output, ".d")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise store.cannot_save(folder, error) from error
    stem = file_stem(node.label, node.key)
    files = []
    for place, run in enumerate(node.runs):
        path = folder / f"{stem}{f'-{place + 1}' if len(node.runs) > 1 else ''}.json.gz"
        copied = len(sources) == 1 and sources[0].on_disk
        store.replace(path, store.read(sources[0].path)[0] if copied else store.dumps(run))
        files.append(
            NodeFile(
                path=f"{folder.name}/{path.name}", sha256=hashlib.sha256(disk.read_regular(path)).hexdigest()
            )
        )
    return msgspec.structs.replace(node, result=None, others=[], files=files)


def parse_nodes(text: str | None) -> list[str]:
    """The names of a list with commas, or of the lines of @FILE. Raises UsageError."""
    from gpubench.result.store import limits

    if text is None:
        return []
    words = text.split(",")
    if text.startswith("@"):
        try:
            words = disk.read_regular(text[1:], limits.MAX_BYTES).decode().split()
        except (OSError, UnicodeDecodeError) as error:
            why = disk.reason(error) if isinstance(error, OSError) else str(error)
            raise UsageError(
                "unreadable-input", f"--nodes: cannot read {text[1:]}", why=why,
                hint="name a file with a node's name on each line",
            ) from error  # fmt: skip
    return list(dict.fromkeys(word.strip() for word in words if word.strip()))


def _missing(fleet: Fleet) -> str:
    found = [
        f"{node.label}: {node.error}" if node.label else node.error or node.key
        for node in fleet.nodes
        if node.status == "failed"
    ]
    return "; ".join([*found[:_NAMED], *([f"and {len(found) - _NAMED} more"] if len(found) > _NAMED else [])])


def _collected(files: Sequence[str], *, tolerant: bool) -> tuple[list[_Source], list[Node], int | None]:
    """All runs and failed nodes of `files`, and how many nodes were expected by the fleets among them.

    `tolerant`: a file that cannot be used is a node that failed. Raises InputError.
    """
    sources: list[_Source] = []
    failed: list[Node] = []
    expected: int | None = None
    for file in files:
        try:
            found, missing, wanted = _sources(file)
        except InputError as error:
            if not tolerant:
                raise
            failed.append(_unusable(file, error))
            continue
        sources += found
        failed += missing
        expected = wanted if expected is None else max(expected, wanted or 0)
    return sources, failed, expected


def _sources(file: str) -> tuple[list[_Source], list[Node], int | None]:
    """The runs of one file. A result is read again when its node's turn comes; standard input and fleets stay."""
    import msgspec

    from gpubench.analysis.machine import RunOutline
    from gpubench.cli.report import document
    from gpubench.fleet.nodes import Fleet
    from gpubench.fleet.report_command import opened
    from gpubench.result import store
    from gpubench.result.run import Run
    from gpubench.result.store import limits
    from gpubench.result.store.document import RESULT_NAME, Header

    if file != "-":
        data, _ = store.read(file)
        limits.require_json(data, file)
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            if msgspec.json.decode(data, type=Header).name == RESULT_NAME:
                outline = msgspec.json.decode(data, type=RunOutline)
                return [_Source(outline, partial(store.load, file), file, on_disk=True)], [], None
    content = document(file)
    if isinstance(content, Run):
        return [_Source(content, partial(_itself, content), file, on_disk=False)], [], None
    assert isinstance(content, Fleet)
    nodes = [opened(node, file) for node in content.nodes]
    sources = [_Source(run, partial(_itself, run), file, on_disk=False) for node in nodes for run in node.runs]
    return sources, [node for node in nodes if not node.runs], content.nodes_expected


def _itself(run: Run) -> Run:
    return run


def _loaded(group: Sequence[_Source], *, tolerant: bool) -> tuple[list[Run], list[Node]]:
    runs, failed = [], []
    for source in group:
        try:
            runs.append(source.load())
        except InputError as error:
            if not tolerant:
                raise
            failed.append(_unusable(source.path, error))
    return runs, failed


def _unusable(file: str, error: InputError) -> Node:
    """The node of a file that cannot be used; said on stderr too."""
    from gpubench.fleet.nodes import Node

    print(visible(f"{error.message}: {error.why}"), file=sys.stderr)
    name = Path(file).name
    return Node(key=name, status="failed", reason="unusable", error=f"{name}: {error.why or error.message}")
