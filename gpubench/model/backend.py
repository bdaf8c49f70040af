"""The contract between the worker and a backend: a Backend opens a Session on one device.

Nothing above this edge sees a vendor's type or exception: sessions raise `errors.BackendError` alone.
Buffers are opaque. A launch is idempotent: it reads its inputs and writes its own output, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gpubench.errors import BackendError
from gpubench.model.case import Case
from gpubench.model.kernel import Limits
from gpubench.model.op import Array, Dtype, Form, Op, Shape
from gpubench.model.result import Device, Staging
from gpubench.model.session import Blas

Buffer = Any


class Launch(Protocol):
    """One prepared, repeatable execution.

    `output` holds the result once it has run; the library form puts a fresh array there each time.
    """

    output: Buffer

    @property
    def kernel_hash(self) -> str | None:
        """Twelve digits that change with the implementation, or None."""


class Session(Protocol):
    """One open device, held by one worker for as long as the worker lives."""

    device: Device
    limits: Limits
    threads: int | None
    blas: Blas | None

    def supports(self, op: Op, case: Case) -> BackendError | None:
        """None, or why the case cannot run here: from declarations and limits, without allocation."""

    def host_array(self, shape: Shape, dtype: Dtype, form: Form) -> Array:
        """A C-contiguous host array: pageable for the library form, the backend's best for tuned."""

    def allocate(self, shape: Shape, dtype: Dtype) -> Buffer:
        """A buffer that overlaps no other. Raises DeviceOutOfMemory and stays usable."""

    def free(self, buffer: Buffer) -> None:
        """Give the buffer back to the pool."""

    def upload(self, buffer: Buffer, host: Array) -> None:
        """Copy in, in order with launches; complete when `sync` returns."""

    def download(self, buffer: Buffer, host: Array) -> None:
        """Copy out, in order with launches; complete when it returns."""

    def compile(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> Launch:
        """All untimed work: the library call or the kernel of `case.variant` (None: the first), with what depends on
        them cached by `case.form_id`. Cheap when repeated with the same buffers. Raises BuildError."""

    def run(self, launch: Launch, repeat: int = 1) -> None:
        """Enqueue `repeat` launches in order and return: no wait."""

    def sync(self) -> None:
        """Return when all enqueued work is done and readable. Raises DeviceLost."""

    def time(self, launch: Launch, repeat: int = 1, *, cold: bool = False) -> float | None:
        """Seconds on the device clock for `repeat` launches, or None without such a clock.

        `cold`: one launch with flushed caches, queued so that no host time is inside.
        """

    def empty_launch(self) -> Launch:
        """A launch that takes the path of a real one and does no work."""

    def clock(self) -> float:
        """The host clock in seconds: monotonic, only differences count (`fake` scripts it)."""

    def close(self) -> None:
        """Free everything; idempotent; never raises."""


class Transfers(Protocol):
    """One way to move data; both calls keep the promises of the session's own."""

    staging: Staging

    def upload(self, buffer: Buffer, host: Array) -> None:
        """Copy in, in order with launches; complete when the session's `sync` returns."""

    def download(self, buffer: Buffer, host: Array) -> None:
        """Copy out, in order with launches; complete when it returns."""


class Ways(Protocol):
    """What a session MAY offer beside the contract: a plain and a best way to move data, and memory past the pool.

    `library` is what a user of the library writes; `tuned` may stage, and what staging costs is part of the call.
    """

    def transfers(self, form: Form) -> Transfers | None:
        """How data moves in this form; None: by the session's own calls, from ordinary memory."""

    def allocate_fresh(self, shape: Shape, dtype: Dtype) -> Buffer:
        """A buffer from the driver, usable at once, whatever the pool holds. Raises DeviceOutOfMemory."""

    def free_fresh(self, buffer: Buffer) -> None:
        """Give it back to the driver, now."""


class Flushes(Protocol):
    """What a session MAY offer for `--cache cold`."""

    def flush(self) -> None:
        """Overwrite at least twice the device's last level of cache; complete when `sync` returns."""


class Counts(Protocol):
    """What a session MAY offer where a device counts its own cycles."""

    def core_hz(self) -> float | None:
        """Cycles per second of the device's cores once all enqueued work is done; None: it does not tell. Takes well
        below a millisecond."""


class MultiplyAdds(Protocol):
    """What a session MAY offer where its matrix product is none of a ceiling's."""

    def multiply_adds(self, dtype: Dtype, rounds: int) -> Launch:
        """A launch of nothing but multiply-adds, as `backends._ceiling_wgsl` counts them. Its output is its own; the
        caller frees it. Raises Unsupported for a dtype that the device has not."""


class Tunes(Protocol):
    """What a session MAY offer where kernels name candidates."""

    def tune(self, op: Op, case: Case, inputs: Sequence[Buffer]) -> None:
        """Choose the case's candidate before `compile`: remembered, or found in a bounded time. Untimed."""


class Divides(Protocol):
    """What a session offers that splits an op: over two sides, both at once."""

    def divide(self, op: Op, case: Case, fraction: float) -> float:
        """Launches of this case that are compiled from now on put that share of the work on the GPU. Returns the
        share after rounding to whole units."""

    def sides(self, launch: Launch, repeat: int, landing: Array | None) -> dict[str, float]:
        """Seconds per launch of the sides: `cpu_alone_s` and `gpu_alone_s`, nothing else running; `cpu_beside_s`, with
        both at work. With `landing` the GPU's share of the data travels, as in the transfer regimes."""


class Shares(Protocol):
    """What a GPU's session MAY offer to the one that splits ops over it and the CPU."""

    def enter(self) -> None:
        """Make the calling thread one that may drive the device."""

    def use_threads(self, count: int | None) -> None:
        """Of a session on the CPU, or of transfers that copy: take so many threads from now on, None: all."""

    def rest(self) -> None:
        """Wait as `sync` does, but asleep: the CPU has work of its own."""

    def both(self, aside: Callable[[], None], here: Callable[[], None]) -> None:
        """Run both at once (`fake` scripts it); without it a thread runs `aside`."""

    def cpu_beside(self) -> Session:
        """The CPU that goes with the device; without it NumPy's. Its `view(array)`, if it has one, makes a buffer of
        a host array; without it the array is one."""


class Backend(Protocol):
    """A library that drives devices. One file in gpubench/backends/ defines BACKEND."""

    name: str
    forms: tuple[Form, ...]

    def devices(self) -> list[Device]:
        """Each physical device once, without opening it. Raises BackendUnavailable."""

    def open(self, device_id: str, threads: int | None = None) -> Session:
        """Open one device. Raises BackendUnavailable. The library is imported here, not before.

        A backend that chooses kernels by trying them also takes `autotune: bool = True`; False: take the defaults.
        """
