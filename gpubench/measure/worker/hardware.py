"""Child side: the peaks of a device, and the overheads of a session's calls.

Peaks come from kernels that are measured only for this purpose. Memory: `copy` and `dot` of arrays far larger
than a cache. Arithmetic: `matmul` of random matrices whose side is doubled until the rate hardly rises, or
chains of multiply-adds if the session offers them. Link to the host: transfers from and to page-locked memory.
A peak that is too low would make true results look implausible, so a peak that takes too long is left out, with
the reason.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TypeVar

import gpubench.kernels
from gpubench.backends.contract import Buffer, Launch, ReadyBuffers, Session, Transfers
from gpubench.backends.contract.protocols import FreshMemory, KnownPeaks, MultiplyAdds, Tunes
from gpubench.backends.shared.host import random_bytes
from gpubench.backends.shared.peaks import (
    THREADS,
    chain_flops,
    chain_sums,
    is_copy,
    is_dot,
    is_product,
    pattern,
)
from gpubench.backends.shared.reference import sentinels
from gpubench.base import hash_text
from gpubench.base.errors import BackendError, BackendUnavailable, Unsupported
from gpubench.kernels.contract.op import ITEMSIZE, Array, Dtype, Implementation, Op, Shape
from gpubench.measure import protocol
from gpubench.measure.protocol import PeakRequest
from gpubench.measure.worker.timer import Timed, device_seconds, waited_s, wall_s
from gpubench.measure.worker.workspace import Wrong
from gpubench.measure.worker_pool import Worker
from gpubench.result.case import IMPLEMENTATIONS, Case
from gpubench.result.machine import WRITE_ALLOCATE
from gpubench.result.run import Check, Peak, Staging

FIRST_SIDE_CPU, FIRST_SIDE, LAST_SIDE = 512, 1024, 16384
# Two arrays of this size are more than four times the last-level cache of nearly any GPU so far.
ARRAY_BYTES = 128 << 20
# If doubling the side gains less than this, the rate is within the 10 % of its peak that every case is allowed.
RISE = 0.08
# Number of timings, and of timings of launches longer than LONG_S, which hardly differ from each other.
TIMINGS, TIMINGS_OF_LONG, LONG_S = 5, 2, 0.02
TIMED_S = 1e-3
# Long enough for the full rate of any link, short enough to be page-locked at once.
LINK_ARRAY_BYTES = 64 << 20
# Seconds and most timings of multiply-adds, because a GPU that rested raises its clock while it works.
RAMP_S, MOST_TIMINGS = 0.05, 20
FARTHEST = 64  # most times by which the number of rounds grows at once


Rate = TypeVar("Rate")


def measure_peaks(session: Session, request: PeakRequest) -> list[Peak]:
    """Return the requested peaks, each with its rate or with the reason why it has none."""
    if isinstance(session, KnownPeaks):
        return session.peaks(memory=request.memory, compute=request.compute, link=request.link)
    peaks: list[Peak] = []
    device_id = session.device.id
    if request.memory:
        rate, why = _try(lambda: _memory_rate(session, request))
        peaks.append(Peak(device_id=device_id, bytes_per_s=rate, reason=why))
    for dtype in request.compute:
        own = isinstance(
            session, MultiplyAdds
        )  # it tells nothing of units that another backend's kernels may use
        rate, why = _try(partial(_chain_rate if own else _matmul_rate, session, dtype, request))
        peaks.append(Peak(device_id=device_id, dtype=dtype, flops_per_s=rate, own=own, reason=why))
    if request.link:
        both, why = _try(lambda: _link_rates(session, request))
        upload, download = both or (None, None)
        peaks.append(
            Peak(
                device_id=device_id,
                upload_bytes_per_s=upload,
                download_bytes_per_s=download,
                reason=why,
            )
        )
    return peaks


def _try(rate: Callable[[], Rate | None]) -> tuple[Rate | None, str | None]:
    try:
        return rate(), None
    except BackendError as error:
        return None, error.detail
    except MemoryError:
        return None, "the host's memory does not do for it"


def _memory_rate(session: Session, request: PeakRequest) -> float:
    """Return the rate of memory in bytes/s."""
    size = max(ARRAY_BYTES, 2 * request.cache_bytes)
    if 4 * size > request.memory_bytes:
        raise BackendError(f"arrays of {size} bytes take too much of the memory")
    if session.device.kind == "cpu":  # it reads each cache line before it writes it
        return WRITE_ALLOCATE * _stream(session, "copy", size)
    # Reading alone may be faster than copying.
    return max(_stream(session, "copy", size), _stream(session, "dot", size))


def _stream(session: Session, name: str, size: int) -> float:
    """Return the bytes/s of the op `name` on arrays of `size` bytes."""
    trial = _Trial(session, name, "float32", size // ITEMSIZE["float32"])
    try:
        seconds = trial.seconds()
        right = is_copy if name == "copy" else is_dot
        if not right(trial.answer(), *trial.hosts):
            raise BackendError(f"the result of {name} is wrong")
    finally:
        trial.release()
    return trial.bytes / seconds


def _link_rates(session: Session, request: PeakRequest) -> tuple[float, float]:
    """Return the rates in bytes/s to the device and back, each from the best of TIMINGS transfers."""
    if request.memory_bytes < 4 * LINK_ARRAY_BYTES:
        raise BackendError(f"arrays of {LINK_ARRAY_BYTES} bytes take too much of the memory")
    way = session.transfers("tuned")
    if way.staging != "pinned":
        raise BackendError("the host copies each transfer once more: its rate is not the link's")
    shape = (LINK_ARRAY_BYTES // ITEMSIZE["float32"],)
    there, back = (session.host_array(shape, "float32", "tuned") for _ in range(2))
    there[...], back[...] = pattern(shape, "float32", 0), 0
    buffer = session.allocate(shape, "float32")

    def seconds(move: Callable[[], None]) -> float:
        began = session.clock()
        move()
        session.sync()
        return session.clock() - began

    try:
        sent = min(seconds(lambda: way.upload(buffer, there)) for _ in range(TIMINGS))
        fetched = min(seconds(lambda: way.download(buffer, back)) for _ in range(TIMINGS))
        if not is_copy(back, there):
            raise BackendError("what came back is not what was sent")
    finally:
        session.free(buffer)
    return there.nbytes / sent, there.nbytes / fetched


def _matmul_rate(session: Session, dtype: Dtype, request: PeakRequest) -> float:
    """Return the FLOP/s of a matrix product so large that doubling its side hardly raises the rate."""
    side = FIRST_SIDE_CPU if session.device.kind == "cpu" else FIRST_SIDE
    began = best = 0.0
    while True:
        if 4 * 3 * side * side * ITEMSIZE[dtype] > request.memory_bytes:
            raise BackendError(f"the rate still rose when a matmul of {side} took too much of the memory")
        if not best:  # a library's first call sets it up, which tells nothing of how long the next ones take
            _Trial(session, "matmul", dtype, side).release()
            began = time.perf_counter()
        started = time.perf_counter()
        trial = _Trial(session, "matmul", dtype, side)
        try:
            rate = trial.flops / trial.seconds()
            if rate < best * (1 + RISE):
                a, b = trial.hosts
                if not is_product(a, b, trial.answer(), dtype):
                    raise BackendError("the product is wrong")
                return max(rate, best)
        finally:
            trial.release()
        best, side = rate, 2 * side
        now = time.perf_counter()
        # Eight times the arithmetic, four times the data: between the two the next one will take.
        if side > LAST_SIDE or now - began + 6 * (now - started) > request.limit_s:
            raise BackendError(f"the rate still rose at n = {side // 2} when the time for it was over")


def _chain_rate(session: Session, dtype: Dtype, request: PeakRequest) -> float:
    """Return the FLOP/s of a kernel that does only multiply-adds."""
    # For devices whose matrix product is chosen by trials at each size, which would take too long.
    assert isinstance(session, MultiplyAdds)
    began, rounds = 0.0, 1
    while not began or time.perf_counter() - began < request.limit_s / 2:
        launch = session.multiply_adds(dtype, rounds)
        try:
            session.upload(launch.output, sentinels((THREADS,), "float32"))
            wall_s(session, launch, 1)
            once = launch_seconds(session, launch, 1)
            began = began or time.perf_counter()  # the first launch has built the kernel
            if once >= TIMED_S:
                timings = max(TIMINGS, min(MOST_TIMINGS, round(RAMP_S / once)))
                best = min(launch_seconds(session, launch, 1) for _ in range(timings))
                if not is_copy(_answer(session, launch, (THREADS,), "float32"), chain_sums()):
                    raise BackendError("the multiply-adds are wrong")
                return chain_flops(rounds) / best
        finally:
            session.free(launch.output)
        # Straight to a launch that lasts; a first one of almost nothing but its own start predicts too little.
        rounds = math.ceil(rounds * min(FARTHEST, max(2.0, 1.5 * TIMED_S / once)))
    raise BackendError("the time for it was over before a launch of multiply-adds lasted a millisecond")


class _Trial:
    """One kernel with buffers of its own."""

    def __init__(self, session: Session, name: str, dtype: Dtype, n: int) -> None:
        op: Op = gpubench.kernels.load(name)
        params = {"n": n}
        self._session, self._dtype, self._shape = session, dtype, op.output.shape(params)
        self.flops, self.bytes = op.flops(params), op.bytes(params, dtype)
        case = _case_of(session, op, dtype, params)
        self._taken: list[Buffer] = []
        try:
            self.hosts = [pattern(x.shape(params), dtype, seed) for seed, x in enumerate(op.inputs)]
            for host in self.hosts:
                self._taken.append(session.allocate(host.shape, dtype))
                session.upload(self._taken[-1], host)
            if isinstance(session, Tunes):
                session.tune(op, case, self._taken)
            output = session.allocate(self._shape, dtype) if case.implementation == "tuned" else None
            self._taken += [] if output is None else [output]
            self._launch: Launch = session.compile(op, case, self._taken[: len(self.hosts)], output)
            wall_s(session, self._launch, 1)
        except BaseException:
            self.release()
            raise

    def seconds(self) -> float:
        """Return the shortest of several timings in seconds per launch, by the device's clock if it has one."""
        once = launch_seconds(self._session, self._launch, 1)
        repeat = max(1, round(TIMED_S / once)) if once > 0 else 1
        count = TIMINGS if once < LONG_S else TIMINGS_OF_LONG
        return min(launch_seconds(self._session, self._launch, repeat) for _ in range(count))

    def answer(self) -> Array:
        return _answer(self._session, self._launch, self._shape, self._dtype)

    def release(self) -> None:
        for buffer in self._taken:
            self._session.free(buffer)
        self._taken = []


def launch_seconds(session: Session, launch: Launch, repeat: int) -> float:
    """Return the seconds per launch, by the device's clock if that gives a time, otherwise by the wall
    clock."""
    seconds = device_seconds(session, launch, repeat)
    return (wall_s(session, launch, repeat) if seconds is None else seconds) / repeat


def _answer(session: Session, launch: Launch, shape: Shape, dtype: Dtype) -> Array:
    answer = sentinels(shape, dtype)
    session.download(launch.output, answer)
    return answer


def _case_of(session: Session, op: Op, dtype: Dtype, params: dict[str, int]) -> Case:
    """Return a case of the tuned implementation if the device supports it, else of the library's. Raises
    BackendError if it supports neither."""
    refusal: BackendError | None = None
    for implementation in reversed(IMPLEMENTATIONS):
        case = Case(
            op.name, op.group, params, dtype, implementation, session.device.resident_regime, session.device.id
        )
        refusal = session.supports(op, case)
        if refusal is None:
            kernel = op.kernel(case.backend, dtype) if implementation == "tuned" else None
            if op.name == "matmul" and kernel is not None and kernel.candidates is not None:
                raise BackendError(f"the best {op.name} of this device is found by trials at each size")
            return case
    assert refusal is not None
    raise refusal


# ---------------------------------------------------------------- the calls of a session

# Launches that are enqueued before the host waits outside the timed region. Drivers block at about a thousand.
QUEUE = 256
OPEN_DEADLINE_S = 60.0


class OverheadTimer(Timed):
    """A timer of one overhead. `seconds(repeat)` makes the call `repeat` times and returns the seconds per
    call. Raises Unsupported if the session lacks the allocation that is to be timed."""

    def __init__(self, session: Session, op: Op, case: Case, opening: protocol.Open) -> None:
        assert op.overhead is not None
        self.session, self.case = session, case
        self.kernel: str | None = None
        self._call = op.overhead.call
        self._opening = opening
        self.transfers = session.transfers(case.implementation)
        self.staging: Staging = self.transfers.staging
        self._empty: Launch = session.empty_launch()
        self._shape: Shape = (-(-case.n // ITEMSIZE[case.dtype]),)
        self._buffer: Buffer = None
        self._host: Array = None
        self._host_output: Array = None
        # A new process warms up nothing but the disk's cache. Each is one sample, which takes seconds.
        self.single = self._call == "open"
        fresh = session if isinstance(session, FreshMemory) else None
        self._fresh = fresh if case.implementation == "library" else None
        if self._call == "allocate" and case.implementation == "library" and fresh is None:
            why = f"{session.device.backend} has no memory past its pool"
            raise Unsupported(why, reason="no-implementation")
        self._opened_once = False

    def seconds(self, repeat: int) -> float:
        """Return the wall seconds per call of one sample."""
        calls: dict[str, Callable[[int], float]] = {
            "open": self._open, "launch": self._launch, "sync": self._sync,
            "roundtrip": partial(waited_s, self.session, self._empty),
            "allocate": self._allocate, "upload": self._upload, "download": self._download,
        }  # fmt: skip
        return calls[self._call](repeat)

    def verify(self) -> Check:
        """Make the call once, and check that a transfer or an allocation gives back every byte. Raises
        Wrong."""
        if self._call in ("upload", "download"):
            self._prepare_arrays(self.case.implementation)
            if self._buffer is None:
                self._buffer = self.session.allocate(self._shape, self.case.dtype)
            _expect(self._there_and_back(self._buffer, self.transfers), self._host)
        elif self._call == "allocate":
            self._prepare_arrays("library")
            buffer = self._memory.take()
            try:
                _expect(self._there_and_back(buffer, Transfers(self.session)), self._host)
            finally:
                self._memory.give_back(buffer)
        elif not self._opened_once:
            self.seconds(1)
            self._opened_once = self.single
        return Check(ok=True, max_error=0.0, limit=0.0, scale="value")

    def release(self) -> None:
        """Free the memory on the device and on the host."""
        if self._buffer is not None:
            self.session.free(self._buffer)
        self._buffer = self._host = self._host_output = None

    # ---------------------------------------------------------------- the calls

    def _open(self, repeat: int) -> float:
        """Return the mean seconds of importing the library and opening the device, each time in a new
        process."""
        total = 0.0
        for _ in range(repeat):
            with closing(Worker(self._opening.threads)) as child:
                reply = child.ask(self._opening, OPEN_DEADLINE_S)
            if not isinstance(reply, protocol.Opened) or reply.record.open_s is None:
                raise BackendUnavailable(getattr(reply, "detail", "a second process cannot open the device"))
            total += reply.record.open_s
        return total / repeat

    def _launch(self, repeat: int) -> float:
        session, empty, clock = self.session, self._empty, self.session.clock
        total, remaining = 0.0, repeat
        while remaining:
            count = min(remaining, QUEUE)
            start = clock()
            for _ in range(count):
                session.run(empty)
            total += clock() - start
            session.sync()
            remaining -= count
        return total / repeat

    def _sync(self, repeat: int) -> float:
        session = self.session
        session.sync()
        start = session.clock()
        for _ in range(repeat):
            session.sync()
        return (session.clock() - start) / repeat

    def _allocate(self, repeat: int) -> float:
        (take, give_back), clock = self._memory, self.session.clock
        start = clock()
        for _ in range(repeat):
            give_back(take())
        return (clock() - start) / repeat

    def _upload(self, repeat: int) -> float:
        upload, sync, clock = self.transfers.upload, self.session.sync, self.session.clock
        start = clock()
        for _ in range(repeat):
            upload(self._buffer, self._host)
            sync()
        return (clock() - start) / repeat

    def _download(self, repeat: int) -> float:
        download, clock = self.transfers.download, self.session.clock
        start = clock()
        for _ in range(repeat):
            download(self._buffer, self._host_output)
        return (clock() - start) / repeat

    # ---------------------------------------------------------------- memory and the bytes in it

    @functools.cached_property
    def _memory(self) -> ReadyBuffers:
        """A source of buffers: the pool for the tuned implementation, the driver for the library
        implementation."""
        if self._fresh is None:
            return self.session.ready_buffers(self._shape, self.case.dtype)
        take = partial(self._fresh.allocate_fresh, self._shape, self.case.dtype)
        return ReadyBuffers(take, self._fresh.free_fresh)

    def _prepare_arrays(self, implementation: Implementation) -> None:
        if self._host is None:
            shape, dtype = self._shape, self.case.dtype
            self._host = self.session.host_array(shape, dtype, implementation)
            self._host_output = self.session.host_array(shape, dtype, implementation)
            random_bytes(self._host, self.case.workload)

    def _there_and_back(self, buffer: Buffer, transfers: Transfers) -> Array:
        """Upload the array and download it again, into memory that held other values."""
        self._host_output.fill(-7)
        self.session.upload(buffer, self._host_output)
        transfers.upload(buffer, self._host)
        self.session.sync()
        transfers.download(buffer, self._host_output)
        return self._host_output


def _expect(got: Array, want: Array) -> None:
    """Raise Wrong with the index of the first word that differs, unless the arrays are equal byte for byte."""
    differs = got.view("uint32") != want.view("uint32")
    if differs.any():
        raise Wrong(Check(ok=False, max_error=None, limit=0.0, scale="value", index=[int(differs.argmax())]))


def overhead_hash(op: Op) -> str:
    """Return twelve hexadecimal digits that change when the meaning of the overhead changes."""
    assert op.overhead is not None
    return hash_text(f"{op.name} {op.overhead.call}")
