"""Software that is not the same on all nodes of a fleet."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gpubench.analysis.machine import fact
from gpubench.result.machine import Machine


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the software that is not the same on all nodes: the usual version, and the nodes of each other."""

    what: str
    usual: str
    others: dict[str, list[str]]


class VersionCount:
    """The versions of each part of the software, each with the nodes that have it."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, list[str]]] = {}

    def add(self, node: str, versions: Mapping[str, str]) -> None:
        for what, version in versions.items():
            self._nodes.setdefault(what, {}).setdefault(version, []).append(node)

    def drift(self) -> tuple[Drift, ...]:
        """The parts that differ. The usual version is that of most nodes; of two that are as frequent, the first by
        name."""
        found = []
        for what, nodes in sorted(self._nodes.items()):
            if len(nodes) > 1:
                usual = max(sorted(nodes), key=lambda version: len(nodes[version]))
                others = {
                    version: sorted(names) for version, names in sorted(nodes.items()) if version != usual
                }
                found.append(Drift(what=what, usual=usual, others=others))
        return tuple(found)


def system_versions(machine: Machine) -> dict[str, str]:
    """The versions of the machine's kernel and of the drivers of its GPUs, and the newest CUDA that those serve."""
    found = {"kernel": fact(machine, "platform", "kernel")}
    for gpu in machine.gpus:
        found["CUDA"] = found.get("CUDA") or fact(gpu, "driver", "cuda")
        name = fact(gpu, "driver", "name")
        found[f"driver {name}"] = fact(gpu, "driver", "version") if name else None
    return {what: str(version) for what, version in found.items() if version}
