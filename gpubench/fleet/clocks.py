"""The clocks of a fleet: which nodes are overdue. An engine may never tell that a node hangs, so nothing waits for it.

The time of a case is the node's own clock (`--case-timeout`).
"""

from __future__ import annotations

import heapq
from typing import Literal

import msgspec

Overdue = Literal["busy", "hung"]


class FleetLimits(msgspec.Struct, frozen=True):
    """How long a node may wait for its turn, how long it may be silent, and how long the whole fleet may take."""

    queue_s: float = 60.0
    silence_s: float = 30.0
    deadline_s: float = 1800.0


class NodeClocks:
    """One clock a node, for queue and then for silence, and one for the fleet. All times are seconds of one clock.

    Hearing from a node is one write into a table: the heap holds a time at which a node is looked at again, and a node
    that was heard meanwhile goes back with its new time.
    """

    def __init__(self, limits: FleetLimits, now: float) -> None:
        self._limits = limits
        self._ends = now + limits.deadline_s
        self._due: dict[str, tuple[float, Overdue]] = {}
        self._looks: list[tuple[float, str]] = []

    def ask(self, node: str, now: float) -> None:
        """The node was asked: its queue clock runs."""
        self._due[node] = now + self._limits.queue_s, "busy"
        heapq.heappush(self._looks, (now + self._limits.queue_s, node))

    def hear(self, node: str, now: float) -> None:
        """Something of the node arrived: its silence clock begins anew. A node that is stopped stays so."""
        if node not in self._due:
            return
        if self._due[node][1] == "busy":  # silence may end before the queue would have
            heapq.heappush(self._looks, (now + self._limits.silence_s, node))
        self._due[node] = now + self._limits.silence_s, "hung"

    def stop(self, node: str) -> None:
        """No clock of the node runs any more."""
        self._due.pop(node, None)

    def overdue(self, now: float) -> list[tuple[str, Overdue]]:
        """The nodes whose time is over; their clocks are stopped."""
        found = []
        while self._looks and self._looks[0][0] <= now:
            _, node = heapq.heappop(self._looks)
            if node not in self._due:
                continue
            due, why = self._due[node]
            if due <= now:
                self.stop(node)
                found.append((node, why))
            else:
                heapq.heappush(self._looks, (due, node))
        return found

    def over(self, now: float) -> bool:
        """Whether the time of the whole fleet is over."""
        return now >= self._ends

    def wait_s(self, now: float, most: float) -> float:
        """How long nothing can become overdue, at most `most`."""
        next_look = self._looks[0][0] if self._looks else self._ends
        return max(0.0, min(next_look - now, self._ends - now, most))
