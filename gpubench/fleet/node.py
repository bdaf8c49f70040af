"""The program that runs on a node, its messages, the contract of the engines that start it, and the engine for
Ray.

The program runs an ordinary `gpubench run` or `gpubench detect` as a child process and passes its output on. A
message is bytes: one byte for its kind, then the text. No Python object is pickled. Ray starts one generator
task on each node, which takes all CPUs and GPUs of the node. Ray does not report that a node froze: the task
stays pending for ever, even if it is cancelled. So the engine forgets a task as soon as it is cancelled.
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

# The kinds of messages: the identity of the node's code; an event; a sign of life; the beginning of the
# `.part` file; more of that file; a piece of the result; how the child ended.
HELLO, EVENT, HEARTBEAT, PART_BEGINS, PART, RESULT, ENDED = b"h", b"e", b"b", b"n", b"p", b"r", b"x"
PIECE_BYTES = 64 << 10  # an engine sends messages of this size without its object store
HEARTBEAT_S, PART_S = 5.0, 1.0
DEVICES = "CUDA_VISIBLE_DEVICES"
RUN = "run"
# Options that a node must not take from its environment, which may be the caller's.
_NOT_OF_A_NODE = ("GPUBENCH_CLUSTER", "GPUBENCH_DEEP", "GPUBENCH_WAKE")


class NodeIdentity(msgspec.Struct, frozen=True):
    """The version of the code that a node runs. All nodes of a fleet must run the same code, or their figures
    cannot be compared."""

    version: str  # the version of gpubench
    source: str  # a digest of its source files

    def __str__(self) -> str:
        return f"{self.version} ({self.source})"


class ChildEnd(msgspec.Struct, frozen=True):
    """How the child process on a node ended."""

    # the exit status of the child; negative: the number of the signal that ended it; 1 if it did not end in time
    status: int
    errors: str  # the last lines of its standard error, or ""


def identity() -> NodeIdentity:
    """Return the identity of this process: the version of gpubench and the first 12 digits of a digest of its
    source files."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return NodeIdentity(__version__, digest.hexdigest()[:12])


def messages(arguments: Sequence[str]) -> Iterator[bytes]:
    """Run `gpubench ARGUMENTS` as a child process and yield its messages: the events and the result of `run`, or
    the output of `detect` as its result. The child is ended when this generator ends, for any reason."""
    yield HELLO + msgspec.json.encode(identity())
    with tempfile.TemporaryDirectory(prefix="gpubench-") as name:
        runs = arguments[0] == RUN
        result = Path(name) / ("result.json.gz" if runs else "result.json")
        written = ["--format", "jsonl", "-o", str(result)] if runs else ["--format", "json"]
        command = processes.python("gpubench", *arguments, *written)
        # It stays in the session of this process, and on Linux the kernel kills it when this thread ends.
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
    """Yield the messages of a child while it runs: events, additions to its `.part` file, and heartbeats. Each line
    of its output is an event or, if `keep` is given, an argument of `keep`."""
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
    """The `.part` file of a run, from which each call of `news` reads what was added. The run sometimes writes
    the file anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._file: int | None = None  # its inode number

    def news(self) -> Iterator[bytes]:
        """Yield messages with the bytes that were written to the file since the last call. If the file was replaced
        in the meantime, yield PART_BEGINS and then the whole file."""
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
    """Return the environment variables for the child process: those of this process, without `_NOT_OF_A_NODE`.
    Where CUDA_VISIBLE_DEVICES of `environ` has numbers, they are replaced by the UUIDs of the GPUs, because
    libraries may number GPUs differently. Without NVML the numbers are kept."""
    variables = {name: text for name, text in processes.environment().items() if name not in _NOT_OF_A_NODE}
    numbers = environ.get(DEVICES, "").split(",")
    if all(word.strip().isdecimal() for word in numbers):
        with contextlib.suppress(Exception):  # without NVML or such a GPU the numbers are kept
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
    """A node of the cluster as the engine lists it."""

    id: str  # the engine's id of the node
    host: str  # its host name
    cpus: float = 0  # the number of CPUs as the engine counts them
    gpus: float = 0  # the number of GPUs as the engine counts them


class Arrival(msgspec.Struct, frozen=True):
    """A message of a node, or the engine's report that no more messages will come from it."""

    node: str  # the engine's id of the node
    message: bytes | None = None  # the message; None if no more will come
    # why no more messages will come; None for a message, or if the engine does not know
    reason: NodeReason | None = None
    why: str = ""  # the reason in words; empty for a message


class Engine(Protocol):
    """The contract of an engine, which starts tasks on nodes and delivers their messages. A node has at most
    one task at a time. Only `poll` may wait, and no longer than `timeout_s` seconds."""

    name: str
    version: str

    def nodes(self) -> Sequence[EngineNode]:
        """Return the nodes of the cluster that can run a task."""

    def start(self, node: EngineNode, arguments: Sequence[str]) -> None:
        """Start a task that runs `gpubench` with these arguments on the node."""

    def poll(self, timeout_s: float) -> Sequence[Arrival]:
        """Return the messages that have arrived, after waiting for the first one, or an empty list if none came."""

    def cancel(self, node: str) -> None:
        """End the task of the node with this id, and forget the task even if it goes on. Do nothing if there is no
        task."""

    def close(self) -> None:
        """End all tasks and leave the cluster."""


# ---------------------------------------------------------------- Ray

LOCAL = "local"
_STORE_BYTES = 80 << 20  # gpubench stores nothing there
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_node(arguments: Sequence[str]) -> Iterator[bytes]:
    """Run the command on a node, as a task of Ray. Ray sends only the name of this function, so each node runs
    the code that is installed there."""
    yield from messages(arguments)


class RayEngine:
    """The engine for Ray, which connects to a cluster or starts a private Ray on this host."""

    name = "ray"

    def __init__(self, address: str) -> None:
        """Connect to `address`, which is `local`, `auto` or HOST:PORT. Raises RequiredUnavailable if Ray is not
        installed, or if the cluster cannot be reached."""
        self._tasks: dict[str, Any] = {}
        self._ours = contextlib.ExitStack()
        # Ray prints messages of its workers on stdout, which is only for the report.
        self._ours.enter_context(contextlib.redirect_stdout(sys.stderr))
        handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        try:
            how = self._private() if address == LOCAL else {"address": address}
            import ray  # not before: it reads the token once, as it is imported

            self._ray: Any = ray
            self.version = str(ray.__version__)
            # If the version of Ray or Python differs, this raises an error with Ray's own message.
            ray.init(log_to_driver=False, logging_level="ERROR", configure_logging=False, **how)
        except BaseException as error:
            self.close()
            if isinstance(error, ImportError):
                raise RequiredUnavailable(
                    "no-cluster", "Ray is not installed", why=str(error), hint=install_command("ray")
                ) from error
            if isinstance(error, GpubenchError) or not isinstance(error, Exception):
                raise
            raise RequiredUnavailable("no-cluster", why=error_text(error)) from error
        finally:
            for number, handler in handlers.items():  # Ray replaces them with its own
                signal.signal(number, handler)

    def _private(self) -> dict[str, Any]:
        """Set the environment variables and the token of a private Ray, and return its arguments of `ray.init`."""
        scratch = Scratch(CLUSTER_PREFIX)
        self._ours.callback(scratch.remove)
        token = scratch.folder / "token"
        with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
        settings = {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_BACKEND_LOG_LEVEL": "error",
        }  # fmt: skip
        # `close` undoes all of this.
        names = (*settings, "RAY_AUTH_TOKEN", "RAY_ADDRESS")
        before = {name: os.environ.pop(name) for name in names if name in os.environ}
        self._ours.callback(os.environ.update, before)  # the last callback runs first
        for name in names:
            self._ours.callback(os.environ.pop, name, None)
        os.environ.update(settings)
        # Never call init without an address: it may join somebody else's cluster.
        return {
            "address": "local", "include_dashboard": False, "object_store_memory": _STORE_BYTES,
            # Ray lets everybody write to this folder, but nobody else may enter the folder above it.
            "_temp_dir": str(scratch.folder / "r"),
        }  # fmt: skip

    def nodes(self) -> list[EngineNode]:
        """Return the nodes that Ray reports as alive. These may include a node that died less than a minute ago. A
        node without CPUs and GPUs is left out, because it only manages the cluster."""
        nodes = [
            EngineNode(
                id=entry["NodeID"], host=str(entry["NodeManagerHostname"]),
                cpus=float(entry["Resources"].get("CPU", 0)), gpus=float(entry["Resources"].get("GPU", 0)),
            )
            for entry in self._ray.nodes() if entry["Alive"]
        ]  # fmt: skip
        return [node for node in nodes if node.cpus or node.gpus]

    def start(self, node: EngineNode, arguments: Sequence[str]) -> None:
        """Start a task with these arguments. The task takes all CPUs and GPUs of the node."""
        task = self._ray.remote(run_node).options(
            num_returns="streaming", max_retries=0, num_cpus=node.cpus, num_gpus=node.gpus,
            label_selector={"ray.io/node-id": node.id},
        )  # fmt: skip
        self._tasks[node.id] = task.remote(list(arguments))

    def poll(self, timeout_s: float) -> list[Arrival]:
        """Return one message from each node that has sent any, after waiting up to `timeout_s` seconds for the
        first one. The list is empty if none came."""
        by_task = {task: node for node, task in self._tasks.items()}
        if not by_task:
            return []
        self._ray.wait(list(by_task), num_returns=1, timeout=timeout_s)
        ready, _ = self._ray.wait(list(by_task), num_returns=len(by_task), timeout=0)
        return [self._arrival(by_task[task], task) for task in ready]

    def _arrival(self, node: str, task: Any) -> Arrival:
        try:
            message = self._ray.get(next(task), timeout=0)
        except StopIteration:
            self._tasks.pop(node, None)
            return Arrival(node, reason="died", why="its task ended before its run did")
        except Exception as error:
            self._tasks.pop(node, None)
            return Arrival(node, reason=error_reason(error), why=error_text(error))
        if not isinstance(message, bytes):
            self.cancel(node)
            return Arrival(
                node, reason="failed", why=f"it sent an object of type {type(message).__name__} and no bytes"
            )
        return Arrival(node, message)

    def cancel(self, node: str) -> None:
        """Ask Ray to end the task of the node with the id `node`, and forget the task. Do nothing if there is no
        task."""
        task = self._tasks.pop(node, None)
        if task is not None:
            with contextlib.suppress(Exception):
                self._ray.cancel(task)

    def close(self) -> None:
        """End all tasks of this engine, leave the cluster, and stop a private Ray. It never calls `ray stop`,
        which ends every Ray on the host."""
        for node in list(self._tasks):
            self.cancel(node)
        with contextlib.suppress(Exception):
            self._ray.shutdown()
        self._ours.close()


# The classes are listed by name, because another version of Ray may lack some of them.
_REASONS: dict[str, NodeReason] = {
    "WorkerCrashedError": "died", "NodeDiedError": "died", "OutOfMemoryError": "died", "LocalRayletDiedError": "died",
    "TaskUnschedulableError": "busy", "ActorUnschedulableError": "busy", "RuntimeEnvSetupError": "failed",
    "TaskCancelledError": "died", "ObjectLostError": "died", "OwnerDiedError": "died",
}  # fmt: skip


def error_reason(error: Exception) -> NodeReason:
    """Return why a node has no result, by the class of Ray's error, or `failed` if the class is unknown."""
    names = [kind.__name__ for kind in type(error).__mro__]
    return next((_REASONS[name] for name in names if name in _REASONS), "failed")


def error_text(error: Exception) -> str:
    """Return Ray's message as one line of at most 600 characters, or the error's type if it has no message."""
    return " ".join(str(error).split())[:600] or type(error).__name__
