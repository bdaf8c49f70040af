"""`gpubench merge`: several result files become one result, or a fleet."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.errors import InputError, UsageError
from gpubench.foreign_text import visible

if TYPE_CHECKING:
    from gpubench.model.result import Run
    from gpubench.report.merging import Node


def merge(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Results or fleets, - for stdin.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Write here (.json, .json.gz).")
    ],
    expect: Annotated[
        int | None,
        typer.Option(
            "--expect",
            metavar="N",
            min=1,
            help="Nodes that there should be: writes a fleet; fewer is exit 4.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Join result files: of one machine into one result with all sessions, of several into a fleet."""
    from gpubench import store
    from gpubench.cli import _fleet_file

    if not output.endswith((".json", ".json.gz")):
        raise UsageError(
            "unknown-suffix", f"--output: {output!r} is no name for a result", why="merge writes JSON",
            hint="end it in .json or .json.gz",
        )  # fmt: skip
    store.check_writable(output)
    runs, failed, expected = _collected(files, tolerant=expect is not None)
    from gpubench.report import merging

    expected = expect if expect is not None else expected
    if expected is None and len(merging.by_node(runs)) == 1:
        store.save(merging.merged(runs), output)
        return
    fleet = merging.fleet_of(runs, failed, expected=expected)
    _fleet_file.save(fleet, output)
    if not fleet.complete:
        raise InputError(
            "incomplete-fleet", f"{fleet.nodes_collected} of {fleet.nodes_expected} nodes brought a result",
            why="; ".join(node.error or node.key for node in fleet.nodes if node.status == "failed")
            or "no file of the others was named",
            hint=f"{Path(output).name} holds what there is; merge it with the missing files to complete it",
        )  # fmt: skip


def _collected(files: Sequence[str], *, tolerant: bool) -> tuple[list[Run], list[Node], int | None]:
    """All runs and failed nodes of `files`, and how many nodes were expected by the fleets among them.

    `tolerant`: a file that cannot be used is a node that failed. Raises InputError.
    """
    from gpubench.cli import _fleet_file
    from gpubench.report.merging import Node

    runs: list[Run] = []
    failed: list[Node] = []
    expected: int | None = None
    for file in files:
        try:
            found, missing, wanted = _fleet_file.read(file)
        except InputError as error:
            if not tolerant:
                raise
            name = Path(file).name
            failed.append(Node(key=name, status="failed", error=f"{name}: {error.why or error.message}"))
            print(visible(f"{error.message}: {error.why}"), file=sys.stderr)
            continue
        runs += found
        failed += missing
        expected = wanted if expected is None else max(expected, wanted or 0)
    return runs, failed, expected
