"""Protocols for what only some devices have: a session that has the methods of a protocol has it, and the worker asks
by `isinstance`."""

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
        """Return the device's seconds for `repeat` launches. Returns None where this device, or this time, has none.

        `cold`: one launch with flushed caches, queued so that no host time is inside.
        """


@runtime_checkable
class CoreClock(Protocol):
    """A device that counts the cycles of its cores."""

    @abstractmethod
    def core_hz(self) -> float | None:
        """Return the cycles per second once all enqueued work is done, well below a millisecond later. Returns None if
        the counters stand still."""


# ---------------------------------------------------------------- memory


@runtime_checkable
class FreshMemory(Protocol):
    """A device with memory past its pool."""

    @abstractmethod
    def allocate_fresh(self, shape: Shape, dtype: Stored) -> Buffer:
        """Return a buffer from the driver, usable at once, whatever the pool holds. Raises DeviceOutOfMemory."""

    @abstractmethod
    def free_fresh(self, buffer: Buffer) -> None:
        """Give it back to the driver, now."""


@runtime_checkable
class SharesBuffers(Protocol):
    """A device whose ops may read parts of one buffer: it holds one copy of the inputs that ops share."""

    @abstractmethod
    def beginning(self, buffer: Buffer, shape: Shape) -> Buffer:
        """Return the first elements of a flat buffer in this shape and in its memory: an input that no launch may write
        to."""


@runtime_checkable
class HostReadable(Protocol):
    """A device whose buffers the host may read where they are."""

    @abstractmethod
    def memory(self, buffer: Buffer, shape: Shape, dtype: Stored) -> Array | None:
        """Return the buffer's own memory as a host array. Returns None if the host cannot read it, or if the buffer has
        another shape or dtype."""


@runtime_checkable
class ComputesInPlace(Protocol):
    """A device that computes in host memory."""

    @abstractmethod
    def in_place(self, memory: str) -> Session:
        """Return the session of this device whose operands lie in `mapped` or `managed` memory. Raises Unsupported with
        the reason if the device, its driver or its library has no such memory."""


@runtime_checkable
class ComparesBuffers(Protocol):
    """A device that compares its buffers."""

    @abstractmethod
    def copy_of(self, buffer: Buffer, shape: Shape, dtype: Stored) -> Buffer | None:
        """Return a new buffer of the device that holds the same. Returns None if the host compares as quickly. Raises
        DeviceOutOfMemory."""

    @abstractmethod
    def begins(self, copy: Buffer, buffer: Buffer, shape: Shape, dtype: Stored) -> bool:
        """Return whether a copy begins with the bytes of a buffer that has this shape and dtype."""


@runtime_checkable
class JudgesBlocks(Protocol):
    """A session on the CPU with compiled code for the check of outputs."""

    @abstractmethod
    def block_errors(self, got: Array, want: Array, scale: Array | None, smallest: float) -> Array | None:
        """Return the largest error of each block of `got`, as `backends.shared.reference.judge` asks for it. Returns
        None if there is no such code for these arrays."""


@runtime_checkable
class Streams(Protocol):
    """A device that copies while it computes."""

    @abstractmethod
    def stream(self) -> DeviceStream:
        """Return a new queue. Raises Unsupported if this device copies nothing while it computes."""


# ---------------------------------------------------------------- kernels


@runtime_checkable
class BuildsAhead(Protocol):
    """A device that builds the kernels of several cases side by side."""

    @abstractmethod
    def build(self, cases: Sequence[tuple[Op, Case]]) -> None:
        """Build what these cases need, as far as nothing is still to be chosen: `compile` finds it then. Raises
        BuildError."""


@runtime_checkable
class Foresees(Protocol):
    """A device that builds kernels before any case is known."""

    @abstractmethod
    def foresee(self, ops: Sequence[Op], dtypes: Sequence[Dtype]) -> float:
        """Import and compile what the tuned implementations of these ops need, while other devices open. Returns the
        seconds of what this machine remembers from then on."""


@runtime_checkable
class Tunes(Protocol):
    """A device that chooses among candidates."""

    @abstractmethod
    def tune(self, op: Op, case: Case, inputs: Sequence[Buffer]) -> None:
        """Choose the case's candidate before `compile`: remembered, or found in a bounded time. Untimed."""


# ---------------------------------------------------------------- peaks


@runtime_checkable
class KnownPeaks(Protocol):
    """A device whose peaks are known beforehand."""

    @abstractmethod
    def peaks(self, *, memory: bool, compute: Sequence[Dtype], link: bool) -> list[Peak]:
        """Return the peaks asked for."""


@runtime_checkable
class MultiplyAdds(Protocol):
    """A device with a kernel of multiply-adds: else its peak of arithmetic is the matrix product's."""

    @abstractmethod
    def multiply_adds(self, dtype: Dtype, rounds: int) -> Launch:
        """Return a launch of nothing but multiply-adds, as `backends.shared.peaks` counts them. Its output is its
        own; the caller frees it. Raises Unsupported for a dtype that the device has not."""


# ---------------------------------------------------------------- workloads

Steps = Sequence[tuple[Launch, Buffer]]


@runtime_checkable
class Chains(Protocol):
    """A device that runs several ops as one launch."""

    @abstractmethod
    def chain(self, steps: Steps, output: Buffer) -> Launch:
        """Return launches of this session as one that does them in order and leaves `output`; each step's result has to
        lie in the buffer beside it. Steps of the host (`HostCall`) come first."""


@runtime_checkable
class TimesStages(Protocol):
    """A device that times the steps of a chain."""

    @abstractmethod
    def stage_times(self, steps: Steps) -> StageReading | None:
        """Do the steps of a chain once, in order, with clock readings between them, and wait. Returns None if the clock
        failed this time."""


@runtime_checkable
class Records(Protocol):
    """A device whose host writes the commands of every call anew."""

    @abstractmethod
    def recording(self, launch: Any) -> Recording:
        """Do a launch, but for what the host does before it, and wait."""


@runtime_checkable
class AssignsStages(Protocol):
    """A session that runs each stage of a workload on one of two sides."""

    @abstractmethod
    def assign(self, assignment: str) -> None:
        """Run the stages where this says from now on: a letter each, `c` or `g`."""

    @abstractmethod
    def side_times(self, steps: Steps) -> tuple[SideReading, SideReading] | None:
        """Do all steps of a chain on the CPU, then on the GPU those that the host does not do: with clock readings
        between them, and as one launch. Returns None if a clock failed this time."""

    @abstractmethod
    def copy_times(self, buffer: Buffer) -> tuple[float, float]:
        """Return the seconds of one copy of what the buffer holds to the GPU, and of one back."""


# ---------------------------------------------------------------- several devices as one


@runtime_checkable
class Splits(Protocol):
    """A session that splits an op over two sides."""

    @abstractmethod
    def divide(self, op: Op, case: Case, gpu_share: float) -> float:
        """Put that share of the work on the GPU in launches of this case that are compiled from now on. Returns the
        share after rounding to whole units."""

    @abstractmethod
    def pieces(self, case: Case) -> int | OnePiece | None:
        """Return in how many pieces the GPU's part of a copying call moves, or why in one. Returns None where nobody
        looked."""

    @abstractmethod
    def for_op(self, op: Op) -> Session:
        """Return the session that runs the op: for a workload the one that places its stages."""


@runtime_checkable
class TimesSides(Protocol):
    """A session of several devices that times each of them."""

    @abstractmethod
    def sides(self, launch: Any, repeat: int, host_output: Array | None) -> dict[str, float]:
        """Return the seconds per launch of the sides: `cpu_alone_s` and `gpu_alone_s`, nothing else running;
        `cpu_beside_s`, with both at work. With `host_output` the GPU's share of the data travels, as in the transfer
        regimes."""


@runtime_checkable
class DeviceGroup(Protocol):
    """A session that is a device group."""

    @abstractmethod
    def links(self) -> Links:
        """Return what joins the ranks."""


@runtime_checkable
class CpuThreads(Protocol):
    """A CPU whose number of threads may change."""

    @abstractmethod
    def use_threads(self, count: int | None) -> None:
        """Compute with so many threads from now on. None means all."""


@runtime_checkable
class ScriptedPair(Protocol):
    """A device of scripted time, as one side of two."""

    @abstractmethod
    def both(self, aside: Work, here: Work) -> None:
        """Run both as if at once."""

    @abstractmethod
    def cpu_beside(self) -> Session:
        """Return the CPU on the same clock."""
