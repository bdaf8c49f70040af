"""Trace the resources of a process while it makes many launches and transfers, or opens a device many times.

`launches` and `openings` return a `Trace`: the resources after a warm-up, half way and at the end. A leak grows
in both halves. A cache, a pool or an arena grows once and then keeps its size.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpubench.backends.contract import Backend, Session
from gpubench.kernels.contract.op import Implementation, Op
from gpubench.measure.worker.timer import Timer, device_seconds
from gpubench.measure.worker.workspace import gate, kind_of
from gpubench.result.case import Case

DeviceBytes = Callable[[], int | None]

# The number of launches between two waits. One of them copies in both directions, and one reads the clock of
# the device.
BATCH = 100
WARMUP_SHARE = 0.2
# The memory arenas of drivers grow during about this number of openings (llvmpipe: 12 MiB, then no more).
WARMUP_OPENINGS = 16
# The growth that is not a leak: arenas and pools take memory in pieces of this size. In 10,000 launches, 1 MiB
# is 105 bytes a launch; one forgotten buffer, bind group or event is more.
HOST_TOLERANCE_BYTES = 1 << 20
# In 200 openings, 20 KiB for each. An open device takes megabytes.
OPEN_TOLERANCE_BYTES = 4 << 20
# This number of elements is computed by several threads. Opening the device starts them, and closing it has to
# end them.
THREADED_ELEMENTS = 1 << 21
# The driver hands out device memory in pieces of 2 MiB.
DEVICE_TOLERANCE_BYTES = 4 << 20


class Held(msgspec.Struct, frozen=True):
    """The resources of a process."""

    rss_bytes: int  # resident memory
    handles: int  # number of open files or handles
    threads: int  # number of threads
    device_bytes: int | None = None  # device memory in use, or None if it is unknown


class Trace(msgspec.Struct, frozen=True):
    """The resources of a process while it repeats some work."""

    what: str  # work, in words
    count: int  # number of launches or openings
    first: Held  # resources after the warm-up
    middle: Held  # resources half way
    last: Held  # resources at the end
    tolerance_bytes: int = HOST_TOLERANCE_BYTES  # growth of host memory that is no leak

    def leaks(self) -> list[str]:
        """Return one sentence for each resource that grew in both halves by more than half its tolerance."""
        tolerances = {
            "rss_bytes": self.tolerance_bytes, "handles": 0, "threads": 0,
            "device_bytes": DEVICE_TOLERANCE_BYTES,
        }  # fmt: skip
        growths = []
        for name, tolerance in tolerances.items():
            first, middle, last = (getattr(held, name) for held in (self.first, self.middle, self.last))
            if first is not None and min(middle - first, last - middle) > tolerance / 2:
                growths.append(f"{name} grew from {first} to {middle} half way and {last} after {self.count}")
        return growths


def take_stock(device_bytes: DeviceBytes | None = None) -> Held:
    """Return the resources of this process, after garbage collection and a trim of glibc's memory."""
    import psutil

    gc.collect()
    _trim()
    process = psutil.Process()
    with process.oneshot():
        handles = process.num_handles() if hasattr(process, "num_handles") else process.num_fds()
        rss, threads = process.memory_info().rss, process.num_threads()
    return Held(rss, handles, threads, device_bytes() if device_bytes is not None else None)


def _trim() -> None:
    """Make glibc return freed memory to the system. Do nothing with other C libraries."""
    # Its arenas keep tens of MiB, which look like a leak but are not (200 openings of llvmpipe: 190 MiB
    # resident, 109 MiB afterwards).
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


class Repeats(msgspec.Struct, frozen=True):
    """How often to repeat the work."""

    count: int  # number of repeats
    limit_s: float = 60.0  # about the most seconds of both halves; the warm-up has half of them in addition
    device_bytes: DeviceBytes | None = None  # returns the device memory in use


def trace(
    what: str,
    repeats: Repeats,
    step: Callable[[], int],
    *,
    warmup: int,
    tolerance_bytes: int = HOST_TOLERANCE_BYTES,
) -> Trace:
    """Repeat `step` about `warmup` times, then `repeats.count` times in two halves, and return the trace.

    `step` returns the number of repeats that it made. If the first half takes longer than half of the limit, it
    ends early, and the second half makes the same number of repeats.
    """
    _steps(step, warmup, repeats.limit_s / 2)
    first = take_stock(repeats.device_bytes)
    half = _steps(step, -(-repeats.count // 2), repeats.limit_s / 2)
    middle = take_stock(repeats.device_bytes)
    done = half + _steps(step, half, repeats.limit_s)
    return Trace(what, done, first, middle, take_stock(repeats.device_bytes), tolerance_bytes)


def _steps(step: Callable[[], int], count: int, limit_s: float) -> int:
    done, until = 0, time.monotonic() + limit_s
    while done < count and (not done or time.monotonic() < until):
        done += step()
    return done


def launches(session: Session, op: Op, case: Case, folder: Path, repeats: Repeats) -> Trace:
    """Trace launches of a checked case, mixed with calls that copy in both directions and readings of the
    device's clock."""
    workspace = kind_of(op)(session, op, case, 1, "random", folder)
    try:
        launch = gate(workspace, case, lambda phase: None).launch
        copied = Timer(workspace, msgspec.structs.replace(case, regime="transfer-always"), launch)

        def step() -> int:
            for _ in range(BATCH // 10):
                session.run(launch, 10)
            session.sync()
            if session.device.kind != "cpu":
                copied.seconds(1)
                device_seconds(session, launch, 2)
            return BATCH

        return trace(
            f"{op.name} {case.implementation}", repeats, step, warmup=round(repeats.count * WARMUP_SHARE)
        )
    finally:
        workspace.release()
        for file in folder.iterdir():
            file.unlink()


def resident_case(session: Session, op: Op, n: int, implementation: Implementation) -> Case:
    """Return the case of an op whose data stay on the computing device."""
    device = session.device
    return Case(op.name, op.group, {"n": n}, "float32", implementation, device.resident_regime, device.id)


def openings(backend: Backend, device_id: str, op: Op, folder: Path, repeats: Repeats) -> Trace:
    """Trace the openings of a device. Each one opens the device, uses each implementation once and closes the
    device."""

    def step() -> int:
        with contextlib.closing(backend.open(device_id)) as session:
            session.run(session.empty_launch())
            session.sync()
            for implementation in backend.implementations:
                n = 1000 if session.device.kind != "cpu" else THREADED_ELEMENTS
                case = resident_case(session, op, n, implementation)
                if session.supports(op, case) is None:
                    launches_once(session, op, case, folder)
        return 1

    warmup = max(WARMUP_OPENINGS, round(repeats.count * WARMUP_SHARE))
    return trace("open and close", repeats, step, warmup=warmup, tolerance_bytes=OPEN_TOLERANCE_BYTES)


def launches_once(session: Session, op: Op, case: Case, folder: Path) -> None:
    """Make one checked launch, and read the clock of the device once."""
    workspace = kind_of(op)(session, op, case, 1, "random", folder)
    device_seconds(session, gate(workspace, case, lambda phase: None).launch, 1)
    workspace.release()
    for file in folder.iterdir():
        file.unlink()
