"""CuPy: NVIDIA's GPUs through CUDA, or AMD's GPUs through HIP if CuPy was built for ROCm. HIP has only the library
implementation.

The library implementation is the array expression on CuPy arrays. The tuned implementation is the op's CUDA
kernel, compiled by NVRTC. The device clock is a pair of CUDA events. Timed launches are queued behind a spinning
kernel that lasts longer than the host needs to enqueue them, so that no host time is measured.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpubench.backends.contract import (
    Backend,
    Buffer,
    DeviceStream,
    HostCall,
    Joins,
    Links,
    ReadyBuffers,
    StageReading,
    Transfers,
    protocols,
)
from gpubench.backends.cupy.launches import (
    CLOCK_KERNELS,
    CudaGraphs,
    CudaLaunch,
    CudaPrograms,
    CycleCounter,
    EventClock,
    pin_off,
    vendor_errors,
    with_tf32,
)
from gpubench.backends.cupy.memory import (
    CudaHostMemory,
    CudaStream,
    DevicePool,
    PinnedMemory,
    PinnedTransfers,
    is_unified,
)
from gpubench.backends.shared.host import (
    SingleDevice,
    calls_library,
    host_dtype,
    in_order,
    no_kernel,
    no_tf32,
    read_stages,
    refuse_size,
    trial_params,
)
from gpubench.backends.shared.memory import InPlaceSession
from gpubench.base import AMD, NVIDIA
from gpubench.base.errors import BackendError, BackendUnavailable, Unsupported
from gpubench.base.installation import cupy_commands
from gpubench.base.messages import CUDA_REMEDIES, REASONS
from gpubench.kernels.contract.kernel import Limits
from gpubench.kernels.contract.op import Array, Dtype, Implementation, Op, Params, Shape, Stored, each
from gpubench.result.case import Case
from gpubench.result.run import Blas, Device, DeviceClock, Identity, Theoretical

# cudaEvent timestamps have a resolution of about half a microsecond (CUDA runtime API, cudaEventRecord).
EVENT_STEP_S = 0.5e-6


class CupySession(
    SingleDevice,
    protocols.LaunchClock,
    protocols.CoreClock,
    protocols.FreshMemory,
    protocols.ComparesBuffers,
    protocols.ComputesInPlace,
    protocols.SharesBuffers,
    protocols.Streams,
    protocols.BuildsAhead,
    protocols.Chains,
    protocols.TimesStages,
):
    """A session on one device, with the default stream and CuPy's memory pool, as a user of CuPy has them."""

    def __init__(self, device: Device, ordinal: int) -> None:
        import cupy
        import numpy

        self._cupy, self._ordinal = cupy, ordinal
        self._on_hip = device.api == HIP
        # This is first, because the calls below would otherwise open a context on device 0.
        self.enter()
        self.device = device
        self.blas = _blas(cupy, device)
        with vendor_errors():
            properties = cupy.cuda.runtime.getDeviceProperties(ordinal)
            flush_bytes = 2 * int(properties.get("l2CacheSize") or 128 << 20)
            # The kernels read a register that only NVIDIA's GPUs have, so other GPUs have no clock.
            module = None if self._on_hip else cupy.RawModule(code=CLOCK_KERNELS)
            self._nothing = module and module.get_function("nothing")
            self._clock = EventClock(cupy, module and module.get_function("spin"), flush_bytes)
            self._cycles = module and CycleCounter(cupy, module.get_function("count"))
            # NVRTC takes seconds for CuPy's `(x == y).all()`, once for each range of lengths.
            self._compare = cupy.ElementwiseKernel(
                "T x, T y", "raw bool differ", "if (x != y) differ[0] = true"
            )
            # Waiting for this event puts the thread to sleep. The wait for a stream spins on a core.
            self._asleep = cupy.cuda.Event(block=True, disable_timing=True)
            self.sync()
        memory = int(properties["totalGlobalMem"])
        self._copies_aside = bool(properties.get("asyncEngineCount", 1))
        self._capability = (int(properties["major"]), int(properties["minor"]))
        self.limits = Limits(
            max_buffer_bytes=memory,
            max_binding_bytes=memory,
            max_workgroup_bytes=int(properties["sharedMemPerBlock"]),
            max_workgroup_threads=int(properties["maxThreadsPerBlock"]),
            max_groups_per_dimension=65535,
            multiprocessors=int(properties["multiProcessorCount"]),
            float16=True,
            float64=True,
            clusters=int(properties["major"]) >= 9 and not self._on_hip,
        )
        self._no_bfloat16 = no_bfloat16(cupy.__version__, numpy.__version__)
        # The reason why an expression does not stay in bfloat16, or "", by the op and the params of the trial.
        self._other_dtypes: dict[tuple[object, ...], str] = {}
        self._programs = CudaPrograms(cupy, self.limits)
        self._graphs = CudaGraphs(cupy)
        self._pool = DevicePool(cupy, memory)
        self._pinned = PinnedMemory(cupy)
        self._staged = PinnedTransfers(cupy, self._pinned, self.enter)

    def _refuse(self, op: Op, case: Case) -> BackendError | None:
        if case.dtype == "bfloat16" and self._no_bfloat16:
            return Unsupported(self._no_bfloat16, reason="no-dtype")
        if self._on_hip and (refusal := no_cuda(op, case)):
            return refusal
        refusal = (
            no_kernel(op, case) if case.implementation == "tuned" else no_tf32(op, case, *self._capability)
        )
        if refusal := refusal or refuse_size(op, case, self.limits):
            return refusal
        if case.dtype != "bfloat16" or not calls_library(op, case):
            return None
        params = trial_params(op, case.params)
        key = (op.name, *sorted(params.items()))
        if key not in self._other_dtypes:
            with vendor_errors():
                self._other_dtypes[key] = no_expression(self._cupy, op, case.dtype, params)
        why = self._other_dtypes[key]
        return Unsupported(why, reason="no-dtype") if why else None

    def host_array(self, shape: Shape, dtype: Stored, implementation: Implementation) -> Array:
        """Return a page-locked array for the tuned implementation, otherwise a pageable NumPy array."""
        import numpy as np

        if implementation == "library":
            return np.empty(shape, host_dtype(dtype))
        with vendor_errors():
            return self._pinned.array(shape, host_dtype(dtype))

    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        """Return an idle array of this shape and dtype, or a new one from CuPy's pool. Raises DeviceOutOfMemory."""
        return self._pool.ready((shape, dtype)).take()

    def ready_buffers(self, shape: Shape, dtype: Stored) -> ReadyBuffers:
        return self._pool.ready((shape, dtype))

    def free(self, buffer: Buffer) -> None:
        self._pool.give_back(buffer)

    def allocate_fresh(self, shape: Shape, dtype: Stored) -> Buffer:
        cupy, kind = self._cupy, host_dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        with vendor_errors():
            memory = cupy.cuda.UnownedMemory(cupy.cuda.runtime.malloc(size), size, None)
            return cupy.ndarray(shape, kind, cupy.cuda.MemoryPointer(memory, 0))

    def free_fresh(self, buffer: Buffer) -> None:
        with vendor_errors():
            self._cupy.cuda.runtime.free(buffer.data.ptr)

    def in_place(self, memory: str) -> InPlaceSession:
        if self._on_hip:
            raise Unsupported("ROCm's host memory is not known here", reason="not-in-place")
        return InPlaceSession(self, CudaHostMemory(self._cupy, self._ordinal, memory))

    def transfers(self, implementation: Implementation) -> Transfers:
        """Return transfers through page-locked memory for the tuned implementation, and CuPy's plain copies for
        the library implementation."""
        return self._staged if implementation == "tuned" else Transfers(self)

    def stream(self) -> DeviceStream:
        if not self._copies_aside:
            raise Unsupported(f"{self.device.id} has no engine that copies beside kernels", reason="no-streams")
        with vendor_errors():
            return CudaStream(self._cupy)

    def upload(self, buffer: Buffer, host: Array) -> None:
        with vendor_errors():
            buffer.set(host)

    def download(self, buffer: Buffer, host: Array) -> None:
        with vendor_errors():
            if buffer.dtype == host.dtype:
                buffer.get(out=host, blocking=True)
            else:  # a user's function may return another dtype: where(x > 0, 1, 0) has integers
                host[...] = buffer.get()

    def fill(self, buffer: Buffer, shape: Shape, dtype: Stored, value: float) -> None:
        import numpy as np

        with vendor_errors():
            bits = np.array([value], host_dtype(dtype)).view(f"u{buffer.itemsize}")[0]
            buffer.view(bits.dtype).fill(bits)

    def copy_of(self, buffer: Buffer, shape: Shape, dtype: Stored) -> Buffer:
        with vendor_errors():
            return buffer.copy()

    def begins(self, copy: Buffer, buffer: Buffer, shape: Shape, dtype: Stored) -> bool:
        if buffer.shape != shape or buffer.dtype != host_dtype(dtype) or not buffer.flags.c_contiguous:
            return False
        words = "u4" if buffer.nbytes % 4 == 0 else f"u{buffer.itemsize}"
        with vendor_errors():
            differ = self._cupy.zeros(1, bool)
            self._compare(*(x.reshape(-1)[: buffer.size].view(words) for x in (buffer, copy)), differ)
            return not differ.item()

    def beginning(self, buffer: Buffer, shape: Shape) -> Buffer:
        return buffer[: math.prod(shape)].reshape(shape)

    def compile(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> CudaLaunch:
        """Return a launch of the op's CUDA program, or of its library call if the case is one and `output` is None.
        ROCm has no CUDA programs, so there the result of the library call is copied to `output`. Raises
        BuildError, and DeviceOutOfMemory if scratch memory does not fit."""
        cupy = self._cupy
        if calls_library(op, case) and (output is None or self._on_hip):
            call = partial(op.call("cupy"), cupy, *inputs)
            launch = CudaLaunch(with_tf32(cupy, call) if case.variant else call)
            return launch if output is None else self._one_by_one([(launch, output)], output)
        with vendor_errors():
            return self._programs.launch(op, case, inputs, output)

    def build(self, cases: Sequence[tuple[Op, Case]]) -> None:
        with vendor_errors():
            self._programs.build(
                [(op, case) for op, case in cases if case.implementation == "tuned"], self.enter
            )

    def chain(self, steps: protocols.Steps, output: Buffer) -> CudaLaunch:
        """Return one launch of all steps: a CUDA graph if possible, otherwise all launches in order."""
        return self._graphs.chain([launch for launch, _ in steps], output) or self._one_by_one(steps, output)

    def _one_by_one(self, steps: protocols.Steps, output: Buffer) -> CudaLaunch:
        return CudaLaunch(in_order(steps, output, self._cupy.copyto))

    def stage_times(self, steps: protocols.Steps) -> StageReading | None:
        """Time the steps by events between them, and steps on the host by the host's clock. With HIP the host's
        clock times each step with its wait."""
        calls = [self._one_by_one([step], step[1]) for step in steps if not isinstance(step[0], HostCall)]
        with vendor_errors():
            return read_stages(self, steps, calls, None if self._on_hip else self._clock.each)

    def run(self, launch: CudaLaunch, repeat: int = 1) -> None:
        with vendor_errors():
            for _ in range(repeat):
                launch()

    def sync(self) -> None:
        with vendor_errors():
            self._cupy.cuda.get_current_stream().synchronize()

    def enter(self) -> None:
        self._cupy.cuda.Device(self._ordinal).use()

    def sync_asleep(self) -> None:
        with vendor_errors():
            self._asleep.record()
            self._asleep.synchronize()

    def time(self, launch: CudaLaunch, repeat: int = 1, *, cold: bool = False) -> float | None:
        """Return the device seconds of `repeat` launches between two events, without host time. With `cold`, the
        caches are emptied first. Returns None on ROCm, where host time cannot be excluded."""
        if self._on_hip:
            return None
        with vendor_errors():
            return self._clock.time(launch, repeat, cold=cold)

    def core_hz(self) -> float | None:
        """Return the cycles per second of one multiprocessor after all enqueued work, or None if they cannot be
        counted."""
        if self._cycles is None:
            return None
        with vendor_errors():
            return self._cycles.hertz()

    def empty_launch(self) -> CudaLaunch:
        if self._nothing is None:  # setting one element is the least work of a kernel
            return CudaLaunch(partial(self.allocate((1,), "float32").fill, 0))
        return CudaLaunch(partial(self._nothing, (1,), (1,), ()))

    def flush(self) -> None:
        """Overwrite a buffer twice as large as the L2 cache."""
        with vendor_errors():
            self._clock.write_over_the_caches()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._clock.close()
            if self._cycles is not None:
                self._cycles.close()
            self._staged.close()
            self._pinned.empty()
            self._pool.empty()


def no_cuda(op: Op, case: Case) -> Unsupported | None:
    """Return the reason why the case needs CUDA, or None if CuPy's own functions are enough."""
    # gpubench's kernels use NVIDIA's registers, shuffles and matrix units, which hipRTC lacks.
    if case.implementation == "tuned":
        return Unsupported("no CUDA kernel: CuPy runs on ROCm", reason="no-implementation")
    # TF32 is a type of NVIDIA's tensor cores.
    if case.variant is not None:
        return Unsupported(f"no {case.variant} {op.name}: CuPy runs on ROCm", reason="no-tf32")
    return None


def no_bfloat16(cupy: str, numpy: str) -> str:
    """Return why these versions of CuPy and NumPy have no bfloat16 arrays, or "" if they have.

    Source: CuPy's upgrade guide. bfloat16 came with CuPy 14, through ml_dtypes, for NumPy 2.1.2 and later.
    """
    if _numbers(cupy) < (14,):
        return f"CuPy {cupy} has no bfloat16 arrays; CuPy 14 has"
    if _numbers(numpy) < (2, 1, 2):
        return f"CuPy has bfloat16 arrays with NumPy 2.1.2 and above; this is NumPy {numpy}"
    return ""


def no_expression(cupy: Any, op: Op, dtype: Dtype, params: Params) -> str:
    """Try the op's expression with arrays of zeros. Return why its results are not in the dtype, or "" if they
    are."""
    kind = host_dtype(dtype)
    # CuPy promotes some bfloat16 expressions, such as sums with a plain number, and has no batched product in
    # bfloat16.
    try:
        zeros = (cupy.zeros(x.shape(params), host_dtype(x.stored_dtype(dtype))) for x in op.inputs)
        results = each(op.at(params).expr(cupy, *zeros))
    except (TypeError, ValueError, NotImplementedError) as error:
        return f"CuPy cannot compute this expression in {dtype}: {error}"
    floats = (x.dtype for x, output in zip(results, op.outputs, strict=True) if output.dtype is None)
    wrong = next((computed for computed in floats if computed != kind), None)
    return "" if wrong is None else f"CuPy computes this expression in {wrong}"


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading whole numbers of a version: "14.0.0rc1" -> (14, 0)."""
    return tuple(int(part) for part in itertools.takewhile(str.isdecimal, version.split(".")))


def _blas(cupy: Any, device: Device) -> Blas:
    if device.api == HIP:
        return Blas(library="rocblas")
    handle = cupy.cuda.device.get_cublas_handle()
    return Blas(library="cublas", version=str(cupy.cuda.cublas.getVersion(handle)))


class CupyBackend(Backend, Joins):
    """The devices of CUDA, or of HIP if CuPy was built for ROCm, in the order of that runtime."""

    name = "cupy"
    implementations: tuple[Implementation, ...] = ("library", "tuned")

    def devices(self) -> list[Device]:
        cupy = _import_cupy()
        api, maker = ("HIP", "AMD") if is_hip(cupy) else ("CUDA", "NVIDIA")
        try:
            count = cupy.cuda.runtime.getDeviceCount()
            driver = _driver_text(cupy.cuda.runtime.driverGetVersion(), hip=is_hip(cupy))
        except Exception as error:
            raise BackendUnavailable(
                f"{api} found no usable device: {error}",
                hint=CUDA_REMEDIES.get(getattr(error, "status", 0))
                or f"check the {maker} driver with `gpubench detect`, and {api}_VISIBLE_DEVICES",
            ) from error
        devices, errors = [], []
        for ordinal in range(count):
            try:
                devices.append(_device(cupy, ordinal, driver))
            except Exception as error:  # one GPU that does not answer must not hide the others
                errors.append(f"cupy:{ordinal}: {error}")
        if not devices:
            raise BackendUnavailable(
                f"no {api} device answers: {'; '.join(errors) or 'none is listed'}",
                hint=REASONS["unavailable"].remedy,
            )
        for line in errors:
            print(line, file=sys.stderr)
        return devices

    def preload(self) -> None:
        with contextlib.suppress(BackendUnavailable):
            _import_cupy()

    def joinable(self) -> list[Device]:
        return self.devices()

    def open(self, device_id: str, threads: int | None = None, *, autotune: bool = True) -> CupySession:
        for device in self.devices():
            if device.id == device_id:
                try:
                    with vendor_errors():
                        return CupySession(device, int(device_id.rpartition(":")[2]))
                except (RuntimeError, BackendError) as error:
                    # CuPy finds no NVRTC, cuBLAS or headers, or CUDA, whose errors have a status, refuses.
                    remedies = CUDA_REMEDIES | {0: cupy_commands()}
                    hint = remedies.get(getattr(error.__cause__, "status", 0), "")
                    raise BackendUnavailable(f"CuPy does not open the GPU: {error}", hint=hint) from error
        raise BackendUnavailable(f"there is no device {device_id}")

    def links(self, ordinals: Sequence[int], word: str = "") -> Links:
        from gpubench.backends.cupy.links import CudaLinks

        return CudaLinks(_import_cupy(), ordinals)


def _import_cupy() -> Any:
    pin_off()
    # Several threads copy in one stream, in order with launches. Without this, each thread would have its own stream.
    os.environ["CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"] = "0"
    try:
        import cupy
        from cupy import cuda  # noqa: F401  (a folder that an uninstalled CuPy has left has none)
    except Exception as error:  # CuPy raises any error with a NumPy or Python that it does not support
        # It wraps the error in a page of advice.
        raise BackendUnavailable(
            f"CuPy cannot be imported: {error.__cause__ or error}", hint=cupy_commands()
        ) from error
    return cupy


def whole_uuid(raw: object) -> str | None:
    """Return the 16 bytes of a UUID in hexadecimal, or None if there are fewer. CuPy cuts a UUID at its first zero
    byte. A device without a whole UUID is identified by its PCI address."""
    return bytes(raw[:16]).hex() if isinstance(raw, (bytes, bytearray)) and len(raw) >= 16 else None


HIP = "hip"


def is_hip(cupy: Any) -> bool:
    """Return whether this CuPy was built for ROCm."""
    return bool(getattr(cupy.cuda.runtime, "is_hip", False))


def _device(cupy: Any, ordinal: int, driver: str) -> Device:
    properties = cupy.cuda.runtime.getDeviceProperties(ordinal)
    name, hip = properties["name"], is_hip(cupy)
    attribute = partial(read_attribute, cupy, ordinal)
    domain, bus, slot = (int(properties[k]) for k in ("pciDomainID", "pciBusID", "pciDeviceID"))
    return Device(
        id=f"cupy:{ordinal}", backend="cupy", kind="gpu", name=name.decode() if isinstance(name, bytes) else str(name),
        api=HIP if hip else "cuda", driver=driver, memory_bytes=int(properties["totalGlobalMem"]),
        usable_bytes=int(properties["totalGlobalMem"]), unified=not hip and is_unified(attribute),
        clock=None if hip else DeviceClock(kind="event", step_s=EVENT_STEP_S),
        cache_bytes=int(properties.get("l2CacheSize") or 0) or None,
        theoretical=Theoretical() if hip else vendor_peaks(
            attribute, (int(properties["major"]), int(properties["minor"])),
        ),
        # HIP's uuid is not the driver's, so only the address identifies such a device.
        identity=Identity(
            uuid=None if hip else whole_uuid(properties.get("uuid")), pci=f"{domain:04x}:{bus:02x}:{slot:02x}.0",
            vendor_id=AMD if hip else NVIDIA,
        ),
    )  # fmt: skip


def read_attribute(cupy: Any, ordinal: int, number: int) -> int:
    """Return the value of a cudaDeviceAttr, or 0 if the runtime does not know the attribute."""
    try:
        return max(0, int(cupy.cuda.runtime.deviceGetAttribute(number, ordinal)))
    except Exception:  # each version of the runtime has its own words for an attribute that it lacks
        return 0


def _driver_text(number: int, *, hip: bool) -> str:
    """Return `CUDA 13.0` for 13000, and `HIP 6.4` for HIP's number 60443484."""
    if hip:
        return f"HIP {number // 10_000_000}.{number // 100_000 % 100}"
    return f"CUDA {number // 1000}.{number % 1000 // 10}"


# cudaDeviceAttr (CUDA runtime API).
CLOCK_KHZ, MULTIPROCESSORS, MEMORY_CLOCK_KHZ, MEMORY_BUS_BITS = 13, 16, 36, 37
DATA_RATE = 2  # transfers per period of the memory clock as the driver counts it
# Float32 units of one multiprocessor (CUDA C++ programming guide, arithmetic instructions). Desktop cards are not
# listed, because they may run faster than the clock that CUDA reports. Newer devices may use other units for
# float32 products. With a peak that is too low, true results would count as implausible.
FLOAT32_UNITS = {(6, 0): 64, (8, 0): 64, (9, 0): 128}
# Boards that share the CPU's memory. The bus that CUDA reports for them is not the bus of their memory.
BOARDS = {(5, 3), (6, 2), (7, 2), (8, 7)}
SOURCE = "clocks, bus and units of the device as CUDA tells them"


def vendor_peaks(attribute: Callable[[int], int], capability: tuple[int, int]) -> Theoretical:
    """Return the peaks of the device's memory in bytes/s and of its float32 arithmetic in FLOP/s, without
    tensor cores. `attribute` returns a cudaDeviceAttr, or 0 if it is unknown. `capability` is (major, minor). A
    peak that cannot be computed is missing."""
    bus = 0 if capability in BOARDS else attribute(MEMORY_BUS_BITS)
    bytes_per_s = DATA_RATE * attribute(MEMORY_CLOCK_KHZ) * 1e3 * bus / 8
    units = FLOAT32_UNITS.get(capability, 0) * attribute(MULTIPROCESSORS)
    flops_per_s = 2 * units * attribute(CLOCK_KHZ) * 1e3
    return Theoretical(
        bytes_per_s=bytes_per_s or None, flops_per_s={"float32": flops_per_s} if flops_per_s else {},
        source=SOURCE if bytes_per_s or flops_per_s else None,
    )  # fmt: skip


BACKEND = CupyBackend()
