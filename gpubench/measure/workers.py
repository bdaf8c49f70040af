"""Parent side: start a worker, send one request at a time with a deadline, and survive its death."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

import msgspec

from gpubench.measure import protocol

# Time between the polite end and the certain one.
KILL_AFTER_S = 2.0
READER_END_S = 1.0
STDERR_TAIL = 2000
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class WorkerGone(Exception):
    """The worker did not answer: it crashed, or its deadline passed and it was killed.

    `reason` is "worker-crashed" or "timeout"; `phase` is what it last announced.
    """

    def __init__(self, reason: str, detail: str, phase: str | None, stderr_tail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.phase = phase
        self.stderr_tail = stderr_tail


class Worker:
    """One child process. Use as a context manager, or call `close`."""

    def __init__(self, threads: int | None = None) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self._number = 0
        self.phase: str | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpubench.measure.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, env=_environment(threads),
            start_new_session=True,
        )  # fmt: skip
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def next_id(self) -> int:
        """The number of the next request."""
        self._number += 1
        return self._number

    def ask(self, request: protocol.Request, deadline_s: float) -> protocol.Reply:
        """Send one request and wait for its reply. Raises WorkerGone; the worker is then dead."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(protocol.encode(request))
            self._process.stdin.flush()
        except OSError:
            raise self._crashed() from None
        until = time.monotonic() + deadline_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                self.kill()
                detail = f"no answer within {deadline_s:g} s while in phase {self.phase or 'start'}"
                raise WorkerGone("timeout", detail, self.phase, self._tail()) from None
            if line is None:
                raise self._crashed()
            try:
                message = protocol.decode_reply(line)
            except msgspec.DecodeError:
                self.kill()
                raise WorkerGone("worker-crashed", "the worker wrote junk", self.phase, self._tail()) from None
            if isinstance(message, protocol.Phase):
                self.phase = message.name
            elif message.id == request.id:
                return message

    def close(self) -> None:
        """End politely, then certainly. Never raises."""
        if self._process.poll() is None:
            with contextlib.suppress(WorkerGone):
                self.ask(protocol.Close(id=self.next_id), KILL_AFTER_S + 3)
        self.kill()

    def kill(self) -> None:
        """Terminate, kill `KILL_AFTER_S` later, and reap."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(KILL_AFTER_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: abandoned
            self._process.wait(KILL_AFTER_S)
        self._reader.join(READER_END_S)
        if self._reader.is_alive():
            return  # it holds the pipe's lock until the abandoned worker dies: closing would wait for that
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):  # closed under us by kill()
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(None)

    def _crashed(self) -> WorkerGone:
        self.kill()
        code = self._process.returncode
        if code is not None and code < 0:
            detail = f"the worker was ended by {signal.Signals(-code).name} in phase {self.phase or 'start'}"
        else:
            detail = f"the worker exited with status {code} in phase {self.phase or 'start'}"
        return WorkerGone("worker-crashed", detail, self.phase, self._tail())

    def _tail(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            size = self._stderr.seek(0, os.SEEK_END)
            self._stderr.seek(max(0, size - STDERR_TAIL))
            return self._stderr.read().decode("utf-8", "replace").strip()
        return ""


def _environment(threads: int | None) -> dict[str, str]:
    """The parent's environment with explicit thread counts, our package first, and a runtime folder.

    Without XDG_RUNTIME_DIR the Vulkan loader of wgpu writes errors to stderr.
    """
    env = dict(os.environ)
    root = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (root, env.get("PYTHONPATH"))))
    env.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    if threads is not None:
        env.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    return env
