"""hybrid: one op split over a GPU and the CPU, both at work at once (`hybrid:cupy:0`); a workload with
each of its stages on one of them, by a session of the wing that brings workloads.

The GPU takes the first units of the op's outer dimension, NumPy the rest, in the caller's own arrays. In `resident`
the GPU's part of the data is on the device already and both outputs stay where they are made. In the transfer regimes
everything is in host memory: a second thread moves the GPU's share up and down while this one computes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from gpubench import backends
from gpubench.backends.contract import Backend, Launch, Session, protocols
from gpubench.backends.hybrid.launches import Sides, SplitBuffer, SplitLaunch, gpu_units
from gpubench.backends.shared.blocks import empty_caches
from gpubench.backends.shared.sides import refusal
from gpubench.base.errors import BackendError, BackendUnavailable, Unsupported
from gpubench.base.messages import REASONS
from gpubench.base.plugins import wings
from gpubench.kernels.contract.op import Array, Form, Op, Shape, Stored
from gpubench.result.case import Case
from gpubench.result.run import Device

# The share of the GPU until somebody says another.
EVEN = 0.5


class SplitSession(
    Session, protocols.Splits, protocols.TimesSides, protocols.Tunes, protocols.Flushes, protocols.HoldsArrays
):
    """A GPU's session and the CPU's, driven as one."""

    def __init__(self, device: Device, gpu: Session, cpu: Session) -> None:
        self.device = device
        self.limits = gpu.limits
        self.threads, self.blas = cpu.threads, cpu.blas
        self.gpu, self.cpu = gpu, cpu
        self._sides = Sides(gpu, cpu)
        self._fractions: dict[str, float] = {}
        self._partials: dict[str, tuple[Array, Array]] = {}
        self._waiting: tuple[SplitLaunch, int] | None = None
        self._placing: dict[str, Any] = {}

    def supports(self, op: Op, case: Case) -> BackendError | None:
        """An op that says how it is cut, in what both sides compute; tuned: the best that each side has."""
        if case.form != "tuned" or case.variant is not None or op.overhead is not None:
            why = "a split takes the best that each side has: its only form is tuned"
            return Unsupported(why, reason="no-implementation")
        unsplit = op.whole(case.params)
        if unsplit is not None:
            return Unsupported(unsplit, reason="no-split")
        return refusal(op, case, self.gpu, self.cpu)  # at the ends of a sweep each has all of the work

    def for_op(self, op: Op) -> Session:
        """A workload is placed by a wing, any other op is split."""
        placing = wings.for_op("two_sides", op)
        if placing is None:
            return self
        if op.name not in self._placing:
            self._placing[op.name] = placing(self.device, self.gpu, self.cpu, op)
        placed: Session = self._placing[op.name]
        return placed

    def host_array(self, shape: Shape, dtype: Stored, form: Form) -> Array:
        """An ordinary array: the CPU computes in it."""
        return self.cpu.host_array(shape, dtype, form)

    def allocate(self, shape: Shape, dtype: Stored) -> SplitBuffer:
        """An operand; device memory is taken when a launch needs its part of it."""
        return SplitBuffer(shape, dtype)

    def free(self, buffer: SplitBuffer) -> None:
        """Its device memory goes back to the GPU's pool."""
        self._flush()
        buffer.free(self.gpu)

    def forget(self) -> None:
        """The CPU's parts are bound to the caller's arrays: let them go."""
        self._sides.forget()
        for placing in self._placing.values():
            placing.forget()

    def upload(self, buffer: SplitBuffer, host: Array) -> None:
        """Refer to the array; the GPU's part goes up with the next launch, which knows how much it is."""
        self._flush()
        buffer.hold(host)

    def download(self, buffer: SplitBuffer, host: Array) -> None:
        """Do what was put off, the CPU's part straight into `host`; else bring both parts together there."""
        if self._waiting is not None and self._waiting[0].output is buffer:
            self._flush(host)
            return
        self._flush()
        if buffer.last is None:
            host[...] = buffer.host
        else:
            self._sides.gather(buffer.last, host)

    def divide(self, op: Op, case: Case, fraction: float) -> float:
        """From the next `compile` of this case on. Returns the share after rounding to whole units."""
        self._fractions[case.id] = fraction
        units = op.units(case.params)
        return gpu_units(units, fraction) / units

    def tune(self, op: Op, case: Case, inputs: Sequence[SplitBuffer]) -> None:
        """Let the GPU choose its candidate for the part that it will get."""
        if not isinstance(self.gpu, protocols.Tunes):
            return
        launch = self._cut(op, case, inputs, SplitBuffer(op.output.shape(case.params), case.dtype))
        if launch.on_gpu:
            self._sides.send(launch)
            self.gpu.tune(op, launch.part_case(self.gpu, launch.on_gpu), launch.devices)

    def compile(self, op: Op, case: Case, inputs: Sequence[SplitBuffer], output: SplitBuffer) -> SplitLaunch:
        """The GPU's kernel for its units; the CPU's part is bound to arrays when it runs."""
        launch = self._cut(op, case, inputs, output)
        if launch.on_gpu:
            part = launch.part_case(self.gpu, launch.on_gpu)
            if part.form == "tuned":
                launch.target = output.part(self.gpu, case.regime_id, op.output.shape(part.params))
            target = launch.target.device if launch.target is not None else None
            gpu = launch.gpu = self.gpu.compile(op, part, launch.devices, target)
            launch.kernel_hash, launch.kernel_name = gpu.kernel_hash, gpu.kernel_name
        return launch

    def _cut(self, op: Op, case: Case, inputs: Sequence[SplitBuffer], output: SplitBuffer) -> SplitLaunch:
        units = op.units(case.params)
        on_gpu = gpu_units(units, self._fractions.get(case.id, EVEN))
        launch = SplitLaunch(op, case, units, on_gpu, inputs, output)
        if launch.cut.join:
            launch.partial = self._partials.setdefault(
                case.id, (self._scalar(op, case), self._scalar(op, case))
            )
        if on_gpu:
            part = launch.part_case(self.gpu, on_gpu)
            params = part.params
            # As where the GPU has all of the work: or else the split would gain by moving data in another way.
            form: Form = "library" if op.kernel(self.gpu.device.backend, case.dtype) is None else "tuned"
            launch.way = protocols.transfers_of(self.gpu, form)
            launch.staging = launch.way.staging
            launch.parts = [
                buffer.part(self.gpu, case.regime_id, operand.shape(params))
                for operand, buffer in zip(op.inputs, inputs, strict=True)
            ]
        return launch

    def _scalar(self, op: Op, case: Case) -> Array:
        """Host memory for one side's partial result."""
        return self.cpu.host_array(op.output.shape(case.params), case.dtype, case.form)

    def run(self, launch: SplitLaunch | Empty, repeat: int = 1) -> None:
        """Enqueue on the GPU and compute on the CPU. After an upload all of it is put off: `download` knows where
        the result goes, and the GPU's data has still to travel."""
        self._flush()
        if isinstance(launch, Empty):
            self.gpu.run(launch.gpu, repeat)
            return
        waits = launch.waits
        launch.begin()
        if waits:
            self._waiting = (launch, repeat)
            return
        self._sides.resident(launch, repeat)

    def sync(self) -> None:
        """Do what was put off, and wait for the GPU."""
        self._flush()
        self.gpu.sync()

    def sides(self, launch: SplitLaunch, launches: int, host_output: Array | None) -> dict[str, float]:
        """Seconds per launch of each side alone, and of the CPU's with both at work: what they cost each other."""
        self.sync()
        sides, found, travels = self._sides, {}, host_output is not None
        sides.share_cores(launch, travels=travels)
        if launch.on_gpu:
            start = self.clock()
            sides.on_gpu(launch, launches, host_output, again=travels)
            self.gpu.sync()
            found["gpu_alone_s"] = (self.clock() - start) / launches
        if launch.on_cpu:
            sides.cpu_s = 0.0
            sides.on_cpu(launch, launches, host_output)
            found["cpu_alone_s"] = sides.cpu_s / launches
        if launch.on_cpu and launch.on_gpu:
            sides.cpu_s = 0.0
            if travels:
                sides.together(launch, launches, host_output, again=True)
            else:
                sides.resident(launch, launches)
                self.gpu.sync()
            found["cpu_beside_s"] = sides.cpu_s / launches
        return found

    def empty_launch(self) -> Empty:
        """The GPU's: the CPU's costs nothing."""
        return Empty(self.gpu.empty_launch())

    def flush(self) -> None:
        """Empty the GPU's caches: an upload to this session would only refer to the array."""
        self._flush()
        empty_caches(self.gpu)

    def clock(self) -> float:
        return self.gpu.clock()

    def close(self) -> None:
        """Both sides, whatever happens to the first."""
        self._waiting = None
        self._sides.close()
        for placing in self._placing.values():
            with contextlib.suppress(Exception):
                placing.forget()
        for side in (self.gpu, self.cpu):
            with contextlib.suppress(Exception):
                side.close()

    def _flush(self, host_output: Array | None = None) -> None:
        """Do what was put off; with `host_output` the whole result is there afterwards."""
        if self._waiting is not None:
            (launch, repeat), self._waiting = self._waiting, None
            self._sides.together(launch, repeat, host_output)


class Empty(Launch):
    """A launch that does nothing, on the GPU."""

    def __init__(self, gpu: Launch) -> None:
        self.gpu = gpu


class HybridBackend(Backend):
    """Each GPU of the other backends with the CPU beside it."""

    name = "hybrid"
    forms: tuple[Form, ...] = ("tuned",)

    def devices(self) -> list[Device]:
        """One for each GPU, and for each software adapter. Raises BackendUnavailable if there is none."""
        found, why = [], []
        for name in backends.built_in():
            try:
                found += _pairs(name)
            except BackendUnavailable as error:
                why.append(error.detail)
        if not found and why:
            raise BackendUnavailable("; ".join(why), hint=REASONS["unavailable"].remedy)
        return [*found, *(device for name in backends.hidden_names() for device in _pairs(name))]

    def open(self, device_id: str, threads: int | None = None, *, autotune: bool = True) -> SplitSession:
        """The GPU of that id, and the CPU with `threads` threads. Raises BackendUnavailable."""
        inner = device_id.partition(":")[2]
        backend = backends.load(inner.partition(":")[0])
        gpu = backend.open(inner, threads, autotune=autotune)
        scripted = gpu.cpu_beside() if isinstance(gpu, protocols.ScriptedPair) else None
        cpu = scripted or backends.load("numpy").open("numpy:0", threads)
        return SplitSession(_pair(gpu.device), gpu, cpu)


def _pairs(backend: str) -> list[Device]:
    return [_pair(device) for device in backends.load(backend).devices() if device.kind != "cpu"]


def _pair(gpu: Device) -> Device:
    return msgspec.structs.replace(
        gpu, id=f"hybrid:{gpu.id}", backend="hybrid", kind="software" if gpu.kind == "software" else "hybrid",
        name=f"CPU + {gpu.name}", clock=None,
    )  # fmt: skip


BACKEND = HybridBackend()
