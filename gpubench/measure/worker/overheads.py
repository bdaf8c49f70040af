"""Child side: what the calls of a session cost, sampled as any other case (model.op.Overhead).

An `OverheadTimer` stands where a `sampling.Timer` stands for an op that computes: it is checked first, then timed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from gpubench.backends.contract import Buffer, Launch, Session, Transfers
from gpubench.backends.contract.protocols import FreshMemory
from gpubench.backends.shared.host import random_bytes
from gpubench.base.errors import BackendUnavailable, Unsupported
from gpubench.kernels.contract.op import ITEMSIZE, Array, Form, Op, Shape
from gpubench.measure import protocol
from gpubench.measure.worker.timer import Timed
from gpubench.measure.worker.workspace import Wrong
from gpubench.measure.worker_pool import Worker
from gpubench.result.case import Case
from gpubench.result.run import Check, Staging

# Launches that may be under way before the host waits, outside the timed region: drivers block at about a thousand.
QUEUE = 256
OPEN_DEADLINE_S = 60.0


class OverheadTimer(Timed):
    """One overhead ready to be sampled: `seconds(repeat)` makes the call and returns seconds per call.

    Raises Unsupported for memory past the pool on a session that does not offer it, and Wrong if what was sent is
    not what came back.
    """

    def __init__(self, session: Session, op: Op, case: Case, opening: protocol.Open) -> None:
        assert op.overhead is not None
        self.session, self.case = session, case
        self.kernel: str | None = None
        self._call = op.overhead.call
        self._opening = opening
        self._transfers = session.transfers(case.form)
        self.staging: Staging = self._transfers.staging
        self._empty: Launch = session.empty_launch()
        self._shape: Shape = (-(-case.params["n"] // ITEMSIZE[case.dtype]),)
        self._buffer: Buffer = None
        self._host: Array = None
        self._host_output: Array = None
        # A fresh process has nothing to warm up but the disk's cache; each is one sample, and takes its seconds.
        self.single = self._call == "open"
        self._fresh = session if isinstance(session, FreshMemory) else None
        if self._call == "allocate" and case.form == "library" and self._fresh is None:
            why = f"{session.device.backend} has no memory past its pool"
            raise Unsupported(why, reason="no-implementation")
        self._opened_once = False

    def seconds(self, repeat: int) -> float:
        """Wall seconds per call of one sample."""
        calls: dict[str, Callable[[int], float]] = {
            "open": self._open, "launch": self._launch, "roundtrip": self._roundtrip, "sync": self._sync,
            "allocate": self._allocate, "upload": self._upload, "download": self._download,
        }  # fmt: skip
        return calls[self._call](repeat)

    def verify(self) -> Check:
        """Make the call once; transfers and memory: every byte has to come back as it was sent. Raises Wrong."""
        if self._call in ("upload", "download"):
            self._prepare_arrays(self.case.form)
            if self._buffer is None:
                self._buffer = self.session.allocate(self._shape, self.case.dtype)
            _expect(self._there_and_back(self._buffer, self._transfers), self._host)
        elif self._call == "allocate":
            self._prepare_arrays("library")
            buffer = self._take()
            try:
                _expect(self._there_and_back(buffer, Transfers(self.session)), self._host)
            finally:
                self._give_back(buffer)
        elif not self._opened_once:
            self.seconds(1)
            self._opened_once = self._call == "open"
        return Check(ok=True, max_error=0.0, limit=0.0, scale="value")

    def release(self) -> None:
        """Give back what is held on the device and on the host."""
        if self._buffer is not None:
            self.session.free(self._buffer)
        self._buffer = self._host = self._host_output = None

    # ---------------------------------------------------------------- the calls

    def _open(self, repeat: int) -> float:
        """The library's import and the opening of the device, each time in a process of its own."""
        total = 0.0
        for _ in range(repeat):
            with Worker(self._opening.threads) as child:
                reply = child.ask(self._opening, OPEN_DEADLINE_S)
            if not isinstance(reply, protocol.Opened) or reply.record.open_s is None:
                raise BackendUnavailable(getattr(reply, "detail", "a second process cannot open the device"))
            total += reply.record.open_s
        return total / repeat

    def _launch(self, repeat: int) -> float:
        session, empty, clock = self.session, self._empty, self.session.clock
        total, left = 0.0, repeat
        while left:
            count = min(left, QUEUE)
            start = clock()
            for _ in range(count):
                session.run(empty)
            total += clock() - start
            session.sync()
            left -= count
        return total / repeat

    def _roundtrip(self, repeat: int) -> float:
        session, empty = self.session, self._empty
        start = session.clock()
        for _ in range(repeat):
            session.run(empty)
            session.sync()
        return (session.clock() - start) / repeat

    def _sync(self, repeat: int) -> float:
        session = self.session
        session.sync()
        start = session.clock()
        for _ in range(repeat):
            session.sync()
        return (session.clock() - start) / repeat

    def _allocate(self, repeat: int) -> float:
        take, give_back, clock = self._take, self._give_back, self.session.clock
        start = clock()
        for _ in range(repeat):
            give_back(take())
        return (clock() - start) / repeat

    def _upload(self, repeat: int) -> float:
        upload, sync, clock = self._transfers.upload, self.session.sync, self.session.clock
        start = clock()
        for _ in range(repeat):
            upload(self._buffer, self._host)
            sync()
        return (clock() - start) / repeat

    def _download(self, repeat: int) -> float:
        download, clock = self._transfers.download, self.session.clock
        start = clock()
        for _ in range(repeat):
            download(self._buffer, self._host_output)
        return (clock() - start) / repeat

    # ---------------------------------------------------------------- memory and the bytes in it

    def _take(self) -> Buffer:
        if self.case.form == "tuned":
            return self.session.allocate(self._shape, self.case.dtype)
        assert self._fresh is not None
        return self._fresh.allocate_fresh(self._shape, self.case.dtype)

    def _give_back(self, buffer: Buffer) -> None:
        if self.case.form == "tuned":
            self.session.free(buffer)
        else:
            assert self._fresh is not None
            self._fresh.free_fresh(buffer)

    def _prepare_arrays(self, form: Form) -> None:
        if self._host is None:
            shape, dtype = self._shape, self.case.dtype
            self._host = self.session.host_array(shape, dtype, form)
            self._host_output = self.session.host_array(shape, dtype, form)
            random_bytes(self._host, self.case.workload)

    def _there_and_back(self, buffer: Buffer, transfers: Transfers) -> Array:
        """Sent and fetched, over device memory and a host_output that held something else."""
        self._host_output.fill(-7)
        self.session.upload(buffer, self._host_output)
        transfers.upload(buffer, self._host)
        self.session.sync()
        transfers.download(buffer, self._host_output)
        return self._host_output


def _expect(got: Array, want: Array) -> None:
    """Equal byte for byte. Raises Wrong with the first element that differs."""
    differs = got.view("uint32") != want.view("uint32")
    if differs.any():
        raise Wrong(Check(ok=False, max_error=None, limit=0.0, scale="value", index=[int(differs.argmax())]))


def overhead_hash(op: Op) -> str:
    """Twelve digits that change when the op means something else."""
    assert op.overhead is not None
    return hashlib.sha256(f"{op.name} {op.overhead.call}".encode()).hexdigest()[:12]
