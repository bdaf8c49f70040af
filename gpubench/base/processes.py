"""Child processes: how they are started, their environment and messages, their time limit and the end of their
output. Also the load that other programs put on the CPUs.

A Python child starts with `-P`, so that nothing is imported from the working folder. `-S` lets child_main.py
run before the start-up code of other packages. A frame tells the child's messages from other output. On Linux
the kernel kills a Python child when the thread that started it ends, so that thread has to outlive the child.

The load is computed from two readings of the system's counters, before and after the work. So nothing has to
run in between.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from gpubench.base import BUSY_SHARE, allowed_cpus, interpreter, load_library
from gpubench.base.child_main import FRAME
from gpubench.base.errors import find_limit
from gpubench.base.streams import printable

# Seconds between asking a process to end and killing it.
KILL_AFTER_S = 2.0
# Seconds after which the parent gives up: on a child that cannot be killed, and on a pipe that a child of the
# child keeps open.
LET_GO_S = 1.0
# Seconds after which the parent reports for which children it waits.
SILENT_S = 3.0
# Bytes kept of a child's stderr and stdout, each at the beginning and at the end.
MOST_ERRORS = 64 << 10
MOST_OUTPUT = 2 << 20
STDERR_TAIL = 2000  # most characters of `Child.stderr_tail`
_PIECE = 1 << 16
# On Windows, Ctrl-C reaches every process of the console except those of another group.
_NEW_GROUP: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)


# On Windows, statuses from this one on mean a crash: 0xC0000005 is an access to a wrong address.
_CRASHED = 0xC0000000


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of gpubench in a child of this process."""
    start = Path(__file__).with_name("child_main.py")
    return [interpreter(), "-PS", str(start), str(os.getpid()), module, *arguments]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of this process, with the variables of `extra` in place of its own, and with
    defaults for two variables that neither has."""
    # Without the first, the Vulkan loader of wgpu writes errors to stderr. Without the second, JAX takes three
    # quarters of the GPU's memory from the other workers.
    defaults = {"XDG_RUNTIME_DIR": "/tmp", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return {**defaults, **os.environ, **(extra or {})}


def ending(status: int) -> str:
    """Describe a child's exit status: `exited with status 7`, `was ended by SIGKILL`. A negative status is the
    negated number of a signal."""
    if status >= _CRASHED:
        return f"crashed with status 0x{status:08X}"
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:  # real-time signals have no names
        return f"was ended by signal {-status}"


class Excerpt:
    """The first and the last `most` bytes of a stream. The bytes between them are dropped and counted."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._first, self._last = bytearray(), bytearray()
        self._count = 0

    def add(self, part: bytes) -> None:
        """Append a piece of the stream."""
        self._count += len(part)
        room = self._most - len(self._first)
        self._first += part[:room]
        self._last += part[room:]
        del self._last[: max(0, len(self._last) - self._most)]

    @property
    def left_out(self) -> int:
        """The number of dropped bytes."""
        return self._count - len(self._first) - len(self._last)

    def text(self) -> str:
        """Return the kept bytes as text. If bytes were dropped, a line between the two parts says how many."""
        gap = f"\n[{self.left_out} bytes left out]\n".encode() if self.left_out else b""
        return b"".join((self._first, gap, self._last)).decode("utf-8", "replace").strip()


class _Process:
    """A process with threads that read its pipes: stdout by `read`, and stderr into an excerpt."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None,
        stdin: int,
        read: Callable[[IO[bytes]], None],
        own_session: bool = True,
    ) -> None:
        self._own_session = own_session
        try:
            self._process = subprocess.Popen(
                command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=own_session,
                creationflags=_NEW_GROUP if own_session else 0, env=environment() if env is None else env,
            )  # fmt: skip
        except OSError as error:
            if limit := find_limit(error):
                raise OSError(error.errno, limit) from error
            raise
        self.errors = Excerpt(MOST_ERRORS)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers: list[threading.Thread] = []
        self._reaper: threading.Thread | None = None
        self._reaping = threading.Lock()  # held while the process is reaped or its group is signalled
        if own_session and hasattr(os, "killpg"):
            self._reaper = self._begin(self._end_group)
        self._begin(read, self._process.stdout)
        self._begin(_drain, self._process.stderr, self.errors)

    def _begin(self, function: Callable[..., None], *arguments: object) -> threading.Thread:
        """Start a thread. If the system starts none, kill the process and raise OSError."""
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self.kill()
            raise OSError(errno.EAGAIN, find_limit(error) or str(error)) from error
        self._readers.append(thread)
        return thread

    def _end_group(self) -> None:
        """Wait for the end of the process, then end its group if it is a Child or has failed."""
        process = self._process
        try:
            # The process is reaped later and by no other thread: the number of a reaped process may become that
            # of a stranger's group.
            ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            failed = ended.si_status if ended else 0
        except (AttributeError, ChildProcessError):  # macOS before Python 3.13; SIGCHLD is ignored
            failed = process.wait()
        with self._reaping:
            # Processes that a user's file started would run on and keep the pipes open, whose end shows a
            # crash. A command that succeeds may leave a daemon, as git does. SIGTERM does not end the tracker of
            # multiprocessing, which still frees shared memory.
            if failed or isinstance(self, Child):
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGTERM)
            process.wait()

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self.wait(0) is None

    def wait(self, limit_s: float) -> int | None:
        """Return the exit status (negative: the number of a signal), or None if the process still runs after
        `limit_s` seconds."""
        if self._reaper is not None:
            self._reaper.join(max(0.0, limit_s))
            return self._process.returncode
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(max(0.0, limit_s))
        return None

    def kill(self, after_s: float = 0.0) -> None:
        """Kill the process, and its group if it leads one. With `after_s`, first ask them to end, and wait at most
        that many seconds."""
        if after_s:
            self._send(signal.SIGTERM)
            self.wait(after_s)
        self.send_kill()
        self.wait(max(after_s, LET_GO_S))
        self.settle()

    def send_kill(self) -> None:
        """Kill the process, and its group if it leads one, without waiting for their end."""
        self._send(getattr(signal, "SIGKILL", signal.SIGTERM))

    def _send(self, number: int) -> None:
        """Send a signal to the process, and to its group if it leads one. On Windows, kill its descendants, too."""
        with self._reaping, contextlib.suppress(OSError):
            if self._process.returncode is None:
                if self._own_session and hasattr(os, "killpg"):
                    os.killpg(self._process.pid, number)
                elif self._own_session:
                    _kill_tree(self._process)
                else:
                    self._process.send_signal(number)

    def settle(self, until: float | None = None) -> None:
        """Read the rest of an ended process's output, then close its pipes. `until` is the latest
        `time.monotonic()`; None means LET_GO_S from now. Pipes that are still read then stay open."""
        until = time.monotonic() + LET_GO_S if until is None else until
        for reader in self._readers:
            reader.join(max(0.0, until - time.monotonic()))
        if any(reader.is_alive() for reader in self._readers):
            return  # a reader locks its pipe until the abandoned process ends, and closing would wait for it
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its descendants on a system without process groups (Windows)."""
    descendants = []
    with contextlib.suppress(Exception):  # a psutil that is broken, or a process that has just ended
        psutil = load_library("psutil")
        descendants = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for descendant in descendants:
        with contextlib.suppress(Exception):
            descendant.kill()


class Child(_Process):
    """A child that sends and receives lines. The queue `lines` has its messages (all lines if `framed` is
    false), each with its line end, and None at the end. With `own_session`, the child leads a session and a
    process group of its own."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, *,
        own_session: bool = True, framed: bool = True,
    ) -> None:  # fmt: skip
        """Start the child. Raises OSError if it cannot be started."""
        # Not a Queue, whose `get` fails if a second Ctrl-C has released its lock.
        self.lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._framed = framed
        self._noise = Excerpt(STDERR_TAIL)
        super().__init__(command, env, subprocess.PIPE, self._read, own_session)

    def write(self, line: bytes) -> None:
        """Send one line, which has its line end. Raises OSError if the child no longer reads."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except ValueError as error:  # `settle` has closed the pipe
            raise BrokenPipeError(errno.EPIPE, str(error)) from error

    def stderr_tail(self) -> str:
        """Return the last STDERR_TAIL characters of the child's stderr."""
        return self.errors.text()[-STDERR_TAIL:]

    def noise(self) -> str:
        """Return a text about output on stdout that is no message, or "" if there is none."""
        return foreign(self._noise.text())

    def _read(self, stream: IO[bytes]) -> None:
        with contextlib.suppress(ValueError, OSError):  # `kill` has closed the pipe
            if self._framed:
                self._read_messages(stream)
            else:
                for line in stream:
                    self.lines.put(line)
        self.lines.put(None)

    def _read_messages(self, stream: IO[bytes]) -> None:
        """Put each message into `lines`, and keep an excerpt of all other lines."""
        message = bytearray()
        while piece := stream.readline(_PIECE):
            # A message begins at the start of a line and may have any length.
            if not message and not piece.startswith(FRAME):
                self._noise.add(piece)
                continue
            message += piece
            if message.endswith(b"\n"):
                self.lines.put(bytes(message.removeprefix(FRAME)))
                message.clear()


def foreign(text: str) -> str:
    """Return a text with the first line of output that is no message, and where it may come from. Blank lines
    do not count; returns "" if there are no others."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return first and (
        f"its output is not ours: {printable(first)[:80]!r}; look for a .pth file, a sitecustomize or usercustomize, "
        "or a library in LD_PRELOAD that prints"
    )


class Ended(msgspec.Struct, frozen=True):
    """The result of a child that ran one command."""

    status: int | None  # exit status, or the negated number of a signal; None: not ended in time
    output: str  # its stdout; a long one without its middle
    errors: str  # its stderr; a long one without its middle
    took_s: float  # seconds until its stdout ended

    @property
    def message(self) -> str:
        """The last message of the child, or its whole stdout if it sent no message."""
        return self.output.rpartition(FRAME.decode())[2].partition("\n")[0] if self.framed else self.output

    @property
    def noise(self) -> str:
        """A text about the output (`foreign`) if it contains no message, otherwise an empty text."""
        return "" if self.framed else foreign(self.output)

    @property
    def framed(self) -> bool:
        """Whether the output contains a message."""
        return FRAME.decode() in self.output


def run(
    command: Sequence[str], limit_s: float, env: Mapping[str, str] | None = None, *,
    stdin: bytes = b"", most_output: int = MOST_OUTPUT,
) -> Ended:  # fmt: skip
    """Run a command to its end, or for at most `limit_s` seconds, with `stdin` as its input. `env`,
    `most_output` and errors are as in `run_all`."""
    return run_all([(command, limit_s)], env, stdin=[stdin], most_output=most_output)[0]


def run_all(
    commands: Sequence[tuple[Sequence[str], float]], env: Mapping[str, str] | None = None, *,
    tell: Callable[[Sequence[int]], None] | None = None, stdin: Sequence[bytes] = (), most_output: int = MOST_OUTPUT,
) -> list[Ended]:  # fmt: skip
    """Run commands at the same time, each to its end or to its limit in seconds, and return their results in
    order. Raises OSError if a command cannot be started.

    - `env` replaces the environment; None means `environment()`;
    - `tell` is called once with the indices of the commands that still run after SILENT_S seconds;
    - `stdin` has the inputs of the first commands; the others have no input;
    - `most_output` is how many bytes of a stdout are kept at its beginning, and again at its end.
    """
    tasks: list[_Task] = []
    try:
        for place, (command, limit_s) in enumerate(commands):
            tasks.append(_Task(command, limit_s, env, stdin[place] if place < len(stdin) else b"", most_output))
        if tell is not None:
            until = time.monotonic() + SILENT_S
            for task in tasks:
                task.wait(min(until, task.until) - time.monotonic())
            if slow := [place for place, task in enumerate(tasks) if task.alive]:
                tell(slow)
        for task in tasks:
            task.expire()
        # In all this takes at most `2 * LET_GO_S` longer than the longest limit.
        until = time.monotonic() + LET_GO_S
        return [task.end(until) for task in tasks]
    finally:
        for task in tasks:
            if task.alive and not task.expired:
                task.kill()


class _Task(_Process):
    def __init__(
        self, command: Sequence[str], limit_s: float, env: Mapping[str, str] | None,
        stdin: bytes, most_output: int,
    ) -> None:  # fmt: skip
        self._output = Excerpt(most_output)
        self._began = time.monotonic()
        self.until = self._began + limit_s
        self._said: float | None = None
        self.expired = False
        super().__init__(command, env, subprocess.PIPE if stdin else subprocess.DEVNULL, self._read)
        if stdin:  # in a thread, so that a child that does not read its input is ended in time, too
            self._begin(self._feed, stdin)

    def _feed(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(data)
            self._process.stdin.close()

    def _read(self, stream: IO[bytes]) -> None:
        _drain(stream, self._output)
        self._said = time.monotonic()

    def expire(self) -> None:
        """Wait for the end of the command, or kill it at its limit."""
        if not self.expired and self.wait(self.until - time.monotonic()) is None:
            self.expired = True
            self.send_kill()

    def end(self, until: float) -> Ended:
        """Return the result of the command. A process that still runs at `until` is abandoned."""
        status = self.wait(until - time.monotonic())
        self.settle(until + LET_GO_S)
        took_s = (self._said or time.monotonic()) - self._began
        return Ended(None if self.expired else status, self._output.text(), self.errors.text(), took_s)


def _drain(stream: IO[bytes], into: Excerpt) -> None:
    with contextlib.suppress(OSError, ValueError):
        while part := os.read(stream.fileno(), _PIECE):
            into.add(part)


# States of a CPU that add up to all time: on Linux `guest` is part of `user`, and Windows counts `interrupt`
# and `dpc` in `system`.
_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
# Least seconds in which a share of a twentieth can be seen, because the system counts in ticks of up to 16 ms.
LONG_ENOUGH_S = 2.0


class CpuTimes(NamedTuple):
    """A reading of CPU time counters, in seconds. Total, busy and stolen time are sums over the usable CPUs."""

    at_s: float  # time of the reading, by time.perf_counter()
    total_s: float  # time in all states
    busy_s: float  # time spent computing
    steal_s: float  # time taken by the hypervisor
    ours_s: float  # CPU time of this process and its workers


class Share(NamedTuple):
    """The shares of the usable CPUs that others took, from 0 to 1. A share is None if it is unknown, or if it is
    so small that the time was too short to measure it."""

    foreign: float | None  # the share of all time that other processes took
    steal: float | None  # the share of the time asked for that the hypervisor took


def read_cpu_times() -> CpuTimes | None:
    """Read the CPU time counters of the system. Return None if they cannot be read."""
    try:
        psutil = load_library("psutil")
        every = psutil.cpu_times(percpu=True)
        usable = allowed_cpus() or range(len(every))
        # Only online CPUs are listed. With others between them, an index in the list is not the number of a CPU.
        cpus = [every[i] for i in usable] if max(usable) < len(every) else every
        # A worker has children if a user's function keeps a pool of processes, or in a virtual environment on Windows.
        children = _children("self") or [child.pid for child in psutil.Process().children(recursive=True)]
        ours_s = 0.0
        for process in (os.getpid(), *children):
            with contextlib.suppress(psutil.Error):
                # The seconds of the process, and of its children that have ended.
                ours_s += sum(psutil.Process(process).cpu_times()[:4])

        def add(*states: str) -> float:
            return sum(getattr(cpu, state, 0.0) for cpu in cpus for state in states)

        return CpuTimes(time.perf_counter(), add(*_STATES), add("user", "nice", "system"), add("steal"), ours_s)
    except Exception:  # without a working psutil, only this figure is missing
        return None


def _children(number: int | str) -> list[int]:
    """Return the ids of all descendants of the process `number` (an id or "self"), on Linux."""
    own: list[int] = []
    # Linux lists the children of each thread. Other systems have no such files.
    for file in Path(f"/proc/{number}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            own += map(int, file.read_text().split())
    return [*own, *(child for parent in own for child in _children(parent))]


def no_cpu_times() -> None:
    """Return None. Replaces `read_cpu_times` for devices with a scripted clock, since no load disturbs them."""


def load_between(before: CpuTimes | None, after: CpuTimes | None) -> Share:
    """Return the load by other programs between two readings. If less than LONG_ENOUGH_S lies between them, a
    small share becomes None, because the counters advance in coarse ticks. Both shares are None if a reading is
    missing."""
    shares = load_in_ticks(before, after)
    if before is None or after is None or not 0 < after.at_s - before.at_s < LONG_ENOUGH_S:
        return shares
    # BUSY_SHARE at LONG_ENOUGH_S, and twice that at half the time.
    least = BUSY_SHARE * LONG_ENOUGH_S / (after.at_s - before.at_s)
    return Share(*(share if share is not None and share > least else None for share in shares))


def load_in_ticks(before: CpuTimes | None, after: CpuTimes | None) -> Share:
    """Return the load by other programs between two readings, even if it is based on a few ticks. Both shares
    are None if a reading is missing or the counters stand still."""
    if before is None or after is None:
        return Share(None, None)
    total_s = after.total_s - before.total_s
    if total_s <= 0 or after.at_s <= before.at_s:  # counters that stand still, as some sandboxes have them
        return Share(None, None)
    busy_s, stolen_s = after.busy_s - before.busy_s, after.steal_s - before.steal_s
    # Only a CPU that works can be taken away. A share of all time would hide that parallel work was held up.
    asked_s = max(busy_s + stolen_s, after.at_s - before.at_s)
    return Share(_share(busy_s - (after.ours_s - before.ours_s), total_s), _share(stolen_s, asked_s))


def _share(seconds: float, total_s: float) -> float:
    return round(min(max(seconds / total_s, 0.0), 1.0), 4)
