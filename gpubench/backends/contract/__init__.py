"""The contract between the worker and a backend: a Backend opens a Session on one device.

A `Session` has what every device needs; a method with a body does it as any device can. What only some devices have is
a small protocol: a session that derives from it has it, and the worker asks by `isinstance`.
Nothing above this edge sees a vendor's type or exception: sessions raise `errors.BackendError` alone.
Buffers are opaque. A launch is idempotent: it reads its inputs and writes its own output, nothing else. A
state is both: a launch adds to it, and adds the same again when it is repeated.
Where an op has several outputs, `output` is a tuple of buffers, here and in a launch.
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
    """A launch that is one call, whose result is the output."""

    def __init__(self, function: Callable[[], Any], kernel_hash: str | None = None) -> None:
        self._function = function
        self.kernel_hash = kernel_hash

    def __call__(self) -> None:
        self.output = self._function()


class HostCall(Launch):
    """A step of a chain that the host does: what `call` returns goes up to the output, in order with the launches."""

    def __init__(self, session: Session, call: Callable[[], Any], output: Buffer) -> None:
        self._session, self._call = session, call
        self.output = output

    def __call__(self) -> None:
        """Do it, and send what it made."""
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
    """Buffers of one shape and dtype, for a caller that asks for them at every call. A caller looks them up once: the
    look-up takes as long as a tenth of a launch."""

    take: Callable[[], Buffer]  # returns a buffer that overlaps no other
    give_back: Callable[[Buffer], None]  # takes it back


class Transfers:
    """One way to move data. As it stands: by the session's own calls, from ordinary memory.

    `copies`: threads of its own copy between the caller's array and staging memory.
    """

    staging: Staging = "pageable"  # how data reaches the device
    copies = False

    def __init__(self, session: Session) -> None:
        self._session = session

    def upload(self, buffer: Buffer, host: Array) -> None:
        """Copy in, in order with launches; complete when the session's `sync` returns."""
        self._session.upload(buffer, host)

    def download(self, buffer: Buffer, host: Array) -> None:
        """Copy out, in order with launches; complete when it returns."""
        self._session.download(buffer, host)

    def use_threads(self, count: int | None) -> None:
        """Copy with at most so many threads from now on, None: as many as usual."""

    def is_direct(self, host: Array) -> bool:
        """Return whether the device copies this array by itself, while the caller does something else."""
        return False

    def start_download(self, buffer: Buffer, host: Array) -> None:
        """Enqueue a copy out to a direct array, in order with launches; complete when the session's `sync` returns."""
        raise NotImplementedError


class DeviceStream(ABC):
    """A queue of a device beside others: what is enqueued runs in order, at once with what is in the others.

    Host arrays are of `Session.host_array` in the tuned implementation, and nobody touches them until `wait` returns.
    """

    staging: Staging = "pinned"  # how data reaches the device

    @abstractmethod
    def on(self) -> AbstractContextManager[Any]:
        """Have what is enqueued meanwhile go here; errors of the vendor become ours."""

    @abstractmethod
    def upload(self, buffer: Buffer, host: Array) -> None:
        """Enqueue a copy in."""

    @abstractmethod
    def run(self, launch: Any) -> None:
        """Enqueue a launch of this session."""

    @abstractmethod
    def download(self, buffer: Buffer, host: Array) -> None:
        """Enqueue a copy out."""

    @abstractmethod
    def wait(self) -> None:
        """Return when all that was enqueued here is done. Raises DeviceLost."""

    def close(self) -> None:
        """Free what the queue holds. As it stands: it holds nothing."""


class HostMemory(ABC):
    """Host memory of one kind that an open device computes in. A buffer is the device's, unless the host holds it."""

    def refuse(self, op: Op, case: Case) -> BackendError | None:
        """Return why the case cannot run in this memory. As it stands: it can."""
        return None

    @abstractmethod
    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        """Return a buffer of the session in this memory. Raises DeviceOutOfMemory."""

    def free(self, buffer: Buffer) -> None:
        """Take the buffer back. As it stands: it goes with its last reference."""

    @abstractmethod
    def hold(self, buffers: Sequence[Buffer], *, write: bool) -> list[Array]:
        """Have the host hold these buffers and return their bytes: the CPU is the last that touched them. Nothing runs
        on the device meanwhile."""

    def lend(self, buffers: Sequence[Buffer]) -> None:
        """Give back to the device what the host holds; nobody reads the bytes any longer. As it stands: both may touch
        them."""

    def compile(self, session: Session, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> Launch:
        """Return a launch of the device's session whose output lies in this memory. As it stands: that of the session,
        which writes into the output given."""
        return session.compile(op, case, inputs, output)

    def forget(self) -> None:
        """Let go of idle memory: a workload is over. As it stands: there is none."""

    def close(self) -> None:
        """Free everything. As it stands: `forget` does."""
        self.forget()


class Links(ABC):
    """The links of a device group, which move data among its ranks. Calls enqueue on the ranks that they concern;
    `sync` waits for all. Both are made inside of `guard`."""

    ranks: int  # how many
    xp: Any  # the array library of the buffers, one float32 vector a rank
    copier: str  # what carries a plain copy
    library: str  # what carries a collective

    @abstractmethod
    def on(self, rank: int) -> AbstractContextManager[Any]:
        """Work with the arrays of that rank meanwhile."""

    def guard(self) -> AbstractContextManager[None]:
        """Errors of the vendor become ours meanwhile. It is entered once for many calls, as that takes longer than one.
        As it stands: there is no vendor."""
        return contextlib.nullcontext()

    @abstractmethod
    def sync(self) -> None:
        """Return when all ranks are done."""

    @abstractmethod
    def copy(self, pairs: Sequence[tuple[int, int]], sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Send what the first rank of each pair holds to the second."""

    @abstractmethod
    def collect(self, name: str, sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Do a collective: `allreduce` (each rank gets the sum of what all sent), `reducescatter` (its part of the
        sum), `allgather` (what all sent, one after the other), `alltoall` (its part of what each sent) or `broadcast`
        (what rank 0 sent)."""

    @abstractmethod
    def average(self, buffers: Sequence[Sequence[Buffer]]) -> None:
        """Put the mean over the ranks into each buffer of each rank, behind what its session has enqueued."""

    def clock(self) -> float:
        """Read the host clock in seconds. As it stands: the host's own."""
        return time.perf_counter()

    def array(self, rank: int, count: int) -> Array:
        """Return a new vector of that rank, full of NaN. Raises DeviceOutOfMemory."""
        with self.on(rank):
            return self.xp.full(count, float("nan"), dtype="float32")

    def fetch(self, array: Array) -> tuple[Any, Array]:
        """Return the array in host memory, behind the library that has it there."""
        return self.xp, array

    def close(self) -> None:
        """Free everything; never raises. As it stands: there is nothing to free."""


class Session(ABC):
    """One open device, held by one worker for as long as the worker lives."""

    device: Device  # that is open
    limits: Limits  # that kernels keep to
    threads: int | None = None  # those of a CPU
    blas: Blas | None = None  # what the library calls for products
    lacks: str | None = None  # once a case was compiled: what is missing that would make the CPU faster

    @abstractmethod
    def supports(self, op: Op, case: Case) -> BackendError | None:
        """Return why the case cannot run here, from declarations and limits, without allocation; None if it can."""

    def host_array(self, shape: Shape, dtype: Stored, implementation: Implementation) -> Array:
        """Return a C-contiguous host array: pageable for the library implementation, the backend's best for tuned. Of
        NumPy's own dtypes alone, where a session has no better memory."""
        import numpy as np

        return np.empty(shape, dtype)

    @abstractmethod
    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        """Return a buffer that overlaps no other. Raises DeviceOutOfMemory and stays usable."""

    def free(self, buffer: Buffer) -> None:
        """Take the buffer back. Without a pool it goes with its last reference."""

    def ready_buffers(self, shape: Shape, dtype: Stored) -> ReadyBuffers:
        """Return where buffers of that shape come from. As it stands: from `allocate`, and back by `free`."""
        return ReadyBuffers(functools.partial(self.allocate, shape, dtype), self.free)

    @abstractmethod
    def upload(self, buffer: Buffer, host: Array) -> None:
        """Copy in, in order with launches; complete when `sync` returns."""

    @abstractmethod
    def download(self, buffer: Buffer, host: Array) -> None:
        """Copy out, in order with launches; complete when it returns."""

    def transfers(self, implementation: Implementation) -> Transfers:
        """Return how data moves in this implementation: `library` as a user of the library writes it; `tuned` may
        stage, and what staging costs is part of the call. As it stands: by `upload` and `download`."""
        return Transfers(self)

    def fill(self, buffer: Buffer, shape: Shape, dtype: Stored, value: float) -> None:
        """Write the value into every element, in order with launches. As it stands: by an upload."""
        array = self.host_array(shape, dtype, "library")
        array.fill(value)
        self.upload(buffer, array)

    @abstractmethod
    def compile(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> Launch:
        """Do all untimed work: the library call or the kernel of `case.variant` (None: the first), with what depends on
        them cached by `case.implementation_id`. Cheap when repeated with the same buffers. Raises BuildError."""

    @abstractmethod
    def run(self, launch: Any, repeat: int = 1) -> None:
        """Enqueue `repeat` launches of this session in order and return: no wait."""

    @abstractmethod
    def sync(self) -> None:
        """Return when all enqueued work is done and readable. Raises DeviceLost."""

    def sync_asleep(self) -> None:
        """Wait as `sync` does, but asleep: the CPU has work of its own. As it stands: as `sync` waits."""
        self.sync()

    def view(self, array: Array) -> Buffer:
        """Return a buffer of a CPU in the array's own memory. As it stands: the array."""
        return array

    @property
    def home(self) -> Session:
        """The session in whose memory weights lie. As it stands: this one; operands in host memory are another's."""
        return self

    def enter(self) -> None:
        """Make the calling thread one that may drive the device. As it stands: each may."""

    def flush(self) -> None:
        """Empty the device's caches; complete when `sync` returns. As it stands: upload more than they hold."""
        self.upload(*self._zeros)

    @functools.cached_property
    def _zeros(self) -> tuple[Buffer, Array]:
        zeros = self.host_array((UNKNOWN_CACHE_BYTES // 4,), "float32", "library")
        zeros.fill(0)
        return self.allocate(zeros.shape, "float32"), zeros

    def forget(self) -> None:
        """Hold nothing of the caller's any longer: a workload is over. As it stands: nothing was held."""

    @abstractmethod
    def empty_launch(self) -> Launch:
        """Return a launch that takes the path of a real one and does no work."""

    def clock(self) -> float:
        """Read the host clock in seconds: monotonic, only differences count. A scripted device has one of its own."""
        return time.perf_counter()

    @abstractmethod
    def close(self) -> None:
        """Free everything; idempotent; never raises."""


class WrappedSession(Session):
    """A session over another one of the same device: what it does not change is the inner session's."""

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
        """Open one device. Raises BackendUnavailable. The library is imported here, not before.

        `autotune`: where kernels are chosen by trying them; False: take the defaults.
        """

    def host_devices(self) -> list[Device]:
        """List those of `devices` that are CPUs, sooner than an import takes. Raises BackendUnavailable. As it stands:
        all of them, if that takes none."""
        return self.devices()

    def preload(self) -> None:
        """Import what opening a device needs, without touching any device: other users of a GPU are counted before
        our worker opens it. Raises nothing, since `open` tells what is wrong. Default: do nothing."""


@runtime_checkable
class Observed(Protocol):
    """A backend that reads clocks and users of GPUs that have neither a UUID nor a PCI address."""

    @abstractmethod
    def telemetry(self, device_id: str) -> Callable[[], Mapping[str, Any]]:
        """Return what reads the clock_hz, memory_clock_hz, temperature_c, power_w and throttle of a GPU, once a call.
        It is called in a process of its own."""

    @abstractmethod
    def users(self, device_id: str) -> Mapping[str, int]:
        """Return who else is on such a device: the fields of `monitor.Users` that are not 0."""


@runtime_checkable
class Joins(Protocol):
    """A backend whose devices make device groups."""

    @abstractmethod
    def joinable(self) -> list[Device]:
        """List those of `devices` that make device groups, by ordinal. Raises BackendUnavailable."""

    @abstractmethod
    def links(self, ordinals: Sequence[int], word: str = "") -> Links:
        """Return what joins these devices to a device group; `word` stands for them where a device group has a name.
        Raises BackendUnavailable."""

    @abstractmethod
    def members(
        self, ordinals: Sequence[int], threads: int | None = None, *, autotune: bool = True
    ) -> list[Session]:
        """Open the devices of these ordinals side by side in one worker: the ranks of a device group. Raises
        BackendUnavailable."""
