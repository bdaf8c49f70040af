"""An engine without a cluster: nodes whose messages are scripted, on a clock that moves when the driver waits."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from gpubench.fleet import node as wire
from gpubench.fleet.driver import Arrival, EngineNode, PlacedNode
from gpubench.fleet.node import ChildEnd
from gpubench.result import store
from gpubench.result.run import Run

HELLO = wire.HELLO + msgspec.json.encode(wire.identity())
# What a script may say beside messages: wait for so many seconds; or the engine's own end of the task.
Step = bytes | float | Arrival


def event(reason: str, **more: object) -> bytes:
    return wire.EVENT + msgspec.json.encode({"reason": reason, **more})


def ended(status: int = 0, errors: str = "") -> bytes:
    return wire.ENDED + msgspec.json.encode(ChildEnd(status, errors))


def pieces(kind: bytes, data: bytes) -> list[bytes]:
    size = wire.PIECE_BYTES
    return [kind + data[i : i + size] for i in range(0, len(data), size)]


def whole(run: Run) -> list[Step]:
    """What a node sends that measured `run` and has no accident."""
    part = store.dumps(run)
    return [HELLO, event("run-start"), event("case-start", id="matmul"), *pieces(wire.RESULT, part), ended()]


class FakeEngine:
    """`scripts` makes the steps of a node, by its id and the number of the attempt."""

    name, version = "fake", "1"

    def __init__(self, scripts: Callable[[str, int], Iterable[Step]], most_at_once: int = 64) -> None:
        self._scripts = scripts
        self._most = most_at_once
        self._running: dict[str, Iterator[Step]] = {}
        self._waits: dict[str, float] = {}
        self.attempts: dict[str, int] = {}
        self.cancelled: list[str] = []
        self.now = 0.0
        self.polls = 0
        self.interrupt_at: int | None = None

    def clock(self) -> float:
        return self.now

    def nodes(self) -> list[EngineNode]:
        return []

    def start(self, node: EngineNode, arguments: Sequence[str]) -> None:
        number = self.attempts[node.id] = self.attempts.get(node.id, 0) + 1
        self._running[node.id] = iter(self._scripts(node.id, number))

    def poll(self, timeout_s: float) -> list[Arrival]:
        self.polls += 1
        if self.polls == self.interrupt_at:
            raise KeyboardInterrupt
        found = []
        for node in itertools.islice(list(self._running), self._most):
            if self._waits.get(node, 0) > self.now:
                continue
            step = next(self._running[node], None)
            steps = self._running.pop(node)
            if step is None:
                continue  # it says nothing any more, and nobody tells
            self._running[node] = steps  # to the end of the row
            if isinstance(step, float):
                self._waits[node] = self.now + step
            elif isinstance(step, Arrival):
                del self._running[node]
                found.append(step)
            else:
                found.append(Arrival(node, step))
        if not found:
            self.now += max(timeout_s, 0.001)
        return found

    def cancel(self, node: str) -> None:
        self.cancelled.append(node)
        self._running.pop(node, None)

    def close(self) -> None:
        self._running.clear()


def placed(*names: str) -> list[PlacedNode]:
    return [PlacedNode(EngineNode(id=name, host=name), name, ["--ops", "health"]) for name in names]
