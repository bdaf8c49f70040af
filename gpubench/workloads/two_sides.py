"""Networks on the CPU and the GPU, in the worker. Each stage runs where the stage assignment says, and a value is
copied to the CPU or the GPU when it is needed there. The module also times the stages and the copies on both sides
and predicts the times of stage assignments.

A value is in host memory, on the GPU, or on both. A copy that is still valid is not made again: a weight is copied to
the GPU once, an input once after each upload, and the result of a stage once in each run. Consecutive stages on the
same side run as one chain.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import msgspec

from gpubench import kernels
from gpubench.backends.contract import (
    Buffer,
    HostCall,
    Launch,
    Session,
    SideReading,
    Transfers,
    WrappedSession,
    protocols,
)
from gpubench.backends.shared.host import clock_calls, host_dtype
from gpubench.backends.shared.sides import refusal, side_case
from gpubench.base.errors import BackendError, Unsupported
from gpubench.curves.stats import median
from gpubench.kernels.contract.op import Array, Implementation, Op, Shape, Stored, each
from gpubench.measure.worker.timer import Timer, wall_s
from gpubench.result.case import Case
from gpubench.result.run import AssignmentTimes, Device
from gpubench.workloads.assignment import (
    CPU,
    GPU,
    AssignmentCosts,
    StageChain,
    StageCost,
    nearest,
    predicted_s,
    single_sides,
    stage_seconds,
)

# Most rounds that count, and the rounds before them that warm up caches and clocks.
ROUNDS, WARM_UP = 15, 1


def sides(op: Op) -> dict[str, str]:
    """Return the two stage assignments of the op that use one side only (`single_sides`)."""
    return single_sides([kernels.load(stage.op).host is not None for stage in op.stages])


def assign_stages(timed: Timer, session_index: int, limit_s: float) -> AssignmentTimes | None:
    """Time the stages on the CPU and on the GPU, and predict the times of the most promising stage assignments. No
    round of measurements but the first begins after `limit_s` seconds. The times of a round are taken close together,
    so that their medians add up. Returns None if one of the two sides cannot time its stages."""
    session, workspace = timed.session, timed.workspace
    chain = workspace.chain(timed.case)
    if chain is None or not isinstance(session, protocols.AssignsStages):
        return None
    op, alone = workspace.op, sides(workspace.op)
    for assignment in alone.values():  # afterwards every value has memory on both sides
        session.assign(assignment)
        session.run(timed.launch)
        session.sync()
    steps = chain.steps(workspace.buffers, timed.launch.output)
    values = chain.values(workspace.buffers, timed.launch.output)
    # Activations and results may have to be copied. Weights and host inputs are where they are needed.
    fixed = {operand.name for operand in op.inputs if operand.role != "activation"}
    used = dict.fromkeys(name for stage in op.stages for name in (*stage.reads, *stage.writes))
    moved = [name for name in used if name not in fixed]
    empty = session.empty_launch()
    rounds: list[tuple[SideReading, SideReading, list[tuple[float, float]], float]] = []
    began = time.perf_counter()
    while len(rounds) < ROUNDS + WARM_UP:
        # A round times both chains with clock readings, a copy of every value in each direction, and an empty
        # launch.
        readings = session.side_times(steps)
        if readings is None:
            return None
        copies = [session.copy_times(values[name]) for name in moved]
        rounds.append((*readings, copies, wall_s(session, empty, 1)))
        if time.perf_counter() - began > limit_s:
            break
    cpu, gpu, copied, enter_s = zip(*(rounds[WARM_UP:] or rounds), strict=True)
    on_gpu = zip(*(reading.steps.steps_s for reading in gpu), strict=True)
    up_s, down_s = (
        {name: [copies[i][way] for copies in copied] for i, name in enumerate(moved)} for way in (0, 1)
    )
    assignment_times = AssignmentTimes(
        session=session_index, clock=gpu[0].steps.clock, stages=[stage.name for stage in op.stages],
        cpu_s=[list(step) for step in zip(*(reading.steps.steps_s for reading in cpu), strict=True)],
        gpu_s=[[] if letter == CPU else list(next(on_gpu)) for letter in alone["gpu"]],
        cpu_whole_s=[reading.whole_s for reading in cpu], gpu_whole_s=[reading.whole_s for reading in gpu],
        up_s=up_s, down_s=down_s, enter_s=list(enter_s), predicted_s={}, free_s=0.0,
    )  # fmt: skip
    # The assignments to measure are the CPU alone, the GPU alone and the best ones.
    prices = costs(op, timed.case, assignment_times)
    assignments = dict.fromkeys((*alone.values(), *(predicted.assignment for predicted in nearest(prices))))
    priced = StageChain(prices)
    return msgspec.structs.replace(
        assignment_times, predicted_s={assignment: predicted_s(priced, assignment) for assignment in assignments},
        free_s=nearest(prices.without_copies())[0].seconds,
    )  # fmt: skip


def costs(op: Op, case: Case, assignment_times: AssignmentTimes) -> AssignmentCosts:
    """Return the costs for the search, which are medians over the rounds. On a device without timestamps the time of
    each stage already includes a launch and its wait; `enter_s` is then 0."""
    places = {
        operand.name: CPU if operand.role == "host" or (operand.travels and not case.resident) else CPU + GPU
        for operand in op.inputs
    }
    steps = [
        StageCost(cpu_s, gpu_s, stage.reads, stage.writes)
        for stage, cpu_s, gpu_s in zip(op.stages, *stage_seconds(assignment_times), strict=True)
    ]
    up_s, down_s = (
        {name: median(times) for name, times in copies.items()}
        for copies in (assignment_times.up_s, assignment_times.down_s)
    )
    enter_s = median(assignment_times.enter_s) if assignment_times.clock != "waited" else 0.0
    ends = [operand.name for operand in op.outputs if operand.travels]
    return AssignmentCosts(steps, up_s, down_s, enter_s, places, ends)


# Most unused values that are kept, because the next copying call asks for equal ones, and most CPU chains of a segment.
_SPARE, _BOUND = 8, 4


class Value:
    """An operand, or a value between two stages. `places` has the letters of the sides whose copy is valid. `uploaded`
    is True from an upload until a stage writes the value."""

    def __init__(self, shape: Shape, dtype: Stored) -> None:
        self.shape, self.dtype = shape, dtype
        self.places = ""
        self.uploaded = False
        self.device: Buffer = None
        self._array: Array = None
        self._own = False

    @property
    def array(self) -> Array:
        """The host's copy, in the array that was uploaded last or in memory that belongs to the value."""
        return self.own() if self._array is None else self._array

    def own(self) -> Array:
        """Return the host's copy in memory that belongs to the value, to which a launch may write."""
        if not self._own:
            import numpy as np

            held, self._array, self._own = self._array, np.empty(self.shape, host_dtype(self.dtype)), True
            if held is not None:
                self._array[...] = held
        return self._array

    def hold(self, host: Array) -> None:
        """Store `host` as the value. It is copied if the value has host memory (`own`), otherwise kept as it is."""
        if self._own:
            self._array[...] = host
        else:
            self._array = host
        self.places, self.uploaded = CPU, True

    def forget(self) -> None:
        """Drop the reference to the caller's array and mark every copy as invalid."""
        if not self._own:
            self._array = None
        self.places, self.uploaded = "", False


class StageLaunch(Launch):
    """A stage that the CPU or the GPU may run."""

    def __init__(self, op: Op, case: Case, reads: Sequence[Value], writes: Buffer) -> None:
        self.op, self.case, self.reads = op, case, reads
        self.output = writes


Step = tuple[Launch, Buffer]


class TwoSideSession(
    WrappedSession,
    protocols.AssignsStages,
    protocols.Chains,
    protocols.Tunes,
):
    """A session for one workload that joins a GPU's session and the CPU's session. `assign` sets which of the
    two runs each stage."""

    def __init__(self, device: Device, gpu: Session, cpu: Session, op: Op) -> None:
        super().__init__(gpu)
        self.device, self.threads, self.blas = device, cpu.threads, cpu.blas
        self.gpu, self.cpu = gpu, cpu
        self.way = gpu.transfers("tuned")
        self.assignment = ""
        # Whether the op itself adds to a state. The state is then kept from call to call.
        self.keeps_state = bool(op.updated)
        self._home = [operand.travels for operand in op.outputs]
        self._spare: list[Value] = []
        self._ran: AssignedLaunch | None = None
        self._timed: tuple[Sequence[Step], dict[str, tuple[list[Step], Launch]]] | None = None

    def side(self, letter: str) -> Session:
        return self.gpu if letter == GPU else self.cpu

    # ---------------------------------------------------------------- what runs here

    def supports(self, op: Op, case: Case) -> BackendError | None:
        """Return the error that says why `op`, one stage of the workload, cannot run, or None if both sides can run
        it."""
        if op.stages:
            return Unsupported(
                "an assigned workload has the tuned implementation alone", reason="no-implementation"
            )
        for side in (self.gpu, self.cpu):
            if not isinstance(side, protocols.Chains):
                why = f"{side.device.backend} does not run several ops as one launch"
                return Unsupported(why, reason="no-implementation")
        return refusal(op, case, self.gpu, self.cpu)

    def assign(self, assignment: str) -> None:
        self.assignment = assignment

    def tune(self, op: Op, case: Case, inputs: Sequence[Value]) -> None:
        for letter in (GPU, CPU):
            side = self.side(letter)
            if isinstance(side, protocols.Tunes):
                buffers = [self.on(letter, value) for value in inputs]
                side.tune(op, side_case(op, case, case.params, side), buffers)

    def compile(self, op: Op, case: Case, inputs: Sequence[Value], output: Buffer) -> StageLaunch:
        """Build a stage on both sides, for its errors and its kernel hash. The launch may run on either side."""
        launch = StageLaunch(op, case, inputs, output)
        built = [self.compile_on(letter, launch) for letter in (GPU, CPU)]
        launch.kernel_hash = " ".join(str(build.kernel_hash) for build in built)
        launch.kernel_name = built[0].kernel_name
        return launch

    def compile_on(self, letter: str, stage: StageLaunch) -> Launch:
        """Build a stage on the side `letter`, with that side's memory of the values. A library call does not write to
        a given output: it returns a new array, which the chain then copies."""
        side = self.side(letter)
        case = side_case(stage.op, stage.case, stage.case.params, side)
        inputs = [self.buffer(letter, value) for value in stage.reads]
        output = self.target(letter, stage.output)
        return side.compile(stage.op, case, inputs, None if case.implementation == "library" else output)

    def chain(self, steps: protocols.Steps, output: Buffer) -> AssignedLaunch:
        return AssignedLaunch(self, steps, output)

    def chain_on(self, letter: str, steps: protocols.Steps) -> Launch:
        """Return these steps as one launch on the side `letter`."""
        side = self.side(letter)
        assert isinstance(side, protocols.Chains)
        return side.chain(steps, steps[-1][1])

    def run(self, launch: Launch, repeat: int = 1) -> None:
        """Run the stages in order. When the method returns, the GPU's work is enqueued and the CPU's work is done. A
        launch without stages, such as the empty one, runs on the GPU."""
        if not isinstance(launch, AssignedLaunch):
            self.gpu.run(launch, repeat)
            return
        for _ in range(repeat):
            launch.run(self.assignment)
        self._ran = launch

    def sync(self) -> None:
        """Copy the results of the last run to the host, except weights, and wait for the GPU."""
        if self._ran is not None:
            launch, self._ran = self._ran, None
            for value, travels in zip(each(launch.output), self._home, strict=False):
                if travels and value.places:
                    self.on(CPU, value)
        self.gpu.sync()

    # ---------------------------------------------------------------- values

    def host_array(self, shape: Shape, dtype: Stored, implementation: Implementation) -> Array:
        return self.cpu.host_array(shape, dtype, implementation)

    def allocate(self, shape: Shape, dtype: Stored) -> Value:
        """Return a value without a valid copy. Its memory on a side is allocated when it is first needed there."""
        for value in self._spare:
            if (value.shape, value.dtype) == (shape, dtype):
                self._spare.remove(value)
                return value
        return Value(shape, dtype)

    def free(self, buffer: Value) -> None:
        buffer.forget()
        self._spare.append(buffer)
        while len(self._spare) > _SPARE:
            self._drop(self._spare.pop(0))

    def _drop(self, value: Value) -> None:
        if value.device is not None:
            self.gpu.free(value.device)
            value.device = None

    def upload(self, buffer: Value, host: Array) -> None:
        """Store the array as the value, which is copied to the GPU when a stage there reads it."""
        buffer.hold(host)

    def download(self, buffer: Value, host: Array) -> None:
        """Copy the value to `host`. It comes from the GPU if only the GPU's copy is valid."""
        if CPU in buffer.places or not buffer.places:
            host[...] = buffer.array
        else:
            self.way.download(buffer.device, host)

    def transfers(self, implementation: Implementation) -> Transfers:
        way = Transfers(self)
        way.staging = self.way.staging
        return way

    def buffer(self, letter: str, value: Value) -> Buffer:
        """Return the value's memory on the side `letter`, whether or not the copy there is valid."""
        if letter == CPU:
            return self.cpu.view(value.array)
        if value.device is None:
            value.device = self.gpu.allocate(value.shape, value.dtype)
        return value.device

    def target(self, letter: str, output: Buffer) -> Buffer:
        """Return the memory on the side `letter` to which a stage writes its output."""
        if letter == CPU:
            for value in each(output):
                value.own()
        buffers = tuple(self.buffer(letter, value) for value in each(output))
        return buffers if isinstance(output, tuple) else buffers[0]

    def on(self, letter: str, value: Value) -> Buffer:
        """Return the value's memory on the side `letter`, after copying the value there unless that copy is valid."""
        buffer = self.buffer(letter, value)
        if letter not in value.places:
            if letter == GPU:
                self.way.upload(buffer, value.array)
            elif value.places:
                self.way.download(value.device, value.own())
            value.places += letter
        return buffer

    # ---------------------------------------------------------------- times for a prediction

    def side_times(self, steps: protocols.Steps) -> tuple[SideReading, SideReading] | None:
        """Return the times of the CPU's chain and of the GPU's chain, or None if one of the two cannot time its
        stages. The chains are built once for all rounds."""
        if self._timed is None or self._timed[0] is not steps:
            movable = [step for step in steps if not isinstance(step[0], HostCall)]
            self._timed = steps, {CPU: self._join(CPU, steps), GPU: self._join(GPU, movable)}
        on_cpu, on_gpu = (self._read(letter, *built) for letter, built in self._timed[1].items())
        return None if on_cpu is None or on_gpu is None else (on_cpu, on_gpu)

    def _join(self, letter: str, steps: protocols.Steps) -> tuple[list[Step], Launch]:
        own_steps = self.bound(letter, steps)
        return own_steps, self.chain_on(letter, own_steps)

    def _read(self, letter: str, steps: protocols.Steps, chain: Launch) -> SideReading | None:
        side = self.side(letter)
        # The first run is not timed: the side's threads may sleep, and the caches hold the other side's data.
        _, whole_s = clock_calls(side, [partial(side.run, chain)] * 2, side.sync)
        reading = side.stage_times(steps) if isinstance(side, protocols.TimesStages) else None
        return None if reading is None else SideReading(reading, whole_s)

    def bound(self, letter: str, steps: protocols.Steps) -> list[Step]:
        """Return the steps, built for the side `letter`, with that side's buffers. A host stage is unchanged."""
        return [
            (self.compile_on(letter, launch), self.target(letter, output))
            if isinstance(launch, StageLaunch)
            else (launch, output)
            for launch, output in steps
        ]

    def copy_times(self, buffer: Value) -> tuple[float, float]:
        """Return the seconds of an upload and of a download of a value, each with its wait. Afterwards both copies are
        valid."""
        self.on(CPU, buffer)
        device = self.buffer(GPU, buffer)
        self.gpu.sync()
        began = self.clock()
        self.way.upload(device, buffer.array)
        self.gpu.sync()
        sent = self.clock()
        self.way.download(device, buffer.own())
        ended = self.clock()
        buffer.places = CPU + GPU
        return sent - began, ended - sent

    # ---------------------------------------------------------------- the device itself

    def flush(self) -> None:
        self.gpu.flush()

    def close(self) -> None:
        """Do nothing, because the session that created this one closes both sides itself."""

    def forget(self) -> None:
        """Free spare memory and drop the chains that were built for timing."""
        self._ran = self._timed = None
        while self._spare:
            self._drop(self._spare.pop())


class AssignedLaunch(Launch):
    """All stages of a workload. The segments of a stage assignment are made when it first runs."""

    def __init__(self, session: TwoSideSession, steps: protocols.Steps, output: Buffer) -> None:
        self._session, self._steps = session, steps
        self._segments: dict[str, list[Segment | HostCall]] = {}
        self.output = output
        self.staging = session.way.staging

    def run(self, assignment: str) -> None:
        """Run the stages once, in order. If `assignment` has another length, all run on the GPU."""
        # While kernels are being chosen, a launch has some of the workload's stages only.
        if len(assignment) != len(self._steps):
            assignment = GPU * len(self._steps)
        if assignment not in self._segments:
            self._segments[assignment] = self._split(assignment)
        for segment in self._segments[assignment]:
            segment()

    def _split(self, assignment: str) -> list[Segment | HostCall]:
        segments: list[Segment | HostCall] = []
        written: set[int] = set()
        for letter, (launch, output) in zip(assignment, self._steps, strict=True):
            if isinstance(launch, HostCall):
                for value in each(output):
                    value.own()
                segments.append(launch)
            else:
                assert isinstance(launch, StageLaunch)
                last = segments[-1] if segments else None
                if not isinstance(last, Segment) or last.letter != letter:
                    last = Segment(self._session, letter)
                    segments.append(last)
                last.add(launch, output, written)
            written.update(map(id, each(output)))
        return segments


class Segment:
    """Consecutive stages that run on the same side."""

    def __init__(self, session: TwoSideSession, letter: str) -> None:
        self._session, self.letter = session, letter
        self._side = session.side(letter)
        self._steps: list[Step] = []
        self._reads: list[Value] = []  # inputs, and values of earlier segments
        self._writes: dict[int, Value] = {}
        self._uses: dict[int, Value] = {}
        # A chain of the CPU is bound to arrays. By their ids; the arrays are kept, so that no other gets such an id.
        self._chains: dict[tuple[int, ...], tuple[Launch, list[Array]]] = {}

    def add(self, launch: StageLaunch, output: Buffer, written: set[int]) -> None:
        """Add a stage, and note which values it reads from outside this segment; a call copies those that this side
        lacks. `written` has the ids of the values that earlier stages wrote. A state that no stage has written yet
        is not read, unless the op keeps its state from call to call."""
        made = {id(value): value for value in each(output)}
        for value in launch.reads:
            fresh = id(value) in made and id(value) not in written and not self._session.keeps_state
            if id(value) not in self._writes and not fresh:
                self._reads.append(value)
        self._steps.append((launch, output))
        self._writes |= made
        self._uses |= made | {id(value): value for value in launch.reads}

    def __call__(self) -> None:
        """Copy the values that this side lacks, and run the stages."""
        for value in self._reads:
            if self.letter not in value.places:
                self._session.on(self.letter, value)
        for value in self._writes.values():
            if value.uploaded:  # the value is sentinels, which show what a stage leaves unwritten
                self._session.on(self.letter, value)
        self._side.run(self._launch())
        for value in self._writes.values():
            value.places, value.uploaded = self.letter, False

    def _arrays(self) -> list[Array]:
        return [value.array for value in self._uses.values()] if self.letter == CPU else []

    def _launch(self) -> Launch:
        key = tuple(map(id, self._arrays()))
        if key not in self._chains:
            if len(self._chains) >= _BOUND:
                self._chains.clear()
            chain = self._session.chain_on(self.letter, self._session.bound(self.letter, self._steps))
            arrays = self._arrays()  # `bound` may have given a value memory
            key = tuple(map(id, arrays))
            self._chains[key] = (chain, arrays)
        return self._chains[key][0]
