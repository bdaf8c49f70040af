"""Protocols for features that only some devices have. A session that derives from a protocol has the feature,
and the worker asks by `isinstance`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from gpubench.backends.contract import (
    Buffer,
    DeviceStream,
    Launch,
    Links,
    Recording,
    Session,
    SideReading,
    StageReading,
    Work,
)
from gpubench.kernels.contract.op import Array, Dtype, Op, Shape, Stored
from gpubench.result.case import Case
from gpubench.result.run import OnePiece, Peak

# ---------------------------------------------------------------- clocks


@runtime_checkable
class LaunchClock(Protocol):
    """A device whose own clock times launches."""

    @abstractmethod
    def time(self, launch: Any, repeat: int = 1, *, cold: bool = False) -> float | None:
        """Return the device's seconds for all `repeat` launches. Returns None if there is no clock, or if it
        failed this time. If `cold` is true, the device's caches are emptied before the first launch."""


@runtime_checkable
class CoreClock(Protocol):
    """A device that counts the cycles of its cores."""

    @abstractmethod
    def core_hz(self) -> float | None:
        """Return the cycles per second right after all enqueued work. Counting must take much less than a
        millisecond, so that the clock does not change. Returns None if the counters do not advance."""


# ---------------------------------------------------------------- memory


@runtime_checkable
class FreshMemory(Protocol):
    """A device that can allocate memory outside its pool."""

    @abstractmethod
    def allocate_fresh(self, shape: Shape, dtype: Stored) -> Buffer:
        """Return a buffer from the driver, never from the pool. It is usable at once. Raises
        DeviceOutOfMemory."""

    @abstractmethod
    def free_fresh(self, buffer: Buffer) -> None:
        """Return the buffer to the driver at once."""


@runtime_checkable
class SharesBuffers(Protocol):
    """A device whose ops may read a part of a buffer, so that several ops can share one copy of an input."""

    @abstractmethod
    def beginning(self, buffer: Buffer, shape: Shape) -> Buffer:
        """Return the first elements of a flat buffer in this shape, in the same memory. The result is an input,
        so no launch may write to it."""


@runtime_checkable
class HostReadable(Protocol):
    """A device whose buffers lie in memory that the host can read."""

    @abstractmethod
    def memory(self, buffer: Buffer, shape: Shape, dtype: Stored) -> Array | None:
        """Return the content of the buffer as a host array, which may be the buffer's own memory. Returns None
        if the host cannot read it, or if the buffer has another shape or dtype."""


@runtime_checkable
class ComputesInPlace(Protocol):
    """A device that computes in host memory."""

    @abstractmethod
    def in_place(self, memory: str) -> Session:
        """Return a session of this device whose operands lie in `mapped` or `managed` memory. Raises
        Unsupported with the reason if there is no such memory."""


@runtime_checkable
class ComparesBuffers(Protocol):
    """A device that can compare buffers in its own memory."""

    @abstractmethod
    def copy_of(self, buffer: Buffer, shape: Shape, dtype: Stored) -> Buffer | None:
        """Return a copy of the buffer in new memory of the device. Returns None if the session makes no copies;
        then outputs are compared with the reference on the host. Raises DeviceOutOfMemory."""

    @abstractmethod
    def begins(self, copy: Buffer, buffer: Buffer, shape: Shape, dtype: Stored) -> bool:
        """Return whether `copy` begins with the bytes of `buffer`, which should have this shape and dtype. An
        implementation may always return False: the outputs are then compared with the reference on the host."""


@runtime_checkable
class JudgesBlocks(Protocol):
    """A session on the CPU that can check outputs with compiled code."""

    @abstractmethod
    def block_errors(self, got: Array, want: Array, scale: Array | None, smallest: float) -> Array | None:
        """Return the largest error of each block of `BLOCK` elements, for `backends.shared.reference.judge`. The
        error of an element is |got - want| / max(scale, smallest), where a `scale` of None means |want|.
        Returns None if compiled code cannot read these arrays."""


@runtime_checkable
class Streams(Protocol):
    """A device that can copy while it computes."""

    @abstractmethod
    def stream(self) -> DeviceStream:
        """Return a new queue. Raises Unsupported if this device cannot copy while it computes."""


# ---------------------------------------------------------------- kernels


@runtime_checkable
class BuildsAhead(Protocol):
    """A device that can build the kernels of several cases at the same time."""

    @abstractmethod
    def build(self, cases: Sequence[tuple[Op, Case]]) -> None:
        """Build the kernels of these cases before `compile` needs them. Kernels whose candidate is not chosen
        yet are left out. Raises BuildError."""


@runtime_checkable
class Foresees(Protocol):
    """A device that can build kernels before any case is known."""

    @abstractmethod
    def foresee(self, ops: Sequence[Op], dtypes: Sequence[Dtype]) -> float:
        """Import and compile what the tuned implementations of these ops need, while other devices open.
        Returns the seconds of work that later runs on this machine need not repeat."""


@runtime_checkable
class Tunes(Protocol):
    """A device that chooses among the candidates of a kernel."""

    @abstractmethod
    def tune(self, op: Op, case: Case, inputs: Sequence[Buffer]) -> None:
        """Choose the candidate that `compile` will use for the case: a remembered one, or the winner of trials of
        limited time, if trials are allowed. Without a choice `compile` uses the default."""


# ---------------------------------------------------------------- peaks


@runtime_checkable
class KnownPeaks(Protocol):
    """A device whose peaks are known without a measurement."""

    @abstractmethod
    def peaks(self, *, memory: bool, compute: Sequence[Dtype], link: bool) -> list[Peak]:
        """Return the requested peaks, in bytes and operations per second. `memory` requests the peak of memory,
        `link` the peaks of the link to the host, and `compute` the peaks of arithmetic in these dtypes."""


@runtime_checkable
class MultiplyAdds(Protocol):
    """A device with a kernel of multiply-adds, whose rate is the arithmetic peak. On other devices a matrix
    product gives the peak."""

    @abstractmethod
    def multiply_adds(self, dtype: Dtype, rounds: int) -> Launch:
        """Return a launch that does only multiply-adds, in `rounds` rounds (`backends.shared.peaks.chain_flops`
        counts them). The caller frees the launch's output. Raises Unsupported if the device lacks the dtype."""


# ---------------------------------------------------------------- workloads

Steps = Sequence[tuple[Launch, Buffer]]


@runtime_checkable
class Chains(Protocol):
    """A device that runs several ops as one launch."""

    @abstractmethod
    def chain(self, steps: Steps, output: Buffer) -> Launch:
        """Return one launch that does all `steps` in order. Each step is a launch and the buffer for its result.
        Steps on the host (`HostCall`) must come first."""


@runtime_checkable
class TimesStages(Protocol):
    """A device that times the steps of a chain."""

    @abstractmethod
    def stage_times(self, steps: Steps) -> StageReading | None:
        """Run the steps of a chain once, in order, with clock readings between them. Wait, and return the times.
        Returns None if the clock failed this time."""


@runtime_checkable
class Records(Protocol):
    """A device whose commands the host records anew for every call."""

    @abstractmethod
    def recording(self, launch: Any) -> Recording:
        """Do a launch, without its steps on the host, and wait. Return the seconds of recording its commands."""


@runtime_checkable
class AssignsStages(Protocol):
    """A session that runs each stage of a workload on one of two sides."""

    @abstractmethod
    def assign(self, assignment: str) -> None:
        """Run the stages on these sides from now on. `assignment` has a letter for each stage: `c` for the CPU,
        `g` for the GPU."""

    @abstractmethod
    def side_times(self, steps: Steps) -> tuple[SideReading, SideReading] | None:
        """Time a chain on the CPU, then on the GPU without the steps on the host. On each side it runs once
        with clock readings between the steps, and once as one launch. Returns None if a clock failed this
        time."""

    @abstractmethod
    def copy_times(self, buffer: Buffer) -> tuple[float, float]:
        """Return the seconds of copying the buffer's content to the GPU, and of copying it back."""


# ---------------------------------------------------------------- several devices as one


@runtime_checkable
class Splits(Protocol):
    """A session that splits an op over two sides."""

    @abstractmethod
    def divide(self, op: Op, case: Case, gpu_share: float) -> float:
        """Set the GPU's share (0 to 1) for launches of this case that are compiled from now on. Returns the
        share after rounding to whole units."""

    @abstractmethod
    def pieces(self, case: Case) -> int | OnePiece | None:
        """Return in how many pieces a call that copies moves the GPU's share, or why it does not use pieces.
        Returns None if this was not decided yet."""

    @abstractmethod
    def for_op(self, op: Op) -> Session:
        """Return the session that runs the op. For a workload, it assigns the stages to the two sides; for any
        other op, it is this session."""


@runtime_checkable
class TimesSides(Protocol):
    """A session of several devices that times each of them."""

    @abstractmethod
    def sides(self, launch: Any, launches: int, host_output: Array | None) -> dict[str, float]:
        """Return the seconds per launch of each part of a split or a device group, from `launches` in a row.

        - A split has `cpu_alone_s`, `gpu_alone_s`, and `cpu_beside_s`: the CPU while the GPU works, too. With
          `host_output`, the GPU's data is copied in and out.
        - A device group has `rankN_s`: rank N alone, with its data on the device.
        """


@runtime_checkable
class DeviceGroup(Protocol):
    """A session that is a device group."""

    @abstractmethod
    def links(self) -> Links:
        """Return the links among the ranks."""


@runtime_checkable
class CpuThreads(Protocol):
    """A CPU session whose number of threads can be changed."""

    @abstractmethod
    def use_threads(self, count: int | None) -> None:
        """Set the number of threads that compute. None means all."""


@runtime_checkable
class ScriptedPair(Protocol):
    """The GPU of a split, with a scripted clock."""

    @abstractmethod
    def both(self, aside: Work, here: Work) -> None:
        """Run both functions, one after the other. On the scripted clock they begin at the same time, as on two
        devices."""

    @abstractmethod
    def cpu_beside(self) -> Session:
        """Return a session of a CPU on the same clock."""
