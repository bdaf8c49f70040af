"""A fleet: the result of each machine, those that did not come included."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubench.model.result import Run
from gpubench.report.analysis.nodes import by_node
from gpubench.report.merging.sessions import merged, refuse_twice
from gpubench.report.merging.types import Fleet, Node


def fleet_of(runs: Sequence[Run], failed: Iterable[Node] = (), *, expected: int | None = None) -> Fleet:
    """The fleet of `runs`, those of one machine merged; `failed` are nodes without a result.

    `expected` nodes are needed to be complete (None: all that are named here). Raises InputError for a run that comes
    twice and for runs of one machine that cannot be merged.
    """
    refuse_twice(runs)
    nodes = [Node(key=key, status="ok", result=merged(found)) for key, found in by_node(runs).items()]
    collected = len(nodes)
    missing = {node.key: node for node in sorted(failed, key=lambda node: (node.key, node.error or ""))}
    wanted = collected + len(missing) if expected is None else expected
    complete = collected >= wanted
    # A file that could not be read does not tell whose it was; once all are there, so is that node.
    nodes += [] if complete else missing.values()
    return Fleet(nodes_expected=wanted, nodes_collected=collected, complete=complete, nodes=nodes)


def members(fleet: Fleet) -> tuple[list[Run], list[Node]]:
    """The results of a fleet, and the nodes that have none."""
    return [node.result for node in fleet.nodes if node.result], [n for n in fleet.nodes if not n.result]
