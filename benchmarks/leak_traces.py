"""Does work leave anything behind? Launches, transfers and openings of a device, and what the process holds after.

`launches` and `openings` return a `Trace`: what was held after a warm-up, half way and at the end. A leak grows in
both halves; what grows once and stays is a cache, a pool or an arena.
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

# Launches between two waits, and of these one call that copies both ways and one reading of the device's clock.
BATCH = 100
WARMUP_SHARE = 0.2
# Drivers go on filling their arenas for about so many openings (llvmpipe: 12 MiB, then flat).
WARMUP_OPENINGS = 16
# Growth that is no leak: arenas and pools take memory in pieces of this size. In 10,000 launches 1 MiB is 105 bytes
# a launch; one forgotten buffer, bind group or event is more.
HOST_TOLERANCE_BYTES = 1 << 20
# 200 openings: 20 KiB each. What an open device holds is megabytes.
OPEN_TOLERANCE_BYTES = 4 << 20
# So many are spread over threads, which an opening starts and a closing has to end.
THREADED_ELEMENTS = 1 << 21
# The driver hands out device memory in pieces of 2 MiB.
DEVICE_TOLERANCE_BYTES = 4 << 20


class Held(msgspec.Struct, frozen=True):
    """The possessions of a process: resident memory, open files or handles, threads, and device memory if known."""

    rss_bytes: int
    handles: int
    threads: int
    device_bytes: int | None = None


class Trace(msgspec.Struct, frozen=True):
    """`count` launches or openings of `what`, and the possessions after the warm-up, half way and at the end."""

    what: str
    count: int
    first: Held
    middle: Held
    last: Held
    tolerance_bytes: int = HOST_TOLERANCE_BYTES

    def leaks(self) -> list[str]:
        """Return one sentence for each quantity that grew in both halves by more than half its tolerance."""
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
    """Return what this process holds now, without garbage and without freed memory in the allocator's lists."""
    import psutil

    gc.collect()
    _trim()
    process = psutil.Process()
    with process.oneshot():
        handles = process.num_handles() if hasattr(process, "num_handles") else process.num_fds()
        rss, threads = process.memory_info().rss, process.num_threads()
    return Held(rss, handles, threads, device_bytes() if device_bytes is not None else None)


def _trim() -> None:
    """Let glibc hand freed memory back to the system. Its arenas keep tens of MiB, which look like a leak but are none
    (200 openings of llvmpipe: 190 MiB resident, 109 after it). Other C libraries have no such call."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


class Repeats(msgspec.Struct, frozen=True):
    """The number of repeats within about `limit_s` seconds, and the function that reads the device memory in use."""

    count: int
    limit_s: float = 60.0
    device_bytes: DeviceBytes | None = None


def trace(
    what: str,
    repeats: Repeats,
    step: Callable[[], int],
    *,
    warmup: int,
    tolerance_bytes: int = HOST_TOLERANCE_BYTES,
) -> Trace:
    """Repeat `step` `warmup` times, then `repeats.count` times in two halves; `step` returns how many repeats it made.

    If the first half takes longer than half of the limit, it ends early and the second half makes as many repeats:
    fewer than `count` in all.
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
    """Trace launches of a checked case, mixed with calls that copy both ways and readings of the device's clock."""
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
    """Return the case of an op on data that stays where the device computes."""
    device = session.device
    return Case(op.name, op.group, {"n": n}, "float32", implementation, device.resident_regime, device.id)


def openings(backend: Backend, device_id: str, op: Op, folder: Path, repeats: Repeats) -> Trace:
    """Trace openings: open the device, use each implementation once, close it."""

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
    """Make one checked launch, and read the device's clock once."""
    workspace = kind_of(op)(session, op, case, 1, "random", folder)
    device_seconds(session, gate(workspace, case, lambda phase: None).launch, 1)
    workspace.release()
    for file in folder.iterdir():
        file.unlink()
