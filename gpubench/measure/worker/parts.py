"""Child side: the parts of a call's time and quantities of the device, which are measured beside the
samples."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from gpubench.backends.contract import Session
from gpubench.backends.contract.protocols import CoreClock, TimesSides

if TYPE_CHECKING:
    from gpubench.measure.worker.timer import Timer

Times = dict[str, list[float]]  # seconds of each part of a call

# Most seconds for the sides of a split, which only explain a time.
SIDES_LIMIT_S = 0.5


def time_sides(timer: Timer, count: int) -> dict[str, list[float]]:
    """Return the seconds per launch of each part of a split or a device group, `count` times if SIDES_LIMIT_S
    allows. See `TimesSides.sides`."""
    session = timer.session
    assert isinstance(session, TimesSides)
    host_output = None if timer.case.resident else timer.workspace.host_outputs[0]
    launches = timer.repeat if host_output is None else timer.case.calls or 1
    return _repeat(lambda: session.sides(timer.launch, launches, host_output), count, 1, SIDES_LIMIT_S)


def _repeat(call: Callable[[], dict[str, float]], count: int, warm_up: int, limit_s: float) -> Times:
    """Return the seconds of each part of up to `count` calls, after `warm_up` calls that do not count."""
    parts: Times = {}
    began = time.perf_counter()
    for number in range(count + warm_up):
        seconds = call()
        late = time.perf_counter() - began > limit_s
        if number >= warm_up or late:  # at least one call counts
            add_parts(parts, seconds)
        if late:
            break
    return parts


# Most seconds for the parts of a call, which only explain a time.
PARTS_LIMIT_S = 0.06
# Number of calls that do not count. The steps of a call are faster if they have just been made.
PARTS_WARM_UP = 2


def time_parts(timer: Timer, count: int) -> Times:
    """Return the seconds of each part of a call, from `count` calls or from as many as fit `PARTS_LIMIT_S`."""
    return _repeat(lambda: parts_of_call(timer), count, PARTS_WARM_UP, PARTS_LIMIT_S)


def fenced_launch(timer: Timer) -> dict[str, list[float]]:
    """Return the seconds of one launch with its wait (`single_s`), and of a wait without a launch
    (`sync_s`)."""
    session, steps = timer.session, dict[str, float]()
    session.sync()
    with _clock(session, steps, "single_s"):
        session.run(timer.launch)
        session.sync()
    with _clock(session, steps, "sync_s"):
        session.sync()
    return {name: [seconds] for name, seconds in steps.items()}


def mean_steps(calls: Sequence[tuple[float, ...]]) -> dict[str, float]:
    """Return the mean seconds of each step. `result_s` includes the wait for the kernel. `calls` has six clock
    readings for each call: at its begin, and after taking memory, uploading, launching, fetching the result,
    and giving the memory back."""
    means = [sum(call[i + 1] - call[i] for call in calls) / len(calls) for i in range(5)]
    taking, upload, launch, result, giving = means
    return {"alloc_s": taking + giving, "upload_s": upload, "launch_s": launch, "result_s": result}


def add_parts(parts: Times, call: dict[str, float]) -> None:
    """Append the seconds of one more call to `parts`."""
    for name, seconds in call.items():
        parts.setdefault(name, []).append(seconds)


def parts_of_call(timer: Timer) -> dict[str, float]:
    """Return the seconds of each part of one `transfer-always` call, by the name of its field in `Parts`. The
    device is waited for before and after each step. The wait at the end of the upload is subtracted."""
    # The steps follow each other as in a real call. One that is timed alone takes longer, as the interpreter
    # has waited for the device, and the caches hold other data.
    session, workspace, transfers = timer.session, timer.workspace, timer.transfers
    steps: dict[str, float] = {}
    if timer.flush is not None:
        timer.flush()
    session.sync()
    with _clock(session, steps, "alloc_s"):
        buffers, output = timer.take()
    with _clock(session, steps, "upload_s"):
        for i in timer.sent:
            transfers.upload(buffers[i], workspace.inputs[i])
        session.sync()
    with _clock(session, steps, "sync_s"):
        session.sync()
    steps["upload_s"] = max(0.0, steps["upload_s"] - steps["sync_s"])
    with _clock(session, steps, "launch_s"):
        launch = workspace.compile(timer.case, buffers, output)
        session.run(launch)
    session.sync()
    with _clock(session, steps, "download_s"):
        timer.fetch(launch)
    with _clock(session, steps, "alloc_s"):
        timer.give_back(buffers, output)
    with _clock(session, steps, "single_s"):
        session.run(timer.launch)
        session.sync()
    return steps


@contextlib.contextmanager
def _clock(session: Session, into: dict[str, float], name: str) -> Iterator[None]:
    """Add the seconds of the `with` block to `into[name]`."""
    start = session.clock()
    yield
    into[name] = into.get(name, 0.0) + session.clock() - start


# ---------------------------------------------------------------- quantities of the device


class Observer(Protocol):
    """A reader of one quantity of the device. It is never called while something is timed."""

    def begin(self) -> None:
        """Start again, because a block begins."""

    def read(self) -> None:
        """Read the quantity once. It is called after each sample that counts."""

    def end(self) -> Mapping[str, object]:
        """Return fields to store in the block that ended."""


class CoreClockObserver:
    """The observer of the clock of the cores, in Hz."""

    def __init__(self, device: CoreClock) -> None:
        self._device = device
        self._hertz: list[float | None] = []

    def begin(self) -> None:
        self._hertz = []

    def read(self) -> None:
        self._hertz.append(self._device.core_hz())

    def end(self) -> Mapping[str, object]:
        """Return `{"clock_hz": [...]}`, or an empty mapping unless the device reported a clock after every
        sample."""
        return {"clock_hz": self._hertz} if self._hertz and None not in self._hertz else {}


def observers_of(session: Session) -> list[Observer]:
    """Return the observers of all quantities that the device can report."""
    return [CoreClockObserver(session)] if isinstance(session, CoreClock) else []
