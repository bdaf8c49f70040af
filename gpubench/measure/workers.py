"""Parent side: start a worker, send one request at a time with a deadline, and survive its death."""

from __future__ import annotations

import contextlib
import queue
import signal
import time

import msgspec

from gpubench.measure import protocol
from gpubench.measure.child import KILL_AFTER_S, Child, environment

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
        self._number = 0
        self.phase: str | None = None
        counts = {} if threads is None else dict.fromkeys(THREAD_VARIABLES, str(threads))
        self._child = Child("gpubench.measure.worker", environment(counts))

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
        try:
            self._child.write(protocol.encode(request))
        except OSError:
            raise self._crashed() from None
        until = time.monotonic() + deadline_s
        while True:
            try:
                line = self._child.lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                detail = f"no answer within {deadline_s:g} s while in phase {self.phase or 'start'}"
                raise self._gone("timeout", detail) from None
            if line is None:
                raise self._crashed()
            try:
                message = protocol.decode_reply(line)
            except msgspec.DecodeError:
                raise self._gone("worker-crashed", "the worker wrote junk") from None
            if isinstance(message, protocol.Phase):
                self.phase = message.name
            elif message.id == request.id:
                return message

    def close(self) -> None:
        """End politely, then certainly. Never raises."""
        if self._child.alive:
            with contextlib.suppress(WorkerGone):
                self.ask(protocol.Close(id=self.next_id), KILL_AFTER_S + 3)
        self.kill()

    def kill(self) -> None:
        """Terminate, kill `KILL_AFTER_S` later, and reap."""
        self._child.kill()

    def _crashed(self) -> WorkerGone:
        self.kill()
        code = self._child.status
        how = (
            f"was ended by {signal.Signals(-code).name}" if code and code < 0 else f"exited with status {code}"
        )
        return self._gone("worker-crashed", f"the worker {how} in phase {self.phase or 'start'}")

    def _gone(self, reason: str, detail: str) -> WorkerGone:
        self.kill()
        return WorkerGone(reason, detail, self.phase, self._child.stderr_tail())
