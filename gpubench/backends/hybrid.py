"""hybrid: one op split over a GPU and the CPU, which work at the same time (`hybrid:cupy:0`). For a workload, a
wing's session runs each stage on one of the two.

The GPU takes the first units of the op's outer dimension. The CPU takes the other units, and reads them in the
caller's own arrays. In `resident` the GPU's share of the data is on the device already, and each side keeps its
own output. In the transfer regimes all data starts and ends in host memory: a second thread moves the GPU's
share while the calling thread computes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from gpubench import backends
from gpubench.backends.contract import Backend, Launch, Session, Work, WrappedSession, protocols
from gpubench.backends.shared.choices import fastest
from gpubench.backends.shared.host import settle
from gpubench.backends.shared.pieces import HeldPieces, one_piece
from gpubench.backends.shared.sides import (
    INLINE_BYTES,
    CompanionThread,
    DeviceShare,
    DividedBuffer,
    DividedLaunch,
    granule,
    join_partials,
    refusal,
    side_case,
    split_array,
)
from gpubench.base.errors import BackendError, BackendUnavailable, Unsupported
from gpubench.base.messages import REASONS
from gpubench.base.plugins import wings
from gpubench.kernels.contract.op import Array, Implementation, Op, Shape, Stored
from gpubench.result.case import RESIDENT, Case
from gpubench.result.run import Device, OnePiece, Staging

# The GPU's share until `divide` sets another one.
EVEN = 0.5
# Launches that are enqueued on the GPU before the CPU computes as many. One submit serves several launches. With
# more, the driver's queue may be full, and this thread would wait.
CHUNK = 8
# With fewer CPU threads, none of them is reserved for moving data.
FEWEST_THREADS = 3
# Seconds that the choice of the CPU's implementation may take.
TUNING_S = 0.4
# Most CPU shares that stay bound to arrays, because a few operands and host outputs take turns.
_KEPT = 32
# Numbers of pieces that are tried for the GPU's share, the default first. The CPU takes about 20 us to enqueue a
# piece.
PIECES = ("1", "4", "8")


def gpu_units(units: int, gpu_share: float) -> int:
    """Return how many of `units` the GPU gets for a share from 0 to 1. The number is a multiple of `granule`,
    except for a share of 1. For shares between 0 and 1, each side gets some work if there are enough units."""
    if gpu_share <= 0.0 or gpu_share >= 1.0:
        return units if gpu_share >= 1.0 else 0
    # In a file, which has six digits, a share between 0 and 1 is not rounded to 0 or 1.
    step = granule(units)
    most = (2 * units - step) // (2 * step)
    return min(max(round(gpu_share * units / step), 1), most) * step


class SplitLaunch(DividedLaunch):
    """A launch that runs some units on the GPU and all others on the CPU."""

    def __init__(
        self, op: Op, case: Case, operands: Sequence[DividedBuffer], sides: tuple[Session, Session], on_gpu: int
    ) -> None:
        """Give `on_gpu` units to the GPU of `sides` (GPU, CPU), and the others to the CPU. The last operand is
        the output."""
        super().__init__(op, case, operands[:-1], operands[-1])
        gpu, self.cpu = sides
        self.units = op.units(case.params)
        self.on_gpu, self.on_cpu = on_gpu, self.units - on_gpu
        self.gpu = DeviceShare(self, gpu, 0, on_gpu) if on_gpu else None
        self.staging: Staging = self.gpu.way.staging if self.gpu else "pageable"
        # Host memory for the partial result of the CPU, if the op joins partial results.
        self.partial: Array | None = None
        # Whether the CPU's share of the last result is in an array of the caller, not in the memory of the output.
        self.fills_host = False
        # Threads that move the GPU's data while the others compute.
        self.movers = 0
        if self.gpu and self.on_cpu and self.gpu.sent_bytes > INLINE_BYTES and not self.gpu.is_direct(None):
            self.movers = reserved_cores(self.cpu.threads or 1, several=self.gpu.way.copies)


# Takes a number, and runs the CPU's share that many times.
CpuPart = Callable[[int], None]


def cpu_arrays(launch: SplitLaunch) -> list[Array]:
    """Return a view of the last `on_cpu` units of each input. An input that is not divided is returned whole."""
    # A copy would take as much time as a split saves.
    return [
        split_array(operand, buffer.host, launch.split, launch.on_gpu, launch.units)
        for operand, buffer in zip(launch.op.inputs, launch.inputs, strict=True)
    ]


def cpu_case(launch: SplitLaunch) -> Case:
    """Return the case that the CPU computes: the launch's op with the params of the CPU's share."""
    params = launch.case.params
    if launch.on_gpu:
        params = dict(launch.split.part(params, launch.on_cpu))
    return side_case(launch.op, launch.case, params, launch.cpu)


def bind_cpu(launch: SplitLaunch, whole: Array) -> CpuPart:
    """Return a function that runs the CPU's share and puts the result into the CPU's part of `whole`. If the op
    joins partial results, the CPU's partial result fills all of `whole`."""
    hosts = [buffer.host for buffer in launch.inputs]
    arrays, cpu = cpu_arrays(launch), launch.cpu
    target = whole if launch.split.join else whole[launch.on_gpu :]
    case, place = cpu_case(launch), cpu.view(target)
    prepared = cpu.compile(launch.op, case, [cpu.view(array) for array in arrays], place)
    library = case.implementation == "library"

    # `held` keeps references to the arrays, so that no other arrays get their ids.
    def compute(count: int, held: Any = (hosts, whole)) -> None:
        cpu.run(prepared, count)
        if library and prepared.output is not place:  # a fresh array is copied to its place
            cpu.download(prepared.output, target)

    return compute


class Sides:
    """Runs split launches on a GPU and the CPU. `cpu_s` adds up the seconds of all runs of the CPU's share; set it
    to 0 before a measurement."""

    def __init__(self, gpu: Session) -> None:
        self.gpu = gpu
        self.cpu_s = 0.0
        # What `share_cores` has set last: the CPU's session, the cores that it leaves free, and whether it has all of
        # the work.
        self._shared: tuple[Session | None, int, bool] = (None, 0, True)
        self._companion = CompanionThread(gpu)
        self._bound: dict[tuple[object, ...], CpuPart] = {}
        self.pieces = HeldPieces()

    def resident(self, launch: SplitLaunch, repeat: int) -> None:
        """Run `repeat` launches with all data in place: enqueue a few on the GPU, compute as many on the CPU, and
        repeat."""
        self.share_cores(launch, travels=False)
        if launch.gpu is not None and launch.gpu.came_in_pieces:
            launch.gpu.came_in_pieces = False
            launch.gpu.send()
        cpu = self._cpu_part(launch, None) if launch.on_cpu else None
        for start in range(0, repeat, CHUNK):
            count = min(CHUNK, repeat - start)
            if launch.gpu is not None:
                self.gpu.run(launch.gpu.launch, count)
            if cpu is not None:
                self._compute(cpu, count)

    def together(
        self, launch: SplitLaunch, repeat: int, host_output: Array | None, *, again: bool = False
    ) -> None:
        """Compute on this thread while the GPU's data moves and its kernel runs, by a second thread if there is much
        data. `host_output` gets the whole result; if it is None, each side keeps its own part. If `again` is
        true, inputs are sent even if they have not changed."""
        self.share_cores(launch, travels=True)
        if launch.gpu is not None and launch.on_cpu:
            cpu = self._cpu_part(launch, host_output)
            # This thread moves little data itself, because waking the second thread would take longer.
            finish = None if launch.movers else self._start(launch.gpu, repeat, host_output, again=again)
            if finish is not None:
                try:
                    self._compute(cpu, repeat)
                finally:  # without it, copies would go on in arrays that are used again
                    finish()
            else:
                self._companion.both(
                    lambda: self.on_gpu(launch, repeat, host_output, again=again, rest=not launch.movers),
                    lambda: self._compute(cpu, repeat),
                )
        elif launch.on_gpu:
            self.on_gpu(launch, repeat, host_output, again=again)
        else:
            self.on_cpu(launch, repeat, host_output)
        if host_output is not None and launch.split.join:
            host_output[...] = self._join(launch)

    def _start(self, gpu: DeviceShare, repeat: int, host_output: Array | None, *, again: bool) -> Work | None:
        """Enqueue a GPU's share that is small or moves by itself. Return the function that waits for its end, or
        None if the second thread has to move the share."""
        wait = self.pieces.start(gpu, repeat, host_output)
        if wait is not None:
            return wait
        if gpu.sent_bytes > INLINE_BYTES and not gpu.is_direct(host_output):
            return None
        gpu.send(again=again)
        self.gpu.run(gpu.launch, repeat)
        if host_output is None or gpu.start_fetch(host_output):
            return self.gpu.sync
        return partial(gpu.fetch, host_output)

    def share_cores(self, launch: SplitLaunch, *, travels: bool) -> None:
        """Reserve cores for the threads that move the GPU's data. If there are none, the CPU gets all cores."""
        movers, cpu = launch.movers if travels else 0, launch.cpu
        shared = cpu, movers, launch.gpu is None
        if shared == self._shared:  # `isinstance` takes 20 us before Python 3.12
            return
        self._shared = shared
        # If every core computes, each thread that wakes up for a chunk has to wait for a time slice.
        if isinstance(cpu, protocols.CpuThreads):
            cpu.use_threads((cpu.threads or 1) - movers if movers else None)
        if launch.gpu is not None:
            launch.gpu.way.use_threads(movers or None)

    def on_gpu(
        self, launch: SplitLaunch, repeat: int, host_output: Array | None, *, again: bool, rest: bool = False
    ) -> None:
        """Run the GPU's share alone: send operands that were uploaded (with `again`, all inputs that travel), run,
        and fetch the result into `host_output`, if that is an array. With `rest`, the wait before the fetch
        does not spin."""
        assert launch.gpu is not None
        wait = self.pieces.start(launch.gpu, repeat, host_output)
        if wait is not None:
            wait()
            return
        launch.gpu.send(again=again)
        self.gpu.run(launch.gpu.launch, repeat)
        if host_output is not None:
            # The CPU has no core to spare.
            if rest:
                self.gpu.sync_asleep()
            launch.gpu.fetch(host_output)

    def on_cpu(self, launch: SplitLaunch, repeat: int, host_output: Array | None) -> None:
        self._compute(self._cpu_part(launch, host_output), repeat)

    def gather(self, launch: SplitLaunch, host: Array) -> None:
        """Put the whole result of the last launch into `host`. If the CPU's share was written only to an array of
        the caller, it is computed again. If the GPU's data moved in pieces, all of the work is done again."""
        self.gpu.sync()
        if launch.gpu is not None and launch.gpu.came_in_pieces:
            self.together(launch, 1, host, again=True)
            return
        if launch.gpu is not None:
            launch.gpu.fetch(host)
        if launch.split.join:
            host[...] = self._join(launch)
        elif launch.fills_host and launch.on_cpu:
            self.on_cpu(launch, 1, host)
        elif launch.on_cpu:
            host[launch.on_gpu :] = launch.output.own()[launch.on_gpu :]

    def close(self) -> None:
        """End the second thread and drop all arrays."""
        self._companion.close()
        self.forget()

    def forget(self) -> None:
        """Drop all references to the caller's arrays, and free the pieces of earlier calls."""
        self._bound.clear()
        self.pieces.close()

    def _cpu_part(self, launch: SplitLaunch, host_output: Array | None) -> CpuPart:
        """Return a function that runs the CPU's share on the current inputs and puts the result in its place."""
        import numpy as np

        launch.fills_host = host_output is not None
        whole = host_output if host_output is not None else launch.output.own()
        if launch.split.join:
            whole = launch.partial = np.empty_like(whole) if launch.partial is None else launch.partial
        key = (launch.case.workload, launch.cpu, launch.on_gpu, *(id(x.host) for x in launch.inputs), id(whole))
        part = self._bound.get(key)
        if part is None:
            if len(self._bound) >= _KEPT:
                self._bound.clear()
            part = self._bound[key] = bind_cpu(launch, whole)
        return part

    def _compute(self, cpu: CpuPart, count: int) -> None:
        start = self.gpu.clock()
        cpu(count)
        self.cpu_s += self.gpu.clock() - start

    def _join(self, launch: SplitLaunch) -> Array:
        parts = [launch.gpu.partial] if launch.gpu is not None else []
        parts += [launch.partial] if launch.on_cpu else []
        return functools.reduce(partial(join_partials, launch.split), parts)


def reserved_cores(threads: int, *, several: bool) -> int:
    """Return how many of `threads` cores move data while the others compute, or 0 if there are fewer than
    FEWEST_THREADS. `several` says whether several threads move the data, or one call of the driver."""
    return 0 if threads < FEWEST_THREADS else max(1, threads // (4 if several else 8))


class SplitSession(WrappedSession, protocols.Splits, protocols.TimesSides, protocols.Tunes):
    """A session that splits ops over the sessions of a GPU and of the CPU. `other` opens a second CPU session,
    which may be faster, or returns None. `held_pieces` has the results of `pieces` by workload."""

    def __init__(
        self, device: Device, gpu: Session, cpu: Session, other: Callable[[], Session | None], autotune: bool
    ) -> None:
        super().__init__(gpu)
        self.device, self.threads, self.blas = device, cpu.threads, cpu.blas
        self.gpu, self.cpu = gpu, cpu
        self._other = functools.cache(other)
        self._autotune = autotune
        self._sides = Sides(gpu)
        self._computing: dict[str, Session] = {}  # the CPU's session by workload
        self._gpu_shares: dict[str, float] = {}
        self.held_pieces: dict[str, int | OnePiece] = {}
        self._waiting: tuple[SplitLaunch, int] | None = None
        self._two_sided: dict[str, Session] = {}  # the wing's session by workload op

    def supports(self, op: Op, case: Case) -> BackendError | None:
        """Return why the case cannot be split, or None if it can. Only tuned cases without a variant can."""
        if case.implementation != "tuned" or case.variant is not None or op.overhead is not None:
            why = "a split takes the best that each side has: its only implementation is tuned"
            return Unsupported(why, reason="no-implementation")
        unsplit = op.whole(case.params)
        if unsplit is not None:
            return Unsupported(unsplit, reason="no-split")
        return refusal(op, case, self.gpu, self.cpu)  # at the ends of a sweep each side has all of the work

    def for_op(self, op: Op) -> Session:
        two_sided = wings.for_op("two_sides", op)
        if two_sided is None:
            return self
        if op.name not in self._two_sided:
            self._two_sided[op.name] = two_sided(self.device, self.gpu, self.cpu, op)
        return self._two_sided[op.name]

    def allocate(self, shape: Shape, dtype: Stored) -> DividedBuffer:
        """Return an operand. Device memory is allocated when a launch is made that has a share for the GPU."""
        return DividedBuffer(shape, dtype)

    def free(self, buffer: DividedBuffer) -> None:
        self._flush()
        buffer.free()

    def forget(self) -> None:
        """Drop all references to the caller's arrays, here and in the sessions of workloads."""
        self._sides.forget()
        for two_sided in self._two_sided.values():
            two_sided.forget()

    def upload(self, buffer: DividedBuffer, host: Array) -> None:
        """Keep a reference to the array. The next launch, which knows the GPU's share, sends it to the GPU."""
        self._flush()
        buffer.hold(host)

    def download(self, buffer: DividedBuffer, host: Array) -> None:
        """Copy the content of the buffer to `host`: the result of the last launch that wrote to it, or the
        uploaded array if there was no such launch. A postponed launch runs first. If it writes to this buffer,
        the CPU computes its part directly in `host`."""
        if self._waiting is not None and self._waiting[0].output is buffer:
            self._flush(host)
            return
        self._flush()
        if buffer.last is None:
            host[...] = buffer.host
        else:
            self._sides.gather(buffer.last, host)

    def fill(self, buffer: DividedBuffer, shape: Shape, dtype: Stored, value: float) -> None:
        super().fill(buffer, shape, dtype, value)
        self._sides.pieces.spoil()

    def pieces(self, case: Case) -> int | OnePiece | None:
        return self.held_pieces.get(case.workload) if case.regime == "transfer-always" else None

    def divide(self, op: Op, case: Case, gpu_share: float) -> float:
        self._gpu_shares[case.id] = gpu_share
        units = op.units(case.params)
        return gpu_units(units, gpu_share) / units

    def tune(self, op: Op, case: Case, inputs: Sequence[DividedBuffer]) -> None:
        """Choose the kernel of the GPU. If `autotune` was requested, also choose the kernel and the session of the
        CPU and, for calls that copy, the number of pieces."""
        launch = self._split(op, case, inputs, DividedBuffer(op.output.shape(case.params), case.dtype))
        if launch.gpu is not None and isinstance(self.gpu, protocols.Tunes):
            launch.gpu.send()
            self.gpu.tune(op, launch.gpu.case, launch.gpu.buffers)
        if not self._autotune:
            return
        if case.regime == "transfer-always" and case.workload not in self.held_pieces:
            self.held_pieces[case.workload] = self._choose_pieces(op, case, inputs)
        if not launch.on_cpu:
            return
        if isinstance(launch.cpu, protocols.Tunes):
            launch.cpu.tune(op, cpu_case(launch), cpu_arrays(launch))
        if case.workload not in self._computing:
            self._computing[case.workload] = self._choose_cpu(launch)

    def _choose_pieces(self, op: Op, case: Case, inputs: Sequence[DividedBuffer]) -> int | OnePiece:
        """Time calls with all work on the GPU. Return the fastest number of pieces, or why there is only one."""
        output = DividedBuffer(op.output.shape(case.params), case.dtype)
        launch = SplitLaunch(op, case, (*inputs, output), (self.gpu, self.cpu), op.units(case.params))
        gpu, host = launch.gpu, self.gpu.host_array(output.shape, output.dtype, "tuned")
        assert gpu is not None
        if (why := one_piece(gpu, host)) is not None:
            return why
        gpu.compile()

        def seconds(name: str, repeat: int) -> float:
            gpu.pieces, start = int(name), self.clock()
            for _ in range(repeat):
                self._sides.on_gpu(launch, 1, host, again=True)
            return self.clock() - start

        with contextlib.ExitStack() as held:
            held.callback(output.free)
            held.callback(self._sides.pieces.close)
            best = int(fastest(PIECES, partial(partial, seconds), clock=self.clock, budget_s=TUNING_S))
        return best if best > 1 else "no-gain"

    def _choose_cpu(self, launch: SplitLaunch) -> Session:
        """Return the faster CPU session for the CPU's share, or this session's own if the other one cannot run it."""
        other = self._other()
        if other is None:
            return self.cpu
        part = replace(launch.case, implementation="library", regime=RESIDENT, device_id=other.device.id)
        if other.supports(launch.op, part) is not None:
            return self.cpu
        sessions = {"own": self.cpu, "other": other}
        host = self.cpu.host_array(launch.output.shape, launch.output.dtype, "tuned")

        def timer(name: str) -> Callable[[int], float]:
            launch.cpu = sessions[name]
            self._sides.share_cores(launch, travels=False)
            compute = bind_cpu(launch, host)

            def took(repeat: int) -> float:
                settle()  # threads of the other session may still spin
                start = self.clock()
                compute(repeat)
                return self.clock() - start

            return took

        return sessions[fastest(tuple(sessions), timer, clock=self.clock, budget_s=TUNING_S)]

    def compile(
        self, op: Op, case: Case, inputs: Sequence[DividedBuffer], output: DividedBuffer
    ) -> SplitLaunch:
        """Compile the GPU's kernel for its units. The CPU's share is bound to arrays when it runs."""
        launch = self._split(op, case, inputs, output)
        if launch.gpu is not None:
            own = launch.gpu.compile()
            launch.kernel_hash, launch.kernel_name = own.kernel_hash, own.kernel_name
        return launch

    def _split(self, op: Op, case: Case, inputs: Sequence[DividedBuffer], output: DividedBuffer) -> SplitLaunch:
        on_gpu = gpu_units(op.units(case.params), self._gpu_shares.get(case.id, EVEN))
        cpu = self._computing.get(case.workload, self.cpu)
        launch, pieces = SplitLaunch(op, case, (*inputs, output), (self.gpu, cpu), on_gpu), self.pieces(case)
        if launch.gpu is not None and isinstance(pieces, int):
            launch.gpu.pieces = pieces
        return launch

    def run(self, launch: Launch, repeat: int = 1) -> None:
        """Enqueue on the GPU and compute on the CPU. After an upload the launch is postponed: the GPU's data has
        still to be sent, and only `download` knows where the result belongs."""
        self._flush()
        if not isinstance(launch, SplitLaunch):  # the GPU's empty launch
            self.gpu.run(launch, repeat)
            return
        waits = launch.waits
        launch.begin()
        if waits:
            self._waiting = (launch, repeat)
            return
        self._sides.resident(launch, repeat)

    def sync(self) -> None:
        """Run the postponed launch, and wait for the GPU."""
        self._flush()
        self.gpu.sync()

    def sides(self, launch: SplitLaunch, launches: int, host_output: Array | None) -> dict[str, float]:
        self.sync()
        sides, seconds, travels = self._sides, {}, host_output is not None
        sides.share_cores(launch, travels=travels)
        if launch.on_gpu:
            start = self.clock()
            sides.on_gpu(launch, launches, host_output, again=travels)
            self.gpu.sync()
            seconds["gpu_alone_s"] = (self.clock() - start) / launches
        if launch.on_cpu:
            sides.cpu_s = 0.0
            sides.on_cpu(launch, launches, host_output)
            seconds["cpu_alone_s"] = sides.cpu_s / launches
        if launch.on_cpu and launch.on_gpu:
            sides.cpu_s = 0.0
            if travels:
                sides.together(launch, launches, host_output, again=True)
            else:
                sides.resident(launch, launches)
                self.gpu.sync()
            seconds["cpu_beside_s"] = sides.cpu_s / launches
        return seconds

    def flush(self) -> None:
        """Empty the GPU's caches by the GPU's session. An upload to this session would only keep a reference."""
        self._flush()
        self.gpu.flush()

    def close(self) -> None:
        """Close both sides, even if one fails."""
        forgetting = (two_sided.forget for two_sided in self._two_sided.values())
        closing = (side.close for side in {self.gpu, self.cpu, *self._computing.values()})
        for free in (self._sides.close, *forgetting, *closing):
            with contextlib.suppress(Exception):
                free()

    def _flush(self, host_output: Array | None = None) -> None:
        """Run the postponed launch, if there is one, with its whole result in `host_output`."""
        if self._waiting is not None:
            (launch, repeat), self._waiting = self._waiting, None
            self._sides.together(launch, repeat, host_output)


class HybridBackend(Backend):
    """The pairs of each GPU of other backends with the CPU."""

    name = "hybrid"
    implementations: tuple[Implementation, ...] = ("tuned",)

    def devices(self) -> list[Device]:
        """List a pair for each GPU and each software adapter. Raises BackendUnavailable if there is no pair and a
        backend cannot list its devices."""
        pairs, why = [], []
        for name in backends.built_in():
            try:
                pairs += _pairs(name)
            except BackendError as error:  # a broken backend must not hide the pairs of others
                why.append(error.detail)
        if not pairs and why:
            raise BackendUnavailable("; ".join(why), hint=REASONS["unavailable"].remedy)
        return [*pairs, *(device for name in backends.hidden_names() for device in _pairs(name))]

    def open(self, device_id: str, threads: int | None = None, *, autotune: bool = True) -> SplitSession:
        """Open the GPU in the id, and the CPU with `threads` threads. Raises BackendUnavailable."""
        inner = device_id.partition(":")[2]
        backend = backends.load(inner.partition(":")[0])
        gpu = backend.open(inner, threads, autotune=autotune)
        scripted = gpu.cpu_beside() if isinstance(gpu, protocols.ScriptedPair) else None
        cpu = scripted or backends.load("numpy").open("numpy:0", threads, autotune=autotune)

        def other() -> Session | None:
            with contextlib.suppress(BackendUnavailable):
                return None if scripted else backends.load("torch").open("torch:cpu", threads)
            return None

        return SplitSession(_pair(gpu.device), gpu, cpu, other, autotune)


def _pairs(backend: str) -> list[Device]:
    return [_pair(device) for device in backends.load(backend).devices() if device.kind != "cpu"]


def _pair(gpu: Device) -> Device:
    return replace(
        gpu, id=f"hybrid:{gpu.id}", backend="hybrid", kind="software" if gpu.kind == "software" else "hybrid",
        name=f"CPU + {gpu.name}", clock=None,
    )  # fmt: skip


BACKEND = HybridBackend()
