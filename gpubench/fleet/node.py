"""The program of a node, and who starts it there: the messages of a node, the contract of an engine, and Ray as one.

The program of a node is the ordinary `gpubench run` or `gpubench detect` as a child, and what it writes, sent on. A
message is bytes: one byte for its kind, then the text; nothing of ours is pickled. Ray starts one generator task a
node, which takes all that the node has. It is believed about what arrives, never about what does not: a node that
freezes stays pending for ever, even when it is cancelled. So a task is forgotten as soon as it is cancelled.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gpubench import __version__
from gpubench.base import disk, processes
from gpubench.base.errors import GpubenchError, RequiredUnavailable
from gpubench.base.installation import install_command
from gpubench.fleet.nodes import NodeReason
from gpubench.measure.scratch import CLUSTER_PREFIX, Scratch
from gpubench.result import store

# Kinds of messages: who answers; an event; still there; the `.part` file from its start, and more of it; a piece of the
# result; how the child ended.
HELLO, EVENT, HEARTBEAT, PART_BEGINS, PART, RESULT, ENDED = b"h", b"e", b"b", b"n", b"p", b"r", b"x"
PIECE_BYTES = 64 << 10  # an engine passes so much along without a store of its own
HEARTBEAT_S, PART_S = 5.0, 1.0
DEVICES = "CUDA_VISIBLE_DEVICES"
RUN = "run"
# What a node is to do stands in its arguments alone; the environment may be that of whoever asks, with these options.
_NOT_OF_A_NODE = ("GPUBENCH_CLUSTER", "GPUBENCH_DEEP", "GPUBENCH_WAKE")


class NodeIdentity(msgspec.Struct, frozen=True):
    """The code that a node runs: nodes of a fleet run the same, or their figures mean different things."""

    version: str  # of gpubench
    source: str  # a digest of its files

    def __str__(self) -> str:
        return f"{self.version} ({self.source})"


class ChildEnd(msgspec.Struct, frozen=True):
    """The end of a node's run."""

    status: int  # the exit status
    errors: str  # the end of what it said on stderr


def identity() -> NodeIdentity:
    """Return the identity of this process: the version of gpubench, and the beginning of a digest of its source."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return NodeIdentity(__version__, digest.hexdigest()[:12])


def messages(arguments: Sequence[str]) -> Iterator[bytes]:
    """Run `gpubench ARGUMENTS` and tell of it: `run` writes events and a result, what `detect` writes is its result.
    Whatever ends this generator ends the child.

    The child stays in the session of this process, and on Linux the kernel kills it when this thread ends.
    """
    yield HELLO + msgspec.json.encode(identity())
    with tempfile.TemporaryDirectory(prefix="gpubench-") as name:
        runs = arguments[0] == RUN
        result = Path(name) / ("result.json.gz" if runs else "result.json")
        written = ["--format", "jsonl", "-o", str(result)] if runs else ["--format", "json"]
        command = processes.python("gpubench", *arguments, *written)
        child = processes.Child(command, environment(os.environ), own_session=False, framed=False)
        try:
            output: list[bytes] = []
            yield from _while_running(child, PartFile(store.part_of(result)), None if runs else output.append)
            if output:
                result.write_bytes(b"".join(output))
            with contextlib.suppress(FileNotFoundError), disk.open_regular(result) as file:
                while piece := file.read(PIECE_BYTES):
                    yield RESULT + piece
            status = child.wait(processes.LET_GO_S)
            child.settle()
            end = ChildEnd(1 if status is None else status, child.stderr_tail())
            yield ENDED + msgspec.json.encode(end)
        finally:
            child.kill(processes.KILL_AFTER_S)


def _while_running(
    child: processes.Child, part: PartFile, keep: Callable[[bytes], None] | None
) -> Iterator[bytes]:
    """Yield what a child says while it goes on. Its lines are events, unless somebody is to `keep` them."""
    heard = looked = time.monotonic()
    while True:
        line: bytes | None = b""
        with contextlib.suppress(queue.Empty):
            line = child.lines.get(timeout=PART_S)
        if line is None:
            return
        now = time.monotonic()
        if keep is not None:
            keep(line)
        elif text := line.strip():
            yield EVENT + text[:PIECE_BYTES]
            heard = now
        if now - looked >= PART_S:
            looked = now
            for message in part.news():
                yield message
                heard = now
        if now - heard >= HEARTBEAT_S:
            yield HEARTBEAT
            heard = now


class PartFile:
    """The `.part` file of a run, read on from where it was read before. Now and then the run writes it anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._file: int | None = None  # its number on the disk

    def news(self) -> Iterator[bytes]:
        """Return what was written since the last call, in messages."""
        with contextlib.suppress(FileNotFoundError), disk.open_regular(self._path) as file:
            state = os.fstat(file.fileno())
            if state.st_ino != self._file or state.st_size < self._read:
                self._file, self._read = state.st_ino, 0
                yield PART_BEGINS
            file.seek(self._read)
            while piece := file.read(PIECE_BYTES):
                self._read += len(piece)
                yield PART + piece


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the engine's worker, whole, with GPUs named by UUID: what numbers mean depends on the
    library."""
    variables = {name: text for name, text in processes.environment().items() if name not in _NOT_OF_A_NODE}
    numbers = environ.get(DEVICES, "").split(",")
    if all(word.strip().isdecimal() for word in numbers):
        with contextlib.suppress(Exception):  # no NVML, no such GPU: the numbers stand
            variables[DEVICES] = ",".join(_uuids([int(word) for word in numbers]))
    return variables


def _uuids(numbers: Sequence[int]) -> list[str]:
    import pynvml

    nvml: Any = pynvml
    nvml.nvmlInit()
    try:
        uuids = [nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(number)) for number in numbers]
    finally:
        nvml.nvmlShutdown()
    return [uuid.decode() if isinstance(uuid, bytes) else str(uuid) for uuid in uuids]


# ---------------------------------------------------------------- engines


class EngineNode(msgspec.Struct, frozen=True, kw_only=True):
    id: str  # the engine's
    host: str  # its host name
    cpus: float = 0  # as the engine counts
    gpus: float = 0  # as the engine counts


class Arrival(msgspec.Struct, frozen=True):
    """A message of a node, or the engine's word that none will come any more."""

    node: str  # the engine's id
    message: bytes | None = None  # None: there will be none
    reason: NodeReason | None = None  # why not
    why: str = ""  # in words


class Engine(Protocol):
    """The starter of tasks on nodes, which passes their messages along. An id has one task at a time.

    Only `poll` may wait, and no longer than it is told; `cancel` forgets the task, whatever becomes of it.
    """

    name: str
    version: str

    def nodes(self) -> Sequence[EngineNode]: ...
    def start(self, node: EngineNode, arguments: Sequence[str]) -> None: ...
    def poll(self, timeout_s: float) -> Sequence[Arrival]: ...
    def cancel(self, node: str) -> None: ...
    def close(self) -> None: ...


# ---------------------------------------------------------------- Ray

LOCAL, AUTO = "local", "auto"
_STORE_BYTES = 80 << 20  # nothing of ours goes there
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_node(arguments: Sequence[str]) -> Iterator[bytes]:
    """The task of a node. Ray sends the name of this function, so each node runs the code that is installed there."""
    yield from messages(arguments)


class RayEngine:
    """A connection to a cluster, or to a Ray of our own on this host."""

    name = "ray"

    def __init__(self, address: str) -> None:
        """`local`, `auto` or HOST:PORT. Raises RequiredUnavailable."""
        self._tasks: dict[str, Any] = {}
        self._ours = contextlib.ExitStack()
        # Ray tells on stdout what it hears of its workers; that is the report's place.
        self._ours.enter_context(contextlib.redirect_stdout(sys.stderr))
        handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        try:
            how = self._private() if address == LOCAL else {"address": address}
            import ray  # not before: it reads the token once, as it is imported

            self._ray: Any = ray
            self.version = str(ray.__version__)
            # A version of Ray or Python that differs ends here, with Ray's own sentence.
            ray.init(log_to_driver=False, logging_level="ERROR", configure_logging=False, **how)
        except ImportError as error:
            self._ours.close()
            raise RequiredUnavailable(
                "no-cluster", "Ray is not installed", why=str(error),
                hint=install_command("ray"),
            ) from error  # fmt: skip
        except GpubenchError:
            self.close()
            raise
        except Exception as error:
            self.close()
            raise RequiredUnavailable("no-cluster", why=_words(error)) from error
        except BaseException:
            self.close()
            raise
        finally:
            for number, handler in handlers.items():  # Ray puts its own in their place
                signal.signal(number, handler)

    def _private(self) -> dict[str, Any]:
        """Return what starts a Ray of our own, which nobody enters without the token that is made here."""
        scratch = Scratch(CLUSTER_PREFIX)
        self._ours.callback(scratch.remove)
        token = scratch.folder / "token"
        with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
        settings = {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_BACKEND_LOG_LEVEL": "error",
        }  # fmt: skip
        before = {name: os.environ.get(name) for name in (*settings, "RAY_AUTH_TOKEN", "RAY_ADDRESS")}
        self._ours.callback(_restore, before)
        for name in before:
            os.environ.pop(name, None)
        os.environ.update(settings)
        # Never a bare init: it may join somebody else's cluster.
        return {
            "address": "local", "include_dashboard": False, "object_store_memory": _STORE_BYTES,
            # Ray lets everybody write there; above it stands our folder, which nobody else may enter.
            "_temp_dir": str(scratch.folder / "r"),
        }  # fmt: skip

    def nodes(self) -> list[EngineNode]:
        """Return the nodes that Ray says are alive, as it may for a minute too long. One without CPUs and GPUs leads,
        and runs nothing."""
        nodes = [
            EngineNode(
                id=entry["NodeID"], host=str(entry["NodeManagerHostname"]),
                cpus=float(entry["Resources"].get("CPU", 0)), gpus=float(entry["Resources"].get("GPU", 0)),
            )
            for entry in self._ray.nodes() if entry["Alive"]
        ]  # fmt: skip
        return [node for node in nodes if node.cpus or node.gpus]

    def start(self, node: EngineNode, arguments: Sequence[str]) -> None:
        """Ask for all of the node: the task is the reservation."""
        task = self._ray.remote(run_node).options(
            num_returns="streaming", max_retries=0, num_cpus=node.cpus, num_gpus=node.gpus,
            label_selector={"ray.io/node-id": node.id},
        )  # fmt: skip
        self._tasks[node.id] = task.remote(list(arguments))

    def poll(self, timeout_s: float) -> list[Arrival]:
        """One message of each node that has any."""
        by_task = {task: node for node, task in self._tasks.items()}
        if not by_task:
            return []
        wait = self._ray.wait
        first, _ = wait(list(by_task), num_returns=1, timeout=timeout_s)
        if not first:
            return []
        ready, _ = wait(list(by_task), num_returns=len(by_task), timeout=0)
        return [self._arrival(by_task[task], task) for task in ready]

    def _arrival(self, node: str, task: Any) -> Arrival:
        try:
            message = self._ray.get(next(task), timeout=0)
        except StopIteration:
            self._tasks.pop(node, None)
            return Arrival(node, reason="died", why="its task ended before its run did")
        except Exception as error:
            self._tasks.pop(node, None)
            return Arrival(node, reason=_reason(error), why=_words(error))
        if not isinstance(message, bytes):
            self.cancel(node)
            return Arrival(node, reason="failed", why=f"it sent a {type(message).__name__} and no bytes")
        return Arrival(node, message)

    def cancel(self, node: str) -> None:
        """Ask Ray to end the task, and forget it."""
        task = self._tasks.pop(node, None)
        if task is not None:
            with contextlib.suppress(Exception):
                self._ray.cancel(task)

    def close(self) -> None:
        """End our tasks, leave the cluster, and end a Ray that is ours. Never `ray stop`: it ends everybody's."""
        for node in list(self._tasks):
            self.cancel(node)
        with contextlib.suppress(Exception):
            self._ray.shutdown()
        self._ours.close()


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# By name: a class of another version of Ray may be missing.
_REASONS: dict[str, NodeReason] = {
    "WorkerCrashedError": "died", "NodeDiedError": "died", "OutOfMemoryError": "died", "LocalRayletDiedError": "died",
    "TaskUnschedulableError": "busy", "ActorUnschedulableError": "busy", "RuntimeEnvSetupError": "failed",
    "TaskCancelledError": "died", "ObjectLostError": "died", "OwnerDiedError": "died",
}  # fmt: skip


def _reason(error: Exception) -> NodeReason:
    names = [kind.__name__ for kind in type(error).__mro__]
    return next((_REASONS[name] for name in names if name in _REASONS), "failed")


def _words(error: Exception) -> str:
    """Return what Ray says, on one line: its messages hold stack traces and colours."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:600] or type(error).__name__
