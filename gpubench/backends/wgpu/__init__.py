"""wgpu: any GPU through Vulkan, Metal or DX12, with the WGSL kernels of the ops (tuned implementation only).

The device clock stamps the beginning and the end of a compute pass. Transfers use mapped staging buffers, which
are kept. Several threads fill and empty them (docs/kernels.md).
"""

from __future__ import annotations

import contextlib
import importlib
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from gpubench import __version__
from gpubench.backends.contract import (
    Backend,
    Buffer,
    HostCall,
    ReadyBuffers,
    Recording,
    StageReading,
    protocols,
)
from gpubench.backends.shared.choices import Choices, Trials, choose
from gpubench.backends.shared.host import SingleDevice, clock_calls, read_stages, tuned_kernel, usable_cpus
from gpubench.backends.shared.memory import BufferPool, InPlaceSession
from gpubench.backends.shared.peaks import THREADS, chain_program
from gpubench.backends.wgpu.programs import Programs, WgpuLaunch, buffer_bytes, differing, filling
from gpubench.backends.wgpu.queues import Queue, first_line, library, vendor_errors
from gpubench.backends.wgpu.transfers import (
    MAPPABLE,
    MappableMemory,
    MappedTransfers,
    PlainTransfers,
    StagedStream,
    staging_buffer,
)
from gpubench.base import SOFTWARE_NAMES, VENDOR_ALIASES, processes
from gpubench.base.errors import BackendError, BackendUnavailable, DeviceOutOfMemory, Unsupported
from gpubench.base.installation import install_command
from gpubench.kernels.contract.kernel import Candidate, Limits, WgslProgram, one_dispatch
from gpubench.kernels.contract.op import ITEMSIZE, Array, Dtype, Implementation, Op, Shape, Stored
from gpubench.kernels.templates import require_buffers
from gpubench.result.case import Case
from gpubench.result.run import Device, DeviceClock, Identity
from gpubench.result.store.cache import user_cache

WANTED_FEATURES = ("timestamp-query", "shader-f16", "shader-f64")
_APIS = {"Vulkan": "vulkan", "Metal": "metal", "D3D12": "dx12"}
_FLUSH_BYTES = 256 << 20  # twice the largest L2 cache of today, since no API reports the size
_FLUSH_BYTES_SOFTWARE = 64 << 20
# Seconds for about seven candidates of one kernel and size, which are built at the same time (0.2 s each) and then
# timed.
TUNING_S = 3.0
# The version of wgpu-py whose private functions are called (docs/decisions, 6).
WGPU_VERSION = (0, 32)
MOST_STAMPED = 2048  # steps of a chain: WebGPU lets a query set hold 4096 stamps
_EMPTY = one_dispatch("@compute @workgroup_size(1) fn main() {}", (1, 1, 1), ())


# Most StampSets that are kept. A chain, the plain chain and groups of its stages have one each, and those of the
# previous case are kept, too.
_STAMP_SETS = 8


class StampSet:
    """The timestamps of `passes` compute passes, in memory that the device writes and the host reads."""

    def __init__(self, device: Any, passes: int) -> None:
        import wgpu

        self._queue, self._count = device.queue, 2 * passes
        self._set = device.create_query_set(type="timestamp", count=self._count)
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        self._resolved = device.create_buffer(size=8 * self._count, usage=usage)
        self._readable = staging_buffer(device, 8 * self._count, write=False)

    def writes(self, number: int) -> dict[str, Any]:
        """Return the argument `timestamp_writes` for compute pass `number`."""
        return {
            "query_set": self._set,
            "beginning_of_pass_write_index": 2 * number,
            "end_of_pass_write_index": 2 * number + 1,
        }

    def read(self, encoder: Any) -> list[int]:
        """Submit the commands of the encoder and wait. Return the ticks at which pass 0 began and ended, then those
        of pass 1, and so on."""
        encoder.resolve_query_set(self._set, 0, self._count, self._resolved, 0)
        encoder.copy_buffer_to_buffer(self._resolved, 0, self._readable, 0, 8 * self._count)
        self._queue.submit([encoder.finish()])
        self._readable.map_sync("READ")
        ticks = list(memoryview(self._readable.read_mapped()).cast("B").cast("Q"))
        self._readable.unmap()
        return ticks

    def destroy(self) -> None:
        for owned in (self._set, self._resolved, self._readable):
            owned.destroy()


class Stamps:
    """Times the passes of one submit by their timestamps. A few StampSets are kept, because wgpu would free a
    dropped one during the next submit, which may be timed."""

    def __init__(self, device: Any, queue: Queue) -> None:
        self._device, self._queue = device, queue
        self._sets: dict[int, StampSet] = {}
        self.single = StampSet(device, 1)
        # Only wgpu-native tells the seconds of a tick.
        self.period_s = float(library().lib.wgpuQueueGetTimestampPeriod(device.queue._internal)) * 1e-9

    def read_steps(self, launches: Sequence[WgpuLaunch]) -> StageReading | None:
        """Run each launch in its own pass, all in one submit, and return the times of the passes. Returns None if
        the clock went backwards."""
        passes = len(launches)
        if passes not in self._sets:
            if len(self._sets) >= _STAMP_SETS:
                self._sets.pop(next(iter(self._sets))).destroy()
            self._sets[passes] = StampSet(self._device, passes)
        stamps = self._sets[passes]
        encoder = self._device.create_command_encoder()
        for i, launch in enumerate(launches):
            compute = encoder.begin_compute_pass(timestamp_writes=stamps.writes(i))
            self._queue.encode(compute, launch, 1)
            compute.end()
        ticks = stamps.read(encoder)
        if ticks != sorted(ticks):
            return None
        steps = [(end - begin) * self.period_s for begin, end in zip(ticks[::2], ticks[1::2], strict=True)]
        return StageReading(steps, (ticks[-1] - ticks[0]) * self.period_s, "pass-timestamp")


def limits_of(device: Any, *, software: bool) -> Limits:
    """Return the limits and features of an open wgpu device. `software` says whether the device is a rasteriser
    on the CPU."""
    limits, features = device.limits, device.features
    return Limits(
        max_buffer_bytes=limits["max-buffer-size"],
        max_binding_bytes=limits["max-storage-buffer-binding-size"],
        max_workgroup_bytes=limits["max-compute-workgroup-storage-size"],
        max_workgroup_threads=min(
            limits["max-compute-invocations-per-workgroup"], limits["max-compute-workgroup-size-x"]
        ),
        max_groups_per_dimension=limits["max-compute-workgroups-per-dimension"],
        float16="shader-f16" in features,
        float64="shader-f64" in features,
        software=software,
        binding_alignment=max(16, limits["min-storage-buffer-offset-alignment"]),
    )


class StoragePool(BufferPool):
    """A pool of storage buffers. Their keys are numbers of bytes."""

    def __init__(self, device: Any, programs: Programs) -> None:
        super().__init__()
        self._device, self._programs = device, programs

    def make(self, key: Any) -> Buffer:
        import wgpu

        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        with vendor_errors():
            return self._device.create_buffer(size=key, usage=usage)

    def size(self, key: Any) -> int:
        return int(key)

    def release(self, buffers: list[Buffer]) -> None:
        """Destroy the buffers, and forget all bind groups, because some of them hold these buffers."""
        for buffer in buffers:
            buffer.destroy()
        self._programs.forget_buffers()


class WgpuSession(
    SingleDevice,
    protocols.LaunchClock,
    protocols.FreshMemory,
    protocols.ComparesBuffers,
    protocols.ComputesInPlace,
    protocols.SharesBuffers,
    protocols.Streams,
    protocols.BuildsAhead,
    protocols.Tunes,
    protocols.MultiplyAdds,
    protocols.Chains,
    protocols.TimesStages,
    protocols.Records,
):
    """A session on one adapter. It has one device, one queue, a pool of buffers, and the programs built so far."""

    has_bfloat16 = False

    def __init__(self, device: Device, adapter: Any, autotune: bool = True) -> None:
        self.device = device
        self._on_host = device.unified or device.kind == "software"
        # On a card wgpu warns of mappable storage buffers, and nothing here would map one.
        features = [f for f in WANTED_FEATURES + (MAPPABLE,) * self._on_host if f in adapter.features]
        with vendor_errors():
            self._device = adapter.request_device_sync(required_features=features)
        self.limits = limits_of(self._device, software=device.kind == "software")
        self.programs = Programs(self._device, self.limits)
        # On a rasteriser trials say nothing about a GPU, and its compiler takes seconds for each candidate.
        self.tunes = autotune and device.kind == "gpu"
        self._choices = Choices(_description(device), user_cache(), processes.read_cpu_times())
        # A rasteriser computes on the CPU, which polling would take from it.
        self._queue = Queue(self._device, library(), asks=not self.limits.software and usable_cpus() > 1)
        self._transfers = MappedTransfers(self._device, self._queue)
        self._ways: dict[Implementation, PlainTransfers | MappedTransfers] = {
            "library": PlainTransfers(self._device), "tuned": self._transfers
        }  # fmt: skip
        self.pool = StoragePool(self._device, self.programs)
        self._flushing: Any = None
        self.stamps = Stamps(self._device, self._queue) if "timestamp-query" in features else None
        if self.stamps is not None:  # only an open device tells the length of its ticks
            clock = DeviceClock(kind="pass-timestamp", step_s=self.stamps.period_s)
            self.device = replace(device, clock=clock)

    def _refuse(self, op: Op, case: Case) -> BackendError | None:
        if case.implementation != "tuned":
            return Unsupported("wgpu has no array library: only tuned WGSL kernels", reason="no-implementation")
        sizes = {operand.name: operand.bytes(case.params, case.dtype) for operand in op.operands}
        try:
            require_buffers(sizes, self.limits)
            tuned_kernel(op, case).build(case.params, case.dtype, self.limits)
        except BackendError as error:
            return error
        return None

    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        return self.ready_buffers(shape, dtype).take()

    def ready_buffers(self, shape: Shape, dtype: Stored) -> ReadyBuffers:
        return self.pool.ready(buffer_bytes(shape, dtype))

    def free(self, buffer: Buffer) -> None:
        self.pool.ready(buffer.size).give_back(buffer)

    def allocate_fresh(self, shape: Shape, dtype: Stored) -> Buffer:
        """Return a new buffer that is cleared, because wgpu would clear it at its first use, which may be timed.
        Raises DeviceOutOfMemory."""
        buffer = self.pool.make(buffer_bytes(shape, dtype))
        self._clear(buffer)
        self.sync()
        return buffer

    def free_fresh(self, buffer: Buffer) -> None:
        buffer.destroy()

    def upload(self, buffer: Buffer, host: Array) -> None:
        self._transfers.upload(buffer, host)

    def download(self, buffer: Buffer, host: Array) -> None:
        self._transfers.download(buffer, host)

    def fill(self, buffer: Buffer, shape: Shape, dtype: Stored, value: float) -> None:
        self._run_words(filling(buffer.size, dtype, value, self.limits), {"out": buffer})

    def copy_of(self, buffer: Buffer, shape: Shape, dtype: Stored) -> Buffer:
        copy = self.allocate(shape, dtype)
        with vendor_errors():
            self._queue.copy(buffer, 0, copy, 0, buffer.size)
        return copy

    def begins(self, copy: Buffer, buffer: Buffer, shape: Shape, dtype: Stored) -> bool:
        """Return whether `copy` begins with the bytes of `buffer`. A kernel compares words of 32 bits. Returns False
        if the number of bytes is not a multiple of four."""
        import numpy as np

        size = math.prod(shape) * ITEMSIZE[dtype]
        if size % 4:
            return False
        result = np.zeros(4, np.int32)
        place = self.allocate(result.shape, "int32")
        self.upload(place, result)
        self._run_words(differing(size, self.limits), {"a": copy, "b": buffer, "out": place})
        self.download(place, result)
        self.free(place)
        return not result.any()

    def _run_words(self, program: WgslProgram, buffers: dict[str, Buffer]) -> None:
        with vendor_errors():
            self._send(WgpuLaunch(self.programs.steps(program, buffers), None, None), 1)

    def in_place(self, memory: str) -> InPlaceSession:
        mappable = MappableMemory(memory, self._device, self._queue, self._on_host)
        return InPlaceSession(self, mappable)

    def transfers(self, implementation: Implementation) -> PlainTransfers | MappedTransfers:
        """Return transfers through kept staging buffers for the tuned implementation, and the queue's own calls
        for the library implementation, which only ops such as `upload` have here."""
        return self._ways[implementation]

    def stream(self) -> StagedStream:
        return StagedStream(self._device, self._queue, self._transfers)

    def beginning(self, buffer: Buffer, shape: Shape) -> Buffer:
        """Return the buffer itself, because a launch binds only the bytes of its operand."""
        return buffer

    def compile(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> WgpuLaunch:
        try:
            with vendor_errors():
                return self.programs.launch(op, case, inputs, output)
        except DeviceOutOfMemory:  # there may be room for scratch memory without idle buffers
            self.pool.empty()
            with vendor_errors():
                return self.programs.launch(op, case, inputs, output)

    def build(self, cases: Sequence[tuple[Op, Case]]) -> None:
        settled = [(op, case) for op, case in cases if not self._to_choose(op, case)]
        with vendor_errors():
            self.programs.build(settled)

    def chain(self, steps: protocols.Steps, output: Buffer) -> WgpuLaunch:
        """Return one launch that does the steps on the host and then all dispatches in one pass. If it has several
        launches, its next call is recorded ahead."""
        launches = [launch for launch, _ in steps]
        dispatches = [step for launch in launches if isinstance(launch, WgpuLaunch) for step in launch.steps]
        chained = WgpuLaunch(dispatches, output, None)
        chained.chained = sum(isinstance(launch, WgpuLaunch) for launch in launches) > 1
        chained.before = tuple(launch for launch in launches if isinstance(launch, HostCall))
        return chained

    def stage_times(self, steps: protocols.Steps) -> StageReading | None:
        """Time each step by the timestamps of a pass, all in one submit. Without a clock of the device, or with too
        many steps, the host's clock times each step with its wait. Returns None if timestamps went
        backwards."""
        own = [launch for launch, _ in steps if isinstance(launch, WgpuLaunch)]
        stamps = self.stamps if 0 < len(own) <= MOST_STAMPED else None
        # `vendor_errors` covers only the device, because a step on the host may raise such errors itself.
        return read_stages(self, steps, own, vendor_errors()(stamps.read_steps) if stamps else None)

    def recording(self, launch: WgpuLaunch) -> Recording:
        """Time the recording and submitting of a launch. Commands that were recorded ahead are recorded once more
        for this. A rasteriser may compute during a submit, so there only the recording is timed."""
        with vendor_errors():
            if self.limits.software:
                parts_s = self._anew(launch.parts())
                return Recording(parts_s[0], sum(parts_s))
            start = self.clock()
            done, ahead = self._send(launch, 1)
            self._queue.wait()
            first_s, whole_s = done[0] - start, done[-1] - start
            return Recording(first_s, whole_s + (sum(self._anew([launch])) if ahead else 0.0))

    def _anew(self, parts: Sequence[WgpuLaunch]) -> list[float]:
        """Record and submit each part of a launch, wait, and return the seconds of recording each part."""
        seconds = []
        for part in parts:
            start = self.clock()
            commands = self._queue.record(part, 1)
            seconds.append(self.clock() - start)
            self._queue.submit(commands)
        self._queue.wait()
        return seconds

    def tune(self, op: Op, case: Case, inputs: Sequence[Buffer]) -> None:
        by_name = {candidate.name: candidate for candidate in self._to_choose(op, case)}
        if not by_name:
            return

        def timer(name: str, output: Buffer) -> Callable[[int], float]:
            with vendor_errors():
                launch = self.programs.trial(op, case, by_name[name], inputs, output)
            return lambda repeat: self._took(launch, repeat)

        trials = Trials(tuple(by_name), timer, TUNING_S, builders=usable_cpus())
        name = choose(self, op, case, self._choices, trials)
        if name is not None:
            self.programs.choose(case, name)

    def _to_choose(self, op: Op, case: Case) -> tuple[Candidate, ...]:
        """Return the candidates of a case, or an empty tuple if there is nothing to choose any more."""
        if not self.tunes or case.implementation != "tuned" or self.programs.has_choice(case):
            return ()
        choices = self.programs.candidates(op, case)
        return choices if len(choices) > 1 else ()

    def _took(self, launch: WgpuLaunch, repeat: int) -> float:
        """Return the seconds of `repeat` launches by the device's clock, or by the host's if there is none."""
        timed = self.time(launch, repeat)
        return clock_calls(self, [partial(self.run, launch, repeat)], self.sync)[0] if timed is None else timed

    def run(self, launch: WgpuLaunch, repeat: int = 1) -> None:
        """Run the launches. They are one pass of one submit, unless they have many steps or steps on the host."""
        # With a submit for each launch, the time of the submits would be measured.
        together = 1 if launch.before or len(launch.parts()) > 1 else repeat
        for _ in range(repeat // together):
            self._before(launch)
            with vendor_errors():
                self._send(launch, together)
            self._transfers.unsent = False

    def _send(self, launch: WgpuLaunch, repeat: int) -> tuple[list[float], bool]:
        """Submit `repeat` calls. Return the time at which each submit returned, and whether the commands were
        recorded ahead."""
        ahead = launch.take_ahead() if repeat == 1 else None
        anew = (self._queue.record(part, repeat) for part in launch.parts())
        done = []
        for commands in anew if ahead is None else (ahead,):
            self._queue.submit(commands)
            done.append(self.clock())
        self._queue.record_next(launch if launch.chained else None)
        return done, ahead is not None

    def _before(self, launch: WgpuLaunch) -> None:
        for call in launch.before:
            call()
        launch.ran = True

    def sync(self) -> None:
        with vendor_errors():
            self._transfers.send()
            self._queue.wait()

    def time(self, launch: WgpuLaunch, repeat: int = 1, *, cold: bool = False) -> float | None:
        """Return the seconds from the beginning to the end of one pass with `repeat` launches, without steps on the
        host. Returns None if there is no clock, or if it failed."""
        if self.stamps is None:
            return None
        if not launch.ran:
            self._before(launch)
        with vendor_errors():
            encoder = self._device.create_command_encoder()
            if cold:
                encoder.clear_buffer(self._flush_buffer())
            compute = encoder.begin_compute_pass(timestamp_writes=self.stamps.single.writes(0))
            self._queue.encode(compute, launch, repeat)
            compute.end()
            begin, end = self.stamps.single.read(encoder)
        return (end - begin) * self.stamps.period_s if end > begin else None  # None: the clock failed

    def empty_launch(self) -> WgpuLaunch:
        return WgpuLaunch(self.programs.steps(_EMPTY, {}), None, None)

    def multiply_adds(self, dtype: Dtype, rounds: int) -> WgpuLaunch:
        chain, output = chain_program(dtype, rounds, self.limits), self.allocate((THREADS,), "float32")
        with vendor_errors():
            return WgpuLaunch(self.programs.steps(chain, {"out": output}), output, None)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.pool.empty()
            self._transfers.close()
            self._device.destroy()

    def flush(self) -> None:
        """Overwrite a buffer that is larger than usual caches, or the largest one that the device allows."""
        self._clear(self._flush_buffer())

    def _clear(self, buffer: Buffer) -> None:
        with vendor_errors():
            encoder = self._device.create_command_encoder()
            encoder.clear_buffer(buffer)
            self._device.queue.submit([encoder.finish()])

    def _flush_buffer(self) -> Any:
        import wgpu

        if self._flushing is None:
            size = min(
                _FLUSH_BYTES_SOFTWARE if self.limits.software else _FLUSH_BYTES, self.limits.max_buffer_bytes
            )
            self._flushing = self._device.create_buffer(size=size // 16 * 16, usage=wgpu.BufferUsage.COPY_DST)
        return self._flushing


def _description(device: Device) -> str:
    """Return a text with everything that a choice of kernels depends on: the adapter, its driver and wgpu's
    version."""
    import wgpu

    return f"{device.name} | {device.api} | {device.driver} | wgpu {wgpu.__version__} | gpubench {__version__}"


def is_software(info: dict[str, Any]) -> bool:
    """Return whether the adapter is a rasteriser on the CPU, by its type or name."""
    name = f"{info.get('device', '')} {info.get('vendor', '')}"
    return info.get("adapter_type") == "CPU" or bool(re.search(SOFTWARE_NAMES, name, re.I))


class WgpuBackend(Backend):
    """The adapters of Vulkan, Metal and DX12. OpenGL is left out, because it lists the same GPUs again."""

    name = "wgpu"
    implementations: tuple[Implementation, ...] = ("tuned",)

    def devices(self) -> list[Device]:
        """List the GPUs, then the software adapters. Raises BackendUnavailable if there is neither."""
        return [device for device, _ in self._adapters()]

    def preload(self) -> None:
        with contextlib.suppress(Exception):  # a library that the loader rejects is no ImportError
            importlib.import_module("wgpu")

    def open(self, device_id: str, threads: int | None = None, *, autotune: bool = True) -> WgpuSession:
        for device, adapter in self._adapters():
            if device.id == device_id:
                return WgpuSession(device, adapter, autotune)
        raise BackendUnavailable(f"there is no device {device_id}")

    def _adapters(self) -> list[tuple[Device, Any]]:
        try:
            import wgpu

            adapters = wgpu.gpu.enumerate_adapters_sync()
        except Exception as error:
            raise BackendUnavailable(
                f"wgpu cannot list adapters: {first_line(error)}",
                hint=f"{_DRIVER}; where wgpu does not load, uninstall it and install gpubench again",
            ) from error
        if wgpu.version_info[:2] != WGPU_VERSION:
            raise BackendUnavailable(
                f"wgpu {wgpu.__version__} is installed; gpubench calls what only wgpu "
                f"{'.'.join(map(str, WGPU_VERSION))} has",
                hint=install_command(),
            )
        usable = [a for a in adapters if a.info["backend_type"] in _APIS]
        if not usable:
            raise BackendUnavailable("no Vulkan, Metal or DX12 adapter is present", hint=_DRIVER)
        usable.sort(key=lambda a: is_software(a.info))  # stable: enumeration order otherwise
        return [(_describe(i, a), a) for i, a in enumerate(usable)]


_DRIVER = "install the GPU's driver, on Linux with Vulkan (Debian: apt install mesa-vulkan-drivers libvulkan1)"


def _describe(index: int, adapter: Any) -> Device:
    info, vendor = adapter.info, adapter.info.get("vendor_id")
    clock = DeviceClock(kind="pass-timestamp", step_s=1e-9) if "timestamp-query" in adapter.features else None
    return Device(
        id=f"wgpu:{index}", backend="wgpu", kind="software" if is_software(info) else "gpu",
        name=str(info.get("device") or "unknown"), api=_APIS[info["backend_type"]],
        driver=str(info.get("description") or "") or None, clock=clock,
        unified=info.get("adapter_type") == "IntegratedGPU" and MAPPABLE in adapter.features,
        # Metal gives the ids as 0. The text `vendor` is the name of the driver.
        identity=Identity(
            pci=str(info.get("device_pci_bus_id") or "") or None, vendor_id=VENDOR_ALIASES.get(vendor, vendor) or None,
            device_id=info.get("device_id") or None, driver=str(info.get("vendor") or "") or None,
        ),
    )  # fmt: skip


BACKEND = WgpuBackend()
