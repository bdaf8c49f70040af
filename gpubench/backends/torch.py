"""PyTorch: the CPU with PyTorch's own kernels and BLAS, and the GPUs that PyTorch drives (CUDA, ROCm, Intel's
XPU, Apple's MPS).

This backend has only the library implementation, as users of PyTorch write it with an output that exists already.
On the CPU a tensor lies in the memory of a NumPy array. An op without a call for PyTorch runs its expression, if
PyTorch has the functions that the expression uses.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
import os
import platform
import re
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from gpubench.backends.contract import Backend, Buffer, DeviceStream, Launch, protocols
from gpubench.backends.shared.host import (
    SingleDevice,
    aligned_array,
    allocate_outputs,
    host_dtype,
    no_kernel,
    no_tf32,
    on_all_cpus,
    refuse_size,
    set_up_threads,
    trial_params,
    usable_cpus,
)
from gpubench.backends.shared.memory import InPlaceSession, PageLocked, PageLockedMemory
from gpubench.backends.shared.reference import sentinel_of
from gpubench.base import AMD, INTEL, NVIDIA
from gpubench.base.errors import BackendError, BackendUnavailable, DeviceLost, DeviceOutOfMemory, Unsupported
from gpubench.base.installation import KEPT, torch_hint
from gpubench.kernels.contract.kernel import Limits
from gpubench.kernels.contract.op import Array, Dtype, Implementation, Op, Operand, Params, Shape, Stored, each
from gpubench.result.case import DTYPES, TF32, Case
from gpubench.result.run import UNKNOWN_CACHE_BYTES, Blas, Device, DeviceClock, DeviceKind, Identity

CPU = "torch:cpu"
Tensor = Any

# The PCI vendor id by API. Devices of ROCm have the type `cuda`, too.
_VENDORS = {"cuda": NVIDIA, "rocm": AMD, "xpu": INTEL}
# cudaEvent timestamps have a resolution of about half a microsecond (CUDA runtime API, cudaEventRecord).
EVENT_STEP_S = 0.5e-6
# Most errors of PyTorch have the same class, so their texts decide. "invalid buffer size" is Metal's text for a
# tensor that is too large. After an error of a BLAS the device is still usable.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|allocate memory|not enough memory|ALLOC_FAILED|OUT_OF_\w*MEMORY|invalid buffer size",
    re.IGNORECASE,
)
_LOST = re.compile(r"(CUDA|HIP|XPU) error(?!: (CU|HIP)BLAS)|device-side|DEVICE_LOST")
# Longest delay before timed launches, and the first guess of the host's time for one launch.
_LONGEST_DELAY_S, _LAUNCH_S = 0.1, 10e-6


class TorchLaunch(Launch):
    """A prepared call. It writes to the tensor `into`; if that is None, it puts a new tensor into `output`."""

    def __init__(self, call: Callable[[], Any], into: Tensor = None) -> None:
        self.call = call
        self.into = self.output = into


class TorchSession(
    SingleDevice,
    protocols.LaunchClock,
    protocols.HostReadable,
    protocols.ComparesBuffers,
    protocols.ComputesInPlace,
    protocols.SharesBuffers,
    protocols.Streams,
    protocols.CpuThreads,
):
    """A session on one of PyTorch's devices, without gradients."""

    def __init__(self, device: Device, threads: int | None) -> None:
        _quiet()
        import torch

        self._torch = torch
        self.device = device
        self._place = torch.device(device.id.partition(":")[2])
        self._on_cpu = self._place.type == "cpu"
        self._dtypes = {name: getattr(torch, name) for name in (*DTYPES, "int32")}
        memory = device.memory_bytes or 2**62
        self.limits = Limits(max_buffer_bytes=memory, max_binding_bytes=memory, float16=True, float64=True)
        self.blas = _blas(torch, device.api)
        self._names = _Names(torch)
        self._refusals: dict[tuple[object, ...], Unsupported | None] = {}
        if self._on_cpu:
            self.threads = threads or usable_cpus()
            torch.set_num_threads(self.threads)
        # By default PyTorch rounds float32 to TF32 in convolutions, but not in products.
        torch.backends.cudnn.allow_tf32 = False
        # PyTorch does not report that older tensor cores compute in float32 when TF32 is requested.
        self.capability = torch.cuda.get_device_capability(self._place) if device.api == "cuda" else (0, 0)
        self._clock = None if device.clock is None else TorchClock(self, device.cache_bytes)
        self.enter()

    def enter(self) -> None:
        """Switch gradients off and set the current device, for the calling thread."""
        self._torch.set_grad_enabled(False)
        if self._place.type in ("cuda", "xpu"):
            self.driver.set_device(self._place)

    @property
    def driver(self) -> Any:
        """The module `torch.cuda`, `torch.xpu` or `torch.mps`."""
        return getattr(self._torch, self._place.type)

    def _refuse(self, op: Op, case: Case) -> BackendError | None:
        if op.host is not None:
            return Unsupported(f"{op.name} runs on the host, by {op.host.name}", reason="host-stage")
        if case.implementation == "tuned":
            return no_kernel(op, case)
        if case.variant is not None and self.device.api != "cuda":
            return Unsupported(f"{self.device.id} has no {case.variant} {op.name}", reason="no-tf32")
        if refusal := no_tf32(op, case, *self.capability) or refuse_size(op, case, self.limits):
            return refusal
        tried = msgspec.structs.replace(case, params=dict(trial_params(op, case.params)))
        key = (op.name, case.dtype, *sorted(tried.params.items()))
        if key not in self._refusals:
            self._refusals[key] = self._refusal(op, tried)
        return self._refusals[key]

    def _refusal(self, op: Op, case: Case) -> Unsupported | None:
        """Run the case once. Return why PyTorch does not compute the op, or None if it does."""
        where = f"{case.dtype} on {self.device.id}"
        try:
            with vendor_errors():
                inputs = [self._blank(x, case.params, case.dtype) for x in op.inputs]
                output = allocate_outputs(self, op, case, inputs)
                launch = self._launch(op.at(case.params), inputs, output)
                launch.call()
                got = [_kind(x) for x in each(launch.output)]
        except (DeviceOutOfMemory, DeviceLost):
            raise
        except Exception as error:  # any error of PyTorch and of an op's expression
            why = (str(error) or type(error).__name__).splitlines()[0][:200]
            declared = op.fills("torch")
            return Unsupported(
                f"PyTorch has no {op.name} in {where}: {why}" if declared else f"{op.name} in {where}: {why}",
                reason="no-dtype" if declared else "no-implementation",
            )  # fmt: skip
        if got != [_kind(x) for x in each(output)]:
            made = ", ".join(f"{kind} of the shape {shape}" for kind, shape in got)
            return Unsupported(f"{op.name} in {where}: PyTorch makes {made} of it", reason="no-implementation")
        return None

    def _blank(self, operand: Operand, params: Params, dtype: Dtype) -> Array:
        """Return zeros: a host array for an operand that the host reads, otherwise a tensor."""
        shape, stored = operand.form(params, dtype)
        if operand.role != "host":
            return self.allocate(shape, stored).zero_()
        array = aligned_array(shape, host_dtype(stored))
        array.fill(0)
        return array

    def host_array(self, shape: Shape, dtype: Stored, implementation: Implementation) -> Array:
        """Return a page-locked array for the tuned implementation on CUDA or ROCm, otherwise a pageable array."""
        if implementation == "library" or self._place.type != "cuda":
            return aligned_array(shape, host_dtype(dtype))
        with vendor_errors():
            size = math.prod(shape) * host_dtype(dtype).itemsize
            locked = self._torch.empty(size, dtype=self._torch.uint8, pin_memory=True)
            return locked.numpy().view(host_dtype(dtype)).reshape(shape)

    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        """Return a new tensor, on the CPU in the memory of a NumPy array. Raises DeviceOutOfMemory."""
        with vendor_errors():
            if self._on_cpu:
                return self.view(aligned_array(shape, host_dtype(dtype)))
            return self._torch.empty(shape, dtype=self._dtypes[dtype], device=self._place)

    def in_place(self, memory: str) -> InPlaceSession:
        if memory == "mapped" and self.device.api == "cuda":
            return InPlaceSession(self, PageLockedMemory(self, self._tensor_in))
        why = "PyTorch makes no tensor of managed memory" if memory == "managed" else (
            f"PyTorch gives the host no address of a tensor on {self.device.id}"
        )  # fmt: skip
        raise Unsupported(why, reason="not-in-place")

    def _tensor_in(self, memory: PageLocked, shape: Shape, dtype: Stored) -> Tensor:
        with vendor_errors():
            there = self._torch.as_tensor(memory, device=self._place)
        if there.data_ptr() != memory.address:
            raise Unsupported("this PyTorch copies page-locked memory to the device", reason="not-in-place")
        return there.view(self._dtypes[dtype]).view(shape)

    def view(self, array: Array) -> Buffer:
        """Return a tensor in the memory of the array."""
        # PyTorch does not know NumPy's bfloat16.
        if array.dtype.name == "bfloat16":
            return self._torch.from_numpy(array.view("int16")).view(self._torch.bfloat16)
        return self._torch.from_numpy(array)

    def upload(self, buffer: Buffer, host: Array) -> None:
        with vendor_errors():
            buffer.copy_(self.view(host))

    def download(self, buffer: Buffer, host: Array) -> None:
        with vendor_errors():
            self.view(host).copy_(buffer)

    def stream(self) -> DeviceStream:
        """Return a stream. Raises Unsupported except on CUDA and ROCm, because page-locked memory is made only for
        these."""
        if self._place.type != "cuda":
            raise Unsupported(f"PyTorch copies nothing aside on {self.device.id}", reason="no-streams")
        with vendor_errors():
            return TorchStream(self)

    def fill(self, buffer: Buffer, shape: Shape, dtype: Stored, value: float) -> None:
        with vendor_errors():
            buffer.fill_(value)

    def memory(self, buffer: Buffer, shape: Shape, dtype: Stored) -> Array | None:
        """Return the memory of the tensor as an array. Returns None if it is not on the CPU, not contiguous, or of
        another shape or dtype."""
        if not (self._on_cpu and self._fits(buffer, shape, dtype)):
            return None
        if dtype == "bfloat16":
            return buffer.view(self._torch.int16).numpy().view(host_dtype(dtype))
        return buffer.numpy()

    def copy_of(self, buffer: Buffer, shape: Shape, dtype: Stored) -> Buffer | None:
        """Return a copy of the tensor, or None if it is not contiguous, or of another shape or dtype."""
        # Later outputs are compared with the copy, which is faster than with the float64 reference.
        if not self._fits(buffer, shape, dtype):
            return None
        with vendor_errors():
            return buffer.clone()

    def begins(self, copy: Buffer, buffer: Buffer, shape: Shape, dtype: Stored) -> bool:
        if not self._fits(buffer, shape, dtype):
            return False
        words = {2: self._torch.int16, 4: self._torch.int32, 8: self._torch.int64}[buffer.element_size()]
        with vendor_errors():
            flat, same = buffer.reshape(-1).view(words), copy.reshape(-1)[: buffer.numel()].view(words)
            return bool(self._torch.equal(flat, same))

    def _fits(self, buffer: Buffer, shape: Shape, dtype: Stored) -> bool:
        is_tensor = self._torch.is_tensor(buffer) and _kind(buffer) == (self._dtypes[dtype], shape)
        return is_tensor and bool(buffer.is_contiguous())

    def beginning(self, buffer: Buffer, shape: Shape) -> Buffer:
        return buffer[: math.prod(shape)].view(shape)

    def compile(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> TorchLaunch:
        """Return a launch of the op's call for PyTorch or, if the op has none, of its expression. A call that can
        fill an output writes to `output`, or to a new buffer if `output` is None."""
        with vendor_errors():
            if output is None and op.fills("torch"):
                output = allocate_outputs(self, op, case, inputs)
        launch = self._launch(op, inputs, output)
        if case.variant == TF32:
            launch.call = partial(_with_tf32, self._torch, launch.call)
        return launch

    def _launch(self, op: Op, inputs: Sequence[Tensor], output: Tensor) -> TorchLaunch:
        formula = partial(op.call("torch"), self._torch if "torch" in op.library else self._names)
        if op.fills("torch"):
            return TorchLaunch(partial(formula, *inputs, out=output), output)
        launch = TorchLaunch(lambda: None)

        def call() -> None:
            launch.output = formula(*inputs)

        launch.call = call
        return launch

    def run(self, launch: TorchLaunch, repeat: int = 1) -> None:
        with vendor_errors():
            if launch.output is None and launch.into is not None:
                # A caller that dropped the last output checks the next one, for which an old result must not pass.
                for tensor in each(launch.into):
                    tensor.fill_(sentinel_of(str(tensor.dtype).removeprefix("torch.")))
                launch.output = launch.into
            call = launch.call
            for _ in range(repeat):
                call()

    def sync(self) -> None:
        if not self._on_cpu:
            with vendor_errors():
                self.driver.synchronize()

    def empty_launch(self) -> TorchLaunch:
        """Return a launch that sets one element, the least work of a kernel. On the CPU it sets none."""
        return TorchLaunch(self.allocate((0 if self._on_cpu else 1,), "float32").zero_)

    def time(self, launch: TorchLaunch, repeat: int = 1, *, cold: bool = False) -> float | None:
        """Return the device seconds of `repeat` launches, by TorchClock. Returns None if the device has no clock.
        `cold` changes nothing, because the caches are emptied before every measurement."""
        if self._clock is None:
            return None
        with vendor_errors():
            return self._clock.time(launch.call, repeat)

    def use_threads(self, count: int | None) -> None:
        if self.threads is not None and self._torch.get_num_threads() != (count or self.threads):
            self._torch.set_num_threads(count or self.threads)

    def close(self) -> None:
        """Free the clock, and the idle memory of PyTorch's pool."""
        self._clock = None
        if not self._on_cpu:
            with contextlib.suppress(Exception):
                self.driver.empty_cache()


@contextlib.contextmanager
def vendor_errors() -> Iterator[None]:
    """Turn the exceptions that PyTorch raises in the `with` block into BackendError, DeviceOutOfMemory or
    DeviceLost."""
    try:
        yield
    except MemoryError as error:
        raise DeviceOutOfMemory(str(error)) from error
    except RuntimeError as error:
        if _OUT_OF_MEMORY.search(str(error)):
            raise DeviceOutOfMemory(str(error)) from error
        if _LOST.search(str(error)):
            raise DeviceLost(str(error)) from error
        raise BackendError(str(error)) from error


class TorchStream(DeviceStream):
    """A stream of PyTorch other than its default stream."""

    def __init__(self, session: TorchSession) -> None:
        self._session, self._stream = session, session.driver.Stream()

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        with vendor_errors(), self._session.driver.stream(self._stream):
            yield

    def upload(self, buffer: Buffer, host: Array) -> None:
        buffer.copy_(self._session.view(host), non_blocking=True)

    def run(self, launch: TorchLaunch) -> None:
        self._session.run(launch)

    def download(self, buffer: Buffer, host: Array) -> None:
        self._session.view(host).copy_(buffer, non_blocking=True)

    def wait(self) -> None:
        with vendor_errors():
            self._stream.synchronize()


class TorchClock:
    """Measures the device seconds between two events around launches. It first enqueues writes that empty the
    caches and keep the device busy while the host enqueues the launches."""

    def __init__(self, session: TorchSession, cache_bytes: int | None) -> None:
        size = 2 * cache_bytes if cache_bytes else UNKNOWN_CACHE_BYTES
        self._driver = session.driver
        self._begin, self._end = (self._driver.Event(enable_timing=True) for _ in range(2))
        self._room = functools.cache(lambda: session.allocate((size // 4,), "float32"))
        self._launch_s = _LAUNCH_S

    @functools.cached_property
    def _write_s(self) -> float:
        """Device seconds of one write that empties the caches."""
        self._room().zero_()
        self._begin.record()
        self._room().zero_()
        self._end.record()
        return max(1e-6, self._between())

    def time(self, call: Callable[[], Any], repeat: int) -> float:
        """Return the device seconds of `repeat` launches. A delay before them hides the host's time, as far as
        possible."""
        delay_s = self._launch_s * repeat
        while True:
            self._driver.synchronize()
            for _ in range(1 + int(delay_s / self._write_s)):
                self._room().zero_()
            self._begin.record()
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            host_s = time.perf_counter() - start
            self._end.record()
            hidden = not self._begin.query()
            seconds = self._between()
            # Once the queue is full, the host waits for the device, and no delay is long enough.
            if hidden or delay_s >= _LONGEST_DELAY_S:
                self._launch_s = max(_LAUNCH_S, 1.5 * host_s / repeat)
                return seconds
            delay_s = min(max(2 * delay_s, 2 * host_s), _LONGEST_DELAY_S)

    def _between(self) -> float:
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) * 1e-3


def _kind(tensor: Tensor) -> tuple[Any, Shape]:
    return tensor.dtype, tuple(tensor.shape)


# ---------------------------------------------------------------- ops


class _Names:
    """PyTorch with NumPy's names and arguments, for the expressions of ops."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        # `torch.max` and `torch.min` along an axis return indices, too.
        function = getattr(self._torch, {"max": "amax", "min": "amin"}.get(name, name))
        # Only tensors have a maximum. PyTorch's other functions accept NumPy's arguments, such as `axis`.
        return function if name not in ("maximum", "minimum") else lambda *pair: function(*self._tensors(*pair))

    def ascontiguousarray(self, x: Tensor) -> Tensor:
        return x.contiguous()

    def _tensors(self, a: Any, b: Any) -> list[Tensor]:
        like = a if self._torch.is_tensor(a) else b
        return [x if self._torch.is_tensor(x) else self._torch.full_like(like, x) for x in (a, b)]


def _with_tf32(torch: Any, call: Callable[[], Any]) -> None:
    """Make the call with cuBLAS allowed to round float32 inputs to TF32."""
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        call()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


# ---------------------------------------------------------------- devices


class TorchBackend(Backend):
    """The CPU and the GPUs that PyTorch was built for."""

    name = "torch"
    implementations: tuple[Implementation, ...] = ("library",)
    kinds: tuple[DeviceKind, ...] = ("cpu", "gpu")
    yields_to = ("cupy",)

    def devices(self) -> list[Device]:
        """List the CPU, then the GPUs that answer. If PyTorch was built only for the CPU, it is not imported,
        because that takes long. Raises BackendUnavailable."""
        version = _version()
        drives_gpus = sys.platform == "darwin" or any(version.get(name) for name in ("cuda", "hip", "xpu"))
        return [*self.host_devices(), *(_gpus(import_torch()) if drives_gpus else ())]

    def host_devices(self) -> list[Device]:
        driver = _version()["__version__"]
        return [Device(id=CPU, backend="torch", kind="cpu", name="CPU", api="host", driver=driver)]

    def preload(self) -> None:
        with contextlib.suppress(BackendUnavailable):
            import_torch()

    def open(self, device_id: str, threads: int | None = None, *, autotune: bool = True) -> TorchSession:
        devices = self.host_devices() if device_id == CPU else self.devices()
        opened = next((device for device in devices if device.id == device_id), None)
        if opened is None:
            raise BackendUnavailable(f"there is no device {device_id}", hint=torch_hint())
        import_torch()
        return TorchSession(opened, threads)


def _version() -> dict[str, Any]:
    """Return the variables of PyTorch's version.py without importing PyTorch, or raise BackendUnavailable."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BackendUnavailable("PyTorch is not installed", hint=torch_hint())
    try:
        return runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    except Exception as error:  # a file that is missing or damaged
        raise BackendUnavailable(f"PyTorch is broken, and {KEPT}: {error}", hint=torch_hint()) from error


def _quiet() -> None:
    """Set variables before the import, so that waiting threads soon stop spinning and nothing allows TF32."""
    set_up_threads()
    for name in ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"):
        os.environ.pop(name, None)


def import_torch() -> Any:
    _quiet()
    try:
        with on_all_cpus():
            import torch
    except Exception as error:  # any error of libraries that are missing or of other versions
        raise BackendUnavailable(
            f"PyTorch cannot be imported, and {KEPT}: {error}", hint=torch_hint()
        ) from error
    return torch


def _gpus(torch: Any) -> list[Device]:
    gpus = []
    for kind in ("cuda", "xpu"):
        driver: Any = getattr(torch, kind, None)
        for i in range(driver.device_count() if driver is not None and driver.is_available() else 0):
            try:
                gpus.append(_gpu(torch, kind, i, driver.get_device_properties(i)))
            except Exception as error:  # one GPU that does not answer must not hide the others
                print(f"torch:{kind}:{i}: {error}", file=sys.stderr)
    if torch.backends.mps.is_available():
        memory = int(getattr(torch.mps, "recommended_max_memory", int)()) or None  # before PyTorch 2.5: None
        name = "Apple GPU" if platform.machine() == "arm64" else "GPU of Metal"
        gpus.append(
            Device(
                id="torch:mps:0", backend="torch", kind="gpu", name=name, api="metal",
                driver=f"torch {torch.__version__}", memory_bytes=memory, usable_bytes=memory,
                identity=Identity(),  # Metal tells nothing
            )
        )  # fmt: skip
    return gpus


def _gpu(torch: Any, kind: str, ordinal: int, properties: Any) -> Device:
    api = "rocm" if kind == "cuda" and torch.version.hip else kind
    driver = {"cuda": f"CUDA {torch.version.cuda}", "rocm": f"ROCm {torch.version.hip}"}.get(api)
    memory = int(properties.total_memory)
    uuid = str(getattr(properties, "uuid", "")).replace("-", "") or None
    bus = [getattr(properties, f"pci_{part}_id", -1) for part in ("domain", "bus", "device")]
    pci = "{:04x}:{:02x}:{:02x}.0".format(*bus) if min(bus) >= 0 else None
    return Device(
        id=f"torch:{kind}:{ordinal}", backend="torch", kind="gpu", name=str(properties.name), api=api,
        driver=driver or f"torch {torch.__version__}", memory_bytes=memory, usable_bytes=memory,
        clock=DeviceClock(kind="event", step_s=EVENT_STEP_S),
        cache_bytes=getattr(properties, "L2_cache_size", None) or None,
        identity=Identity(uuid=uuid if api == "cuda" else None, pci=pci, vendor_id=_VENDORS[api]),
    )  # fmt: skip


_GPU_BLAS = {"cuda": "cublas", "rocm": "rocblas", "xpu": "onemkl", "metal": "mps"}


def _blas(torch: Any, api: str) -> Blas:
    """Return the BLAS of the device. On the CPU `kernel` is the instruction set in use."""
    if api != "host":
        return Blas(library=_GPU_BLAS[api])
    text = torch.__config__.show()
    library = re.search(r"BLAS_INFO=(\w+)", text)
    version = re.search(r"Math Kernel Library Version ([\d.]+)", text)
    name = library[1].lower() if library else "unknown"
    return Blas(
        library={"open": "openblas"}.get(name, name),
        version=version[1] if version and name == "mkl" else None,
        kernel=str(torch.backends.cpu.get_cpu_capability()),
    )


BACKEND = TorchBackend()
