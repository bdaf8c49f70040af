"""`gpubench merge`: several result files become one result, or a fleet."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpubench.cli.options import MergeOptions
from gpubench.errors import InputError, UsageError
from gpubench.escaping import visible

if TYPE_CHECKING:
    from gpubench.analysis.fleet import Fleet, Node
    from gpubench.model.result import Run

_NAMED = 5  # missing nodes that one message names


def merge(options: MergeOptions) -> None:
    """Join result files: of one machine into one result with all sessions, of several into a fleet."""
    from gpubench import store
    from gpubench.store.files import RESULT_SUFFIXES

    output, expect = options.output, options.expect
    if not output.endswith(RESULT_SUFFIXES):
        raise UsageError(
            "unknown-suffix", f"--output: {output!r} is no name for a result", why="merge writes JSON"
        )
    store.check_writable(output)
    runs, failed, expected = _collected(options.files, tolerant=expect is not None or options.nodes is not None)
    from gpubench.analysis.fleet import alike, fleet_of, merged
    from gpubench.analysis.machine import same_machines

    names = named_nodes(options.nodes)
    expected = expect if expect is not None else expected
    if expected is None and not names and len(same_machines(runs)) == len(alike(runs)) == 1:
        store.save(merged(runs), output)
        return
    fleet = fleet_of(runs, failed, expected=expected, names=names)
    store.replace(output, store.dumps(fleet))
    if not fleet.complete:
        raise InputError(
            "incomplete-fleet", f"{fleet.nodes_collected} of {fleet.nodes_expected} nodes brought a result",
            why=_missing(fleet) or "no file of the others was named",
            hint=f"{Path(output).name} holds what there is; merge it with the missing files to complete it",
        )  # fmt: skip


def named_nodes(text: str | None) -> list[str]:
    """The names of a list with commas, or of the lines of @FILE. Raises UsageError."""
    if text is None:
        return []
    words = text.split(",")
    if text.startswith("@"):
        try:
            words = Path(text[1:]).read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                "unreadable-input", f"--nodes: cannot read {text[1:]}", why=str(error),
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


def _collected(files: Sequence[str], *, tolerant: bool) -> tuple[list[Run], list[Node], int | None]:
    """All runs and failed nodes of `files`, and how many nodes were expected by the fleets among them.

    `tolerant`: a file that cannot be used is a node that failed. Raises InputError.
    """
    from gpubench.analysis.fleet import Node
    from gpubench.cli.report import document, parts

    runs: list[Run] = []
    failed: list[Node] = []
    expected: int | None = None
    for file in files:
        try:
            found, missing, wanted = parts(document(file))
        except InputError as error:
            if not tolerant:
                raise
            name = Path(file).name
            failed.append(
                Node(
                    key=name, status="failed", reason="unusable", error=f"{name}: {error.why or error.message}"
                )
            )
            print(visible(f"{error.message}: {error.why}"), file=sys.stderr)
            continue
        runs += found
        failed += missing
        expected = wanted if expected is None else max(expected, wanted or 0)
    return runs, failed, expected
