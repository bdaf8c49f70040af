"""Child side: the ceilings of a device, by kernels that are measured for nothing else.

Memory: `copy` and `dot` of arrays far larger than a cache. Arithmetic: `matmul` of random matrices, twice as large each
time until the rate hardly rises; chains of multiply-adds where the session offers them. The link to the host: from and
to page-locked memory, which no copy of the host's slows down. A ceiling that is too low would call true results
implausible, so what cannot be found in the given time is left out with the reason.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import gpubench.kernels
from gpubench.backends.contract import Buffer, Launch, Session
from gpubench.backends.contract.protocols import KnownCeilings, MultiplyAdds, Tunes
from gpubench.backends.shared.ceilings import (
    THREADS,
    chain_flops,
    chain_sums,
    is_copy,
    is_dot,
    is_product,
    nan_array,
    pattern,
)
from gpubench.base.errors import BackendError
from gpubench.kernels.contract.op import ITEMSIZE, Array, Dtype, Form, Op, Shape
from gpubench.measure.protocol import Wanted
from gpubench.measure.worker.timer import device_seconds, wall_s
from gpubench.result.case import Case
from gpubench.result.machine import WRITE_ALLOCATE
from gpubench.result.run import Ceiling

FORMS: tuple[Form, ...] = ("tuned", "library")
FIRST_SIDE_CPU, FIRST_SIDE, LAST_SIDE = 512, 1024, 16384
# Two arrays of this size are more than four times the last-level cache of nearly any GPU so far.
ARRAY_BYTES = 128 << 20
# A last doubling that gained less leaves what is still to come within the 10 % that are granted to every case.
RISE = 0.08
# Of launches that last, the second is as long as the fifth.
TIMINGS, TIMINGS_OF_LONG, LONG_S = 5, 2, 0.02
TIMED_S = 1e-3
# Long enough for the full rate of any link, short enough to be page-locked at once.
LINK_ARRAY_BYTES = 64 << 20
# Of multiply-adds: so long, and at most so often, because a GPU that rested raises its clock as it works.
RAMP_S, MOST_TIMINGS = 0.05, 20
FARTHEST = 64  # as many times the rounds at once


Found = TypeVar("Found")


class _NoCeiling(Exception):
    """Why a device has no ceiling of a kind."""


def measure(session: Session, wanted: Wanted) -> list[Ceiling]:
    """The ceilings asked for, each with its rate or with the reason for none. Never raises for a device that cannot."""
    if isinstance(session, KnownCeilings):
        return session.ceilings(memory=wanted.memory, compute=wanted.compute, link=wanted.link)
    found = []
    if wanted.memory:
        rate, why = _tried(lambda: _memory_rate(session, wanted))
        found.append(Ceiling(device_id=session.device.id, bytes_per_s=rate, reason=why))
    for dtype in wanted.compute:
        own = isinstance(
            session, MultiplyAdds
        )  # it tells nothing of units that another backend's kernels may use
        rate, why = _tried(partial(_chain_rate if own else _matmul_rate, session, dtype, wanted))
        found.append(Ceiling(device_id=session.device.id, dtype=dtype, flops_per_s=rate, own=own, reason=why))
    if wanted.link:
        both, why = _tried(lambda: _link_rates(session, wanted))
        upload, download = both or (None, None)
        found.append(
            Ceiling(
                device_id=session.device.id,
                upload_bytes_per_s=upload,
                download_bytes_per_s=download,
                reason=why,
            )
        )
    return found


def _tried(rate: Callable[[], Found | None]) -> tuple[Found | None, str | None]:
    try:
        return rate(), None
    except _NoCeiling as why:
        return None, str(why)
    except BackendError as error:
        return None, error.detail
    except MemoryError:
        return None, "the host's memory does not do for it"


def _memory_rate(session: Session, wanted: Wanted) -> float:
    """Bytes/s: the better of writing as much as is read and, on a GPU, of reading alone.

    A CPU reads each line that it is about to write: what the copy moves is half as much again as its payload, and an
    op that writes less may rightly exceed the payload.
    """
    size = max(ARRAY_BYTES, 2 * wanted.cache_bytes)
    if 4 * size > wanted.memory_bytes:
        raise _NoCeiling(f"arrays of {size} bytes take too much of the memory")
    if session.device.kind == "cpu":
        return WRITE_ALLOCATE * _stream(session, "copy", size)
    return max(_stream(session, "copy", size), _stream(session, "dot", size))


def _stream(session: Session, name: str, size: int) -> float:
    """Payload per second of one op on arrays of `size` bytes."""
    trial = _Trial(session, name, "float32", size // ITEMSIZE["float32"])
    try:
        seconds = trial.seconds()
        right = is_copy if name == "copy" else is_dot
        if not right(trial.answer(), *trial.hosts):
            raise _NoCeiling(f"the result of {name} is wrong")
    finally:
        trial.release()
    return trial.bytes / seconds


def _link_rates(session: Session, wanted: Wanted) -> tuple[float, float]:
    """Bytes/s to the device and back, the best of five each."""
    if wanted.memory_bytes < 4 * LINK_ARRAY_BYTES:
        raise _NoCeiling(f"arrays of {LINK_ARRAY_BYTES} bytes take too much of the memory")
    way = session.transfers("tuned")
    if way.staging != "pinned":
        raise _NoCeiling("the host copies each transfer once more: its rate is not the link's")
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
            raise _NoCeiling("what came back is not what was sent")
    finally:
        session.free(buffer)
    return there.nbytes / sent, there.nbytes / fetched


def _matmul_rate(session: Session, dtype: Dtype, wanted: Wanted) -> float:
    """FLOP/s of the largest product that was worth its time."""
    side = FIRST_SIDE_CPU if session.device.kind == "cpu" else FIRST_SIDE
    began = best = 0.0
    while True:
        if 4 * 3 * side * side * ITEMSIZE[dtype] > wanted.memory_bytes:
            raise _NoCeiling(f"the rate still rose when a matmul of {side} took too much of the memory")
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
                    raise _NoCeiling("the product is wrong")
                return max(rate, best)
        finally:
            trial.release()
        best, side = rate, 2 * side
        now = time.perf_counter()
        # Eight times the arithmetic, four times the data: between the two the next one will take.
        if side > LAST_SIDE or now - began + 6 * (now - started) > wanted.limit_s:
            raise _NoCeiling(f"the rate still rose at n = {side // 2} when the time for it was over")


def _chain_rate(session: Session, dtype: Dtype, wanted: Wanted) -> float:
    """FLOP/s of multiply-adds alone, for a device whose product is chosen by trials at each size."""
    assert isinstance(session, MultiplyAdds)
    began, rounds = 0.0, 1
    while not began or time.perf_counter() - began < wanted.limit_s / 2:
        launch = session.multiply_adds(dtype, rounds)
        try:
            session.upload(launch.output, nan_array((THREADS,), "float32"))
            wall_s(session, launch, 1)
            once = launch_seconds(session, launch, 1)
            began = began or time.perf_counter()  # the first launch has built the kernel
            if once >= TIMED_S:
                timings = max(TIMINGS, min(MOST_TIMINGS, round(RAMP_S / once)))
                best = min(launch_seconds(session, launch, 1) for _ in range(timings))
                if not is_copy(_answer(session, launch, (THREADS,), "float32"), chain_sums()):
                    raise _NoCeiling("the multiply-adds are wrong")
                return chain_flops(rounds) / best
        finally:
            session.free(launch.output)
        # Straight to a launch that lasts; a first one of almost nothing but its own start predicts too little.
        rounds = math.ceil(rounds * min(FARTHEST, max(2.0, 1.5 * TIMED_S / once)))
    raise _NoCeiling("the time for it was over before a launch of multiply-adds lasted a millisecond")


class _Trial:
    """One kernel on its own buffers."""

    def __init__(self, session: Session, name: str, dtype: Dtype, n: int) -> None:
        op: Op = gpubench.kernels.load(name)
        params = {"n": n}
        self._session, self._dtype, self._shape = session, dtype, op.output.shape(params)
        self.flops, self.bytes = op.flops(params), op.bytes(params, dtype)
        case = _supported(session, op, dtype, params)
        self._taken: list[Buffer] = []
        try:
            self.hosts = [pattern(x.shape(params), dtype, seed) for seed, x in enumerate(op.inputs)]
            for host in self.hosts:
                self._taken.append(session.allocate(host.shape, dtype))
                session.upload(self._taken[-1], host)
            if isinstance(session, Tunes):
                session.tune(op, case, self._taken)
            output = session.allocate(self._shape, dtype) if case.form == "tuned" else None
            self._taken += [] if output is None else [output]
            self._launch: Launch = session.compile(op, case, self._taken[: len(self.hosts)], output)
            wall_s(session, self._launch, 1)
        except BaseException:
            self.release()
            raise

    def seconds(self) -> float:
        """The shortest of some timings, each of launches for at least a millisecond, by the device's clock if it has
        one."""
        once = launch_seconds(self._session, self._launch, 1)
        repeat = max(1, round(TIMED_S / once)) if once > 0 else 1
        count = TIMINGS if once < LONG_S else TIMINGS_OF_LONG
        return min(launch_seconds(self._session, self._launch, repeat) for _ in range(count))

    def answer(self) -> Array:
        """Return what the last launch wrote."""
        return _answer(self._session, self._launch, self._shape, self._dtype)

    def release(self) -> None:
        """Give the buffers back."""
        for buffer in self._taken:
            self._session.free(buffer)
        self._taken = []


def launch_seconds(session: Session, launch: Launch, repeat: int) -> float:
    """Seconds per launch, by the device's clock if it has one."""
    seconds = device_seconds(session, launch, repeat)
    return (wall_s(session, launch, repeat) if seconds is None else seconds) / repeat


def _answer(session: Session, launch: Launch, shape: Shape, dtype: Dtype) -> Array:
    """Return what the last launch wrote."""
    found = nan_array(shape, dtype)
    session.download(launch.output, found)
    return found


def _supported(session: Session, op: Op, dtype: Dtype, params: dict[str, int]) -> Case:
    """The form that the device has. A product that is chosen by trials at each size is none of a ceiling's: the search
    for it would try them at every size; a copy is tried at one."""
    refusal: BackendError | None = None
    for form in FORMS:
        case = Case(op.name, op.group, params, dtype, form, session.device.resident_regime, session.device.id)
        refusal = session.supports(op, case)
        if refusal is None:
            kernel = op.kernel(case.backend, dtype) if form == "tuned" else None
            if op.name == "matmul" and kernel is not None and kernel.candidates is not None:
                raise _NoCeiling(f"the best {op.name} of this device is found by trials at each size")
            return case
    raise _NoCeiling(refusal.detail if refusal is not None else "no form of it runs here")
