"""The session of a scripted device: its memory, its launches, and the time that these pretend to take."""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from gpubench.backends.contract import (
    Buffer,
    DeviceStream,
    HostCall,
    HostMemory,
    Launch,
    Session,
    StageReading,
    Transfers,
    Work,
    protocols,
)
from gpubench.backends.shared.host import SingleDevice, bytes_of, host_dtype, no_kernel
from gpubench.backends.shared.memory import InPlaceSession
from gpubench.backends.shared.reference import same_bytes
from gpubench.base.errors import BackendError, BuildError, DeviceLost, DeviceOutOfMemory, Unsupported
from gpubench.kernels.contract.kernel import Limits
from gpubench.kernels.contract.op import ITEMSIZE, Array, Dtype, Implementation, Op, Shape, Stored, each
from gpubench.result.case import Case
from gpubench.result.run import Blas, Device, DeviceClock, Identity, Peak, Staging

# Seconds and rates of the two cost models. They are near those of a 16-core CPU and a large GPU, so that
# break-evens are inside the default ladders.
CPU_CALL_S, CPU_BYTES_PER_S, CPU_FLOPS_PER_S = 1e-6, 4e10, 8e11
GPU_LAUNCH_S, GPU_KERNEL_S, GPU_BYTES_PER_S, GPU_FLOPS_PER_S = 4e-6, 6e-6, 3e12, 4.5e13
COPY_CALL_S, COPY_BYTES_PER_S = 8e-6, 5e10
ALLOC_S, FREE_S = 9e-7, 1e-7
# Transfers of the tuned implementation, and the seconds of memory from the driver.
STAGED_CALL_S, STAGED_BYTES_PER_S, FRESH_S = 4e-6, 1e11, 1e-4
FAULT_S = 2e-5  # seconds in which managed memory moves to one side
EMPTY_COST_S = 1e-6
CLOCK_STEP_S = 1e-9
# The host's seconds of an asynchronous copy. The number of the launch in streams at which `breaks-off` is lost.
ENQUEUE_S, BREAKS_AT = 1e-6, 30

WORDS = (
    "cpu", "gpu", "no-clock", "oom", "crash", "exit", "hang", "wrong", "lost", "build", "throttle", "implausible",
    "cools", "power-cap", "monitor-dies", "shared", "noisy", "overlaps", "one-queue", "no-streams",
    "breaks-off", "unified", "not-mapped",
)  # fmt: skip


class FakeBuffer:
    """A buffer of a device. An upload only stores a reference to the host array, because its time is
    scripted."""

    def __init__(self, array: Array) -> None:
        self.array = array


class FakeLaunch(Launch):
    """A launch that computes the expression only if its inputs have changed. Each run pretends to take `cost_s`
    seconds."""

    def __init__(self, compute: Any, cost_s: float) -> None:
        self.compute = compute
        self.cost_s = cost_s
        self.reads: Sequence[FakeBuffer] = ()
        self._computed_from: list[Array] = []
        self.kernel_hash = "fake"

    def execute(self) -> None:
        """Compute again if other arrays were uploaded since the last call, or if there are no inputs."""
        # A function of a user without inputs may return something else each time.
        arrays, earlier = [buffer.array for buffer in self.reads], self._computed_from
        if self.output is None or not arrays or not all(map(_is_same, arrays, earlier)):
            self.output, self._computed_from = self.compute(), arrays


class FakeChain(FakeLaunch):
    """Several launches in order as one. Each puts its result into the buffer that a later launch reads."""

    def __init__(self, session: FakeSession, steps: protocols.Steps, output: Buffer) -> None:
        super().__init__(None, sum(launch.cost_s for launch, _ in steps if isinstance(launch, FakeLaunch)))
        self.output = output
        self._session, self._steps = session, steps
        self._left: dict[int, bytes] = {}

    def execute(self) -> None:
        """Run the steps on the host, and the launches whose inputs or output have changed since the last call."""
        for number, (launch, target) in enumerate(self._steps):
            if isinstance(launch, HostCall):
                launch()
                continue
            assert isinstance(launch, FakeLaunch)
            used = (*launch.reads, *each(target))
            if self._left.get(number) != _trace(used):
                self._session._fill(target, launch.compute)
                self._left[number] = _trace(used)


def _trace(buffers: Sequence[FakeBuffer]) -> bytes:
    """Return some elements of the buffers as a fingerprint of their content."""
    # Uploaded data and sentinels differ everywhere, so a few elements are enough.
    flat = [buffer.array.reshape(-1) for buffer in buffers]
    return b"".join(array[:: max(1, array.size // 4)].tobytes() for array in flat)


def _is_same(thing: Any, other: Any) -> bool:
    """Return whether both are the same object, or arrays of the same memory."""
    # A device group makes a new array object for the same part of an operand at each call.
    place = getattr(thing, "__array_interface__", None)
    return thing is other or (place is not None and place == getattr(other, "__array_interface__", None))


class FakeTransfers(Transfers):
    """Scripted transfers, which are faster for the tuned implementation. On `fake:wrong` an upload changes the
    data."""

    def __init__(self, session: FakeSession, implementation: Implementation) -> None:
        tuned = implementation == "tuned"
        self.staging: Staging = "pinned" if tuned else "pageable"
        self._call_s = STAGED_CALL_S if tuned else COPY_CALL_S
        self._rate = STAGED_BYTES_PER_S if tuned else COPY_BYTES_PER_S
        self._rate *= 5 if session._word == "implausible" else 1
        self._fake = session

    def upload(self, buffer: Buffer, host: Array) -> None:
        sent = host + 1 if self._fake._word == "wrong" else host
        self._fake._copy_in(buffer, sent, self._call_s + host.nbytes / self._rate)

    def download(self, buffer: Buffer, host: Array) -> None:
        self._fake._copy_out(buffer, host, self._call_s + host.nbytes / self._rate)


class FakeStream(DeviceStream):
    """A stream of a device with three engines, for uploads, downloads and kernels. `fake:one-queue` has a single
    engine. On `fake:overlaps` a kernel does not wait for the upload before it, and reads the old data."""

    def __init__(self, session: FakeSession) -> None:
        self._session, self._ready_s = session, 0.0
        self._late: list[tuple[FakeBuffer, Array]] = []
        self._answers: dict[tuple[int, ...], Any] = {}

    def on(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def upload(self, buffer: Buffer, host: Array) -> None:
        if self._session._word == "overlaps":
            self._late.append((buffer, host))
        else:
            buffer.array = host
        self._spend("up", ENQUEUE_S, STAGED_CALL_S + host.nbytes / STAGED_BYTES_PER_S)

    def run(self, launch: FakeLaunch) -> None:
        session = self._session
        session._streamed += 1
        if session._word == "breaks-off" and session._streamed >= BREAKS_AT:
            raise DeviceLost("scripted: the device fell off the bus in the middle of a pipeline")
        key = tuple(id(buffer.array) for buffer in launch.reads)
        if key not in self._answers:  # kept with the arrays, whose ids are the key
            self._answers[key] = launch.compute(), [buffer.array for buffer in launch.reads]
        launch.output = self._answers[key][0]
        self._spend("run", GPU_LAUNCH_S, launch.cost_s)

    def download(self, buffer: Buffer, host: Array) -> None:
        for late, array in self._late:
            late.array = array
        self._late = []
        self._session._np.copyto(host, buffer.array)
        self._spend("down", ENQUEUE_S, STAGED_CALL_S + host.nbytes / STAGED_BYTES_PER_S)

    def wait(self) -> None:
        host = self._session._host
        host.seconds = max(host.seconds, self._ready_s) + CLOCK_STEP_S

    def _spend(self, engine: str, host_s: float, cost_s: float) -> None:
        session = self._session
        session._spend(host_s)
        engine = "all" if session._word == "one-queue" else engine
        begin_s = max(session._host.seconds, self._ready_s, session._engines.get(engine, 0.0))
        self._ready_s = session._engines[engine] = begin_s + cost_s * session._factor()


class FakeHostMemory(HostMemory):
    """Host memory that the device uses at the rate of copies, or on `fake:unified` at the rate of its own
    memory."""

    def __init__(self, session: FakeSession, memory: str) -> None:
        self._fake, self._fault_s = session, FAULT_S if memory == "managed" else 0.0

    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        return self._fake.allocate(shape, dtype)

    def hold(self, buffers: Sequence[Buffer], *, write: bool) -> list[Array]:
        self._fake._spend(self._fault_s)
        return [bytes_of(buffer.array) for buffer in buffers]

    def compile(
        self, session: Session, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer
    ) -> FakeLaunch:
        launch = self._fake.compile(op, case, inputs, output)
        if not self._fake.device.unified:
            launch.cost_s = (
                max(launch.cost_s, op.bytes(case.params, case.dtype) / COPY_BYTES_PER_S) + self._fault_s
            )
        return launch


class HostTime:
    """The scripted clock of a host. The sessions of one worker may share it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._last = 0.0

    def read(self) -> float:
        """Read the clock. If nothing moved it since the last reading, it moves by one step."""
        if self.seconds <= self._last:
            self.seconds += CLOCK_STEP_S
        self._last = self.seconds
        return self.seconds


class FakeSession(
    SingleDevice,
    protocols.LaunchClock,
    protocols.FreshMemory,
    protocols.ComparesBuffers,
    protocols.ComputesInPlace,
    protocols.SharesBuffers,
    protocols.Streams,
    protocols.KnownPeaks,
    protocols.Chains,
    protocols.TimesStages,
    protocols.ScriptedPair,
):
    """A session with two clocks, one of the host and one of the device, which scripted costs advance."""

    has_bfloat16 = False

    def __init__(self, device: Device, word: str, host: HostTime | None = None) -> None:
        import numpy as np

        self._np = np
        self._word = word
        self._rates = (
            (CPU_CALL_S, CPU_BYTES_PER_S, CPU_FLOPS_PER_S)
            if word == "cpu"
            else (GPU_KERNEL_S, GPU_BYTES_PER_S, GPU_FLOPS_PER_S)
        )
        self.device = device
        self.threads = 4 if word == "cpu" else None
        self.blas = Blas(library="fake", version="1", kernel="scripted") if word == "cpu" else None
        self.limits = Limits(max_buffer_bytes=1 << 34, max_binding_bytes=1 << 34, float16=True, float64=True)
        # The last inputs and their answer, so that it is computed once a workload, not once a launch.
        self._asked: list[Any] = []
        self._answer: Buffer = FakeBuffer(None)
        self._host = host or HostTime()
        self._device_s = self._copied_s = 0.0
        self._engines: dict[str, float] = {}  # by engine: when it has done all work of streams
        self._streamed = 0
        self._noise = float(os.environ.get("GPUBENCH_FAKE_NOISE", "0.2" if word == "noisy" else "0"))
        self._slower = float(os.environ.get("GPUBENCH_FAKE_SLOWER", "1")) * read_slowness(word)
        self._hot_s = read_scripted_time("GPUBENCH_FAKE_HEAT").get(word, math.inf)
        self._random = random.Random(f"{device.id} {os.environ.get('GPUBENCH_FAKE_SEED', '')}")

    def _refuse(self, op: Op, case: Case) -> BackendError | None:
        return no_kernel(op, case) if case.implementation == "tuned" else None

    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        """Return a buffer. Raises DeviceOutOfMemory if it is larger than the device's memory, and always on
        `fake:oom`."""
        self._spend(ALLOC_S)
        if self._word == "oom" or math.prod(shape) * ITEMSIZE[dtype] > self.limits.max_buffer_bytes:
            raise DeviceOutOfMemory("scripted: no memory left")
        return FakeBuffer(self._np.zeros(shape, host_dtype(dtype)))

    def free(self, buffer: Buffer) -> None:
        """Advance the clock by FREE_S. Python frees the array with its last reference."""
        self._spend(FREE_S)

    def allocate_fresh(self, shape: Shape, dtype: Stored) -> Buffer:
        self._spend(FRESH_S)
        return self.allocate(shape, dtype)

    def free_fresh(self, buffer: Buffer) -> None:
        """Do nothing. The array is freed with its last reference."""

    def in_place(self, memory: str) -> InPlaceSession:
        """Return a session in this kind of memory. Raises Unsupported for managed memory on `fake:unified`, and
        for both kinds on `fake:not-mapped`."""
        if self._word == "not-mapped" or (self.device.unified and memory == "managed"):
            raise Unsupported(f"scripted: no {memory} memory", reason="not-in-place")
        return InPlaceSession(self, FakeHostMemory(self, memory))

    def transfers(self, implementation: Implementation) -> FakeTransfers:
        return FakeTransfers(self, implementation)

    def upload(self, buffer: Buffer, host: Array) -> None:
        self._copy_in(buffer, host, COPY_CALL_S + host.nbytes / COPY_BYTES_PER_S)

    def download(self, buffer: Buffer, host: Array) -> None:
        self._copy_out(buffer, host, COPY_CALL_S + host.nbytes / COPY_BYTES_PER_S)

    def stream(self) -> FakeStream:
        if self._word == "no-streams":
            raise Unsupported("scripted: nothing is copied beside kernels", reason="no-streams")
        return FakeStream(self)

    def beginning(self, buffer: Buffer, shape: Shape) -> Buffer:
        return FakeBuffer(buffer.array[: math.prod(shape)].reshape(shape))

    def _copy_in(self, buffer: Buffer, host: Array, cost_s: float) -> None:
        buffer.array = host
        # On `fake:overlaps` an upload returns at once, and kernels do not wait for it.
        if self._word == "overlaps":
            self._copied_s = max(self._copied_s, self._host.seconds) + cost_s
        else:
            self._spend(cost_s)

    def _copy_out(self, buffer: Buffer, host: Array, cost_s: float) -> None:
        """Wait for the device, and download at this cost. The CPU has no cost."""
        if max(self._device_s, self._copied_s) > self._host.seconds:
            self.sync()
        self._np.copyto(host, buffer.array)
        if self._word != "cpu":
            self._spend(cost_s)

    def fill(self, buffer: Buffer, shape: Shape, dtype: Stored, value: float) -> None:
        buffer.array = self._np.full(shape, value, host_dtype(dtype))

    def copy_of(self, buffer: Buffer, shape: Shape, dtype: Stored) -> Buffer | None:
        return None if self._word == "cpu" else FakeBuffer(buffer.array.copy())

    def begins(self, copy: Buffer, buffer: Buffer, shape: Shape, dtype: Stored) -> bool:
        got = buffer.array
        fits = got.shape == shape and got.dtype == host_dtype(dtype)
        return fits and same_bytes(got, copy.array.reshape(-1)[: got.size].reshape(shape))

    def compile(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> FakeLaunch:
        """Return a launch of the expression, with the cost of this device's model. Raises BuildError on
        `fake:build`."""
        if self._word == "build":
            raise BuildError("scripted: line 1: expected ';'")
        np = self._np

        def compute() -> Buffer:
            request = [op.expr, *(buffer.array for buffer in inputs)]
            if not inputs or len(request) != len(self._asked) or not all(map(_is_same, request, self._asked)):
                with np.errstate(all="ignore"):
                    results = [np.asarray(x) for x in each(op.expr(np, *request[1:]))]
                answers = tuple(FakeBuffer(x + 1 if self._word == "wrong" else x) for x in results)
                self._asked, self._answer = request, answers if op.more_outputs else answers[0]
            return self._answer

        call_s, bytes_per_s, flops_per_s = self._rates
        traffic_s = op.bytes(case.params, case.dtype) / bytes_per_s
        cost = call_s + max(traffic_s, op.flops(case.params) / flops_per_s)
        cost /= 5 if self._word == "implausible" else 1
        launch = FakeLaunch(compute, cost * self._slower)
        launch.reads = inputs
        return launch

    def chain(self, steps: protocols.Steps, output: Buffer) -> FakeChain:
        return FakeChain(self, steps, output)

    def _fill(self, target: Buffer, compute: Callable[[], Buffer]) -> None:
        """Put the result of `compute` into `target`, a buffer of a chain."""
        self._asked = []
        for made, place in zip(each(compute()), each(target), strict=True):
            if self._word == "cpu":
                self._np.copyto(place.array, made.array)
            else:
                place.array = made.array

    def stage_times(self, steps: protocols.Steps) -> StageReading:
        """Return the seconds that each step pretends to take, and their sum."""
        self.run(self.chain(steps, None))
        self.sync()
        seconds = [
            launch.cost_s * self._factor() if isinstance(launch, FakeLaunch) else CLOCK_STEP_S
            for launch, _ in steps
        ]
        return StageReading(seconds, sum(seconds), "host" if self.device.clock is None else "event")

    def run(self, launch: FakeLaunch, repeat: int = 1) -> None:
        """Enqueue the launches. A device that is scripted to fail does so here, except in an empty launch."""
        if launch.cost_s > EMPTY_COST_S:
            self._act_out()
        launch.execute()
        if self._word == "cpu":
            self._spend(launch.cost_s * repeat)
            return
        first = self._host.seconds + GPU_LAUNCH_S
        self._host.seconds += GPU_LAUNCH_S * repeat
        # A kernel that is shorter than a launch waits for the host. Otherwise the host runs ahead.
        busy = max(launch.cost_s, GPU_LAUNCH_S) * (repeat - 1) + launch.cost_s
        self._device_s = max(self._device_s, first) + busy * self._factor()

    def sync(self) -> None:
        """Wait for the device, at the cost of one step of the clock."""
        self._host.seconds = max(self._host.seconds, self._device_s, self._copied_s) + CLOCK_STEP_S

    def both(self, aside: Work, here: Work) -> None:
        """Run both functions, one after the other. On the scripted clock both begin now, and the longer one ends
        last."""
        began = self._host.seconds
        aside()
        ended = self._host.seconds
        self._host.seconds = began
        here()
        self._host.seconds = max(self._host.seconds, ended)

    def cpu_beside(self) -> FakeSession:
        return FakeSession(make_device("cpu"), "cpu", self._host)

    def view(self, array: Array) -> FakeBuffer:
        return FakeBuffer(array)

    def time(self, launch: FakeLaunch, repeat: int = 1, *, cold: bool = False) -> float | None:
        """Return the time of the model. Returns None on `fake:cpu` and `fake:no-clock`."""
        if self.device.clock is None:
            return None
        self.run(launch, repeat)
        self.sync()
        return launch.cost_s * repeat * self._factor()

    def empty_launch(self) -> FakeLaunch:
        """Return a launch that computes nothing. It takes EMPTY_COST_S seconds by the scripted clock, or 0 on
        `fake:cpu`."""
        return FakeLaunch(lambda: self._np.empty(0), 0.0 if self._word == "cpu" else EMPTY_COST_S)

    def peaks(self, *, memory: bool, compute: Sequence[Dtype], link: bool) -> list[Peak]:
        """Return the requested peaks of the cost model. The kernels of `fake:implausible` are five times as fast
        as its peaks allow."""
        peak, (_, bytes_per_s, flops_per_s) = partial(Peak, device_id=self.device.id), self._rates
        rate = STAGED_BYTES_PER_S
        return [
            *([peak(bytes_per_s=bytes_per_s)] if memory else ()),
            *([peak(upload_bytes_per_s=rate, download_bytes_per_s=rate)] if link else ()),
            *(peak(dtype=dtype, flops_per_s=flops_per_s) for dtype in compute),
        ]

    def clock(self) -> float:
        return self._host.read()

    def close(self) -> None:
        """Do nothing, because the session has nothing to free."""

    def _spend(self, seconds: float) -> None:
        self._host.seconds += seconds * self._factor()

    def _factor(self) -> float:
        factor = math.exp(self._random.gauss(0.0, self._noise)) if self._noise else 1.0
        return factor * (1.25 if self._host.seconds > self._hot_s else 1.0)

    def _act_out(self) -> None:
        if self._word == "crash":
            os.abort()
        if self._word == "exit":
            os._exit(3)
        if self._word == "hang":
            sleep_for_ever()
        if self._word == "lost":
            raise DeviceLost("scripted: the device fell off the bus")


def sleep_for_ever() -> NoReturn:
    while True:
        time.sleep(60)


def read_scripted_time(name: str) -> dict[str, float]:
    """Parse an environment variable such as `gpu2=1.15 gpu3=2`, and return its numbers by name."""
    pairs = (word.partition("=") for word in os.environ.get(name, "").split())
    return {key: float(number) for key, _, number in pairs}


def read_slowness(gpu: str) -> float:
    """Return the factor by which GPUBENCH_FAKE_SLOW makes a GPU slower, or 1."""
    return read_scripted_time("GPUBENCH_FAKE_SLOW").get(gpu, 1.0)


def list_identical() -> list[str]:
    """List the identical GPUs that GPUBENCH_FAKE_GPUS requests."""
    return [f"gpu{number}" for number in range(int(os.environ.get("GPUBENCH_FAKE_GPUS", "0")))]


def make_device(word: str) -> Device:
    identical, memory = word[3:].isdecimal(), None if word == "cpu" else 1 << 34
    return Device(
        id=f"fake:{word}", backend="fake", kind="cpu" if word == "cpu" else "gpu",
        name="Scripted gpu" if identical else f"Scripted {word}", api="fake", memory_bytes=memory, usable_bytes=memory,
        unified=word == "unified",
        clock=None if word in ("cpu", "no-clock") else DeviceClock(kind="event", step_s=CLOCK_STEP_S),
        identity=Identity(uuid=f"{int(word[3:]) + 1:032x}") if identical else None,
    )  # fmt: skip
