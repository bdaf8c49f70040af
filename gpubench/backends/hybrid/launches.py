"""One launch of a split op, so many units on the GPU and the rest on the CPU, with its operands; and both sides at
work: what is sent, what runs where, and how the results come together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpubench.backends.contract import Buffer, Launch, Session, Transfers
from gpubench.backends.contract.protocols import CpuThreads, WaitsAsleep
from gpubench.backends.shared.host import host_dtype
from gpubench.backends.shared.sides import (
    INLINE_BYTES,
    CompanionThread,
    cut_array,
    granule,
    joined,
    side_case,
    view_of,
)
from gpubench.kernels.contract.op import ITEMSIZE, Array, Op, Shape, Stored
from gpubench.result.case import Case
from gpubench.result.run import Staging

# ---------------------------------------------------------------- units


def gpu_units(units: int, fraction: float) -> int:
    """The GPU's share of `units`, for a fraction from 0 to 1; of a real split each side gets something: half a step at
    least, which the six digits of a file still tell from nothing."""
    if fraction <= 0.0 or fraction >= 1.0:
        return units if fraction >= 1.0 else 0
    step = granule(units)
    most = (2 * units - step) // (2 * step)
    return min(max(round(fraction * units / step), 1), most) * step


# ---------------------------------------------------------------- operands on two sides
#
# The CPU's part is a view of the array that was uploaded, not a copy: that is what sharing the work saves. So the array
# has to stay as it is until the next upload.


class DevicePart:
    """What one case's launches hold of an operand on the GPU, and which upload it comes from."""

    def __init__(self, device: Buffer, shape: Shape) -> None:
        self.device = device
        self.shape = shape
        self.version = 0


class SplitBuffer:
    """One operand. `version` counts its uploads; `last` is the launch whose output it holds, None after an upload."""

    def __init__(self, shape: Shape, dtype: Stored) -> None:
        self.shape = shape
        self.dtype = dtype
        self.version = 0
        self.last: Any = None
        self._parts: dict[str, DevicePart] = {}
        self._host: Array | None = None
        self._own = False

    @property
    def host(self) -> Array:
        """The whole operand in host memory: what was uploaded, or memory of its own."""
        if self._host is None:
            import numpy as np

            self._host, self._own = np.empty(self.shape, host_dtype(self.dtype)), True
        return self._host

    def own(self) -> Array:
        """As `host`, but never the caller's array: a launch writes to it."""
        if not self._own and self._host is not None:
            self._host, self._own = self._host.copy(), True
        return self.host

    def hold(self, host: Array) -> None:
        """Stand for this array from now on, without a copy; what the GPU has of it is out of date."""
        self._host, self._own, self.last = host, False, None
        self.version += 1

    def part(self, gpu: Session, key: str, shape: Shape) -> DevicePart:
        """Device memory of that shape for the launches of `key`, taken anew where the shape was another."""
        known = self._parts.get(key)
        if known is None or known.shape != shape:
            if known is not None:
                gpu.free(self._parts.pop(key).device)
            known = self._parts[key] = DevicePart(gpu.allocate(shape, self.dtype), shape)
        return known

    def free(self, gpu: Session) -> None:
        """Give the device memory back."""
        for part in self._parts.values():
            gpu.free(part.device)
        self._parts.clear()


# ---------------------------------------------------------------- launches


class SplitLaunch(Launch):
    """`on_gpu` of `units` units. `parts` and `target` are the inputs and the output on the GPU, `gpu` its launch."""

    def __init__(
        self, op: Op, case: Case, units: int, on_gpu: int, inputs: Sequence[SplitBuffer], output: SplitBuffer
    ) -> None:
        cut = op.cut(case.params)
        assert cut is not None
        self.op, self.case, self.cut = op, case, cut
        self.units, self.on_gpu, self.on_cpu = units, on_gpu, units - on_gpu
        self.inputs, self.output = inputs, output
        self.parts: list[DevicePart] = []
        self.target: DevicePart | None = None
        self.gpu: Launch | None = None
        # How the GPU's part of the data moves, where it has one.
        self.way: Transfers | None = None
        self.staging: Staging = "pageable"
        # Host memory for the partial results of the GPU and of the CPU, where the op joins them.
        self.partial: tuple[Array, Array] = (None, None)
        # Where the CPU's share of the last result is: in the output's own memory, or in an array of the caller's.
        self.fills_host = False
        self._seen: list[int] | None = None

    @property
    def devices(self) -> list[Any]:
        return [part.device for part in self.parts]

    @property
    def sent_bytes(self) -> int:
        """What goes up to the GPU when all of its inputs do that are not there for good."""
        return sum(
            math.prod(part.shape) * ITEMSIZE[buffer.dtype]
            for operand, buffer, part in zip(self.op.inputs, self.inputs, self.parts, strict=True)
            if operand.travels
        )

    @property
    def waits(self) -> bool:
        """True if an operand was uploaded since the last run: the GPU's part of it has still to be sent."""
        return self._seen != self._versions()

    def begin(self) -> None:
        """All operands are taken as they are now."""
        self._seen = self._versions()
        self.output.last = self

    def part_case(self, side: Session, units: int) -> Case:
        """The op on so many units as a case of one side, in the best form that the side has for it."""
        params = self.case.params if units == self.units else dict(self.cut.part(self.case.params, units))
        return side_case(self.op, self.case, params, side)

    def _versions(self) -> list[int]:
        return [buffer.version for buffer in (*self.inputs, self.output)]


class CpuPart:
    """The CPU's part bound to arrays: the last `on_cpu` units of the inputs, written to their place in `whole`.

    Of a reduction `whole` is the CPU's partial result.
    """

    def __init__(self, launch: SplitLaunch, cpu: Session, whole: Array) -> None:
        hosts = [buffer.host for buffer in launch.inputs]
        arrays = [
            cut_array(operand, host, launch.cut, launch.on_gpu, launch.units)
            for operand, host in zip(launch.op.inputs, hosts, strict=True)
        ]
        self._target = whole if launch.cut.join else whole[launch.on_gpu :]
        self._held = (hosts, whole)  # as long as this lives, no other array has their ids
        case = launch.part_case(cpu, launch.on_cpu)
        self._fresh = case.form == "library"
        self._cpu = cpu
        self._launch = cpu.compile(
            launch.op, case, [view_of(cpu, array) for array in arrays], view_of(cpu, self._target)
        )

    def run(self, count: int) -> None:
        """So many launches; a library call's fresh array is copied to its place."""
        self._cpu.run(self._launch, count)
        if self._fresh:
            self._cpu.download(self._launch.output, self._target)


# ---------------------------------------------------------------- both sides at work

# Launches that the GPU is sent before the CPU computes as many: one submit serves several, and the driver's queue
# never fills up, which would make this thread wait.
CHUNK = 8
# Of fewer threads none is left over for moving data.
FEWEST_THREADS = 3
# Bound CPU parts that are kept: a few operands and host outputs take turns.
_KEPT = 32


class Sides:
    """A GPU's session and the CPU's. `cpu_s` sums up the seconds that the CPU's parts took."""

    def __init__(self, gpu: Session, cpu: Session) -> None:
        self.gpu, self.cpu = gpu, cpu
        self.cpu_s = 0.0
        self._threads = cpu.threads or 1
        self._companion = CompanionThread(gpu)
        self._wait_asleep = gpu.sync_asleep if isinstance(gpu, WaitsAsleep) else gpu.sync
        self._bound: dict[tuple[object, ...], CpuPart] = {}

    def resident(self, launch: SplitLaunch, repeat: int) -> None:
        """The data is in place: this thread enqueues a few launches, then computes as many while the GPU works."""
        self.share_cores(launch, travels=False)
        cpu = self._cpu_part(launch, None) if launch.on_cpu else None
        for start in range(0, repeat, CHUNK):
            count = min(CHUNK, repeat - start)
            if launch.gpu is not None:
                self.gpu.run(launch.gpu, count)
            if cpu is not None:
                self._compute(cpu, count)

    def together(
        self, launch: SplitLaunch, repeat: int, host_output: Array | None, *, again: bool = False
    ) -> None:
        """The GPU's data travels and its kernel runs on the second thread, while this one computes. A little data is
        sent and fetched by this one: waking the other would take longer.

        With `host_output` the whole result is there afterwards. `again`: all inputs that travel are sent, changed or
        not.
        """
        given = self.share_cores(launch, travels=True)
        if launch.on_gpu and launch.on_cpu:
            cpu = self._cpu_part(launch, host_output)
            if launch.sent_bytes <= INLINE_BYTES:
                self.on_gpu(launch, repeat, None, again=again)
                self._compute(cpu, repeat)
                if host_output is not None:
                    self._fetch(launch, host_output)
            else:
                self._companion.both(
                    lambda: self.on_gpu(launch, repeat, host_output, again=again, rest=not given),
                    lambda: self._compute(cpu, repeat),
                )
        elif launch.on_gpu:
            self.on_gpu(launch, repeat, host_output, again=again)
        else:
            self.on_cpu(launch, repeat, host_output)
        if host_output is not None and launch.cut.join:
            host_output[...] = self._joined(launch)

    def share_cores(self, launch: SplitLaunch, *, travels: bool) -> int:
        """Leave cores to the threads that move the GPU's data; all are the CPU's where none does. Returns how many.

        Where every core computes, a thread that wakes up waits for a time slice of milliseconds, at each chunk.
        """
        busy = travels and bool(launch.on_gpu and launch.on_cpu) and launch.sent_bytes > INLINE_BYTES
        way = launch.way
        given = reserved_cores(self._threads, several=way is not None and way.copies) if busy else 0
        if isinstance(self.cpu, CpuThreads):
            self.cpu.use_threads(self._threads - given if given else None)
        if way is not None:
            way.use_threads(given or None)
        return given

    def on_gpu(
        self,
        launch: SplitLaunch,
        repeat: int,
        host_output: Array | None,
        *,
        again: bool = False,
        rest: bool = False,
    ) -> None:
        """The GPU's side alone: send what is out of date, run, and with `host_output` fetch its part of the result.

        `rest`: wait for the kernel asleep, because the CPU has no core left over for a wait that spins.
        """
        assert launch.gpu is not None
        self.send(launch, again=again)
        self.gpu.run(launch.gpu, repeat)
        if host_output is not None:
            if rest:
                self._wait_asleep()
            self._fetch(launch, host_output)

    def on_cpu(self, launch: SplitLaunch, repeat: int, host_output: Array | None) -> None:
        self._compute(self._cpu_part(launch, host_output), repeat)

    def gather(self, launch: SplitLaunch, host: Array) -> None:
        """The result of a launch that ran: the GPU's part comes down, the CPU's is copied, or computed once more
        where the caller got the only copy."""
        self.gpu.sync()
        if launch.on_gpu:
            self._fetch(launch, host)
        if launch.cut.join:
            host[...] = self._joined(launch)
        elif launch.fills_host and launch.on_cpu:
            self.on_cpu(launch, 1, host)
        elif launch.on_cpu:
            host[launch.on_gpu :] = launch.output.own()[launch.on_gpu :]

    def send(self, launch: SplitLaunch, *, again: bool = False) -> None:
        """The GPU's part of each input that was uploaded since it was sent last, and of an output of sentinels."""
        import numpy as np

        assert launch.way is not None
        for operand, buffer, part in zip(launch.op.inputs, launch.inputs, launch.parts, strict=True):
            if (again and operand.travels) or part.version != buffer.version:
                ours = cut_array(operand, buffer.host, launch.cut, 0, launch.on_gpu)
                launch.way.upload(part.device, np.ascontiguousarray(ours))
                part.version = buffer.version
        target, output = launch.target, launch.output
        if target is not None and target.version != output.version:
            ours = output.host if launch.cut.join else output.host[: launch.on_gpu]
            launch.way.upload(target.device, np.ascontiguousarray(ours))
            target.version = output.version

    def close(self) -> None:
        """End the second thread and forget the arrays."""
        self._companion.close()
        self.forget()

    def forget(self) -> None:
        """Hold none of the caller's arrays any longer."""
        self._bound.clear()

    def _fetch(self, launch: SplitLaunch, host: Array) -> None:
        assert launch.gpu is not None
        assert launch.way is not None
        place = launch.partial[0] if launch.cut.join else host[: launch.on_gpu]
        launch.way.download(launch.gpu.output, place)

    def _cpu_part(self, launch: SplitLaunch, host_output: Array | None) -> CpuPart:
        """Bound to the inputs as they are, and to where its result goes."""
        launch.fills_host = host_output is not None
        whole = host_output if host_output is not None else launch.output.own()
        if launch.cut.join:
            whole = launch.partial[1]
        key = (launch.case.workload, launch.on_gpu, *(id(x.host) for x in launch.inputs), id(whole))
        found = self._bound.get(key)
        if found is None:
            if len(self._bound) >= _KEPT:
                self._bound.clear()
            found = self._bound[key] = CpuPart(launch, self.cpu, whole)
        return found

    def _compute(self, cpu: CpuPart, count: int) -> None:
        start = self.gpu.clock()
        cpu.run(count)
        self.cpu_s += self.gpu.clock() - start

    def _joined(self, launch: SplitLaunch) -> Array:
        if launch.on_gpu and launch.on_cpu:
            return joined(launch.cut, *launch.partial)
        return launch.partial[0 if launch.on_gpu else 1]


def reserved_cores(threads: int, *, several: bool) -> int:
    """Of so many cores those that move data while the others compute; `several` threads, or a call of the driver's."""
    return 0 if threads < FEWEST_THREADS else max(1, threads // (4 if several else 8))
