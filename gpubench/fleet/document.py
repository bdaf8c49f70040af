"""From the ends of nodes to the documents `gpubench-fleet` and `gpubench-inventory`, and which nodes are asked."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from gpubench.base import disk
from gpubench.base.escaping import visible
from gpubench.fleet.driver import EngineNode, NodeEnd
from gpubench.fleet.inventory import DetectedNode, Inventory, inventory_of
from gpubench.fleet.journal import FleetJournal
from gpubench.fleet.nodes import EMBEDDED_NODES, Fleet, Node, NodeFile, NodeReason, node_of
from gpubench.measure.recorder import without_uuids
from gpubench.result import store
from gpubench.result.machine import SCHEMA_VERSION, Machine


class Absent(msgspec.Struct, frozen=True):
    """A node that is not asked, and why."""

    name: str
    reason: NodeReason
    why: str


def named(nodes: Sequence[EngineNode], *, hostnames: bool) -> dict[str, EngineNode]:
    """The nodes by the names that the fleet stores: host names, or digests of them. Hosts that are called the same
    are distinguished by the engine's id."""
    words = [
        visible(one.host) if hostnames else hashlib.sha256(one.host.encode()).hexdigest()[:12] for one in nodes
    ]
    return {
        word if words.count(word) == 1 else f"{word}-{one.id[:8]}": one
        for word, one in zip(words, nodes, strict=True)
    }


def chosen(
    found: Mapping[str, EngineNode], wanted: Sequence[str], min_gpus: int | None
) -> tuple[dict[str, EngineNode], list[Absent]]:
    """The nodes to ask, of those that are `wanted` (none: all), and those that cannot be asked. A node answers to its
    name, its host name and the engine's id."""
    asked = dict(found)
    absent = []
    if wanted:
        asked = {}
        for word in wanted:
            ours = {name: one for name, one in found.items() if word in (name, one.host, one.id)}
            asked |= ours
            if not ours:
                absent.append(Absent(word, "unreachable", "the cluster has no such node"))
    for name, one in list(asked.items()):
        if min_gpus is not None and one.gpus < min_gpus:
            absent.append(Absent(name, "too-few-gpus", f"it has {one.gpus:g} GPUs of {min_gpus}"))
            del asked[name]
    return asked, absent


def fleet_of_ends(
    ends: Iterable[NodeEnd], absent: Iterable[Absent], kept: Iterable[Node], journal: FleetJournal,
    *, expected: int | None, engine: Mapping[str, str],
) -> Fleet:  # fmt: skip
    """The document of a fleet that was measured; `kept` are nodes of a saved one that are not asked again."""
    ends = list(ends)
    nodes = list(kept)
    embeds = len(ends) + len(nodes) <= EMBEDDED_NODES
    nodes += [_node(end, journal, engine, embeds=embeds) for end in ends]
    nodes += [
        Node(key=one.name, label=one.name, status="failed", reason=one.reason, error=one.why) for one in absent
    ]
    nodes.sort(key=lambda node: (node.name, node.key))
    brought = sum(node.status == "ok" for node in nodes)
    wanted = len(nodes) if expected is None else expected
    complete = brought >= wanted and not any(end.cut for end in ends)
    return Fleet(nodes_expected=wanted, nodes_collected=brought, complete=complete, nodes=nodes)


def _node(end: NodeEnd, journal: FleetJournal, engine: Mapping[str, str], *, embeds: bool) -> Node:
    """The node's row: what its file says of it, unless its end says worse."""
    path = journal.path(end.name)
    node = Node(key=end.name, status="failed", reason="failed")
    if path.exists():
        node = node_of([store.load(path)])
        if not embeds:
            file = NodeFile(
                path=f"{journal.folder.name}/{path.name}",
                sha256=hashlib.sha256(disk.read_regular(path)).hexdigest(),
            )
            node = msgspec.structs.replace(node, result=None, files=[file])
        if end.reason == "version-skew":  # its figures mean something else
            node = msgspec.structs.replace(node, result=None, files=[])
    if end.reason is not None and (end.reason != "partial" or node.status == "ok"):
        status = "ok" if end.reason == "partial" else "failed"
        node = msgspec.structs.replace(node, status=status, reason=end.reason)
    return msgspec.structs.replace(
        node, label=end.name, error=end.error or node.error, engine=dict(engine), last_event=end.last_event,
        attempts=list(end.attempts),
    )  # fmt: skip


def load_machine(path: Path) -> Machine:
    """The machine that a node detected. Raises InputError."""
    data, source = store.read(path)
    return store.loads_as(Machine, data, source, name="gpubench-detect", newest=SCHEMA_VERSION)


def inventory_of_ends(
    ends: Iterable[NodeEnd], absent: Iterable[Absent], journal: FleetJournal, *, expected: int | None
) -> Inventory:
    """What a fleet is made of; `journal` holds the machine of each node that answered."""
    asked = (_detected(end, journal) for end in ends)  # one machine in memory at a time
    others = (DetectedNode(name=one.name, reason=one.reason, why=one.why) for one in absent)
    return inventory_of(itertools.chain(asked, others), expected=expected)


def _detected(end: NodeEnd, journal: FleetJournal) -> DetectedNode:
    runs = None if end.identity is None else str(end.identity)
    if end.reason is None:
        machine = without_uuids(load_machine(journal.path(end.name)))  # GPUs are named as in results
        return DetectedNode(name=end.name, gpubench=runs, machine=machine)
    reason = "failed" if end.reason == "partial" else end.reason  # half an answer is none
    return DetectedNode(name=end.name, reason=reason, why=end.error, gpubench=runs)
