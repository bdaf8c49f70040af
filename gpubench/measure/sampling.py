"""Child side: overhead, repeat counts, warm-up and the three regimes (measurement.md 4, 5)."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from gpubench.backends._host import calls_library
from gpubench.measure import derived
from gpubench.measure.checking import Material
from gpubench.measure.parts import Times, add, calls
from gpubench.measure.staging import transfers_of
from gpubench.model.backend import Buffer, Launch, Session
from gpubench.model.case import Case
from gpubench.model.result import Block

# A sample lasts at least this long on the wall clock, so that two clock readings and the scheduler's
# jitter are below 1 % of it; on the device clock 1 ms does (measurement.md section 5).
SAMPLE_S = 5e-3
HOT_SAMPLE_S = 1e-3
LONGEST_REPEAT = 1 << 20
CONFIRMATIONS = 2
LONG_SAMPLES = 20
LONGEST_HOT_REPEAT = 1 << 11
OVERHEAD_FACTOR = 10
CLOCK_STEPS = 1000
CLOCK_READINGS = 10_000
WARMUP_LAUNCHES = 3
# Samples on the device clock, of each kind, and calls taken apart, per block: they explain the wall time and do not
# stop the case. Between its samples, because a machine is not the same a second later.
DEVICE_SAMPLES = 2
CALLS_IN_PARTS = 3
# The sides of a split explain a time, they do not estimate it.
SIDES_LIMIT_S = 0.5


class Sampled(Protocol):
    """What is sampled: a `Cycle`, or an overhead. `warmup_launches` come before the first sample that counts."""

    case: Case
    session: Session
    repeat: int
    hot_repeat: int | None
    warmup_launches: int

    def seconds(self, repeat: int) -> float:
        """Wall seconds per launch of one sample of `repeat` launches."""


class Cycle:
    """One case ready to be sampled: `seconds(repeat)` runs it and returns seconds per launch."""

    def __init__(self, material: Material, case: Case, launch: Launch) -> None:
        self.material = material
        self.case = case
        self.launch = launch
        self.session: Session = material.session
        self.transfers = transfers_of(self.session, case.form)
        self.repeat = 1
        self.hot_repeat: int | None = None
        self.warmup_launches = WARMUP_LAUNCHES
        self.in_parts = False  # whether calls are taken apart beside the samples
        self.flush: Callable[[], None] | None = None  # before every sample, which is then of one launch

    def seconds(self, repeat: int) -> float:
        """Wall seconds per launch of one sample in this case's regime."""
        regime = {
            "resident": self._resident, "transfer-once": self._transfer_once,
            "transfer-always": self._transfer_always,
        }[self.case.regime]  # fmt: skip
        if self.flush is not None:
            self.flush()
        return regime(repeat)

    def _resident(self, repeat: int) -> float:
        session, clock = self.session, self.session.clock
        start = clock()
        session.run(self.launch, repeat)
        session.sync()
        return (clock() - start) / repeat

    def _transfer_once(self, repeat: int) -> float:
        session, clock, calls = self.session, self.session.clock, self.case.calls or 1
        transfers = self.transfers
        start = clock()
        for _ in range(repeat):
            for buffer, host in zip(self.material.buffers, self.material.inputs, strict=True):
                transfers.upload(buffer, host)
            session.run(self.launch, calls)
            transfers.download(self.launch.output, self.material.landing)
        return (clock() - start) / (repeat * calls)

    def _transfer_always(self, repeat: int) -> float:
        clock = self.session.clock
        start = clock()
        for _ in range(repeat):
            buffers, output = self.take()
            for buffer, host in zip(buffers, self.material.inputs, strict=True):
                self.transfers.upload(buffer, host)
            launch = self.session.compile(self.material.op, self.case, buffers, output)
            self.session.run(launch)
            self.transfers.download(launch.output, self.material.landing)
            self.give_back(buffers, output)
        return (clock() - start) / repeat

    def verify(self) -> None:
        """Check what this case's own path delivers: the output left behind (resident), then one more cycle
        over poisoned outputs on the device and on the host. Raises Wrong."""
        resident = self.case.regime == "resident"
        if resident:
            self.material.verify(self.launch, self.case.precision)
        left = self.launch.output
        self._poison()
        self.seconds(1)
        if self.case.regime == "transfer-always" and self.launch.output is None:
            self.launch.output = (
                left  # this regime makes launches of its own; the others' answer is still to check
            )
        if resident:
            self.material.verify(self.launch, self.case.precision)
        else:
            self.material.verify_landing(self.case.precision)

    def _poison(self) -> None:
        """Nothing that an earlier launch wrote may pass for this one's answer."""
        if calls_library(self.material.op, self.case):
            self.launch.output = None  # a launch that makes no array of its own leaves nothing to download
        if self.case.regime != "transfer-always":
            self.material.output(self.case)
        elif not calls_library(self.material.op, self.case):
            # The pool hands these out again, and in which order is its own business. The output that the other
            # regimes share stays as it is: what they left in it is still to be checked.
            buffers, output = self.take()
            op = self.material.op
            for buffer, operand in zip((*buffers, output), (*op.inputs, op.output), strict=True):
                self.material.spoil(buffer, operand)
            self.session.sync()
            self.give_back(buffers, output)
        self.material.poison_landing()

    def take(self) -> tuple[list[Buffer], Buffer | None]:
        """Buffers for the inputs and, in the tuned form, the output, from the warm pool."""
        op, case = self.material.op, self.case
        buffers = [self.session.allocate(x.shape(case.params), case.dtype) for x in op.inputs]
        if calls_library(op, case):
            return buffers, None
        return buffers, self.session.allocate(op.output.shape(case.params), case.dtype)

    def give_back(self, buffers: list[Buffer], output: Buffer | None) -> None:
        """The inverse of `take`."""
        for buffer in buffers if output is None else [*buffers, output]:
            self.session.free(buffer)

    def release(self) -> None:
        """Nothing of its own: the material frees the buffers."""


def clock_facts(clock: Callable[[], float]) -> tuple[float, float]:
    """(smallest step seen, mean cost of one reading) of a clock, in seconds."""
    count = 2000
    readings = [clock() for _ in range(count)]
    steps = [b - a for a, b in itertools.pairwise(readings) if b > a]
    return (min(steps) if steps else 0.0), (readings[-1] - readings[0]) / (count - 1)


def measure_overhead(session: Session, count: int = 100) -> list[float]:
    """Seconds of an empty launch and its synchronise, `count` times after a short warm-up."""
    empty = session.empty_launch()
    values = []
    for i in range(count + 10):
        start = session.clock()
        session.run(empty)
        session.sync()
        if i >= 10:
            values.append(session.clock() - start)
    return values


def calibrate(cycle: Sampled, overhead_s: float, clock_step_s: float, clock_cost_s: float) -> int:
    """Launches (or transfer cycles) per sample: doubled from 1 until it is long for its clock and overhead."""
    target = max(
        SAMPLE_S, OVERHEAD_FACTOR * overhead_s, CLOCK_STEPS * clock_step_s, CLOCK_READINGS * clock_cost_s
    )
    launches = cycle.case.calls or 1
    repeat = 1
    while True:
        seconds = _undisturbed(cycle, repeat, target / launches) * launches
        if seconds * repeat >= target:
            # The last doubling overshoots by up to two: keep a margin of a fifth and give the rest back.
            return min(repeat, max(1, math.ceil(1.2 * target / seconds)))
        if repeat >= LONGEST_REPEAT:
            return repeat
        repeat *= 2
        # Far from the target several doublings are taken at once, up to half of what this sample predicts.
        while repeat * 2 * seconds <= target / 2 and repeat < LONGEST_REPEAT:
            repeat *= 2


def _undisturbed(cycle: Sampled, repeat: int, enough_s: float) -> float:
    """Seconds per launch. A sample that seems long enough may have been interrupted: the shortest of three counts.
    A launch that takes many times as long by itself is believed at once."""
    seconds = cycle.seconds(repeat)
    for _ in range(CONFIRMATIONS):
        if seconds * repeat < enough_s or (repeat == 1 and seconds > LONG_SAMPLES * enough_s):
            break
        seconds = min(seconds, cycle.seconds(repeat))
    return seconds


def calibrate_hot(cycle: Cycle) -> int | None:
    """Launches per device-clock sample, so that it lasts 1 ms; r of `derived` for a GPU without a clock; else None."""
    repeat = 1
    while True:
        seconds = cycle.session.time(cycle.launch, repeat)
        if seconds is None:
            if derived.derives(cycle.session):
                return derived.launches(cycle.session, cycle.launch, LONGEST_HOT_REPEAT)
            return None
        if seconds >= HOT_SAMPLE_S or repeat >= LONGEST_HOT_REPEAT:
            # Time per launch falls as launches queue up: fewer than on the wall clock would look slower than it.
            return max(repeat, min(cycle.repeat, LONGEST_HOT_REPEAT))
        wanted = repeat * HOT_SAMPLE_S / max(seconds, 1e-9)
        repeat = min(max(2 * repeat, 1 << math.ceil(math.log2(wanted))), LONGEST_HOT_REPEAT)


def time_sides(cycle: Cycle, count: int) -> dict[str, list[float]]:
    """Of a split, the seconds per launch of each side alone, and of the CPU's beside the GPU's (`Divides.sides`)."""
    found: dict[str, list[float]] = {}
    session: Any = cycle.session
    landing = None if cycle.case.regime == "resident" else cycle.material.landing
    launches = cycle.repeat if landing is None else cycle.case.calls or 1
    began = time.perf_counter()
    for turn in range(count + 1):
        sides: dict[str, float] = session.sides(cycle.launch, launches, landing)
        late = time.perf_counter() - began > SIDES_LIMIT_S
        if turn or late:  # the first round is thrown away, unless there is no time for another
            for name, seconds in sides.items():
                found.setdefault(name, []).append(seconds)
        if late:
            break
    return found


class Taken(NamedTuple):
    """A block, the monotonic times at which it began and at which each entry of `wall_s` ended, and parts of calls."""

    block: Block
    times_s: list[float]
    parts: Times


def sample_block(
    cycle: Sampled, *, session: int, round_: int, position: int, samples: int, warmup_s: float, limit_s: float,
    since: float,
) -> Taken:  # fmt: skip
    """Warm up for `warmup_s` (and `warmup_launches`), then take samples; everything is kept.

    Wall and device samples alternate in `resident`, wall samples and calls taken apart in `transfer-always`. Where the
    device counts its cycles, its clock is read after each sample.
    `since` is the monotonic time at which the session began.
    """
    began = time.monotonic()
    times, wall = [began], []
    cold_s: list[float] = []
    hot_s: list[float] = []
    clock_hz: list[float | None] = []
    parts: Times = {}
    core_hz = getattr(cycle.session, "core_hz", None) if isinstance(cycle, Cycle) else None

    def take() -> None:
        wall.append(cycle.seconds(cycle.repeat))
        times.append(time.monotonic())

    _warm_up(cycle, warmup_s, take)
    warmup = len(wall)
    on_device = cycle.case.regime == "resident" and cycle.hot_repeat is not None
    with _no_garbage_collection():
        while len(wall) - warmup < samples:
            take()
            if core_hz is not None:
                clock_hz.append(core_hz())
            if isinstance(cycle, Cycle) and on_device and len(hot_s) < DEVICE_SAMPLES:
                _device_samples(cycle, hot_s, cold_s)
            if isinstance(cycle, Cycle) and cycle.in_parts and len(wall) - warmup <= CALLS_IN_PARTS:
                add(parts, calls(cycle, cycle.repeat))
            if time.monotonic() - began > limit_s:
                break
    block = Block(
        session=session, round=round_, position=position, repeat=cycle.repeat * (cycle.case.calls or 1),
        hot_repeat=cycle.hot_repeat if on_device else None, warmup=warmup, t_s=began - since, wall_s=wall,
        device_cold_s=cold_s or None, device_hot_s=hot_s or None, clock_hz=_all_known(clock_hz),
    )  # fmt: skip
    return Taken(block, times, parts)


def _all_known(clock_hz: list[float | None]) -> list[float] | None:
    known = [hertz for hertz in clock_hz if hertz is not None]
    return known if known and len(known) == len(clock_hz) else None


def _device_samples(cycle: Cycle, hot_s: list[float], cold_s: list[float]) -> None:
    """One hot and one cold sample: `repeat` launches with warm caches, and one after a flush.

    Without a clock the hot one is derived, and there is no cold one.
    """
    hot_repeat = cycle.hot_repeat or 1
    if derived.derives(cycle.session):
        seconds = derived.hot_s(cycle.session, cycle.launch, hot_repeat)
        hot_s += [] if seconds is None else [seconds]
        return
    seconds = cycle.session.time(cycle.launch, hot_repeat)
    if seconds is not None:
        hot_s.append(seconds / hot_repeat)
    seconds = cycle.session.time(cycle.launch, 1, cold=True)
    if seconds is not None:
        cold_s.append(seconds)


def _warm_up(cycle: Sampled, warmup_s: float, take: Callable[[], None]) -> None:
    """By the session's clock, and no longer by the host's: what stands still on a scripted clock ends, too."""
    clock, until = cycle.session.clock, time.monotonic() + warmup_s
    start, launches = clock(), 0
    while launches < cycle.warmup_launches or (clock() - start < warmup_s and time.monotonic() < until):
        take()
        launches += cycle.repeat * (cycle.case.calls or 1)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
