"""The program of a node: the ordinary `gpubench run` or `gpubench detect` as a child, and what it writes, sent on.

A message is bytes: one byte for its kind, then the text. Nothing of ours is pickled, and nothing here knows an engine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpubench import __version__
from gpubench.base import disk, processes
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
    """Which code a node runs: nodes of a fleet run the same, or their figures mean different things."""

    version: str
    source: str

    def __str__(self) -> str:
        return f"{self.version} ({self.source})"


class ChildEnd(msgspec.Struct, frozen=True):
    """The exit status of a node's run, and the end of what it said on stderr."""

    status: int
    errors: str


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
            said: list[bytes] = []
            yield from _while_running(child, PartFile(store.part_of(result)), None if runs else said.append)
            if said:
                result.write_bytes(b"".join(said))
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
    said = looked = time.monotonic()
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
            said = now
        if now - looked >= PART_S:
            looked = now
            for message in part.news():
                yield message
                said = now
        if now - said >= HEARTBEAT_S:
            yield HEARTBEAT
            said = now


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
    found = {name: text for name, text in processes.environment().items() if name not in _NOT_OF_A_NODE}
    numbers = environ.get(DEVICES, "").split(",")
    if all(word.strip().isdecimal() for word in numbers):
        with contextlib.suppress(Exception):  # no NVML, no such GPU: the numbers stand
            found[DEVICES] = ",".join(_uuids([int(word) for word in numbers]))
    return found


def _uuids(numbers: Sequence[int]) -> list[str]:
    import pynvml

    nvml: Any = pynvml
    nvml.nvmlInit()
    try:
        found = [nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(number)) for number in numbers]
    finally:
        nvml.nvmlShutdown()
    return [one.decode() if isinstance(one, bytes) else str(one) for one in found]
