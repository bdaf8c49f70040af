"""An engine without a cluster: nodes whose messages are scripted, on a clock that moves when the driver waits."""

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
    """`scripts` makes the steps of a node's next attempt, by its id."""

    name, version = "fake", "1"

    def __init__(self, scripts: Callable[[str], Iterable[Step]]) -> None:
        self._scripts = scripts
        self._running: dict[str, Iterator[Step]] = {}
        self._waits: dict[str, float] = {}
        self.cancelled: list[str] = []
        self.now = 0.0
        self.polls = 0
        self.interrupt_at: int | None = None

    def clock(self) -> float:
        return self.now

    def nodes(self) -> list[EngineNode]:
        return []

    def start(self, node: EngineNode, arguments: Sequence[str]) -> None:
        self._waits.pop(node.id, None)
        self._running[node.id] = iter(self._scripts(node.id))

    def poll(self, timeout_s: float) -> list[Arrival]:
        self.polls += 1
        if self.polls == self.interrupt_at:
            raise KeyboardInterrupt
        found = []
        for node in list(self._running):
            if self._waits.get(node, 0) > self.now:
                continue
            step = next(self._running[node], 1e9)  # it says nothing any more, and nobody tells
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
