"""The program of a node and the engine that starts it: the messages of a node, the contract of an engine, and Ray as an
engine.

The program of a node runs the ordinary `gpubench run` or `gpubench detect` as a child and sends on its output. A
message is bytes: one byte for its kind, then the text; nothing of ours is pickled. Ray starts one generator task a
node; the task takes all CPUs and GPUs of the node. Ray is believed about messages that arrive, never about their
absence: a node that freezes stays pending for ever, even when its task is cancelled. So a task is forgotten as soon as
it is cancelled.
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
    """The version of the code that a node runs. All nodes of a fleet must run the same code, or their figures mean
    different things."""

    version: str  # of gpubench
    source: str  # a digest of its files

    def __str__(self) -> str:
        return f"{self.version} ({self.source})"


class ChildEnd(msgspec.Struct, frozen=True):
    """The end of a node's child process."""

    status: int  # the exit status
    errors: str  # the end of what it said on stderr


def identity() -> NodeIdentity:
    """Return the identity of this process: the version of gpubench, and the first digits of a digest of its source."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return NodeIdentity(__version__, digest.hexdigest()[:12])


def messages(arguments: Sequence[str]) -> Iterator[bytes]:
    """Run `gpubench ARGUMENTS` and yield its messages. `run` sends events and a result; the output of `detect` is its
    result. When this generator ends, for any reason, the child is ended too.

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
    """Yield the messages of a child while it runs. Its lines are events; if `keep` is given, it gets the lines
    instead."""
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
    """The `.part` file of a run, read from where the last reading ended. Now and then the run writes the file anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._file: int | None = None  # its number on the disk

    def news(self) -> Iterator[bytes]:
        """Yield the bytes written since the last call, as messages."""
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
    """Return the whole environment of the engine's worker, with GPUs named by UUID instead of numbers: the meaning of a
    number depends on the library."""
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
    """A message of a node, or the engine's report that no more messages will come."""

    node: str  # the engine's id
    message: bytes | None = None  # None: there will be none
    reason: NodeReason | None = None  # why not
    why: str = ""  # in words


class Engine(Protocol):
    """The contract of an engine, which starts tasks on nodes and passes on their messages. A node's id has one task at
    a time.

    Only `poll` may wait, and no longer than `timeout_s`. `cancel` forgets the task even if the task goes on.
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
    """Run the task of a node. Ray sends only the name of this function, so each node runs its own installed code."""
    yield from messages(arguments)


class RayEngine:
    """A connection to a cluster, or to a private Ray on this host."""

    name = "ray"

    def __init__(self, address: str) -> None:
        """Connect to `address`: `local`, `auto` or HOST:PORT. Raises RequiredUnavailable."""
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
        """Return the arguments that start a private Ray, which requires a token that is made here."""
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
        """Return the nodes that Ray reports as alive; a dead node may be among them for a minute. A node without CPUs
        and GPUs only leads the cluster and is left out."""
        nodes = [
            EngineNode(
                id=entry["NodeID"], host=str(entry["NodeManagerHostname"]),
                cpus=float(entry["Resources"].get("CPU", 0)), gpus=float(entry["Resources"].get("GPU", 0)),
            )
            for entry in self._ray.nodes() if entry["Alive"]
        ]  # fmt: skip
        return [node for node in nodes if node.cpus or node.gpus]

    def start(self, node: EngineNode, arguments: Sequence[str]) -> None:
        """Start a task that asks for all CPUs and GPUs of the node, and so reserves it."""
        task = self._ray.remote(run_node).options(
            num_returns="streaming", max_retries=0, num_cpus=node.cpus, num_gpus=node.gpus,
            label_selector={"ray.io/node-id": node.id},
        )  # fmt: skip
        self._tasks[node.id] = task.remote(list(arguments))

    def poll(self, timeout_s: float) -> list[Arrival]:
        """Return one message of each node that has any."""
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
        """End our tasks, leave the cluster, and stop a private Ray. It never calls `ray stop`, which ends every Ray on
        the host."""
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
    """Return Ray's message as one line, at most 600 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:600] or type(error).__name__
