"""Child side: take samples of calls in each regime, and find how many launches make a sample."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from gpubench.backends.contract import Buffer, Launch, ReadyBuffers, Session
from gpubench.backends.contract.protocols import AssignsStages, LaunchClock, Splits
from gpubench.backends.shared.host import calls_library
from gpubench.backends.shared.memory import InPlaceSession
from gpubench.kernels.contract.op import Operand, each
from gpubench.measure import protocol
from gpubench.measure.worker import parts
from gpubench.measure.worker.parts import Observer, Times, observers_of
from gpubench.measure.worker.workspace import Workspace
from gpubench.result.case import MANAGED, MAPPED, QUEUED, RESIDENT, WAITED, Case
from gpubench.result.run import Block, Check, Staging

# Least seconds of a sample on the device clock, whose steps are half a microsecond.
HOT_SAMPLE_S = 0.25e-3
LONGEST_REPEAT = 1 << 20
# A block begins with so many launches that do not count, or as many as fill WARM_S: large caches fill slowly.
WARM_LAUNCHES, WARM_S = 4, 0.01
# If a launch takes longer than this, hot and cold device samples are taken in turns.
IN_TURNS_S = 0.25
LONGEST_HOT_REPEAT = 1 << 11
# In a row of this many launches, the longer time of the first one does not matter.
QUEUED_LAUNCHES = 128
OVERHEAD_FACTOR = 10
CLOCK_STEPS = 1000
CLOCK_READINGS = 10_000
# If the first sample of a block lasts less than TOO_SHORT of its target, the repeat count is raised and the
# block begins anew, at most MOST_RAISES times. A settled count is raised only if the sample lasts less than
# FAR_TOO_SHORT, because all sessions use the same count.
TOO_SHORT, FAR_TOO_SHORT, MOST_RAISES = 0.5, 0.2, 6
# The launch before the samples is at most this many times slower than later ones. So a predicted count that
# would need longer is too high.
SLOW = 10
# Samples of each kind on the device clock in a block. They explain the wall time and do not stop the case. They
# are taken between its other samples, because a machine is not the same a second later.
DEVICE_SAMPLES = 1


class Timed:
    """Base class of timers, which take samples of one case with a repeat count. Attributes that a case does not
    use keep their defaults."""

    case: Case  # the sampled case
    session: Session  # the session of the case's device
    repeat = 1
    hot_repeat: int | None = None  # launches of a sample on the device's clock; None if this clock is not read
    single = False  # whether nothing has to be warmed up
    adjusts = False  # whether a block may correct the repeat count
    settled = True  # whether a block has confirmed the repeat count
    # called before every sample, which then has one launch; None: caches stay as they are
    flush: Callable[[], None] | None = None
    steps: Times | None = None  # collects the seconds of the steps of copying calls; None if they are not timed
    sides: Mapping[str, Callable[[], float]] = {}  # by name of a side: takes a sample of that side alone
    observers: Sequence[Observer] = ()  # the observers, which read after each sample
    gpu_pieces: int | UnsetType = UNSET  # number of pieces of a split's GPU share
    resident_launch: Launch | None = None  # the launch of all regimes with resident data; None: another regime

    @abstractmethod
    def seconds(self, repeat: int) -> float:
        """Return the wall seconds per launch of one sample, which is `repeat` launches."""

    @abstractmethod
    def verify(self) -> Check | None:
        """Check the result. Raises Wrong. Returns the check of an overhead, and None for other cases, whose
        check is in the workspace."""

    @abstractmethod
    def release(self) -> None:
        """Free the timer's memory."""

    def calibrate(self, request: protocol.Prepare, target_s: float, announce: Callable[[str], None]) -> None:
        """Set the repeat count to that of an earlier session, or find one for samples of `target_s` seconds."""
        if request.repeat is not None:
            self.repeat = max(1, request.repeat // (request.case.calls or 1))
        else:
            announce("calibrate")
            self.repeat = calibrate(self, target_s)

    def read_device(self, hot_s: list[float], cold_s: list[float], turn: int | None) -> None:
        """Append samples by the device's clock: a hot one (warm caches) to `hot_s`, a cold one (after a flush)
        to `cold_s`. An odd `turn` takes only the hot one, an even one only the cold one, and None both. The
        default appends nothing."""


class Timer(Timed):
    """A timer of one case of an op that computes."""

    adjusts = True

    def __init__(self, workspace: Workspace, case: Case, launch: Launch) -> None:
        self.workspace = workspace
        self.case = case
        self.launch = launch
        self.session: Session = workspace.session
        self.transfers = self.session.transfers(case.implementation)
        self.calls, self.settled = case.calls or 1, False
        # The split of a case on two sides. It changes between samples.
        self.split: float | str | None = None
        self.observers = observers_of(self.session)
        self.resident_launch = launch if case.resident else None
        # Which of the inputs travel, and which of the outputs.
        op = workspace.op
        self.sent = [i for i, operand in enumerate(op.inputs) if operand.travels]
        # Where a call gets its memory: to look that up costs a call as much as a launch.
        self._fresh = calls_library(op, case)  # each launch returns an array of its own
        self._input_memory = [(i, self._memory(op.inputs[i])) for i in self.sent]
        self._output_memory = [] if self._fresh else [self._memory(operand) for operand in op.outputs]
        self.fetched = [i for i, operand in enumerate(op.outputs) if operand.travels]
        # Outputs that stay on the device while the others come from the pool, and the last call's output.
        self._staying: dict[int, Buffer] = {}
        self._left: Buffer = None

    @property
    def staging(self) -> Staging:
        """The way in which data reaches the device."""
        return self.transfers.staging

    def seconds(self, repeat: int) -> float:
        """Return the wall seconds per launch of one sample in the regime of the case."""
        regime = {
            RESIDENT: self._sample_in_queue, QUEUED: self._sample_in_queue, WAITED: self._sample_with_wait,
            "transfer-once": self._transfer_once, "transfer-always": self._transfer_always, MAPPED: self._in_place,
            MANAGED: self._in_place,
        }[self.case.regime]  # fmt: skip
        if self.flush is not None:
            self.flush()
        if self.split is not None:
            self._place(self.split)
        return regime(repeat)

    def _place(self, split: float | str) -> None:
        """Set the split of later calls between the two sides."""
        if isinstance(split, str):
            assert isinstance(self.session, AssignsStages)
            self.session.assign(split)
        else:
            assert isinstance(self.session, Splits)
            self.session.divide(self.workspace.op, self.case, split)

    def _seconds_at(self, split: float | str, repeat: int) -> float:
        """Return `seconds(repeat)` at another split."""
        before, self.split = self.split, split
        try:
            if isinstance(split, float):  # another workload may have taken the buffers of its pieces
                self.seconds(1)
            return self.seconds(repeat)
        finally:
            self.split = before

    def calibrate_at(self, sides: Mapping[str, float | str], target_s: float) -> None:
        """Set `self.sides`: for each of `sides` (name, split), a function that takes a sample of that side
        alone."""
        chosen = self.split
        for name, split in sides.items():
            self.split = split
            self.sides = {**self.sides, name: partial(self._seconds_at, split, calibrate(self, target_s))}
        self.split = chosen

    def verify_alone(self, sides: Mapping[str, float | str]) -> None:
        """Check the results at the split of each of `sides` (name, split), then at the current split. Raises
        Wrong."""
        shared = self.split
        for self.split in (*sides.values(), shared):
            self.verify()

    def calibrate(self, request: protocol.Prepare, target_s: float, announce: Callable[[str], None]) -> None:
        """Set the repeat counts to those of an earlier session, or to a prediction that the first block
        corrects. The count on the device's clock is found by trials."""
        if request.repeat is not None:
            super().calibrate(request, target_s, announce)
            self.settled, self.hot_repeat = True, request.hot_repeat
            keep_queue(self)
            return
        if request.expected_s is not None and self.flush is None:
            self.repeat = count(target_s, request.expected_s * (request.case.calls or 1))
        if self.case.queued and request.device_clock:
            announce("calibrate")
            self.hot_repeat = calibrate_hot(self)
            keep_queue(self)

    def read_device(self, hot_s: list[float], cold_s: list[float], turn: int | None) -> None:
        """Append a hot sample of `hot_repeat` launches and a cold one of one launch. `turn` may leave out one
        of them, as in `Timed.read_device`. Without a device clock, the hot sample is derived and there is no
        cold one."""
        hot_repeat = self.hot_repeat or 1
        if derives(self.session):
            seconds = derived_hot_s(self.session, self.launch, hot_repeat)
            hot_s += [] if seconds is None else [seconds]
            return
        if turn is None or turn % 2:
            seconds = device_seconds(self.session, self.launch, hot_repeat)
            hot_s += [] if seconds is None else [seconds / hot_repeat]
        if turn is None or not turn % 2:
            seconds = device_seconds(self.session, self.launch, 1, cold=True)
            cold_s += [] if seconds is None else [seconds]

    def _sample_in_queue(self, repeat: int) -> float:
        return wall_s(self.session, self.launch, repeat) / repeat

    def _sample_with_wait(self, repeat: int) -> float:
        return waited_s(self.session, self.launch, repeat)

    def _in_place(self, repeat: int) -> float:
        """Time calls that compute in the host's memory, until the host can read the result."""
        session, clock, seconds = self.session, self.session.clock, 0.0
        assert isinstance(session, InPlaceSession)
        memory, inputs = session.host_memory, [self.workspace.buffers[i] for i in self.sent]
        for _ in range(repeat):
            memory.hold(inputs, write=True)  # the CPU touches the data, which is not timed
            start = clock()
            memory.lend(inputs)
            session.run(self.launch)
            session.sync()
            outputs = each(self.launch.output)
            results = [outputs[i] for i in self.fetched]
            memory.hold(results, write=False)
            seconds += clock() - start
            memory.lend(results)
        return seconds / repeat

    def _transfer_once(self, repeat: int) -> float:
        session, clock, calls = self.session, self.session.clock, self.calls
        transfers, buffers, inputs = self.transfers, self.workspace.buffers, self.workspace.inputs
        start = clock()
        for _ in range(repeat):
            for i in self.sent:
                transfers.upload(buffers[i], inputs[i])
            session.run(self.launch, calls)
            self.fetch(self.launch)
        return (clock() - start) / (repeat * calls)

    def _transfer_always(self, repeat: int) -> float:
        """Time calls that copy."""
        # Between steps the clock is read without waiting, so that they add up to the whole call.
        clock, noted, inputs = self.session.clock, self.steps is not None, self.workspace.inputs
        steps = []
        start = clock()
        for _ in range(repeat):
            began = clock() if noted else 0.0
            buffers, output = self.take()
            taken = clock() if noted else 0.0
            for i in self.sent:
                self.transfers.upload(buffers[i], inputs[i])
            uploaded = clock() if noted else 0.0
            launch = self.workspace.compile(self.case, buffers, output)
            self.session.run(launch)
            launched = clock() if noted else 0.0
            self.fetch(launch)
            fetched = clock() if noted else 0.0
            self.give_back(buffers, output)
            self._left = launch.output
            if noted:
                steps.append((began, taken, uploaded, launched, fetched, clock()))
        seconds = (clock() - start) / repeat
        if self.steps is not None:
            parts.add_parts(self.steps, parts.mean_steps(steps))
        return seconds

    def verify(self) -> None:
        """Check the results of this case. Data that stays on the device is checked first as the last launch
        left it. Then one more sample writes over sentinels, and its output is checked. Raises Wrong."""
        resident = self.case.resident or self.case.memory is not None
        if resident:
            self.workspace.verify(self.launch, self.case)
        earlier = self.launch.output
        self._spoil()
        # More in a row write what these do.
        self.calls, every = min(self.calls, protocol.MOST_CHECKED), self.calls
        self.seconds(1)
        self.calls = every
        if self.case.regime == "transfer-always" and self.launch.output is None:
            # this regime makes launches of its own; the others' answer is still to check
            self.launch.output = earlier
        if resident:
            self.workspace.verify(self.launch, self.case)
            return
        delivered = self._left if self.case.regime == "transfer-always" else self.launch.output
        self.workspace.fetch(delivered, self.session, travels=False)
        self.workspace.verify_host_output(self.case)

    def _spoil(self) -> None:
        """Overwrite earlier results, so that none of them passes for the next result."""
        if self._fresh:
            self.launch.output = None  # a launch that makes no array of its own leaves nothing to download
        if self.case.regime != "transfer-always":
            self.workspace.output(self.case)
        elif not self._fresh:
            # The pool hands these out again, and in which order is its own business. The output that the other
            # regimes share stays as it is: what they left in it is still to be checked.
            buffers, output = self.take()
            op = self.workspace.op
            fresh = [(buffers[i], op.inputs[i]) for i in self.sent]
            own = [(buffer, op.outputs[i]) for i, buffer in enumerate(each(output)) if i not in op.updated]
            for buffer, operand in (*fresh, *own):
                self.workspace.spoil(buffer, operand)
            self.workspace.spoil_between(self.case)
            self.session.sync()
            self.give_back(buffers, output)
        self.workspace.spoil_host_output()

    def take(self) -> tuple[list[Buffer], Buffer | None]:
        """Return buffers for the inputs, and for the outputs or None if the kernel makes its own. Operands that
        travel get buffers from the pool. The others use those of the workspace or of this timer."""
        op = self.workspace.op
        buffers = list(self.workspace.buffers)
        for i, memory in self._input_memory:
            buffers[i] = memory.take()
        if self._fresh:
            return buffers, None
        outputs = []
        for i, operand in enumerate(op.outputs):
            if i in op.updated:
                outputs.append(buffers[op.updated[i]])
                continue
            buffer = self._staying.get(i)
            if buffer is None:
                buffer = self._output_memory[i].take()
                if not operand.travels:
                    self._staying[i] = buffer
            outputs.append(buffer)
        return buffers, tuple(outputs) if op.more_outputs else outputs[0]

    def _memory(self, operand: Operand) -> ReadyBuffers:
        return self.session.ready_buffers(*operand.form(self.case.params, self.case.dtype))

    def give_back(self, buffers: list[Buffer], output: Buffer | None) -> None:
        """Give the buffers that `take` returned back to the pool."""
        for i, memory in self._input_memory:
            memory.give_back(buffers[i])
        if output is not None:
            outputs = each(output)
            for i in self.fetched:
                self._output_memory[i].give_back(outputs[i])

    def release(self) -> None:
        """Free the buffers of this timer. The workspace frees the others."""
        for buffer in self._staying.values():
            self.session.free(buffer)
        self._staying = {}

    def fetch(self, launch: Launch) -> None:
        """Download the outputs that travel."""
        outputs, hosts = each(launch.output), self.workspace.host_outputs
        for i in self.fetched:
            self.transfers.download(outputs[i], hosts[i])


def clock_facts(clock: Callable[[], float]) -> tuple[float, float]:
    """Return the smallest observed step of a clock and the mean duration of a reading, in seconds. The step is
    0 if the clock did not advance."""
    count = 2000
    readings = [clock() for _ in range(count)]
    steps = [b - a for a, b in itertools.pairwise(readings) if b > a]
    return (min(steps) if steps else 0.0), (readings[-1] - readings[0]) / (count - 1)


def measure_overhead(session: Session) -> list[float]:
    """Return the seconds of 100 empty launches, each with its wait, after ten that do not count."""
    empty = session.empty_launch()
    return [wall_s(session, empty, 1) for _ in range(110)][10:]


def sample_target_s(least_s: float, overhead_s: float, clock_step_s: float, clock_cost_s: float) -> float:
    """Return the least seconds of a sample. They are more than `least_s` if the step of the clock, a reading of
    it, or the overhead of a launch is long."""
    return max(least_s, OVERHEAD_FACTOR * overhead_s, CLOCK_STEPS * clock_step_s, CLOCK_READINGS * clock_cost_s)


def calibrate(timer: Timed, target: float) -> int:
    """Return how many launches (or copies with their calls) make a sample of about `target` seconds, by
    trials."""
    repeat = 1
    for _ in range(MOST_RAISES):
        # The shorter of two: an interruption lengthens one.
        cycle_s = min(timer.seconds(repeat), timer.seconds(repeat)) * (timer.case.calls or 1)
        if cycle_s * repeat >= TOO_SHORT * target:
            break
        repeat = count(target, cycle_s)
    return repeat


def count(target: float, seconds: float) -> int:
    """Return how many launches of `seconds` each last `target` seconds: from 1 to LONGEST_REPEAT."""
    return LONGEST_REPEAT if seconds * LONGEST_REPEAT <= target else max(1, math.ceil(target / seconds))


def keep_queue(timer: Timed) -> None:
    """Raise `hot_repeat` to `repeat`, at most to QUEUED_LAUNCHES, because launches in a longer queue are
    faster. The `hot_repeat` of a derived time is not changed."""
    if timer.hot_repeat is not None and not derives(timer.session):
        timer.hot_repeat = max(timer.hot_repeat, min(timer.repeat, QUEUED_LAUNCHES))


def calibrate_hot(timer: Timer) -> int | None:
    """Return how many launches make a sample of about HOT_SAMPLE_S seconds on the device's clock. Without such
    a clock, return the number for `derived_hot_s` on a GPU, and None on other devices."""
    repeat = 1
    while True:
        seconds = device_seconds(timer.session, timer.launch, repeat)
        if seconds is None:
            if derives(timer.session):
                return launches(timer.session, timer.launch, LONGEST_HOT_REPEAT)
            return None
        if seconds >= HOT_SAMPLE_S or repeat >= LONGEST_HOT_REPEAT:
            return repeat
        predicted = repeat * HOT_SAMPLE_S / max(seconds, 1e-9)
        repeat = min(max(2 * repeat, 1 << math.ceil(math.log2(predicted))), LONGEST_HOT_REPEAT)


def sample_block(
    timer: Timed, request: protocol.Sample, since: float, target_s: float = 0.0
) -> protocol.Sampled:
    """Take one block: warm up, then take samples of about `target_s` seconds. No sample begins after
    `request.limit_s`.

    A first sample that is far too short raises the repeat count and is taken again. Queued launches also give
    samples on the device's clock. `since` is the time by `perf_counter` at which the session started.
    """
    began = time.perf_counter()
    times, wall = [began], list[float]()
    cold_s: list[float] = []
    hot_s: list[float] = []
    of_calls: Times = {}

    def take() -> None:
        wall.append(timer.seconds(timer.repeat))
        times.append(time.perf_counter())

    def begin_here() -> None:
        for observer in timer.observers:
            observer.begin()
        times[-1] = time.perf_counter()
        if timer.steps is not None:
            timer.steps = {}

    if request.warm_up and not timer.single:
        _begin_block(timer, request.warmup_s, take, target_s)
    begin_here()
    warmup, raises = len(wall), 0
    on_device = timer.case.queued and timer.hot_repeat is not None
    with no_garbage_collection():
        while len(wall) - warmup < request.samples:
            take()
            if len(wall) == warmup + 1 and raises < MOST_RAISES and _raise_count(timer, wall[-1], target_s):
                raises += 1
                del wall[-1], times[-1]
                begin_here()
                continue
            for observer in timer.observers:
                observer.read()
            if on_device and max(len(hot_s), len(cold_s)) < DEVICE_SAMPLES:
                timer.read_device(hot_s, cold_s, request.round if wall[-1] >= IN_TURNS_S else None)
            if time.perf_counter() - began > request.limit_s:
                break
        # Right after the samples with which they are compared.
        beside_s = {name: seconds() for name, seconds in timer.sides.items()}
        # For long calls, the steps of every second block are enough.
        if isinstance(timer, Timer) and timer.steps and (wall[-1] < IN_TURNS_S or not request.round % 2):
            of_calls = {**timer.steps, **parts.fenced_launch(timer)}
    block = Block(
        session=request.session, round=request.round, position=request.position,
        repeat=timer.repeat * (timer.case.calls or 1),
        hot_repeat=timer.hot_repeat if on_device else None, warmup=warmup, t_s=began - since, wall_s=wall,
        device_cold_s=cold_s or None, device_hot_s=hot_s or None, beside_s=beside_s or UNSET,
        gpu_pieces=timer.gpu_pieces,
    )  # fmt: skip
    block = replace(block, **{name: x for observer in timer.observers for name, x in observer.end().items()})
    return protocol.Sampled(id=request.id, block=block, times_s=times, parts=of_calls)


# Samples of one `work`: enough to compute rates of parts of it, and few enough for a file.
WORK_SAMPLES = 100


def work(timer: Timed, request: protocol.Work) -> protocol.Worked:
    """Warm up, wait until `request.start_at`, and take samples for `request.work_s` seconds. Each sample lasts
    about 1/WORK_SAMPLES of that time."""
    _warm_up(timer, request.warmup_s, lambda: timer.seconds(timer.repeat))
    repeat = calibrate(timer, request.work_s / WORK_SAMPLES)
    clock, ends = timer.session.clock, list[float]()
    time.sleep(max(0.0, request.start_at - time.perf_counter()))
    late_s, start = time.perf_counter() - request.start_at, clock()
    with no_garbage_collection():
        while not ends or ends[-1] < late_s + request.work_s:
            timer.seconds(repeat)
            ends.append(late_s + clock() - start)
    return protocol.Worked(id=request.id, repeat=repeat, begin_s=late_s, ends_s=ends)


def _begin_block(timer: Timed, warmup_s: float, take: Callable[[], None], target: float) -> None:
    """Warm up for `warmup_s` seconds, or by some launches, which may lower the repeat count."""
    if warmup_s > 0:
        _warm_up(timer, warmup_s, take)
        return
    cycles_s: list[float] = []
    while len(cycles_s) < (WARM_LAUNCHES if timer.flush is None else 1) and sum(cycles_s) < WARM_S:
        cycles_s.append(timer.seconds(1) * (timer.case.calls or 1))
    if not timer.settled and target:  # a predicted count may be far too high
        timer.repeat = min(timer.repeat, count(SLOW * target, cycles_s[-1]))


def _raise_count(timer: Timed, launch_s: float, target: float) -> bool:
    """Raise the repeat counts if a sample was far shorter than `target`, and return whether they were
    raised."""
    if not timer.adjusts or timer.flush is not None:  # with flushed caches a sample is one launch
        return False
    cycle_s = launch_s * (timer.case.calls or 1)
    least_s = (FAR_TOO_SHORT if timer.settled else TOO_SHORT) * target
    if cycle_s * timer.repeat >= least_s or timer.repeat >= LONGEST_REPEAT:
        timer.settled = True
        return False
    timer.repeat = count(target, cycle_s)
    keep_queue(timer)
    return True


def _warm_up(timer: Timed, warmup_s: float, take: Callable[[], object]) -> None:
    """Call `take` for `warmup_s` seconds of the session's clock, at least once."""
    # A scripted clock may not advance, so the host's clock ends it, too.
    clock, until = timer.session.clock, time.monotonic() + warmup_s
    start = clock()
    take()
    while clock() - start < warmup_s and time.monotonic() < until:
        take()


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# Seconds of r launches for `derived_hot_s`. Their difference lasts twice as long, of which an interruption of
# 50 us is 1 %.
SPAN_S = 2.5e-3


def derives(session: Session) -> bool:
    """Return whether the device's hot time is derived from wall times: it is a GPU without a clock."""
    return session.device.kind == "gpu" and session.device.clock is None


def launches(session: Session, launch: Launch, most: int) -> int:
    """Return how many launches last `SPAN_S`, for `derived_hot_s`: a power of two, and at most `most`."""
    repeat = 1
    while repeat < most and wall_s(session, launch, repeat) < SPAN_S:
        repeat *= 2
    return repeat


def derived_hot_s(session: Session, launch: Launch, repeat: int) -> float | None:
    """Return (wall seconds of 3r launches - wall seconds of r launches) / 2r, with r = `repeat`. Returns None
    if the difference is not positive."""
    short_s = wall_s(session, launch, repeat)
    seconds = (wall_s(session, launch, 3 * repeat) - short_s) / (2 * repeat)
    return seconds if seconds > 0 else None


def device_seconds(session: Session, launch: Launch, repeat: int, *, cold: bool = False) -> float | None:
    """Return the seconds of `repeat` launches on the device's own clock, with flushed caches if `cold` is true.
    Returns None if it has no clock, or if the clock failed this time."""
    return session.time(launch, repeat, cold=cold) if isinstance(session, LaunchClock) else None


def waited_s(session: Session, launch: Launch, repeat: int) -> float:
    """Return the wall seconds per launch of `repeat` launches with a wait after each."""
    run, sync, clock = session.run, session.sync, session.clock
    start = clock()
    for _ in range(repeat):
        run(launch)
        sync()
    return (clock() - start) / repeat


def wall_s(session: Session, launch: Launch, repeat: int) -> float:
    """Return the wall seconds of `repeat` launches and one wait."""
    start = session.clock()
    session.run(launch, repeat)
    session.sync()
    return session.clock() - start
