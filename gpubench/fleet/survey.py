"""The `gpubench-fleet-report` document, version 1: which nodes of a fleet are whole, which GPUs are slow, what differs.

Nodes are looked at one after the other and let go: what is kept of one is a few hundred bytes a GPU and case.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from gpubench.curves.shortfall import TOLERANCE
from gpubench.fleet.drift import Drift, VersionCount, system_versions
from gpubench.fleet.nodes import Node, NodeReason
from gpubench.fleet.peers import (
    Figure,
    NotCompared,
    Peers,
    compared,
    figures,
    gpu_key,
)

NodeWord = Literal[NodeReason, "complete"]
_USABLE: tuple[NodeWord, ...] = ("partial", "complete")
# What nothing is known of, what broke, what was not to be had.
WORST_FIRST: tuple[NodeWord, ...] = (
    "missing", "unusable", "failed", "died", "hung", "version-skew", "unreachable", "too-few-gpus", "busy", *_USABLE,
)  # fmt: skip


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One node: `word` says whether it is whole, `why` what it lacks; `gpus` are those that its file knows."""

    name: str
    key: str
    word: NodeWord
    why: str | None
    gpus: int


class FleetReport(msgspec.Struct, frozen=True, kw_only=True):
    """`gpus`: those that the files know, of which `peers.compared` have a peer group."""

    name: Literal["gpubench-fleet-report"] = "gpubench-fleet-report"
    schema_version: int = 1
    nodes_expected: int
    nodes_collected: int
    nodes_complete: int
    complete: bool
    gpus: int
    peers: Peers
    expected_by_chance: float
    nodes: tuple[NodeRow, ...]
    drift: tuple[Drift, ...]

    @property
    def slow(self) -> int:
        """GPUs with a verdict that is more than a suspicion."""
        return len({one.gpu for one in self.peers.verdicts if one.confirmed})

    @property
    def bad_nodes(self) -> list[str]:
        """Nodes without a result, and those with a slow GPU; a suspect makes no node bad."""
        return sorted({row.name for row in self.nodes if row.word not in _USABLE} | self._with_slow_gpu())

    @property
    def ok_nodes(self) -> list[str]:
        """Whole nodes on which nothing is slow."""
        slow = self._with_slow_gpu()
        return sorted(row.name for row in self.nodes if row.word == "complete" and row.name not in slow)

    def _with_slow_gpu(self) -> set[str]:
        return {one.node for one in self.peers.verdicts if one.confirmed}

    def judges(self, known_good: bool) -> bool:
        """Whether a slow GPU could be found at all."""
        return known_good or self.peers.compared > 0


class FleetSurvey:
    """Takes the nodes of a fleet one by one, and tells what they add up to."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []
        self._rows: list[NodeRow] = []
        self._without: list[NotCompared] = []
        self._versions = VersionCount()

    def add(self, node: Node) -> None:
        """Keep what counts of `node`."""
        seen: dict[str, str] = {}  # GPU -> how its newest run calls it
        found: list[Figure] = []
        for run in node.runs:
            found += figures(run, node.name)
            seen |= {
                gpu_key(gpu, node.name): gpu.id for gpu in run.machine.gpus if gpu.usable.value is not False
            }
        known = {one.gpu for one in found}
        now = {gpu_key(gpu, node.name) for gpu in node.result.machine.gpus} if node.result else set()
        for gpu, name in seen.items():
            if gpu not in now:
                self._without.append(
                    NotCompared(node=node.name, gpu=gpu, device=name, reason="the newest run does not see it")
                )
            elif gpu not in known:
                self._without.append(
                    NotCompared(node=node.name, gpu=gpu, device=name, reason="nothing was measured on it")
                )
        self.figures += [one for one in found if one.gpu in now or one.gpu not in seen]
        self._rows.append(
            NodeRow(name=node.name, key=node.key, word=_word(node), why=node.error, gpus=len(seen))
        )
        if node.result is not None:
            self._versions.add(node.name, {**node.result.tool, **system_versions(node.result.machine)})

    def report(
        self,
        *,
        expected: int | None = None,
        tolerance: float = TOLERANCE,
        known_good: Iterable[Figure] | None = None,
    ) -> FleetReport:
        """What was found. `expected`: the nodes that there should be."""
        peers = compared(self.figures, tolerance=tolerance, known_good=known_good)
        without = (*self._without, *peers.not_compared)
        peers = msgspec.structs.replace(
            peers, not_compared=tuple(sorted(without, key=lambda one: (one.node, one.device, one.gpu)))
        )
        rows = sorted(self._rows, key=lambda row: (WORST_FIRST.index(row.word), row.name))
        complete = sum(row.word == "complete" for row in rows)
        wanted = len(rows) if expected is None else expected
        return FleetReport(
            nodes_expected=wanted, nodes_complete=complete, complete=complete >= wanted,
            nodes_collected=sum(row.word in _USABLE for row in rows), gpus=sum(row.gpus for row in rows),
            peers=peers, expected_by_chance=peers.expected_by_chance, nodes=tuple(rows),
            drift=self._versions.drift(),
        )  # fmt: skip


def _word(node: Node) -> NodeWord:
    return node.reason or ("failed" if node.status == "failed" else "complete")
