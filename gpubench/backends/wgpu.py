"""wgpu: any GPU through Vulkan, Metal or DX12, with the ops' WGSL kernels (tuned form only).

The device clock stamps the begin and end of a compute pass. Transfers go through persistent, mapped
staging buffers that several threads fill and empty (docs/kernels.md).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from gpubench import __version__
from gpubench.backends._ceiling_wgsl import THREADS
from gpubench.backends._ceiling_wgsl import program as chains
from gpubench.backends._choices import Choices, cache_folder, fastest
from gpubench.backends._choices import key as choice_key
from gpubench.backends._host import host_dtype, no_kernel, no_overhead
from gpubench.backends._wgpu_clock import Stamps
from gpubench.backends._wgpu_limits import limits_of
from gpubench.backends._wgpu_transfer import PlainTransfers, Transfers
from gpubench.backends._wgsl import Programs, WgpuLaunch, encode
from gpubench.errors import BackendError, BackendUnavailable, DeviceLost, DeviceOutOfMemory, Unsupported
from gpubench.model.backend import Buffer
from gpubench.model.case import Case
from gpubench.model.op import ITEMSIZE, Array, Dtype, Form, Op, Shape
from gpubench.model.result import Device, DeviceClock, Identity
from gpubench.model.session import Blas

WANTED_FEATURES = ("timestamp-query", "shader-f16", "shader-f64", "subgroup")
_APIS = {"Vulkan": "vulkan", "Metal": "metal", "D3D12": "dx12"}
_SOFTWARE_VENDOR = 0x10005  # Mesa's PCI-less vendor id: llvmpipe and lavapipe
_SOFTWARE_NAMES = ("llvmpipe", "lavapipe", "swiftshader", "warp", "basic render")
_FLUSH_BYTES = 256 << 20  # no API tells the cache size; two times any L2 of today
_FLUSH_BYTES_SOFTWARE = 64 << 20
TUNING_S = 3.0  # for the candidates of one kernel and size: seven texts of 0.2 s to build, then milliseconds
IDLE_BYTES = 1 << 30  # idle buffers of sizes that are done with may hold this much device memory
_EMPTY = "@compute @workgroup_size(1) fn main() {}"


@contextlib.contextmanager
def _vendor_errors() -> Iterator[None]:
    """Turn wgpu's exceptions into ours: nothing above this file knows them."""
    import wgpu

    try:
        yield
    except wgpu.GPUOutOfMemoryError as error:
        raise DeviceOutOfMemory(_first_line(error)) from error
    except wgpu.GPUValidationError as error:
        raise BackendError(str(error), reason="validation-error") from error
    except (wgpu.GPUInternalError, RuntimeError) as error:
        raise DeviceLost(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class WgpuSession:
    """One open adapter: one device, one queue, a pool of buffers and the programs built so far."""

    def __init__(self, device: Device, adapter: Any, autotune: bool = True) -> None:
        self.device = device
        self.threads = None
        self.blas: Blas | None = None
        wanted = [f for f in WANTED_FEATURES if f in adapter.features]
        with _vendor_errors():
            self._device = adapter.request_device_sync(required_features=wanted)
        self.limits = limits_of(self._device, software=device.kind == "software")
        self._programs = Programs(self._device, self.limits)
        # A rasteriser's figures say nothing about a GPU, and its compiler takes seconds for each candidate.
        self._autotune = autotune and device.kind == "gpu"
        self._choices = Choices(_description(device), cache_folder())
        self._transfers = Transfers(self._device, _vendor_errors)
        self._ways: dict[Form, PlainTransfers | Transfers] = {
            "library": PlainTransfers(self._device, _vendor_errors), "tuned": self._transfers
        }  # fmt: skip
        self._pool: dict[int, list[Any]] = {}
        self._flushing: Any = None
        self._stamps = Stamps(self._device) if "timestamp-query" in wanted else None
        if self._stamps is not None:  # only an open device tells the length of its ticks
            clock = DeviceClock(kind="pass-timestamp", step_s=self._stamps.period_s)
            self.device = replace(device, clock=clock)

    def supports(self, op: Op, case: Case) -> BackendError | None:
        """Tuned form, a dtype the device has, and operands within its limits (named exactly)."""
        if op.overhead is not None:
            return no_overhead(op, case, self.device, self.limits)
        if case.form != "tuned":
            return Unsupported("wgpu has no array library: only tuned WGSL kernels", reason="no-implementation")
        kernel = op.kernel("wgpu", case.dtype, case.variant)
        if kernel is None:
            return no_kernel(op, case)
        if case.dtype not in op.dtypes or case.dtype == "bfloat16":
            return Unsupported(f"{op.name} has no {case.dtype} in WGSL", reason="no-dtype")
        for operand in (*op.inputs, op.output):
            size = op.operand_bytes(operand, case.params, case.dtype)
            limit = self.limits.max_buffer_bytes
            if size > limit:  # an array beyond one binding is the kernel's affair
                return Unsupported(
                    f"{operand.name} takes {size} bytes; this device's buffers hold at most {limit} bytes"
                    " (maxBufferSize)",
                    reason="limit",
                )
        try:
            kernel.build(case.params, case.dtype, self.limits)
        except BackendError as error:
            return error
        return None

    def host_array(self, shape: Shape, dtype: Dtype, form: Form) -> Array:
        """A pageable array; the copy into mapped staging memory is part of every upload."""
        import numpy as np

        return np.empty(shape, host_dtype(dtype))

    def allocate(self, shape: Shape, dtype: Dtype) -> Buffer:
        """A storage buffer, from the pool if one of that size is free. Raises DeviceOutOfMemory."""
        size = _buffer_bytes(shape, dtype)
        free = self._pool.get(size)
        if free:
            return free.pop()
        if self._idle_bytes() > IDLE_BYTES:
            self._empty_pool()
        try:
            return self._create(size)
        except DeviceOutOfMemory:
            self._empty_pool()
            return self._create(size)

    def _create(self, size: int) -> Buffer:
        import wgpu

        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        with _vendor_errors():
            return self._device.create_buffer(size=size, usage=usage)

    def free(self, buffer: Buffer) -> None:
        """Back into the pool."""
        self._pool.setdefault(buffer.size, []).append(buffer)

    def allocate_fresh(self, shape: Shape, dtype: Dtype) -> Buffer:
        """A new buffer, cleared: wgpu would do that at its first use. Raises DeviceOutOfMemory."""
        buffer = self._create(_buffer_bytes(shape, dtype))
        with _vendor_errors():
            encoder = self._device.create_command_encoder()
            encoder.clear_buffer(buffer)
            self._device.queue.submit([encoder.finish()])
        self.sync()
        return buffer

    def free_fresh(self, buffer: Buffer) -> None:
        """Destroy it."""
        buffer.destroy()

    def upload(self, buffer: Buffer, host: Array) -> None:
        """Copy in; ordered with launches."""
        self._transfers.upload(buffer, host)

    def download(self, buffer: Buffer, host: Array) -> None:
        """Copy out; complete on return."""
        self._transfers.download(buffer, host)

    def transfers(self, form: Form) -> PlainTransfers | Transfers:
        """The queue's convenience calls, or staging buffers that are kept."""
        return self._ways[form]

    def compile(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> WgpuLaunch:
        """Pipelines by source text, bind groups by buffers: both cached. Raises BuildError, DeviceOutOfMemory."""
        try:
            with _vendor_errors():
                return self._programs.launch(op, case, inputs, output)
        except DeviceOutOfMemory:  # of scratch: what is idle may make room for it
            self._empty_pool()
            with _vendor_errors():
                return self._programs.launch(op, case, inputs, output)

    def tune(self, op: Op, case: Case, inputs: Sequence[Buffer]) -> None:
        """Time the kernel's candidates, once for this device and size, and let `compile` take the fastest.

        The trials write to an output of their own, which the correctness check never sees. Where memory is too
        short for it the default stays.
        """
        if not self._autotune or case.form != "tuned" or self._programs.chosen(case):
            return
        by_name = {candidate.name: candidate for candidate in self._programs.candidates(op, case)}
        if len(by_name) < 2:
            return
        key = choice_key(case, list(by_name))
        name = self._choices.get(key)
        if name not in by_name:
            try:
                output = self.allocate(op.output.shape(case.params), case.dtype)
            except DeviceOutOfMemory:
                return

            def timer(name: str) -> Callable[[int], float]:
                with _vendor_errors():
                    launch = self._programs.trial(op, by_name[name], inputs, output)
                return lambda repeat: self._took(launch, repeat)

            try:
                name = fastest(list(by_name), timer, clock=self.clock, budget_s=TUNING_S)
            except DeviceOutOfMemory:
                return
            finally:
                self.free(output)
            self._choices.put(key, name)
        self._programs.choose(case, name)

    def _took(self, launch: WgpuLaunch, repeat: int) -> float:
        """Seconds of `repeat` launches, by the device's clock where it has one."""
        seconds = self.time(launch, repeat)
        if seconds is None:
            start = self.clock()
            self.run(launch, repeat)
            self.sync()
            seconds = self.clock() - start
        return seconds

    def run(self, launch: WgpuLaunch, repeat: int = 1) -> None:
        """All launches in one pass of one submit: a submit per dispatch would time the submit."""
        with _vendor_errors():
            encoder = self._device.create_command_encoder()
            compute = encoder.begin_compute_pass()
            encode(compute, launch, repeat)
            compute.end()
            self._device.queue.submit([encoder.finish()])
            self._transfers.unsent = False

    def sync(self) -> None:
        """Wait for the queue. `on_submitted_work_done` raises TypeError in wgpu 0.32 (pygfx/wgpu-py#834)."""
        with _vendor_errors():
            self._transfers.send()
            if hasattr(self._device, "_poll_wait"):
                self._device._poll_wait()
            else:
                self._transfers.fence()

    def time(self, launch: WgpuLaunch, repeat: int = 1, *, cold: bool = False) -> float | None:
        """Seconds between the begin and end stamps of one pass of `repeat` launches."""
        if self._stamps is None:
            return None
        with _vendor_errors():
            encoder = self._device.create_command_encoder()
            if cold:
                encoder.clear_buffer(self._flush_buffer())
            compute = encoder.begin_compute_pass(timestamp_writes=self._stamps.writes)
            encode(compute, launch, repeat)
            compute.end()
            return self._stamps.read(encoder)

    def empty_launch(self) -> WgpuLaunch:
        """A dispatch of one thread that does nothing."""
        return self._programs.bare(_EMPTY)

    def multiply_adds(self, dtype: Dtype, rounds: int) -> WgpuLaunch:
        """Chains of them, into a buffer of THREADS elements that the caller frees. Raises Unsupported."""
        chain, output = chains(dtype, rounds, self.limits), self.allocate((THREADS,), "float32")
        try:
            with _vendor_errors():
                return WgpuLaunch(self._programs.steps(chain, {"out": output}), output, None)
        except BackendError:
            self.free(output)
            raise

    def clock(self) -> float:
        """The host's monotonic clock, in seconds."""
        return time.perf_counter()

    def close(self) -> None:
        """Destroy the device and everything on it."""
        with contextlib.suppress(Exception):
            self._empty_pool()
            self._transfers.close()
            self._device.destroy()

    def _idle_bytes(self) -> int:
        return sum(size * len(buffers) for size, buffers in self._pool.items())

    def _empty_pool(self) -> None:
        """Destroy the idle buffers, and forget the bind groups that hold some of them."""
        for buffers in self._pool.values():
            for buffer in buffers:
                buffer.destroy()
        self._pool.clear()
        self._programs.forget_buffers()

    def flush(self) -> None:
        """Overwrite more than any cache holds."""
        with _vendor_errors():
            encoder = self._device.create_command_encoder()
            encoder.clear_buffer(self._flush_buffer())
            self._device.queue.submit([encoder.finish()])

    def _flush_buffer(self) -> Any:
        import wgpu

        if self._flushing is None:
            size = min(
                _FLUSH_BYTES_SOFTWARE if self.limits.software else _FLUSH_BYTES, self.limits.max_buffer_bytes
            )
            self._flushing = self._device.create_buffer(size=size // 16 * 16, usage=wgpu.BufferUsage.COPY_DST)
        return self._flushing


def _buffer_bytes(shape: Shape, dtype: Dtype) -> int:
    """Kernels read 16 bytes at a time."""
    return max(16, -(-math.prod(shape) * ITEMSIZE[dtype] // 16) * 16)


def _description(device: Device) -> str:
    """What a choice of kernels depends on: the adapter, its driver and the library that compiles for it."""
    import wgpu

    return f"{device.name} | {device.api} | {device.driver} | wgpu {wgpu.__version__} | gpubench {__version__}"


def is_software(info: dict[str, Any]) -> bool:
    """A rasteriser on the CPU, whatever API lists it: never a GPU."""
    name = f"{info.get('device', '')} {info.get('vendor', '')}".lower()
    return (
        info.get("adapter_type") == "CPU"
        or info.get("vendor_id") == _SOFTWARE_VENDOR
        or any(word in name for word in _SOFTWARE_NAMES)
    )


class WgpuBackend:
    """Adapters of Vulkan, Metal and DX12; OpenGL is left out (it lists the same GPUs a second time)."""

    name = "wgpu"
    forms: tuple[Form, ...] = ("tuned",)

    def devices(self) -> list[Device]:
        """GPUs first, software adapters last. Raises BackendUnavailable if there is neither."""
        return [device for device, _ in self._adapters()]

    def open(self, device_id: str, threads: int | None = None, *, autotune: bool = True) -> WgpuSession:
        """Open one adapter by id. Raises BackendUnavailable if there is none."""
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
                f"wgpu cannot list adapters: {_first_line(error)}",
                hint="install a Vulkan loader (Debian: apt install libvulkan1) and the GPU's driver",
            ) from error
        usable = [a for a in adapters if a.info["backend_type"] in _APIS]
        if not usable:
            raise BackendUnavailable(
                "no Vulkan, Metal or DX12 adapter is present",
                hint="install the GPU's Vulkan driver (Debian: apt install mesa-vulkan-drivers libvulkan1)",
            )
        usable.sort(key=lambda a: is_software(a.info))  # stable: enumeration order otherwise
        return [(_describe(i, a), a) for i, a in enumerate(usable)]


def _describe(index: int, adapter: Any) -> Device:
    info = adapter.info
    software = is_software(info)
    clock = DeviceClock(kind="pass-timestamp", step_s=1e-9) if "timestamp-query" in adapter.features else None
    return Device(
        id=f"wgpu:{index}",
        backend="wgpu",
        kind="software" if software else "gpu",
        name=str(info.get("device") or "unknown"),
        api=_APIS[info["backend_type"]],  # type: ignore[arg-type]
        driver=str(info.get("description") or "") or None,
        clock=clock,
        identity=Identity(vendor_id=info.get("vendor_id"), device_id=info.get("device_id")),
    )


BACKEND = WgpuBackend()
