"""The loop that leads a fleet: it starts nodes, keeps what they send, and says how each ended. It knows no engine.

There is one loop and no thread a node: a thousand nodes cost a thousand small records.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from gpubench.base.escaping import visible
from gpubench.fleet import node as wire
from gpubench.fleet.clocks import FleetLimits, NodeClocks, Overdue
from gpubench.fleet.journal import BadMessage, FleetJournal
from gpubench.fleet.node import ChildEnd, NodeIdentity
from gpubench.fleet.nodes import NodeAttempt, NodeReason

TICK_S = 1.0
MOST_MESSAGE = wire.PIECE_BYTES + 1
RETRIED: tuple[NodeReason, ...] = ("died", "hung", "busy")
_MOST_ERROR = 2000
Cut = Literal["deadline", "interrupted"]


class EngineNode(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    host: str
    cpus: float = 0
    gpus: float = 0


class Arrival(msgspec.Struct, frozen=True):
    """A message of a node; or the engine's word that there will be none any more, and why."""

    node: str
    message: bytes | None = None
    reason: NodeReason | None = None
    why: str = ""


class Engine(Protocol):
    """What starts a task on a node and passes its messages along. Of an id there is one task at a time.

    Only `poll` may wait, and no longer than it is told; `cancel` forgets the task, whatever becomes of it.
    """

    name: str
    version: str

    def nodes(self) -> Sequence[EngineNode]: ...
    def start(self, node: EngineNode, arguments: Sequence[str]) -> None: ...
    def poll(self, timeout_s: float) -> Sequence[Arrival]: ...
    def cancel(self, node: str) -> None: ...
    def close(self) -> None: ...


class PlacedNode(msgspec.Struct, frozen=True):
    """A node of the engine, the name by which the fleet calls it, and what it is to run: `run` or `detect` with
    arguments."""

    node: EngineNode
    name: str
    arguments: Sequence[str]


class NodeEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How the run of a node ended. `reason` is None if its result arrived; `cut` if we ended it; `identity`: the code
    that it runs, once it began."""

    name: str
    reason: NodeReason | None
    error: str | None
    last_event: str | None
    cut: Cut | None = None
    attempts: Sequence[NodeAttempt] = ()
    identity: NodeIdentity | None = None


class _Progress:
    """A node that is measured."""

    def __init__(self, placed: PlacedNode) -> None:
        self.placed = placed
        self.identity: NodeIdentity | None = None
        self.last_event: str | None = None
        self.attempts: list[NodeAttempt] = []


class FleetDriver:
    """Leads the runs of `placed` to their ends; `tell` gets each end as it comes."""

    def __init__(
        self, engine: Engine, journal: FleetJournal, limits: FleetLimits, *, retries: int = 0,
        clock: Callable[[], float] = time.monotonic, tell: Callable[[NodeEnd], None] = lambda end: None,
    ) -> None:  # fmt: skip
        self._engine, self._journal, self._limits = engine, journal, limits
        self._retries, self._clock, self._tell = retries, clock, tell
        self._ours = wire.identity()
        self._running: dict[str, _Progress] = {}
        self._clocks = NodeClocks(limits, clock())
        self.ends: list[NodeEnd] = []
        self.interrupted: KeyboardInterrupt | None = None

    def run(self, placed: Sequence[PlacedNode]) -> list[NodeEnd]:
        """Measure all of them. Ctrl-C and its like end it early, and `interrupted` then holds what did."""
        self._clocks = NodeClocks(self._limits, self._clock())
        try:
            for one in placed:
                self._start(_Progress(one))
            while self._running:
                now = self._step()
                if self._clocks.over(now):
                    self._cut("deadline", f"the fleet's time of {self._limits.deadline_s:g} s was over")
        except KeyboardInterrupt as error:
            self.interrupted = error
            self._cut("interrupted", "the fleet was interrupted")
        return self.ends

    def _step(self) -> float:
        """Take what has arrived, then look at the clocks as they stood then: our own work is nobody's silence."""
        arrivals = self._engine.poll(self._clocks.wait_s(self._clock(), TICK_S))
        now = self._clock()
        for arrival in arrivals:
            self._clocks.hear(arrival.node, now)
        for arrival in arrivals:
            if (found := self._running.get(arrival.node)) is not None:
                self._take(found, arrival)
        for node, why in self._clocks.overdue(now):
            found = self._running[node]
            self._end(found, why, _OVERDUE[why].format(self._limits))
        return now

    def _start(self, found: _Progress) -> None:
        node = found.placed.node
        self._journal.begin(found.placed.name)
        self._running[node.id] = found
        self._clocks.ask(node.id, self._clock())
        self._engine.start(node, found.placed.arguments)

    def _take(self, found: _Progress, arrival: Arrival) -> None:
        """Whatever a node sends may be wrong: it costs that node."""
        if arrival.message is None:
            self._end(found, arrival.reason or "died", arrival.why)
            return
        try:
            if len(arrival.message) > MOST_MESSAGE:
                raise BadMessage(f"a message of {len(arrival.message)} bytes")
            self._read(found, arrival.message[:1], arrival.message[1:])
        except (BadMessage, msgspec.DecodeError, UnicodeDecodeError) as error:
            self._end(found, "failed", f"what it sent cannot be used: {error}")

    def _read(self, found: _Progress, kind: bytes, text: bytes) -> None:
        name = found.placed.name
        if found.identity is None and kind != wire.HELLO:
            raise BadMessage("it began without saying what it runs")
        match kind:
            case wire.HELLO:
                found.identity = msgspec.json.decode(text, type=NodeIdentity)
                if found.identity != self._ours:
                    skew = f"it runs gpubench {found.identity}, the driver {self._ours}"
                    self._end(found, "version-skew", skew)
            case wire.EVENT:
                found.last_event = self._journal.note_event(name, text) or found.last_event
            case wire.PART_BEGINS:
                self._journal.begin_part(name)
            case wire.PART:
                self._journal.add_part(name, text)
            case wire.RESULT:
                self._journal.add_result(name, text)
            case wire.ENDED:
                end = msgspec.json.decode(text, type=ChildEnd)
                self._end(found, None, end.errors if end.status else "")

    def _end(self, found: _Progress, reason: NodeReason | None, error: str, cut: Cut | None = None) -> None:
        """Let go of the node at once, keep what it brought, and try again where that was asked for."""
        placed = found.placed
        self._clocks.stop(placed.node.id)
        del self._running[placed.node.id]
        if reason is not None:
            with contextlib.suppress(Exception):  # an engine that fails here must not cost the other nodes
                self._engine.cancel(placed.node.id)
        lacks = self._journal.finish(placed.name)
        if lacks is not None and reason is None:
            reason, error = "failed", error or lacks
        text = (visible(error)[-_MOST_ERROR:] or None) if reason else None
        self._journal.note_end(placed.name, reason or "ok", text)
        if reason in RETRIED and cut is None and len(found.attempts) < self._retries:
            found.attempts.append(NodeAttempt(reason=reason, error=text or "", last_event=found.last_event))
            found.identity, found.last_event = None, None
            self._start(found)
            return
        end = NodeEnd(
            name=placed.name, reason=reason, error=text, last_event=found.last_event, cut=cut,
            attempts=tuple(found.attempts), identity=found.identity,
        )  # fmt: skip
        self.ends.append(end)
        self._tell(end)

    def _cut(self, cut: Cut, why: str) -> None:
        for found in list(self._running.values()):
            self._end(found, "busy" if found.identity is None else "partial", why, cut)


_OVERDUE: Mapping[Overdue, str] = {
    "busy": "it did not begin within {0.queue_s:g} s: others hold it",
    "hung": "nothing came from it for {0.silence_s:g} s",
}
