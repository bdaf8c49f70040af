"""The `gpubench-inventory` document, version 1: which nodes of a fleet answered, what they are made of, what differs.

Nodes are looked at one after the other and let go: what is kept of one is a few lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from gpubench.analysis.machine import gpu_text
from gpubench.fleet.nodes import NodeReason
from gpubench.fleet.survey import WORST_FIRST, Drift, find_drift, system_versions
from gpubench.result.machine import Machine

SAME_MEMORY = 0.01  # the kernel keeps a share of RAM for itself, which differs from boot to boot


class ListedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a node, named by its UUID's digest as in results. `why_not`: codes, where it is not usable."""

    id: str
    text: str
    usable: bool | None
    why_not: list[str]


class ListedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the fleet. `reason`, with `why`: it did not answer, and nothing but `software` may be known of it."""

    name: str
    reason: NodeReason | None
    why: str | None
    cpu: str | None
    cpus: int | None
    memory_bytes: int | None
    gpus: list[ListedGpu]
    software: dict[str, str]


class EqualNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes with equal CPUs, equal GPUs and as good as equal memory; `gpus` counts the GPUs of one node."""

    cpu: str | None
    cpus: int | None
    memory_bytes: int | None
    gpus: dict[str, int]
    nodes: list[str]


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """`gpus`: those that may be used. `complete`: as many nodes as were expected answered."""

    name: Literal["gpubench-inventory"] = "gpubench-inventory"
    schema_version: int = 1
    nodes_expected: int
    nodes_answered: int
    complete: bool
    gpus: int
    nodes: list[ListedNode]
    groups: list[EqualNodes]
    drift: tuple[Drift, ...]


def inventory_of(nodes: Iterable[ListedNode], *, expected: int | None = None) -> Inventory:
    """Return what the nodes add up to. `expected`: how many of them are needed to be complete (None: all)."""
    listed = sorted(nodes, key=lambda node: (WORST_FIRST.index(node.reason or "complete"), node.name))
    answered = [node for node in listed if node.reason is None]
    needed = len(listed) if expected is None else expected
    return Inventory(
        nodes_expected=needed, nodes_answered=len(answered), complete=len(answered) >= needed,
        gpus=sum(gpu.usable is not False for node in answered for gpu in node.gpus), nodes=listed,
        groups=_groups(answered), drift=find_drift((node.name, node.software) for node in listed),
    )  # fmt: skip


def list_node(
    name: str, machine: Machine | None = None, *, reason: NodeReason | None = None, why: str | None = None,
    gpubench: str | None = None,
) -> ListedNode:  # fmt: skip
    """Return a node that was asked what it is made of: its machine, or why it did not answer. `gpubench`: the code that
    it runs, if it said so."""
    machine = machine or Machine()
    gpus = [
        ListedGpu(id=gpu.id, text=gpu_text(gpu), usable=gpu.usable.value, why_not=list(gpu.why_not))
        for gpu in machine.gpus
    ]
    software = {"gpubench": gpubench} if gpubench else {}
    return ListedNode(
        name=name, reason=reason, why=why, cpu=machine.cpu.model.value, cpus=machine.cpu.available.value,
        memory_bytes=machine.memory.total_bytes.value, gpus=gpus, software={**software, **system_versions(machine)},
    )  # fmt: skip


def _groups(nodes: Sequence[ListedNode]) -> list[EqualNodes]:
    """The largest group first."""
    groups: list[list[ListedNode]] = []
    for node in sorted(nodes, key=lambda node: (_looks(node), node.memory_bytes or 0, node.name)):
        if not groups or not _equal(groups[-1][0], node):
            groups.append([])
        groups[-1].append(node)
    groups.sort(key=len, reverse=True)
    return [
        EqualNodes(
            cpu=group[0].cpu, cpus=group[0].cpus, memory_bytes=group[0].memory_bytes,
            gpus=dict(Counter(_look(gpu) for gpu in group[0].gpus)), nodes=sorted(node.name for node in group),
        )
        for group in groups
    ]  # fmt: skip


def _equal(node: ListedNode, other: ListedNode) -> bool:
    least, most = sorted((node.memory_bytes or 0, other.memory_bytes or 0))
    return _looks(node) == _looks(other) and most - least <= SAME_MEMORY * most


def _looks(node: ListedNode) -> tuple[str, int, list[str]]:
    return node.cpu or "", node.cpus or 0, sorted(map(_look, node.gpus))


def _look(gpu: ListedGpu) -> str:
    return gpu.text if gpu.usable is not False else f"{gpu.text} (not usable)"
