"""Probes in child processes with deadlines: a hang, crash or junk costs that probe and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from gpubench.detect import _record
from gpubench.detect._request import Answer, Request
from gpubench.model.machine import Provider

KILL_WAIT_S = 1.0  # a child stuck in the kernel is abandoned after this
MOST_OUTPUT = 4 << 20
MOST_ERRORS = 64 << 10


def run(requests: Sequence[Request]) -> list[Answer]:
    """Run all probes side by side; takes at most the longest limit and a second."""
    children = [_Child(request) for request in requests]
    try:
        return [child.answer() for child in children]
    finally:
        for child in children:
            child.kill()


class _Child:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.start = time.monotonic()
        self.ended: list[float] = []
        self.output, self.errors = bytearray(), bytearray()
        command = request.command or (
            sys.executable, "-m", "gpubench.detect.probes", request.name, json.dumps(request.options),
        )  # fmt: skip
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, env=_environment(),
        )  # fmt: skip
        self.threads = [
            threading.Thread(target=self._read, args=(stream, store, most), daemon=True)
            for stream, store, most in (
                (self.process.stdout, self.output, MOST_OUTPUT), (self.process.stderr, self.errors, MOST_ERRORS),
            )
        ]  # fmt: skip
        for thread in self.threads:
            thread.start()

    def _read(self, stream: IO[bytes] | None, store: bytearray, most: int) -> None:
        _drain(stream, store, most)
        self.ended.append(time.monotonic())

    def answer(self) -> Answer:
        """Wait until the deadline, then kill."""
        left = self.start + self.request.limit_s - time.monotonic()
        timed_out = False
        try:
            self.process.wait(max(0.0, left))
        except subprocess.TimeoutExpired:
            timed_out = True
            self.kill()
        for thread in self.threads:
            thread.join(0.2)
        took = (self.ended[0] if self.ended else time.monotonic()) - self.start
        if timed_out:
            return self._failed("timeout", f"no answer in {self.request.limit_s:g} s", took)
        code = self.process.returncode
        if code:
            return self._failed("crashed", f"signal {-code}" if code < 0 else f"exit status {code}", took)
        return self._parsed(took)

    def kill(self) -> None:
        """End the whole group; a child that does not die is left behind."""
        if self.process.poll() is not None:
            return
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(KILL_WAIT_S)

    def _parsed(self, took: float) -> Answer:
        try:
            told = json.loads(bytes(self.output))
            records = [_record.parse(raw) for raw in told["records"]]
            extra = {key: value for key, value in told.items() if key != "records"}
            provider = Provider(
                name=self.request.name, status=extra.pop("status", "ok"), version=extra.pop("version", None),
                took_s=round(took, 6), error_code=extra.pop("error_code", None), hint=extra.pop("hint", None),
            )  # fmt: skip
        except (ValueError, TypeError, KeyError, RecursionError):
            return self._failed("invalid", "the answer is no JSON of the expected form", took)
        return Answer(provider, records, extra)

    def _failed(self, status: Any, code: str, took: float) -> Answer:
        lines = bytes(self.errors).decode("utf-8", "replace").strip().splitlines()
        hint = "".join(c for c in lines[-1] if c.isprintable())[:300] if lines else None
        provider = Provider(
            name=self.request.name, status=status, took_s=round(took, 6), error_code=code, hint=hint
        )
        return Answer(provider, [], {})


def _drain(stream: IO[bytes] | None, store: bytearray, most: int) -> None:
    """Read to the end and keep the last `most` bytes, so that a child which prints for ever costs no memory."""
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):
        while part := os.read(stream.fileno(), 1 << 16):
            store += part
            del store[: max(0, len(store) - most)]


def _environment() -> dict[str, str]:
    """Ours, with a path to this package where it is not installed, and a folder that Vulkan loaders ask for."""
    environment = dict(os.environ)
    home = str(Path(__file__).resolve().parents[2])
    if "site-packages" not in home and "dist-packages" not in home:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (home, environment.get("PYTHONPATH"))))
    environment.setdefault("XDG_RUNTIME_DIR", "/tmp")
    return environment
