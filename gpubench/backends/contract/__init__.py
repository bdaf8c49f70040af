"""The contract between the worker and a backend: a Backend opens a Session on one device.

`Session` has the methods that every device needs. A method with a body is a default that works on any device. A feature
of only some devices is a small protocol: a session that derives from the protocol has the feature, and the worker asks
by `isinstance`. The worker sees no type and no exception of a vendor: sessions raise only `errors.BackendError`.
Buffers are opaque. A launch is idempotent: it reads its inputs and writes only its own output. The exception is a
state, which is input and output: a repeated launch adds to the state again. If an op has several outputs, `output` is a
tuple of buffers, here and in a launch.
"""

from __future__ import annotations

import contextlib
import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, runtime_checkable

from gpubench.base.errors import BackendError
from gpubench.kernels.contract.kernel import Kernel, Limits
from gpubench.kernels.contract.op import Array, Implementation, Op, Shape, Stored, each
from gpubench.result.case import Case
from gpubench.result.run import UNKNOWN_CACHE_BYTES, Blas, Device, DeviceKind, StageClock, Staging

Buffer = Any
Work = Callable[[], None]


class Launch:
    """One prepared, repeatable execution."""

    # holds the result once it has run; the library implementation puts a fresh array there each time
    output: Buffer = None
    kernel_hash: str | None = None  # twelve digits that change with the implementation
    kernel_name: str | None = None  # the candidate that was chosen, where there was a choice
    staging: Staging | None = None  # how it moves its data, if not as the session's transfers do


class Call(Launch):
    """A launch that makes one call; the call's result becomes the output."""

    def __init__(self, function: Callable[[], Any], kernel_hash: str | None = None) -> None:
        self._function = function
        self.kernel_hash = kernel_hash

    def __call__(self) -> None:
        self.output = self._function()


class HostCall(Launch):
    """A step of a chain that runs on the host: the result of `call` is uploaded to the output, in order with the
    launches."""

    def __init__(self, session: Session, call: Callable[[], Any], output: Buffer) -> None:
        self._session, self._call = session, call
        self.output = output

    def __call__(self) -> None:
        """Make the call and upload its result."""
        for buffer, made in zip(each(self.output), each(self._call()), strict=True):
            self._session.upload(buffer, made)


class StageReading(NamedTuple):
    """The times of a chain."""

    steps_s: list[float]  # seconds of each step
    span_s: float  # from the begin of the first to the end of the last
    clock: StageClock  # what read them


class Recording(NamedTuple):
    """Seconds in which the host records and submits a launch."""

    first_s: float  # until the device has its first commands
    whole_s: float  # with what it records while the device works


class SideReading(NamedTuple):
    """A chain on one side."""

    steps: StageReading  # its times with readings
    whole_s: float  # of the same chain and its wait without readings


class ReadyBuffers(NamedTuple):
    """A source of buffers of one shape and dtype, for a caller that takes one at every call. The caller looks it up
    only once, because a look-up takes a tenth of a launch."""

    take: Callable[[], Buffer]  # returns a buffer that overlaps no other
    give_back: Callable[[Buffer], None]  # takes it back


class Transfers:
    """One way to move data. The default uses the session's own calls and pageable memory.

    `copies`: whether its own threads copy between the caller's array and staging memory.
    """

    staging: Staging = "pageable"  # how data reaches the device
    copies = False

    def __init__(self, session: Session) -> None:
        self._session = session

    def upload(self, buffer: Buffer, host: Array) -> None:
        """Copy to the device, in order with launches. The copy is complete when the session's `sync` returns."""
        self._session.upload(buffer, host)

    def download(self, buffer: Buffer, host: Array) -> None:
        """Copy to the host, in order with launches. The copy is complete when this method returns."""
        self._session.download(buffer, host)

    def use_threads(self, count: int | None) -> None:
        """Set the largest number of copying threads. None restores the usual number."""

    def is_direct(self, host: Array) -> bool:
        """Return whether the device copies this array without the caller's thread, which is free meanwhile."""
        return False

    def start_download(self, buffer: Buffer, host: Array) -> None:
        """Enqueue a copy to a direct array on the host, in order with launches. The copy is complete when the session's
        `sync` returns."""
        raise NotImplementedError


class DeviceStream(ABC):
    """One of several queues of a device. Work in one queue runs in order, and at the same time as work in other queues.

    Host arrays come from `Session.host_array` for the tuned implementation, and nobody touches them until `wait`
    returns.
    """

    staging: Staging = "pinned"  # how data reaches the device

    @abstractmethod
    def on(self) -> AbstractContextManager[Any]:
        """Enqueue all work of the `with` block in this queue, and turn the vendor's errors into ours."""

    @abstractmethod
    def upload(self, buffer: Buffer, host: Array) -> None:
        """Enqueue a copy to the device."""

    @abstractmethod
    def run(self, launch: Any) -> None:
        """Enqueue a launch of this session."""

    @abstractmethod
    def download(self, buffer: Buffer, host: Array) -> None:
        """Enqueue a copy to the host."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until all work in this queue is done. Raises DeviceLost."""

    def close(self) -> None:
        """Free what the queue holds. The default frees nothing."""


class HostMemory(ABC):
    """Host memory of one kind in which an open device computes. The device owns each buffer, except while the host
    holds it."""

    def refuse(self, op: Op, case: Case) -> BackendError | None:
        """Return why the case cannot run in this memory. The default returns None: every case can."""
        return None

    @abstractmethod
    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        """Return a buffer of the session in this memory. Raises DeviceOutOfMemory."""

    def free(self, buffer: Buffer) -> None:
        """Take the buffer back. The default does nothing: the memory is freed when the last reference to the buffer is
        gone."""

    @abstractmethod
    def hold(self, buffers: Sequence[Buffer], *, write: bool) -> list[Array]:
        """Have the host hold these buffers, and return their bytes. The CPU touches them last; nothing runs on the
        device meanwhile."""

    def lend(self, buffers: Sequence[Buffer]) -> None:
        """Give the buffers that the host holds back to the device; the host no longer reads their bytes. The default
        does nothing: both may touch them."""

    def compile(self, session: Session, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> Launch:
        """Return a launch of the device's session whose output lies in this memory. The default is the session's own
        launch, which writes into `output`."""
        return session.compile(op, case, inputs, output)

    def forget(self) -> None:
        """Free idle memory at the end of a workload. The default has none."""

    def close(self) -> None:
        """Free everything. The default calls `forget`."""
        self.forget()


class Links(ABC):
    """The links of a device group, which move data among its ranks. Each call enqueues work on the ranks that take
    part; `sync` waits for all ranks. Callers make both kinds of call inside `guard`."""

    ranks: int  # how many
    xp: Any  # the array library of the buffers, one float32 vector a rank
    copier: str  # what carries a plain copy
    library: str  # what carries a collective

    @abstractmethod
    def on(self, rank: int) -> AbstractContextManager[Any]:
        """Make the rank's device current in the `with` block, to work with its arrays."""

    def guard(self) -> AbstractContextManager[None]:
        """Turn the vendor's errors into ours in the `with` block. Enter it once for many calls, because entering takes
        longer than a call. The default does nothing: there is no vendor."""
        return contextlib.nullcontext()

    @abstractmethod
    def sync(self) -> None:
        """Wait until all ranks are done."""

    @abstractmethod
    def copy(self, pairs: Sequence[tuple[int, int]], sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Copy the array of the first rank of each pair to the second rank."""

    @abstractmethod
    def collect(self, name: str, sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Do a collective. `allreduce` gives each rank the sum of all arrays, `reducescatter` one part of that sum,
        `allgather` all arrays in a row, `alltoall` one part of every array, `broadcast` the array of rank 0."""

    @abstractmethod
    def average(self, buffers: Sequence[Sequence[Buffer]]) -> None:
        """Replace each buffer by its mean over the ranks, after the work that the sessions have enqueued."""

    def clock(self) -> float:
        """Read the host clock in seconds. The default is `time.perf_counter`."""
        return time.perf_counter()

    def array(self, rank: int, count: int) -> Array:
        """Return a new float32 vector on the rank, full of NaN. Raises DeviceOutOfMemory."""
        with self.on(rank):
            return self.xp.full(count, float("nan"), dtype="float32")

    def fetch(self, array: Array) -> tuple[Any, Array]:
        """Return the array in host memory, and before it the array library that the array belongs to."""
        return self.xp, array

    def close(self) -> None:
        """Free everything; never raises. The default has nothing to free."""


class Session(ABC):
    """One open device. One worker holds it as long as the worker lives."""

    device: Device  # that is open
    limits: Limits  # that kernels keep to
    threads: int | None = None  # those of a CPU
    blas: Blas | None = None  # what the library calls for products
    lacks: str | None = None  # once a case was compiled: what is missing that would make the CPU faster

    @abstractmethod
    def supports(self, op: Op, case: Case) -> BackendError | None:
        """Return why the case cannot run here. Returns None if it can. Reads only declarations and limits and allocates
        nothing."""

    def host_array(self, shape: Shape, dtype: Stored, implementation: Implementation) -> Array:
        """Return a C-contiguous host array: pageable for the library implementation, the backend's best memory for the
        tuned one. The default knows only NumPy's own dtypes."""
        import numpy as np

        return np.empty(shape, dtype)

    @abstractmethod
    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        """Return a buffer that overlaps no other. Raises DeviceOutOfMemory and stays usable."""

    def free(self, buffer: Buffer) -> None:
        """Take the buffer back. Without a pool the memory is freed with the buffer's last reference."""

    def ready_buffers(self, shape: Shape, dtype: Stored) -> ReadyBuffers:
        """Return a source of buffers of that shape and dtype. The default calls `allocate` and `free`."""
        return ReadyBuffers(functools.partial(self.allocate, shape, dtype), self.free)

    @abstractmethod
    def upload(self, buffer: Buffer, host: Array) -> None:
        """Copy to the device, in order with launches. The copy is complete when `sync` returns."""

    @abstractmethod
    def download(self, buffer: Buffer, host: Array) -> None:
        """Copy to the host, in order with launches. The copy is complete when this method returns."""

    def transfers(self, implementation: Implementation) -> Transfers:
        """Return the way to move data for this implementation. `library` moves it as a user of the library does;
        `tuned` may stage it, and the time of staging counts. The default uses `upload` and `download`."""
        return Transfers(self)

    def fill(self, buffer: Buffer, shape: Shape, dtype: Stored, value: float) -> None:
        """Write the value into every element, in order with launches. The default uploads an array."""
        array = self.host_array(shape, dtype, "library")
        array.fill(value)
        self.upload(buffer, array)

    @abstractmethod
    def compile(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> Launch:
        """Do all untimed work: prepare the library call or the kernel of `case.variant` (None means the first kernel).
        Caches by `case.implementation_id`, so a repeated call with the same buffers is cheap. Raises BuildError."""

    @abstractmethod
    def run(self, launch: Any, repeat: int = 1) -> None:
        """Enqueue `repeat` launches of this session in order, and return without a wait."""

    @abstractmethod
    def sync(self) -> None:
        """Wait until all enqueued work is done and its results are readable. Raises DeviceLost."""

    def sync_asleep(self) -> None:
        """Wait like `sync`, but asleep, so that the CPU can do other work. The default calls `sync`."""
        self.sync()

    def view(self, array: Array) -> Buffer:
        """Return a buffer in the array's own memory; CPU only. The default returns the array."""
        return array

    @property
    def home(self) -> Session:
        """The session in whose memory weights lie: by default this one, for operands in host memory the device's own
        session."""
        return self

    def enter(self) -> None:
        """Prepare the calling thread to drive the device. The default does nothing: every thread may."""

    def flush(self) -> None:
        """Empty the device's caches; complete when `sync` returns. The default uploads more bytes than the caches
        hold."""
        self.upload(*self._zeros)

    @functools.cached_property
    def _zeros(self) -> tuple[Buffer, Array]:
        zeros = self.host_array((UNKNOWN_CACHE_BYTES // 4,), "float32", "library")
        zeros.fill(0)
        return self.allocate(zeros.shape, "float32"), zeros

    def forget(self) -> None:
        """Drop all references to the caller's objects at the end of a workload. The default has none."""

    @abstractmethod
    def empty_launch(self) -> Launch:
        """Return a launch that does no work but takes the same path as a real launch."""

    def clock(self) -> float:
        """Read the host clock in seconds. It is monotonic, and only differences count. A scripted device has a clock of
        its own."""
        return time.perf_counter()

    @abstractmethod
    def close(self) -> None:
        """Free everything; idempotent; never raises."""


class WrappedSession(Session):
    """A session around another session of the same device. Calls go to the inner session unless a subclass overrides
    them."""

    def __init__(self, inner: Session) -> None:
        self._inner = inner
        self.device, self.limits, self.threads, self.blas = (
            inner.device,
            inner.limits,
            inner.threads,
            inner.blas,
        )

    def host_array(self, shape: Shape, dtype: Stored, implementation: Implementation) -> Array:
        return self._inner.host_array(shape, dtype, implementation)

    def run(self, launch: Any, repeat: int = 1) -> None:
        self._inner.run(launch, repeat)

    def sync(self) -> None:
        self._inner.sync()

    def enter(self) -> None:
        self._inner.enter()

    def forget(self) -> None:
        self._inner.forget()

    def empty_launch(self) -> Launch:
        return self._inner.empty_launch()

    def clock(self) -> float:
        return self._inner.clock()

    def close(self) -> None:
        self._inner.close()


# ---------------------------------------------------------------- backends


class Backend(ABC):
    """A library that drives devices. One file in gpubench/backends/ defines BACKEND."""

    name: str  # in options and ids
    implementations: tuple[Implementation, ...]  # that it has
    kinds: tuple[DeviceKind, ...] = ("gpu",)  # of its devices, software adapters apart
    # Tuned kernels that it brings along, by the op's name: they come before those that the op declares for it.
    kernels: Mapping[str, tuple[Kernel, ...]] = {}  # of ops, by the op's name
    # What its name alone stands for, by what follows the colon of the ids; None: all of its devices.
    default_devices: tuple[str, ...] | None = None  # by id, where not all are measured unless they are named
    # Backends that come before it on a GPU that both have, unless somebody names it.
    yields_to: tuple[str, ...] = ()  # backends whose devices of the same hardware are preferred
    # its sessions have a clock of their own, which the machine's load does not touch
    scripted_time: bool = False
    device_groups: tuple[str, ...] = ()  # words that name device groups of its devices, beside their ordinals

    @abstractmethod
    def devices(self) -> list[Device]:
        """List each physical device once, without opening it. Raises BackendUnavailable."""

    @abstractmethod
    def open(self, device_id: str, threads: int | None = None, *, autotune: bool = True) -> Session:
        """Open one device, and import the library only now. Raises BackendUnavailable.

        `autotune`: whether kernels are chosen by trials; False means the defaults.
        """

    def host_devices(self) -> list[Device]:
        """List the CPUs among `devices`, without importing the library. Raises BackendUnavailable. The default lists
        all devices; override it if `devices` imports the library."""
        return self.devices()

    def preload(self) -> None:
        """Import the modules that opening a device needs, but touch no device: other users of a GPU are counted before
        our worker opens it. Raises nothing, because `open` reports errors. The default does nothing."""


@runtime_checkable
class Observed(Protocol):
    """A backend that reads the clocks and the users of GPUs without a UUID and without a PCI address."""

    @abstractmethod
    def telemetry(self, device_id: str) -> Callable[[], Mapping[str, Any]]:
        """Return a function that reads clock_hz, memory_clock_hz, temperature_c, power_w and throttle of a GPU once per
        call. A process of its own calls it."""

    @abstractmethod
    def users(self, device_id: str) -> Mapping[str, int]:
        """Return the other users of such a device: the fields of `monitor.Users` that are not 0."""


@runtime_checkable
class Joins(Protocol):
    """A backend whose devices can form device groups."""

    @abstractmethod
    def joinable(self) -> list[Device]:
        """List the devices that can form device groups, by ordinal. Raises BackendUnavailable."""

    @abstractmethod
    def links(self, ordinals: Sequence[int], word: str = "") -> Links:
        """Return the links among these devices. `word` stands for the devices in the name of a device group. Raises
        BackendUnavailable."""

    @abstractmethod
    def members(
        self, ordinals: Sequence[int], threads: int | None = None, *, autotune: bool = True
    ) -> list[Session]:
        """Open the devices of these ordinals in one worker: the ranks of a device group. Raises BackendUnavailable."""
