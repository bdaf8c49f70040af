"""The contract between a worker and a backend: a Backend opens a Session on one device.

`Session` has the methods that every device needs. A method with a body is a default that a subclass may
override. A feature of only some devices is a small protocol: a session with the feature derives from the
protocol, and the worker asks by `isinstance`. The worker sees no type and no exception of a vendor, because
sessions turn the errors of libraries into `errors.BackendError`.

Buffers are opaque. A launch may be repeated: it reads its inputs and writes only its own output. A state is the
exception: it is both input and output, and each launch adds to it. If an op has several outputs, `output` is a
tuple of buffers.
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
    """A prepared execution, which can be repeated."""

    # The buffer with the result after a run. Each run of the library implementation puts a new array here.
    output: Buffer = None
    kernel_hash: str | None = None  # twelve hexadecimal digits that change with the kernel; None: unknown
    kernel_name: str | None = None  # chosen candidate, if there was a choice
    staging: Staging | None = None  # way in which the launch moves its data; None: the way of the session


class Call(Launch):
    """A launch that calls a function. The result of the call is the output."""

    def __init__(self, function: Callable[[], Any], kernel_hash: str | None = None) -> None:
        self._function = function
        self.kernel_hash = kernel_hash

    def __call__(self) -> None:
        self.output = self._function()


class HostCall(Launch):
    """A stage of a chain that runs on the host. Its result is uploaded to the output, in order with the
    launches."""

    def __init__(self, session: Session, call: Callable[[], Any], output: Buffer) -> None:
        self._session, self._call = session, call
        self.output = output

    def __call__(self) -> None:
        """Make the call and upload its result."""
        for buffer, made in zip(each(self.output), each(self._call()), strict=True):
            self._session.upload(buffer, made)


class StageReading(NamedTuple):
    """The times of the steps of a chain."""

    steps_s: list[float]  # seconds of each step
    span_s: float  # seconds from the beginning of the first step to the end of the last
    clock: StageClock  # clock that measured the times


class Recording(NamedTuple):
    """The time that the host takes to record and submit a launch."""

    first_s: float  # seconds until the first commands are submitted
    whole_s: float  # seconds of all recording, including what the device's work hides


class SideReading(NamedTuple):
    """The times of a chain that runs on one side."""

    steps: StageReading  # times of its steps, from a run with clock readings between them
    whole_s: float  # seconds of a run without such readings, including the wait


class ReadyBuffers(NamedTuple):
    """A source of buffers of one shape and dtype. A caller looks it up once, and then gets buffers faster."""

    take: Callable[[], Buffer]  # returns a buffer that does not overlap any other
    give_back: Callable[[Buffer], None]  # returns a buffer to the source


class Transfers:
    """A way to move data between host and device. This default uses the session's own calls and pageable
    memory."""

    staging: Staging = "pageable"  # way in which data reaches the device
    copies = False  # whether threads of its own copy between the caller's array and staging memory

    def __init__(self, session: Session) -> None:
        self._session = session

    def upload(self, buffer: Buffer, host: Array) -> None:
        """Copy to the device, in order with launches. The copy is complete when the session's `sync`
        returns."""
        self._session.upload(buffer, host)

    def download(self, buffer: Buffer, host: Array) -> None:
        """Copy to the host, in order with launches. The copy is complete when this method returns."""
        self._session.download(buffer, host)

    def use_threads(self, count: int | None) -> None:
        """Set the largest number of copying threads. None restores the usual number. The default does nothing,
        because it has no copying threads."""

    def is_direct(self, host: Array) -> bool:
        """Return whether the device copies this array by itself, while the caller's thread is free. The default
        returns False."""
        return False

    def start_download(self, buffer: Buffer, host: Array) -> None:
        """Enqueue a copy to a host array for which `is_direct` is true, in order with launches. The copy is
        complete when the session's `sync` returns. A class that overrides `is_direct` must override this, too."""
        raise NotImplementedError


class DeviceStream(ABC):
    """A queue of a device. Its work is done in order, at the same time as the work of other queues. Host arrays
    come from `Session.host_array` for the tuned implementation. The caller must not touch them until `wait`
    returns."""

    staging: Staging = "pinned"  # way in which data reaches the device

    @abstractmethod
    def on(self) -> AbstractContextManager[Any]:
        """Enqueue the work of the `with` block in this queue, and turn the vendor's errors there into
        BackendError."""

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
        """Wait until all work in this queue is done. Raises DeviceLost if the device has failed."""

    def close(self) -> None:
        """Free what the queue holds. The default frees nothing."""


class HostMemory(ABC):
    """Host memory of one kind in which a device can compute. A buffer belongs to the device, except from `hold`
    to `lend`."""

    def refuse(self, op: Op, case: Case) -> BackendError | None:
        """Return why the case cannot run in this memory, or None if it can. The default returns None."""
        return None

    @abstractmethod
    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        """Return a buffer of the session in this memory. Raises DeviceOutOfMemory."""

    def free(self, buffer: Buffer) -> None:
        """Free the buffer. The default does nothing, since the memory is freed with the last reference to the
        buffer."""

    @abstractmethod
    def hold(self, buffers: Sequence[Buffer], *, write: bool) -> list[Array]:
        """Take the buffers from the device, and return them as host arrays of bytes. No launch may run until
        `lend`. `write` says whether the host will write to the arrays."""

    def lend(self, buffers: Sequence[Buffer]) -> None:
        """Give the buffers back to the device. After that the host must not touch them. The default does
        nothing, which is right if host and device may touch the buffers at any time."""

    def compile(self, session: Session, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> Launch:
        """Return a launch whose output lies in this memory. The default returns the session's launch, which
        writes into `output`."""
        return session.compile(op, case, inputs, output)

    def forget(self) -> None:
        """Free idle memory at the end of a workload. The default does nothing."""

    def close(self) -> None:
        """Free everything. The default calls `forget`."""
        self.forget()


class Links(ABC):
    """The links of a device group, which move data among its ranks. `copy`, `collect` and `average` enqueue
    work on ranks. Call them and `sync` inside `guard`."""

    ranks: int  # number of ranks
    xp: Any  # array library of the buffers
    copier: str  # name of the library or call that does plain copies
    library: str  # name of the library that does collectives

    @abstractmethod
    def on(self, rank: int) -> AbstractContextManager[Any]:
        """Make the device of this rank current in the `with` block."""

    def guard(self) -> AbstractContextManager[None]:
        """Turn the vendor's errors into BackendError in the `with` block. Enter it once for many calls, because
        entering takes longer than a call. The default does nothing."""
        return contextlib.nullcontext()

    @abstractmethod
    def sync(self) -> None:
        """Wait until all ranks are done with copies and collectives. For `average`, the `sync` of each session
        waits."""

    @abstractmethod
    def copy(self, pairs: Sequence[tuple[int, int]], sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Copy the array of the first rank of each pair to the second rank. `sent` and `got` have an array for
        each rank."""

    @abstractmethod
    def collect(self, name: str, sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Do the collective `name` on `sent` and `got`, which have an array for each rank. Raises Unsupported if the
        library for collectives is missing.

        What each rank gets:

        - `allreduce`: the sum of all arrays
        - `reducescatter`: one part of that sum
        - `allgather`: all arrays in a row
        - `alltoall`: one part of every array
        - `broadcast`: the array of rank 0
        """

    @abstractmethod
    def average(self, buffers: Sequence[Sequence[Buffer]]) -> None:
        """Replace each buffer by its mean over the ranks, after the work that the sessions have enqueued. `buffers`
        has a list of buffers for each rank. Raises Unsupported if the library for collectives is missing."""

    def clock(self) -> float:
        """Read the host clock in seconds. The default is `time.perf_counter`."""
        return time.perf_counter()

    def array(self, rank: int, count: int) -> Array:
        """Return a new float32 vector on the rank, full of NaN. Raises DeviceOutOfMemory."""
        with self.on(rank):
            return self.xp.full(count, float("nan"), dtype="float32")

    def fetch(self, array: Array) -> tuple[Any, Array]:
        """Return an array library for the host, and the array in host memory. The default is for ranks whose
        arrays are in host memory already."""
        return self.xp, array

    def close(self) -> None:
        """Free everything. Never raises. The default does nothing."""


class Session(ABC):
    """One open device. A worker keeps it open until the worker ends."""

    device: Device  # open device
    limits: Limits  # limits and features of the device, which kernels take into account
    threads: int | None = None  # number of CPU threads that compute; None if no CPU takes part
    blas: Blas | None = None  # the BLAS that the library calls for matrix products; None if unknown
    # The reason why the CPU is slower than it could be, which may be found when the first case is compiled. None if
    # there is no such reason.
    lacks: str | None = None

    @abstractmethod
    def supports(self, op: Op, case: Case) -> BackendError | None:
        """Return why the case cannot run here, or None if it can. Only declarations, limits and small trials
        decide: operands of the case are not allocated."""

    def host_array(self, shape: Shape, dtype: Stored, implementation: Implementation) -> Array:
        """Return a C-contiguous host array: in pageable memory for the library implementation, in the backend's
        fastest memory for the tuned one. The default is pageable memory for both, and knows only NumPy's own
        dtypes."""
        import numpy as np

        return np.empty(shape, dtype)

    @abstractmethod
    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        """Return a buffer that does not overlap any other. Raises DeviceOutOfMemory, after which the session is
        still usable."""

    def free(self, buffer: Buffer) -> None:
        """Free the buffer. The default does nothing, since the memory is freed with the last reference to the
        buffer."""

    def ready_buffers(self, shape: Shape, dtype: Stored) -> ReadyBuffers:
        """Return a source of buffers of this shape and dtype. The default uses `allocate` and `free`."""
        return ReadyBuffers(functools.partial(self.allocate, shape, dtype), self.free)

    @abstractmethod
    def upload(self, buffer: Buffer, host: Array) -> None:
        """Copy to the device, in order with launches. The copy is complete when `sync` returns."""

    @abstractmethod
    def download(self, buffer: Buffer, host: Array) -> None:
        """Copy to the host, in order with launches. The copy is complete when this method returns."""

    def transfers(self, implementation: Implementation) -> Transfers:
        """Return the way to move data for this implementation. `library` moves data as a user of the library
        does. `tuned` may stage data, and the time of staging counts. The default uses `upload` and `download`.
        """
        return Transfers(self)

    def fill(self, buffer: Buffer, shape: Shape, dtype: Stored, value: float) -> None:
        """Write the value into every element, in order with launches. The default uploads an array."""
        array = self.host_array(shape, dtype, "library")
        array.fill(value)
        self.upload(buffer, array)

    @abstractmethod
    def compile(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> Launch:
        """Return a launch of the case on these buffers. All work that must not be timed is done here. If `output`
        is None, each run makes a new output. Raises BuildError, and DeviceOutOfMemory if scratch memory does
        not fit."""

    @abstractmethod
    def run(self, launch: Any, repeat: int = 1) -> None:
        """Enqueue `repeat` launches of this session in order, and return without waiting."""

    @abstractmethod
    def sync(self) -> None:
        """Wait until all enqueued work is done and its results are readable. Raises DeviceLost if the device
        has failed."""

    def sync_asleep(self) -> None:
        """Wait like `sync`, but without spinning, so that the CPU can do other work. The default calls
        `sync`."""
        self.sync()

    def view(self, array: Array) -> Buffer:
        """Return a buffer in the memory of the array. Only sessions of a CPU need it. The default returns the
        array."""
        return array

    @property
    def home(self) -> Session:
        """The session whose memory holds the weights. If operands lie in host memory, it is the device's plain
        session, otherwise this session."""
        return self

    def enter(self) -> None:
        """Prepare the calling thread to drive the device. The default does nothing."""

    def flush(self) -> None:
        """Enqueue work that empties the device's caches. The default uploads UNKNOWN_CACHE_BYTES, which is more
        than usual caches hold."""
        self.upload(*self._zeros)

    @functools.cached_property
    def _zeros(self) -> tuple[Buffer, Array]:
        zeros = self.host_array((UNKNOWN_CACHE_BYTES // 4,), "float32", "library")
        zeros.fill(0)
        return self.allocate(zeros.shape, "float32"), zeros

    def forget(self) -> None:
        """Drop all references to the caller's arrays at the end of a workload. The default does nothing."""

    @abstractmethod
    def empty_launch(self) -> Launch:
        """Return a launch that does no work, but is enqueued in the same way as others."""

    def clock(self) -> float:
        """Read the host clock in seconds. It is monotonic, and only differences count. A scripted device
        returns scripted time."""
        return time.perf_counter()

    @abstractmethod
    def close(self) -> None:
        """Free everything. May be called again. Never raises."""


class WrappedSession(Session):
    """A session around an `inner` session, which drives the device or the GPU of a split. It passes on the calls
    of `host_array`, `run`, `sync`, `enter`, `forget`, `empty_launch`, `clock` and `close`. Its other methods
    are the defaults of `Session`, unless a subclass overrides them."""

    def __init__(self, inner: Session) -> None:
        self._inner, self.device, self.limits = inner, inner.device, inner.limits
        self.threads, self.blas = inner.threads, inner.blas

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
    """A library that drives devices. A file or folder in gpubench/backends/ defines BACKEND, an instance of a
    subclass. Another package names such an instance in an entry point of the group `gpubench.backends`."""

    name: str  # name of the backend in options and ids
    implementations: tuple[Implementation, ...]  # implementations that the backend has
    kinds: tuple[DeviceKind, ...] = ("gpu",)  # kinds of its devices, without software adapters
    # tuned kernels that it brings, by the name of the op; they are preferred to the kernels of the op
    kernels: Mapping[str, tuple[Kernel, ...]] = {}
    # The devices that are measured if the user names the backend and no device; each is the part of an id after the
    # colon. None means all devices, which are then also measured if the user names no backend.
    default_devices: tuple[str, ...] | None = None
    # Backends that are preferred to this backend on a GPU that both drive, unless the user names this backend.
    yields_to: tuple[str, ...] = ()
    # Whether its sessions have a scripted clock, so that the load of the machine has no effect.
    scripted_time: bool = False
    device_groups: tuple[str, ...] = ()  # words that name device groups, in addition to lists of ordinals

    @abstractmethod
    def devices(self) -> list[Device]:
        """List the devices, without opening one. Raises BackendUnavailable if the library cannot be used or
        lists no device."""

    @abstractmethod
    def open(self, device_id: str, threads: int | None = None, *, autotune: bool = True) -> Session:
        """Import the library and open one device. `threads` is the number of CPU threads; None means one for
        each usable CPU. `autotune` says whether trials choose the kernels; otherwise they are the default ones.
        Raises BackendUnavailable."""

    def host_devices(self) -> list[Device]:
        """List the devices for a run that needs only CPUs of this backend. The default lists all devices. Override
        it if CPUs can be listed without importing the library. Raises BackendUnavailable."""
        return self.devices()

    def members(
        self, ordinals: Sequence[int], threads: int | None = None, *, autotune: bool = True
    ) -> list[Session]:
        """Open the devices of these ordinals in one process, as the ranks of a device group. `threads` and
        `autotune` are as in `open`. Raises BackendUnavailable."""
        return [self.open(f"{self.name}:{ordinal}", threads, autotune=autotune) for ordinal in ordinals]

    def preload(self) -> None:
        """Import the modules that `open` needs. It must not touch a device, because the processes on the GPUs are
        listed next. Raises nothing, because `open` reports the errors. The default does nothing."""


@runtime_checkable
class Observed(Protocol):
    """A backend that reads the clocks of its GPUs, and which programs use them. It is asked for GPUs that have
    neither a UUID nor a PCI address."""

    @abstractmethod
    def telemetry(self, device_id: str) -> Callable[[], Mapping[str, Any]]:
        """Return a function that reads a GPU. Its results have any of these fields of `monitor.Reading`: clock_hz,
        memory_clock_hz, temperature_c, power_w, energy_j and throttle."""

    @abstractmethod
    def users(self, device_id: str) -> Mapping[str, int]:
        """Return how other programs use a GPU: the fields of `monitor.Users` that are not 0, by name."""


@runtime_checkable
class Joins(Protocol):
    """A backend whose devices can form device groups."""

    @abstractmethod
    def joinable(self) -> list[Device]:
        """List the devices that can form device groups, in the order of their ordinals. Raises
        BackendUnavailable."""

    @abstractmethod
    def links(self, ordinals: Sequence[int], word: str = "") -> Links:
        """Return the links among the devices of these ordinals. `word` is the name of the device group, if it is
        one of `Backend.device_groups`, otherwise "". Raises BackendUnavailable."""
