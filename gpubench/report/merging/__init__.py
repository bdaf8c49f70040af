"""Result files -> one result, or a fleet of machines. Pure: the same files give the same document in any order."""

from __future__ import annotations

from gpubench.report.analysis.nodes import by_node, node_key
from gpubench.report.merging.fleet import fleet_of, members
from gpubench.report.merging.sessions import merged
from gpubench.report.merging.types import Fleet, Node

__all__ = ["Fleet", "Node", "by_node", "fleet_of", "members", "merged", "node_key"]
