"""The `gpubench-fleet-report` document, version 1: which nodes of a fleet are whole, which GPUs are slow, what differs.

Nodes are looked at one after the other and let go: what is kept of one is a few hundred bytes a GPU and case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from gpubench.analysis.fleet import Node
from gpubench.analysis.machine import fact
from gpubench.analysis.peers import (
    FEWEST_PEERS,
    TOLERANCE,
    Figure,
    NotCompared,
    Peers,
    compared,
    figures,
    gpu_key,
)

NodeWord = Literal["complete", "partial", "unusable", "missing", "failed"]
_BROKEN = ("missing", "unusable", "failed")
FleetFailOn = Literal["slow-gpu", "incomplete"]
FLEET_FAIL_ON: tuple[FleetFailOn, ...] = ("slow-gpu", "incomplete")


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One node: `word` says whether it is whole, `why` what it lacks; `gpus` are those that its file knows."""

    name: str
    key: str
    word: NodeWord
    why: str | None
    gpus: int


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the software that is not the same on all nodes: the usual version, and the nodes of each other."""

    what: str
    usual: str
    others: dict[str, list[str]]


class FleetReport(msgspec.Struct, frozen=True, kw_only=True):
    """`compared`, `gpus`: GPUs with a peer group, of those that the files know. `lost`: GPUs of earlier runs that the
    newest run of their node does not see."""

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
        """Nodes without a result, and those with a slow GPU; a suspect is neither bad nor good."""
        bad = {row.name for row in self.nodes if row.word in _BROKEN} | self._with_verdict(confirmed=True)
        return sorted(bad)

    @property
    def ok_nodes(self) -> list[str]:
        """Whole nodes on which nothing is slow."""
        slow = self._with_verdict(confirmed=True)
        return sorted(row.name for row in self.nodes if row.word == "complete" and row.name not in slow)

    def _with_verdict(self, *, confirmed: bool) -> set[str]:
        return {one.node for one in self.peers.verdicts if one.confirmed == confirmed}

    def judges(self, known_good: bool) -> bool:
        """Whether a slow GPU could be found at all."""
        return known_good or any(group.peers >= FEWEST_PEERS for group in self.peers.groups)


class FleetSurvey:
    """Takes the nodes of a fleet one by one, and tells what they add up to."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []
        self._rows: list[NodeRow] = []
        self._without: list[NotCompared] = []
        self._versions: dict[str, dict[str, list[str]]] = {}

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
        self._note_versions(node)

    def _note_versions(self, node: Node) -> None:
        run = node.result
        if run is None:
            return
        versions = dict(run.tool)
        for gpu in run.machine.gpus:
            name, version = fact(gpu, "driver", "name"), fact(gpu, "driver", "version")
            if name and version:
                versions[f"driver {name}"] = str(version)
        for what, version in versions.items():
            self._versions.setdefault(what, {}).setdefault(version, []).append(node.name)

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
        rows = sorted(self._rows, key=lambda row: (_WORDS.index(row.word), row.name))
        complete = sum(row.word == "complete" for row in rows)
        wanted = len(rows) if expected is None else expected
        return FleetReport(
            nodes_expected=wanted, nodes_complete=complete, complete=complete >= wanted,
            nodes_collected=sum(row.word not in _BROKEN for row in rows), gpus=sum(row.gpus for row in rows),
            peers=peers, expected_by_chance=peers.expected_by_chance, nodes=tuple(rows),
            drift=tuple(self._drift()),
        )  # fmt: skip

    def _drift(self) -> list[Drift]:
        found = []
        for what, nodes in sorted(self._versions.items()):
            if len(nodes) > 1:
                counted = Counter({version: len(names) for version, names in nodes.items()})
                usual = max(sorted(counted), key=lambda version: counted[version])
                others = {
                    version: sorted(names) for version, names in sorted(nodes.items()) if version != usual
                }
                found.append(Drift(what=what, usual=usual, others=others))
        return found


_WORDS: tuple[NodeWord, ...] = ("missing", "unusable", "failed", "partial", "complete")


def _word(node: Node) -> NodeWord:
    return node.reason or ("failed" if node.status == "failed" else "complete")
