"""The loop that drives the run of a fleet. It starts the nodes, stores their messages, and reports how each
node ended. It does not depend on the engine.

A single loop serves all nodes without a thread for each, so a thousand nodes cost a thousand small records. An
engine may never report that a node hangs, so the loop never waits for one node alone. The time of a single case
is limited on the node itself (`--case-timeout`).

Messages are stored as they arrive: events in `fleet.jsonl`, and results in `fleet.d/` with one file for each
node. If the driver is killed, nothing that arrived is lost, and `gpubench merge fleet.d/*` makes a fleet of it.
Messages of nodes are not trusted: their size is limited before they are written, and they are checked like any
file before they are used.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Literal

import msgspec
from msgspec.structs import replace

from gpubench.base import disk, group_by, hash_text
from gpubench.base.errors import InputError
from gpubench.base.streams import visible
from gpubench.fleet import node as wire
from gpubench.fleet.node import Arrival, ChildEnd, Engine, EngineNode, NodeIdentity
from gpubench.fleet.nodes import (
    EMBEDDED_NODES,
    Fleet,
    Node,
    NodeAttempt,
    NodeReason,
    beside,
    digest_file,
    file_stem,
    node_of,
)
from gpubench.fleet.survey import Inventory, ListedNode, inventory_of, list_node
from gpubench.measure.recorder import utc_now, without_uuids
from gpubench.result import store
from gpubench.result.machine import SCHEMA_VERSION, Machine

Overdue = Literal["busy", "hung"]


class FleetLimits(msgspec.Struct, frozen=True):
    """The times for which the driver waits, in seconds."""

    queue_s: float  # the longest wait for a node to begin
    silence_s: float  # the longest wait for the next message of a node
    deadline_s: float  # the longest time of the whole fleet


class NodeClocks:
    """The timeouts of a fleet: one for the whole fleet, and one for each node. The timeout of a node limits its
    wait in the queue until its first message, and then the time between messages. All times are seconds of the
    same clock."""

    def __init__(self, limits: FleetLimits, now: float) -> None:
        self._limits = limits
        self._ends = now + limits.deadline_s
        self._due: dict[str, tuple[float, Overdue]] = {}

    def ask(self, node: str, now: float) -> None:
        """Start the queue timeout of a node."""
        self._due[node] = now + self._limits.queue_s, "busy"

    def hear(self, node: str, now: float) -> None:
        """Start the silence timeout of a node anew, because a message arrived. Do nothing if the node has no
        timeout."""
        if node in self._due:
            self._due[node] = now + self._limits.silence_s, "hung"

    def stop(self, node: str) -> None:
        self._due.pop(node, None)

    def overdue(self, now: float) -> list[tuple[str, Overdue]]:
        """Return the nodes whose timeout has expired, each with the reason: `busy` if the node never sent a message,
        else `hung`."""
        return [(node, why) for node, (due, why) in self._due.items() if due <= now]

    def over(self, now: float) -> bool:
        """Tell whether the timeout of the whole fleet has expired."""
        return now >= self._ends

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next timeout may expire, at most `TICK_S`."""
        ends = min((due for due, _ in self._due.values()), default=self._ends)
        return max(0.0, min(ends - now, self._ends - now, TICK_S))


TICK_S = 1.0
MOST_MESSAGE = wire.PIECE_BYTES + 1
RETRIED: tuple[NodeReason, ...] = ("died", "hung", "busy")
_MOST_ERROR = 2000
Cut = Literal["deadline", "interrupted"]


class PlacedNode(msgspec.Struct, frozen=True):
    """A node together with the command that it runs."""

    node: EngineNode  # the node in the engine's terms
    name: str  # the node's name in the fleet
    arguments: Sequence[str]  # the arguments of gpubench, beginning with `run` or `detect`


class NodeEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How the run of a node ended."""

    name: str  # the name of the node
    reason: NodeReason | None  # why the node has no complete result; None if it has one
    error: str | None  # the reason in words; None without a reason
    last_event: str | None = None  # the last event that the node reported; None if there was none
    cut: Cut | None = None  # the reason why the driver ended the run; None if it did not
    attempts: Sequence[NodeAttempt] = ()  # earlier attempts, which were repeated
    identity: NodeIdentity | None = None  # the code that the node runs; None if the node never began


class _Progress:
    """The state of a node whose run is going on."""

    def __init__(self, placed: PlacedNode) -> None:
        self.placed = placed
        self.identity: NodeIdentity | None = None
        self.last_event: str | None = None
        self.attempts: list[NodeAttempt] = []


class FleetDriver:
    """The driver that starts the commands of all nodes and waits until each has ended. A node that died, hung
    or was busy is started again up to `retries` times. `tell` is called whenever a node has ended for good."""

    def __init__(
        self, engine: Engine, journal: FleetJournal, limits: FleetLimits, *, retries: int = 0,
        clock: Callable[[], float] = time.monotonic, tell: Callable[[NodeEnd], None] = lambda end: None,
    ) -> None:  # fmt: skip
        self.engine, self._journal, self._limits = engine, journal, limits
        self._retries, self._clock, self.tell = retries, clock, tell
        self._ours = wire.identity()
        self._running: dict[str, _Progress] = {}
        self._clocks: NodeClocks  # of a run that goes on
        self.ends: list[NodeEnd] = []
        self.interrupted: KeyboardInterrupt | None = None

    def run(self, placed: Sequence[PlacedNode]) -> list[NodeEnd]:
        """Run the commands of all nodes and return how each ended, the earliest first. If Ctrl-C or a similar
        signal ends the run early, `interrupted` has the exception."""
        self._clocks = NodeClocks(self._limits, self._clock())
        try:
            for node in placed:
                self._start(_Progress(node))
            while self._running:
                now = self._step()
                if self._clocks.over(now):
                    self._cut("deadline", f"the fleet's time of {self._limits.deadline_s:g} s was over")
        except KeyboardInterrupt as error:
            self.interrupted = error
            self._cut("interrupted", "the fleet was interrupted")
        return self.ends

    def _step(self) -> float:
        """Wait for messages, handle them, check the timeouts, and return the time at which the messages arrived."""
        try:
            arrivals = self.engine.poll(self._clocks.wait_s(self._clock()))
        except Exception as error:  # the engine is lost; what arrived earlier is kept
            reason, why = wire.error_reason(error), wire.error_text(error)
            arrivals = [Arrival(node, reason=reason, why=why) for node in self._running]
        # Timeouts are checked against this time, so that the driver's own work does not count as a node's silence.
        now = self._clock()
        for arrival in arrivals:
            self._clocks.hear(arrival.node, now)
        for arrival in arrivals:
            if (progress := self._running.get(arrival.node)) is not None:
                self._take(progress, arrival)
        for node, why in self._clocks.overdue(now):
            progress = self._running[node]
            self._end(progress, why, _OVERDUE[why].format(self._limits))
        return now

    def _start(self, progress: _Progress) -> None:
        node = progress.placed.node
        self._journal.begin(progress.placed.name)
        self._running[node.id] = progress
        self._clocks.ask(node.id, self._clock())
        try:
            self.engine.start(node, progress.placed.arguments)
        except Exception as error:
            self._end(progress, wire.error_reason(error), wire.error_text(error))

    def _take(self, progress: _Progress, arrival: Arrival) -> None:
        """Handle one message of a node, or the engine's report that no more will come from it."""
        if arrival.message is None:
            self._end(progress, arrival.reason or "died", arrival.why)
            return
        try:
            if len(arrival.message) > MOST_MESSAGE:
                raise BadMessage(f"a message of {len(arrival.message)} bytes")
            self._read(progress, arrival.message[:1], arrival.message[1:])
        except (
            BadMessage,
            msgspec.DecodeError,
            UnicodeDecodeError,
        ) as error:  # ends the run of this node alone
            self._end(progress, "failed", f"what it sent cannot be used: {error}")

    def _read(self, progress: _Progress, kind: bytes, text: bytes) -> None:
        name = progress.placed.name
        if progress.identity is None and kind != wire.HELLO:
            raise BadMessage("it began without saying what it runs")
        match kind:
            case wire.HELLO:
                progress.identity = msgspec.json.decode(text, type=NodeIdentity)
                if progress.identity != self._ours:
                    skew = f"it runs gpubench {progress.identity}, the driver {self._ours}"
                    self._end(progress, "version-skew", skew)
            case wire.EVENT:
                progress.last_event = self._journal.note_event(name, text) or progress.last_event
            case wire.PART_BEGINS:
                self._journal.begin_part(name)
            case wire.PART:
                self._journal.add_part(name, text)
            case wire.RESULT:
                self._journal.add_result(name, text)
            case wire.ENDED:
                end = msgspec.json.decode(text, type=ChildEnd)
                self._end(progress, None, end.errors if end.status else "")

    def _end(self, progress: _Progress, reason: NodeReason | None, error: str, cut: Cut | None = None) -> None:
        """Release the node, store its result, and record how its run ended or start it again."""
        placed = progress.placed
        self._clocks.stop(placed.node.id)
        del self._running[placed.node.id]
        if reason is not None:
            with contextlib.suppress(Exception):  # an engine that fails here must not cost the other nodes
                self.engine.cancel(placed.node.id)
        lacks = self._journal.finish(placed.name)
        if lacks is not None and reason is None:
            reason, error = "failed", error or lacks
        text = (visible(error)[-_MOST_ERROR:] or None) if reason else None
        self._journal.note_end(placed.name, reason or "ok", text)
        if reason in RETRIED and cut is None and len(progress.attempts) < self._retries:
            progress.attempts.append(
                NodeAttempt(reason=reason, error=text or "", last_event=progress.last_event)
            )
            progress.identity, progress.last_event = None, None
            self._start(progress)
            return
        end = NodeEnd(
            name=placed.name, reason=reason, error=text, last_event=progress.last_event, cut=cut,
            attempts=tuple(progress.attempts), identity=progress.identity,
        )  # fmt: skip
        self.ends.append(end)
        self.tell(end)

    def _cut(self, cut: Cut, why: str) -> None:
        for progress in list(self._running.values()):
            self._end(progress, "busy" if progress.identity is None else "partial", why, cut)


_OVERDUE: Mapping[Overdue, str] = {
    "busy": "it did not begin within {0.queue_s:g} s: others hold it",
    "hung": "nothing came from it for {0.silence_s:g} s",
}


def name_nodes(nodes: Sequence[EngineNode], *, hostnames: bool) -> dict[str, EngineNode]:
    """Return the nodes by their names in the fleet. The names are host names or, without `hostnames`, digests
    of them. If several hosts have the same name, a part of the engine's id is added."""
    by_word = group_by(
        nodes,
        lambda node: visible(node.host) if hostnames else hash_text(node.host),
    )
    return {
        word if len(same) == 1 else f"{word}-{node.id[:8]}": node
        for word, same in by_word.items()
        for node in same
    }


def choose_nodes(
    nodes: Mapping[str, EngineNode], words: Sequence[str], min_gpus: int | None
) -> tuple[dict[str, EngineNode], list[NodeEnd]]:
    """Return the nodes to ask, by name, and the ends of the nodes that cannot be asked. Each of `words` is a node's
    name, its host name or the engine's id; without words all nodes are asked. Nodes with fewer than `min_gpus`
    GPUs (None: any number) cannot be asked."""
    chosen = {} if words else dict(nodes)
    absent = []
    for word in words:
        same = {name: node for name, node in nodes.items() if word in (name, node.host, node.id)}
        chosen |= same
        if not same:
            absent.append(NodeEnd(name=word, reason="unreachable", error="the cluster has no such node"))
    for name, node in list(chosen.items()):
        if min_gpus is not None and node.gpus < min_gpus:
            why = f"it has {node.gpus:g} GPUs of {min_gpus}"
            absent.append(NodeEnd(name=name, reason="too-few-gpus", error=why))
            del chosen[name]
    return chosen, absent


def fleet_of_ends(
    ends: Iterable[NodeEnd], absent: Iterable[NodeEnd], saved: Iterable[Node], journal: FleetJournal,
    *, expected: int | None, engine: Mapping[str, str],
) -> Fleet:  # fmt: skip
    """Return the fleet's document after its run. Its nodes are those that were asked (`ends`), that could not be
    asked (`absent`), and that stay from a `saved` fleet. The fleet is complete with `expected` results (None: one
    from each node), unless the driver ended a run early. `engine` has the engine's name and version."""
    ends = list(ends)
    again = {end.name for end in ends}
    nodes = [node for node in saved if node.name not in again]
    embeds = len(ends) + len(nodes) <= EMBEDDED_NODES
    entries = {node.name for node in nodes}
    nodes += [_node(end, journal, engine, embeds=embeds) for end in ends]
    nodes += [
        Node(key=end.name, label=end.name, status="failed", reason=end.reason, error=end.error)
        for end in absent
        if end.name not in entries
    ]
    nodes.sort(key=lambda node: (node.name, node.key))
    brought = sum(node.status == "ok" for node in nodes)
    needed = len(nodes) if expected is None else expected
    complete = brought >= needed and not any(end.cut for end in ends)
    return Fleet(nodes_expected=needed, nodes_collected=brought, complete=complete, nodes=nodes)


def _node(end: NodeEnd, journal: FleetJournal, engine: Mapping[str, str], *, embeds: bool) -> Node:
    """Return the entry of a node in the fleet: its result from the journal, and how its run ended."""
    path = journal.path(end.name)
    node = Node(key=end.name, status="failed", reason="failed")
    if path.exists():
        node = node_of([store.load(path)])
        if not embeds:
            node = replace(node, result=None, files=[digest_file(path)])
        if end.reason == "version-skew":  # the figures of other code cannot be compared
            node = replace(node, result=None, files=[])
    if end.reason is not None and (end.reason != "partial" or node.status == "ok"):
        status = "ok" if end.reason == "partial" else "failed"
        node = replace(node, status=status, reason=end.reason)
    return replace(
        node, label=end.name, error=end.error or node.error, engine=dict(engine), last_event=end.last_event,
        attempts=list(end.attempts),
    )  # fmt: skip


def load_machine(path: Path) -> Machine:
    """Return the machine that `gpubench detect` on a node wrote to this file. Raises InputError if the file is
    invalid."""
    data, source = store.read(path)
    return store.loads_as(Machine, data, source, name="gpubench-detect", newest=SCHEMA_VERSION)


def inventory_of_ends(
    ends: Iterable[NodeEnd], absent: Iterable[NodeEnd], journal: FleetJournal, *, expected: int | None
) -> Inventory:
    """Return the inventory of a fleet. The machines of the nodes that were asked (`ends`) are in `journal`;
    `absent` nodes could not be asked. `expected` answers make the inventory complete; None means all."""
    # A generator, so that only one machine is in memory at a time.
    listed = (_list_end(end, journal) for end in itertools.chain(ends, absent))
    return inventory_of(listed, expected=expected)


def _list_end(end: NodeEnd, journal: FleetJournal) -> ListedNode:
    code = None if end.identity is None else str(end.identity)
    if end.reason is None:
        machine = without_uuids(load_machine(journal.path(end.name)))  # GPUs are named as in results
        return list_node(end.name, machine, gpubench=code)
    reason = "failed" if end.reason == "partial" else end.reason  # an incomplete answer counts as none
    return list_node(end.name, reason=reason, why=end.error, gpubench=code)


# ---------------------------------------------------------------- the journal

MOST_BYTES = 64 << 20  # the largest size of a file that a node may send, compressed or not
_RESULTS = ".json.gz"
EARLIER = "earlier"  # the subfolder of `fleet.d` for results of earlier attempts


class BadMessage(Exception):
    """The error for a node that sent an invalid message or too much data."""


class FleetLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of `fleet.jsonl`: an event that a node reported, or the end of the node's run."""

    at: str  # the time of the line, in UTC
    node: str  # the name of the node
    event: msgspec.Raw | None = None  # the event as the node reported it; None at the end of its run
    ended: str | None = None  # at the end of its run: `ok`, or why there is no complete result; else None
    error: str | None = None  # the reason in words; None without a reason


class FleetJournal:
    """The files of a fleet whose run is going on: the log, and the results that arrive. `output` is the path of
    the fleet's file. `load` reads the result that a node sends, and raises InputError if it is invalid."""

    def __init__(self, output: str | Path, load: Callable[[Path], msgspec.Struct] = store.load) -> None:
        """Create the folder and open the log. Raises GpubenchError if the files cannot be written."""
        self._load = load
        self._rewritten: set[str] = set()  # nodes whose next piece replaces the stored `.part` file
        self.folder = beside(output, ".d")
        log = beside(output, ".jsonl")
        try:
            self.folder.mkdir(exist_ok=True)
            self._log: IO[bytes] = open(  # noqa: SIM115 - until the fleet ends
                log, "ab", opener=disk.open_descriptor
            )
        except OSError as error:
            raise store.cannot_save(log, error) from error

    def close(self) -> None:
        """Close the log. No file is removed."""
        self._log.close()

    def note_event(self, node: str, text: bytes) -> str:
        """Write an event to the log, flush it, and return its reason and id as a text, which is empty if it has
        neither. If `text` is not a JSON object, write nothing and return an empty text."""
        try:
            event = msgspec.json.decode(text, type=dict[str, object])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ""
        self._write(
            FleetLine(at=utc_now("milliseconds"), node=node, event=msgspec.Raw(msgspec.json.encode(event)))
        )
        return " ".join(str(event[name])[:200] for name in ("reason", "id") if name in event)

    def note_end(self, node: str, reason: str, error: str | None) -> None:
        """Write to the log how the run of a node ended. `reason` is "ok", or says why there is no complete result;
        `error` is the reason in words."""
        self._write(FleetLine(at=utc_now("milliseconds"), node=node, ended=reason, error=error))

    def begin(self, node: str) -> None:
        """Begin a new attempt of the node. Files of an earlier attempt are moved to a subfolder."""
        for path in (self.path(node), store.part_of(self.path(node))):
            if path.exists():
                aside = self.folder / EARLIER
                aside.mkdir(exist_ok=True)
                disk.replace(path, aside / f"{utc_now('milliseconds').replace(':', '')}-{path.name}")
        self._arriving(node).unlink(missing_ok=True)

    def begin_part(self, node: str) -> None:
        """Note that the node rewrites its `.part` file from the start. The stored copy is kept until the next
        piece arrives."""
        self._rewritten.add(node)

    def add_part(self, node: str, piece: bytes) -> None:
        """Append a piece to the stored copy of the node's `.part` file. The first piece after `begin_part` replaces
        the copy. Raises BadMessage if the copy becomes too large."""
        part = store.part_of(self.path(node))
        if node in self._rewritten:
            self._rewritten.remove(node)
            store.replace(part, piece)
        else:
            _append(part, piece)

    def add_result(self, node: str, piece: bytes) -> None:
        """Append a piece to the node's result. Raises BadMessage if the result becomes too large."""
        _append(self._arriving(node), piece)

    def finish(self, node: str) -> str | None:
        """Store the result that the node sent or, without a valid result, its `.part` file. Return None if one of
        them was valid, else the reason why nothing was stored."""
        arriving, part, target = self._arriving(node), store.part_of(self.path(node)), self.path(node)
        why = "it sent no result"
        for source in (arriving, part):
            if not source.exists():
                continue
            try:
                result = self._load(source)
            except InputError as error:
                why = f"{error.message}: {error.why}"
                continue
            store.replace(target, store.dumps(result))
            for spent in (arriving, part):
                spent.unlink(missing_ok=True)
            return None
        return why

    def path(self, node: str) -> Path:
        """Return the path of the file with the node's result."""
        return self.folder / f"{file_stem(node, node)}{_RESULTS}"

    def _arriving(self, node: str) -> Path:
        return self.folder / f".{file_stem(node, node)}.arriving"

    def _write(self, line: FleetLine) -> None:
        self._log.write(msgspec.json.encode(line) + b"\n")
        self._log.flush()


def _append(path: Path, piece: bytes) -> None:
    with open(path, "ab", opener=disk.open_descriptor) as file:
        if file.tell() + len(piece) > MOST_BYTES:
            raise BadMessage(f"more than {MOST_BYTES >> 20} MiB")
        file.write(piece)
