"""Parent side: a child process that speaks lines, in a session of its own, ended politely and then certainly."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO

# Time between the polite end and the certain one.
KILL_AFTER_S = 2.0
READER_END_S = 1.0
STDERR_TAIL = 2000


class Child:
    """`python -m MODULE`. `lines` holds what it wrote, line by line, and None once it writes no more."""

    def __init__(self, module: str, env: Mapping[str, str]) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, env=env, start_new_session=True,
        )  # fmt: skip
        self.lines: queue.Queue[bytes | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """The exit status; negative: the number of the signal that ended it; None: it still runs."""
        return self._process.returncode

    def write(self, line: bytes) -> None:
        """Send one line. Raises OSError if nobody reads it."""
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def kill(self, after_s: float = KILL_AFTER_S) -> None:
        """Terminate, kill `after_s` later, and reap. Never raises."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(after_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: abandoned
            self._process.wait(after_s)
        self._reader.join(READER_END_S)
        if self._reader.is_alive():
            return  # it holds the pipe's lock until the abandoned child dies: closing would wait for that
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def stderr_tail(self) -> str:
        """The end of what it wrote to stderr."""
        with contextlib.suppress(OSError, ValueError):
            size = self._stderr.seek(0, os.SEEK_END)
            self._stderr.seek(max(0, size - STDERR_TAIL))
            return self._stderr.read().decode("utf-8", "replace").strip()
        return ""

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):  # closed under us by kill()
            for line in self._process.stdout:
                self.lines.put(line)
        self.lines.put(None)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The parent's environment with our package first, a runtime folder, and `extra`.

    Without XDG_RUNTIME_DIR the Vulkan loader of wgpu writes errors to stderr.
    """
    env = dict(os.environ)
    root = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (root, env.get("PYTHONPATH"))))
    env.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    return {**env, **(extra or {})}
