"""The contract between the worker and a backend: a Backend opens a Session on one device.

Both are base classes that say all a backend may offer: what is abstract has to be written, the rest has a default. A
method that overrides a default carries `@override`, so that mypy finds a name that is none.
Nothing above this edge sees a vendor's type or exception: sessions raise `errors.BackendError` alone.
Buffers are opaque. A launch is idempotent: it reads its inputs and writes its own output, nothing else. A
state is both: a launch adds to it, and adds the same again when it is repeated.
Where an op has several outputs, `output` is a tuple of buffers, here and in a launch.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from gpubench.base.errors import BackendError, BackendUnavailable, Unsupported
from gpubench.kernels.contract.kernel import Kernel, Limits
from gpubench.kernels.contract.op import Array, Dtype, Form, Op, Shape, Stored, each
from gpubench.result.case import Case
from gpubench.result.run import UNKNOWN_CACHE_BYTES, Blas, Ceiling, Device, DeviceKind, StageClock, Staging

if TYPE_CHECKING:
    from typing_extensions import override as override
else:

    def override(method):
        """`typing.override`, which Python has from 3.12 on."""
        return method


Buffer = Any
Work = Callable[[], None]


class Launch:
    """One prepared, repeatable execution.

    `output` holds the result once it has run; the library form puts a fresh array there each time. `kernel_hash` has
    twelve digits that change with the implementation. `kernel_name` is the candidate that was chosen, where there was a
    choice. `staging` tells how the launch moves its data, if not as the session's transfers do.
    """

    output: Buffer = None
    kernel_hash: str | None = None
    kernel_name: str | None = None
    staging: Staging | None = None


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
    """Seconds of each step of a chain, and from the begin of the first to the end of the last; `clock` read them."""

    steps_s: list[float]
    span_s: float
    clock: StageClock


class Recording(NamedTuple):
    """Seconds in which the host records and submits a launch: until the device has its first commands, and with what it
    records while the device works."""

    first_s: float
    whole_s: float


class SideReading(NamedTuple):
    """The steps of a chain on one side, and the seconds of the same chain and its wait without readings."""

    steps: StageReading
    whole_s: float


class Transfers:
    """One way to move data. As it stands: by the session's own calls, from ordinary memory.

    `copies`: threads of its own copy between the caller's array and staging memory.
    """

    staging: Staging = "pageable"
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


class Links(ABC):
    """What moves data among the ranks of a gang. Calls enqueue on the ranks that they concern; `sync` waits for all.
    Both are made inside of `guard`.

    `xp` is the array library of the buffers, one float32 vector a rank. `copier` and `library` name what carries a
    plain copy, and a collective.
    """

    ranks: int
    xp: Any
    copier: str
    library: str

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
        """What the first rank of each pair sent becomes what the second got."""

    @abstractmethod
    def all_reduce(self, sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Each rank gets the sum of what all sent."""

    @abstractmethod
    def reduce_scatter(self, sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Each rank gets its part of the sum."""

    @abstractmethod
    def all_gather(self, sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Each rank gets what all sent, one after the other."""

    @abstractmethod
    def all_to_all(self, sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Each rank gets its part of what each sent."""

    @abstractmethod
    def broadcast(self, sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Each rank gets what rank 0 sent."""

    def clock(self) -> float:
        """The host clock in seconds. As it stands: the host's own."""
        import time

        return time.perf_counter()

    def array(self, rank: int, count: int) -> Array:
        """A new vector of that rank, full of NaN. Raises DeviceOutOfMemory."""
        with self.on(rank):
            return self.xp.full(count, float("nan"), dtype="float32")

    def fetched(self, array: Array) -> tuple[Any, Array]:
        """The array in host memory, and the library that has it there."""
        return self.xp, array

    def close(self) -> None:
        """Free everything; never raises. As it stands: there is nothing to free."""


class Session(ABC):
    """One open device, held by one worker for as long as the worker lives.

    `threads` and `blas` are those of a CPU's session. `several`: it computes ops with several outputs, and with int32
    among their operands. `lacks` says, once a case was compiled, what is missing that
    would make the CPU faster. `tunes`: `tune` chooses among candidates. `parts`: it has `beginning`, so that ops may
    read parts of one buffer.
    """

    device: Device
    limits: Limits
    threads: int | None = None
    blas: Blas | None = None
    lacks: str | None = None
    tunes: bool = False
    several: bool = False
    parts: bool = False
    _zeros: tuple[Buffer, Array] | None = None
    _full: tuple[tuple[str, str], Array] | None = None

    # ---------------------------------------------------------------- what every session has to say

    @abstractmethod
    def supports(self, op: Op, case: Case) -> BackendError | None:
        """None, or why the case cannot run here: from declarations and limits, without allocation."""

    @abstractmethod
    def host_array(self, shape: Shape, dtype: Stored, form: Form) -> Array:
        """A C-contiguous host array: pageable for the library form, the backend's best for tuned."""

    @abstractmethod
    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        """A buffer that overlaps no other. Raises DeviceOutOfMemory and stays usable."""

    @abstractmethod
    def upload(self, buffer: Buffer, host: Array) -> None:
        """Copy in, in order with launches; complete when `sync` returns."""

    @abstractmethod
    def download(self, buffer: Buffer, host: Array) -> None:
        """Copy out, in order with launches; complete when it returns."""

    @abstractmethod
    def compile(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> Launch:
        """All untimed work: the library call or the kernel of `case.variant` (None: the first), with what depends on
        them cached by `case.form_id`. Cheap when repeated with the same buffers. Raises BuildError."""

    def build(self, cases: Sequence[tuple[Op, Case]]) -> None:
        """Build what these cases need, side by side, as far as nothing is still to be chosen: `compile` finds it then.
        Raises BuildError. As it stands: `compile` builds all."""

    @abstractmethod
    def run(self, launch: Any, repeat: int = 1) -> None:
        """Enqueue `repeat` launches of this session in order and return: no wait."""

    @abstractmethod
    def sync(self) -> None:
        """Return when all enqueued work is done and readable. Raises DeviceLost."""

    @abstractmethod
    def empty_launch(self) -> Launch:
        """A launch that takes the path of a real one and does no work."""

    # ---------------------------------------------------------------- what a session may say, of checks

    def fill(self, buffer: Buffer, shape: Shape, dtype: Stored, value: float) -> None:
        """Write the value into every element, in order with launches. Default: an upload."""
        known = self._full
        if known is None or known[1].shape != shape or known[0] != (dtype, str(value)):
            array = self.host_array(shape, dtype, "library")
            array.fill(value)
            known = self._full = ((dtype, str(value)), array)
        self.upload(buffer, known[1])

    def memory(self, buffer: Buffer, shape: Shape, dtype: Stored) -> Array | None:
        """Return the buffer's own memory as a host array. Returns None if the host cannot read it, or if the buffer has
        another shape or dtype."""
        return None

    def copy_of(self, buffer: Buffer, shape: Shape, dtype: Stored) -> Buffer | None:
        """Return a new buffer of the device that holds the same. Returns None if the session compares no buffers.
        Raises DeviceOutOfMemory."""
        return None

    def begins(self, copy: Buffer, buffer: Buffer, shape: Shape, dtype: Stored) -> bool:
        """Return whether a copy begins with the bytes of a buffer that has this shape and dtype."""
        raise NotImplementedError

    # ---------------------------------------------------------------- what a session may say

    def free(self, buffer: Buffer) -> None:
        """Give the buffer back to the pool. As it stands: it goes with its last reference."""

    def beginning(self, buffer: Buffer, shape: Shape) -> Buffer:
        """The first elements of a flat buffer in this shape and in its memory: an input that no launch may write to."""
        raise Unsupported(f"buffers of {self.device.backend} have no parts", reason="no-implementation")

    def forget(self) -> None:
        """A workload is over: hold nothing of the caller's any longer. As it stands: nothing is held."""

    def close(self) -> None:
        """Free everything; idempotent; never raises. As it stands: there is nothing to free."""

    def clock(self) -> float:
        """The host clock in seconds: monotonic, only differences count. As it stands: the host's own."""
        return time.perf_counter()

    def waited(self, calls: Sequence[Callable[[], None]]) -> list[float]:
        """Seconds of each call and the wait for it, by the host's clock."""
        return self._clocked(calls, self.sync)

    def called(self, calls: Sequence[Callable[[], None]]) -> list[float]:
        """Seconds of each call by the host's clock; what it sent may be on its way. Waits after the last one."""
        found = self._clocked(calls, lambda: None)
        self.sync()
        return found

    def _clocked(self, calls: Sequence[Callable[[], None]], behind: Callable[[], None]) -> list[float]:
        """Seconds of each call and of what comes behind it."""
        readings = [self.clock()]
        for call in calls:
            call()
            behind()
            readings.append(self.clock())
        return [after - before for before, after in itertools.pairwise(readings)]

    def time(self, launch: Any, repeat: int = 1, *, cold: bool = False) -> float | None:
        """Seconds on the device clock for `repeat` launches, or None without such a clock.

        `cold`: one launch with flushed caches, queued so that no host time is inside.
        """
        return None

    def core_hz(self) -> float | None:
        """Cycles per second of the device's cores once all enqueued work is done; None: it does not tell. Takes well
        below a millisecond."""
        return None

    def transfers(self, form: Form) -> Transfers:
        """How data moves in this form: `library` as a user of the library writes it; `tuned` may stage, and what
        staging costs is part of the call."""
        return Transfers(self)

    def allocate_fresh(self, shape: Shape, dtype: Stored) -> Buffer:
        """A buffer from the driver, usable at once, whatever the pool holds. Raises DeviceOutOfMemory, and Unsupported
        where there is no memory but the pool's."""
        raise Unsupported(f"{self.device.backend} has no memory past its pool", reason="no-implementation")

    def free_fresh(self, buffer: Buffer) -> None:
        """Give it back to the driver, now."""

    def flush(self) -> None:
        """Empty the device's caches; complete when `sync` returns. As it stands: an upload of more than any holds."""
        if self._zeros is None:
            zeros = self.host_array((UNKNOWN_CACHE_BYTES // 4,), "float32", "library")
            zeros.fill(0)
            self._zeros = self.allocate(zeros.shape, "float32"), zeros
        self.upload(*self._zeros)

    def chain(self, steps: Sequence[tuple[Launch, Buffer]], output: Buffer) -> Launch | None:
        """Launches of this session as one that does them in order and leaves `output`; each step's result has to lie in
        the buffer beside it. Steps of the host (`HostCall`) come first. None: this session does one op at a time."""
        return None

    def stage_times(self, steps: Sequence[tuple[Launch, Buffer]]) -> StageReading | None:
        """Do the steps of a chain once, in order, with clock readings between them, and wait. None: this session cannot
        time the steps of a chain, or its clock failed this time."""
        return None

    def recording(self, launch: Any) -> Recording | None:
        """Do a launch, but for what the host does before it, and wait. None: this session records no commands for a
        launch, or once for all of them."""
        return None

    def foresee(self, ops: Sequence[Op], dtypes: Sequence[Dtype]) -> float:
        """Import and compile what the tuned forms of these ops need, while other devices open. Returns the seconds of
        what this machine remembers from then on. As it stands: nothing."""
        return 0.0

    def tune(self, op: Op, case: Case, inputs: Sequence[Buffer]) -> None:
        """Choose the case's candidate before `compile`: remembered, or found in a bounded time. Untimed. It is called
        where the session `tunes`."""

    def block_errors(self, got: Array, want: Array, scale: Array | None, smallest: float) -> Array | None:
        """Return the largest error of each block of `got`, by compiled code, as `backends.shared.reference.judge` asks
        for it. Returns None if there is no such code for these arrays."""
        return None

    def ceilings(self, *, memory: bool, compute: Sequence[Dtype], link: bool) -> list[Ceiling] | None:
        """The device's ceilings where they are known beforehand; None: they are measured."""
        return None

    def multiply_adds(self, dtype: Dtype, rounds: int) -> Launch | None:
        """A launch of nothing but multiply-adds, as `backends.shared.ceilings` counts them. Its output is its own; the
        caller frees it. Raises Unsupported for a dtype that the device has not. None: the ceiling of arithmetic is
        the matrix product's."""
        return None

    # ---------------------------------------------------------------- of a session that splits an op over two sides

    def divide(self, op: Op, case: Case, fraction: float) -> float | None:
        """Launches of this case that are compiled from now on put that share of the work on the GPU. Returns the
        share after rounding to whole units; None: this session splits nothing."""
        return None

    def sides(self, launch: Any, repeat: int, host_output: Array | None) -> dict[str, float]:
        """Seconds per launch of the sides: `cpu_alone_s` and `gpu_alone_s`, nothing else running; `cpu_beside_s`, with
        both at work. With `host_output` the GPU's share of the data travels, as in the transfer regimes."""
        return {}

    # ---------------------------------------------------------------- of a session that places stages on two sides

    def for_op(self, op: Op) -> Session:
        """The session that runs the op: of two sides, the one that places the stages of a workload. As it stands: this
        one."""
        return self

    def place(self, placement: str) -> None:
        """The stages of a chain run where this says from now on: a letter each, `c` or `g`."""

    def side_times(self, steps: Sequence[tuple[Launch, Buffer]]) -> tuple[SideReading, SideReading] | None:
        """Do all steps of a chain on the CPU, then on the GPU those that the host does not do: with clock readings
        between them, and as one launch. None: this session places nothing, or a clock failed this time."""
        return None

    def copy_times(self, buffer: Buffer) -> tuple[float, float]:
        """Seconds of one copy of what it holds to the GPU, and of one back."""
        raise Unsupported(f"{self.device.backend} places nothing", reason="no-implementation")

    # ---------------------------------------------------------------- of a session that is one of the two sides

    def enter(self) -> None:
        """Make the calling thread one that may drive the device."""

    def use_threads(self, count: int | None) -> None:
        """Of a session on the CPU: compute with so many threads from now on, None: all."""

    def sync_asleep(self) -> None:
        """Wait as `sync` does, but asleep where that can be: the CPU has work of its own."""
        self.sync()

    def both(self, aside: Work, here: Work, at_once: Callable[[Work, Work], None]) -> None:
        """Run both at once: by `at_once`, which has a thread for `aside`, unless the session's time is scripted."""
        at_once(aside, here)

    def cpu_beside(self) -> Session | None:
        """The CPU that goes with the device; None: NumPy's."""
        return None

    # ---------------------------------------------------------------- of a session that is a gang

    def links(self) -> Links | None:
        """What joins the ranks of a gang; None: this session is one device."""
        return None

    def view(self, array: Array) -> Buffer:
        """Of a session on the CPU: a buffer that is this host array. As it stands, the array is one."""
        return array


class Backend(ABC):
    """A library that drives devices. One file in gpubench/backends/ defines BACKEND.

    `forms` are those that it has, `kinds` those of its devices, software adapters apart. `kernels` are tuned kernels
    that it brings along, by the op's name: they come before those that the op declares for it. `default_devices` are
    those that its name alone stands for, by what follows the colon of their ids; None: all. `yields_to`: backends that
    come before it on a GPU that both have, unless somebody names it. `scripted_time`: its sessions have a clock of
    their own, which the machine's load does not touch. `gangs`: words that name gangs of its devices, beside their
    ordinals.
    """

    name: str
    forms: tuple[Form, ...]
    kinds: tuple[DeviceKind, ...] = ("gpu",)
    kernels: Mapping[str, tuple[Kernel, ...]] = {}
    default_devices: tuple[str, ...] | None = None
    yields_to: tuple[str, ...] = ()
    scripted_time: bool = False
    gangs: tuple[str, ...] = ()

    @abstractmethod
    def devices(self) -> list[Device]:
        """Each physical device once, without opening it. Raises BackendUnavailable."""

    def host_devices(self) -> list[Device] | None:
        """Those of `devices` that are CPUs, where telling them takes less than an import; None: it does not."""
        return None

    def preload(self) -> None:
        """Import what opening a device needs, and touch no device: who uses a GPU is asked before a worker of ours
        does. Raises nothing: `open` tells what is wrong."""

    def joined(self) -> list[Device]:
        """Those of `devices` that make gangs, by ordinal. As it stands: none. Raises BackendUnavailable."""
        return []

    @abstractmethod
    def open(self, device_id: str, threads: int | None = None, *, autotune: bool = True) -> Session:
        """Open one device. Raises BackendUnavailable. The library is imported here, not before.

        `autotune`: where kernels are chosen by trying them; False: take the defaults.
        """

    def telemetry(self, device_id: str) -> Callable[[], Mapping[str, Any]] | None:
        """What reads the clock_hz, memory_clock_hz, temperature_c, power_w and throttle of a GPU that has neither a
        UUID nor a PCI address, once a call; None: nothing does. It is called in a process of its own."""
        return None

    def links(self, ordinals: Sequence[int], word: str = "") -> Links:
        """What joins these devices of the backend to a gang; `word` stands for them where a gang has a name. Raises
        BackendUnavailable."""
        raise BackendUnavailable(f"{self.name} joins no devices to a gang")

    def members(
        self, ordinals: Sequence[int], threads: int | None = None, *, autotune: bool = True
    ) -> list[Session]:
        """The devices of these ordinals, opened side by side in one worker: the ranks of a gang. Raises
        BackendUnavailable."""
        return [self.open(f"{self.name}:{ordinal}", threads, autotune=autotune) for ordinal in ordinals]

    def users(self, device_id: str) -> Mapping[str, int]:
        """Who else is on such a device: the fields of `monitor.Users` that are not 0."""
        return {}
