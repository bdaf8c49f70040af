"""Several devices that work on one op. The op is divided into shares, and partial results are joined. A share
has a range of units, its part of each operand, and the case that computes it. This module also has the thread
that drives a second device, and device groups in host memory."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

from msgspec.structs import replace

from gpubench import kernels
from gpubench.backends.contract import Buffer, HostCall, Launch, Links, Session, Work
from gpubench.backends.contract.protocols import ScriptedPair
from gpubench.backends.shared.host import host_dtype
from gpubench.backends.shared.reference import on_host
from gpubench.base.errors import BackendError, DeviceOutOfMemory, Unsupported
from gpubench.kernels.contract.op import (
    ITEMSIZE,
    Array,
    Implementation,
    Op,
    Operand,
    Params,
    Shape,
    Split,
    Stage,
    Stored,
)
from gpubench.result.case import Case

# A share is rounded to a multiple of a 256th of the work, so that tiles and vector loads are whole. A granule of
# 1024 units is large enough for any tile.
_GRANULES, _LARGEST_GRANULE = 256, 1024
# A file stores six digits of a share, so finer steps than 2^-19 could not be read back exactly.
_FINEST_BITS = 19
# Sending at most this many bytes takes less time than waking the second thread (about 50 us each way).
INLINE_BYTES = 2 << 20


def granule(units: int) -> int:
    """Return the step, a power of two, in which `units` units are divided between devices. Each share is a
    multiple of the step, except the last share, which also gets the remainder."""
    finest = max(1, units // _GRANULES)
    return max(
        min(_LARGEST_GRANULE, 1 << (finest.bit_length() - 1)), 1 << max(0, units.bit_length() - _FINEST_BITS)
    )


def split_array(operand: Operand, array: Array, split: Split, start: int, stop: int) -> Array:
    """Return a view of the units `start` to `stop` of an input, or the whole input if it is not divided."""
    axis = split.axes.get(operand.name)
    return array if axis is None else array[(slice(None),) * axis + (slice(start, stop),)]


def join_partials(split: Split, first: Array, second: Array) -> Array:
    """Join two partial results by the function that the op declares."""
    import numpy as np

    assert split.join is not None
    with np.errstate(all="ignore"):
        return getattr(np, split.join)(first, second)


def side_case(op: Op, case: Case, params: Params, side: Session) -> Case:
    """Return the case with which `side` computes the op, or a part of it, at `params`. The data stays on the
    side. The case is tuned, or a library case if the side has no kernel, or if a GPU's kernel is the library
    call."""
    kernel = op.kernel(side.device.backend, case.dtype)
    on_cpu = side.device.kind == "cpu"
    # On the CPU the library call has an implementation that writes to a given array; a GPU's has none.
    library = kernel is None or (kernel.library and not on_cpu)
    return replace(
        case, params=dict(params), implementation="library" if library else "tuned", calls=None,
        regime=side.device.resident_regime, device_id=side.device.id,
    )  # fmt: skip


def ask(side: Session, op: Op, case: Case) -> BackendError | None:
    """Return why a session cannot run a case, or None if it can. An op whose kernel is a library call there is
    asked for as its library implementation."""
    kernel = op.kernel(side.device.backend, case.dtype)
    if kernel is not None and kernel.library:
        case = replace(case, implementation="library")
    return side.supports(op, case)


def refusal(op: Op, case: Case, *sides: Session) -> Unsupported | None:
    """Return the reason why one of the sides cannot do all of the work, or None if each side can. A side can use
    its own kernel, the library call or, if its kernel cannot be compiled here, the plain expression."""
    for side in sides:
        refused = ask(side, op, side_case(op, case, case.params, side))
        if refused is not None and refused.reason != "not-compiled":
            return Unsupported(f"{side.device.id}: {refused.detail}", reason=refused.reason, hint=refused.hint)
    return None


# ---------------------------------------------------------------- the stages of a workload


class StageCase(NamedTuple):
    """A stage on a session."""

    stage: Stage  # stage of the workload
    op: Op  # op of the stage with its params
    case: Case  # stage as a case, with data that stays on the session's device


def stage_case(session: Session, stage: Stage, case: Case) -> StageCase:
    """Return `stage` of the workload `case` as a case of the session, with data that stays on its device. The
    case is tuned or, if the device has no kernel for the op, a library case. On a session with two sides it is
    always tuned, which means the best that each side has."""
    device, op, params = session.device, kernels.load(stage.op), dict(stage.params(case.params))
    library = not device.composed and op.kernel(device.backend, case.dtype) is None
    implementation: Implementation = "library" if library else "tuned"
    own = Case(op.name, op.group, params, case.dtype, implementation, device.resident_regime, device.id)
    return StageCase(stage, op.at(params), own)


def compile_stage(session: Session, own: StageCase, values: Mapping[str, Buffer]) -> tuple[Launch, Buffer]:
    """Return the launch of a stage and the place of its result: a buffer, or a tuple of buffers if there are
    several results. `values` has the buffers of the workload by name."""
    stage, op, case = own
    reads, made = [values[name] for name in stage.reads], tuple(values[name] for name in stage.writes)
    target = made if op.more_outputs else made[0]
    if op.host is not None:
        return HostCall(session, partial(on_host, op, reads), target), target
    return session.compile(op, case, reads, None if case.implementation == "library" else target), target


# ---------------------------------------------------------------- operands and launches of several devices


class Part:
    """One session's part of an operand, for the launches of one case. `version` is the number of the upload
    whose data is in the part."""

    def __init__(self, session: Session, shape: Shape, dtype: Stored) -> None:
        self.session, self.shape, self.version = session, shape, 0
        self.buffer: Buffer = session.allocate(shape, dtype)
        self.bytes = math.prod(shape) * ITEMSIZE[dtype]

    def free(self) -> None:
        """Return the buffer to the session's pool."""
        self.session.enter()
        self.session.free(self.buffer)


class DividedBuffer:
    """An operand that is divided among several devices. An upload only keeps a reference to the caller's array,
    so the array must not change before the next upload."""

    def __init__(self, shape: Shape, dtype: Stored) -> None:
        self.shape, self.dtype = shape, dtype
        self.version = 0  # counts the uploads
        self.last: Any = None  # the launch whose output it holds; None after an upload
        self._parts: dict[tuple[Session, str], Part] = {}
        self._host: Array | None = None
        self._own = False

    @property
    def host(self) -> Array:
        """The whole operand in host memory: the uploaded array, or new memory if nothing was uploaded."""
        if self._host is None:
            import numpy as np

            self._host, self._own = np.empty(self.shape, host_dtype(self.dtype)), True
        return self._host

    def own(self) -> Array:
        """Return the operand in host memory that a launch may write to. An uploaded array is copied first,
        because it belongs to the caller."""
        if not self._own and self._host is not None:
            self._host, self._own = self._host.copy(), True
        return self.host

    def hold(self, host: Array) -> None:
        """Use this array as the content from now on, without a copy. The parts on the devices are then out of
        date."""
        self._host, self._own, self.last = host, False, None
        self.version += 1

    def part(self, session: Session, key: str, shape: Shape) -> Part:
        """Return the session's part of the operand. Launches with the same `key`, such as a regime, share the part.
        It is made when it is first needed, and replaced if its shape changes."""
        held = self._parts.get((session, key))
        if held is None or held.shape != shape:
            if held is not None:
                self._parts.pop((session, key)).free()
            held = self._parts[session, key] = Part(session, shape, self.dtype)
        return held

    @property
    def is_freed(self) -> bool:
        """Whether no session has a part of the operand."""
        return not self._parts

    def free(self) -> None:
        """Free the parts of all sessions."""
        for part in self._parts.values():
            part.free()
        self._parts.clear()


class DividedLaunch(Launch):
    """One launch of an op on several devices."""

    def __init__(self, op: Op, case: Case, inputs: Sequence[DividedBuffer], output: DividedBuffer) -> None:
        split = op.split_at(case.params)
        assert split is not None
        self.op, self.case, self.split = op, case, split
        self.inputs, self.output = inputs, output
        self._seen: list[int] | None = None

    @property
    def waits(self) -> bool:
        """Whether an operand was uploaded since the last run, and must be sent to the devices before the next."""
        return self._seen != self._versions()

    def begin(self) -> None:
        """Note that all uploads so far are sent, and that the output will hold this launch's result."""
        self._seen = self._versions()
        self.output.last = self

    def _versions(self) -> list[int]:
        return [buffer.version for buffer in (*self.inputs, self.output)]


class DeviceShare:
    """The units `start` to `stop` of a launch, on one session, with its parts of the operands. Use it on a thread
    that may drive the session."""

    def __init__(self, whole: DividedLaunch, session: Session, start: int, stop: int) -> None:
        op, params = whole.op, whole.case.params
        self.session, self.start, self.stop, self.whole = session, start, stop, whole
        if stop - start < op.units(params):
            params = dict(whole.split.part(params, stop - start))
        self.case = side_case(op, whole.case, params, session)
        self.inputs = [
            buffer.part(session, whole.case.regime_id, operand.shape(params))
            for operand, buffer in zip(op.inputs, whole.inputs, strict=True)
        ]
        # Data moves as if the device had all of the work, so that a split gains nothing by another way.
        implementation: Implementation = (
            "library" if op.kernel(session.device.backend, whole.case.dtype) is None else "tuned"
        )
        self.way = session.transfers(implementation)
        self.target: Part | None = None
        self.launch: Launch | None = None
        self.partial: Array | None = None  # its result in host memory, where the op joins results
        # The number of pieces in which a call's data moves, and whether the last result moved in pieces.
        self.pieces, self.came_in_pieces = 1, False

    @property
    def buffers(self) -> list[Buffer]:
        return [part.buffer for part in self.inputs]

    @property
    def sent_bytes(self) -> int:
        """The bytes of the inputs that are sent at every call. Weights stay on the device and do not count."""
        operands = zip(self.whole.op.inputs, self.inputs, strict=True)
        return sum(part.bytes for operand, part in operands if operand.travels)

    def is_direct(self, host_output: Array | None) -> bool:
        """Return whether the device copies all data of the share by itself, because the caller's arrays are
        page-locked."""
        op, split = self.whole.op, self.whole.split
        arrays = [
            split_array(operand, buffer.host, split, self.start, self.stop)
            for operand, buffer in zip(op.inputs, self.whole.inputs, strict=True)
            if operand.travels
        ]
        arrays += [] if host_output is None or split.join else [host_output]
        return all(array.flags.c_contiguous and self.way.is_direct(array) for array in arrays)

    def compile(self) -> Launch:
        """Compile and return the session's launch of this share."""
        whole, op = self.whole, self.whole.op
        if self.case.implementation == "tuned":
            shape = op.output.shape(self.case.params)
            self.target = whole.output.part(self.session, whole.case.regime_id, shape)
        output = None if self.target is None else self.target.buffer
        self.launch = self.session.compile(op, self.case, self.buffers, output)
        return self.launch

    def run(self, repeat: int) -> None:
        """Enqueue `repeat` launches of this share."""
        self.session.run(self.launch, repeat)

    def send(self, *, again: bool = False) -> None:
        """Send the parts of all operands that were uploaded since they were last sent. If `again` is true, send
        all inputs that travel, too."""
        whole = self.whole
        for operand, buffer, part in zip(whole.op.inputs, whole.inputs, self.inputs, strict=True):
            if (again and operand.travels) or part.version != buffer.version:
                self._upload(
                    part, buffer, split_array(operand, buffer.host, whole.split, self.start, self.stop)
                )
        target, output = self.target, whole.output
        if target is not None and target.version != output.version:
            self._upload(
                target, output, output.host if whole.split.join else output.host[self.start : self.stop]
            )

    def start_fetch(self, host: Array) -> bool:
        """Enqueue the copy of the result to its place in `host`. Returns False if that is not possible; then
        call `fetch`."""
        if self.launch is None or self.whole.split.join or not self.way.is_direct(host):
            return False
        self.way.start_download(self.launch.output, host[self.start : self.stop])
        return True

    def fetch(self, host: Array) -> None:
        """Copy the result to its place in `host`, or to separate memory if the op joins partial results."""
        import numpy as np

        assert self.launch is not None
        if self.whole.split.join:
            place = self.partial = np.empty_like(host) if self.partial is None else self.partial
        else:
            place = host[self.start : self.stop]
        self.way.download(self.launch.output, place)

    def _upload(self, part: Part, buffer: DividedBuffer, array: Array) -> None:
        import numpy as np

        self.way.upload(part.buffer, np.ascontiguousarray(array))
        part.version = buffer.version


# ---------------------------------------------------------------- a thread for a device


class CompanionThread:
    """A thread that drives a session while the caller's thread does other work. It starts with the first work
    and stays."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._scripted = session if isinstance(session, ScriptedPair) else None
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def both(self, aside: Work, here: Work) -> None:
        """Run `aside` on the thread and `here` on the calling thread at the same time, and wait for both. With a
        scripted clock, run them one after the other.

        Raises the error of `here` or, if there is none, that of `aside`.
        """
        if self._scripted is not None:
            self._scripted.both(aside, here)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="gpubench-beside", daemon=True)
            self._thread.start()
        self._work.put(aside)
        try:
            here()
        finally:
            error = self._ended.get()
        if error is not None:
            raise error

    def close(self) -> None:
        """End the thread. Later work starts a new one."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        entered = False
        while (work := self._work.get()) is not None:
            error: BaseException | None = None
            try:
                if not entered:
                    self._session.enter()
                    entered = True
                work()
            except BaseException as caught:  # handed to the caller of `both`
                error = caught
            del work  # an idle thread holds no arrays
            self._ended.put(error)
            del error


# ---------------------------------------------------------------- a device group in host memory


class HostLinks(Links):
    """The links of a device group in host memory. NumPy copies, adds and averages the arrays, one rank after the
    other, and a call has ended when it returns."""

    copier = library = "numpy"

    def __init__(self, ranks: int) -> None:
        import numpy

        self.xp, self.ranks = numpy, ranks

    def on(self, rank: int) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def sync(self) -> None:
        """Do nothing, because every call has ended when it returns."""

    def array(self, rank: int, count: int) -> Array:
        try:
            return super().array(rank, count)
        except MemoryError as error:
            raise DeviceOutOfMemory(str(error)) from error

    def copy(self, pairs: Sequence[tuple[int, int]], sent: Sequence[Array], got: Sequence[Array]) -> None:
        for source, target in pairs:
            self.xp.copyto(got[target], sent[source])

    def collect(self, name: str, sent: Sequence[Array], got: Sequence[Array]) -> None:
        for rank, target in enumerate(got):
            if name == "reducescatter":
                self._sum([self._share(array, rank) for array in sent], target)
            elif name == "allreduce" and rank == 0:
                self._sum(sent, target)
            elif name in ("allreduce", "broadcast"):
                self.xp.copyto(target, got[0] if name == "allreduce" else sent[0])
            else:
                for other, array in enumerate(sent):
                    part = self._share(array, rank) if name == "alltoall" else array
                    self.xp.copyto(self._share(target, other), part)

    def average(self, buffers: Sequence[Sequence[Buffer]]) -> None:
        for arrays in zip(*buffers, strict=True):
            mean = sum(arrays[1:], arrays[0]) / self.ranks
            for array in arrays:
                self.xp.copyto(array, mean)

    def _share(self, array: Array, rank: int) -> Array:
        part = len(array) // self.ranks
        return array[rank * part : (rank + 1) * part]

    def _sum(self, sent: Sequence[Array], target: Array) -> None:
        self.xp.copyto(target, sent[0])
        for array in sent[1:]:
            self.xp.add(target, array, out=target)
