"""Child side: where the time of one call goes, part by part (measurement.md section 8)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpubench.model.backend import Session

if TYPE_CHECKING:
    from gpubench.measure.sampling import Cycle

Times = dict[str, list[float]]

# The parts explain a time, they do not estimate it: a slow case is not made several times slower for them.
LIMIT_S = 0.5
# What is thrown away first: the steps of a call are quicker when they have just been made.
WARM_UP = 2
MOST_CALLS = 200


def time_parts(cycle: Cycle, count: int) -> Times:
    """Seconds of each part of `count` calls, as many as fit `LIMIT_S`, after some that are thrown away."""
    parts: Times = {}
    began = time.perf_counter()
    for turn in range(count + WARM_UP):
        found = one_call(cycle)
        late = time.perf_counter() - began > LIMIT_S
        if turn >= WARM_UP or late:
            add(parts, found)
        if late:
            break
    return parts


def calls(cycle: Cycle, repeat: int) -> dict[str, float]:
    """Mean seconds of each part of `repeat` calls: as many as a sample of wall time has, so that what interrupts the
    one in passing interrupts the other as often."""
    found = [one_call(cycle) for _ in range(min(repeat, MOST_CALLS))]
    return {name: sum(call[name] for call in found) / len(found) for name in found[0]}


def add(parts: Times, found: dict[str, float]) -> None:
    """Append the parts of one more call."""
    for name, seconds in found.items():
        parts.setdefault(name, []).append(seconds)


def one_call(cycle: Cycle) -> dict[str, float]:
    """Seconds of each part of one call as `transfer-always` makes it, step by step, with a fence before and after each.

    In step with the real call, because its steps are slower alone: an interpreter that just waited for a device, and
    caches that held something else, took up to three times as long. Uploading ends with a fence of its own, whose
    time is that of `sync_s` and is not counted twice.
    """
    session, material, transfers = cycle.session, cycle.material, cycle.transfers
    found: dict[str, float] = {}
    if cycle.flush is not None:
        cycle.flush()
    session.sync()
    with _timed(session, found, "alloc_s"):
        buffers, output = cycle.take()
    with _timed(session, found, "upload_s"):
        for buffer, host in zip(buffers, material.inputs, strict=True):
            transfers.upload(buffer, host)
        session.sync()
    with _timed(session, found, "sync_s"):
        session.sync()
    found["upload_s"] = max(0.0, found["upload_s"] - found["sync_s"])
    with _timed(session, found, "launch_s"):
        launch = session.compile(material.op, cycle.case, buffers, output)
        session.run(launch)
    session.sync()
    with _timed(session, found, "download_s"):
        transfers.download(launch.output, material.landing)
    with _timed(session, found, "alloc_s"):
        cycle.give_back(buffers, output)
    with _timed(session, found, "single_s"):
        session.run(cycle.launch)
        session.sync()
    return found


@contextlib.contextmanager
def _timed(session: Session, into: dict[str, float], name: str) -> Iterator[None]:
    """Add the seconds to what the part has taken so far."""
    start = session.clock()
    yield
    into[name] = into.get(name, 0.0) + session.clock() - start
