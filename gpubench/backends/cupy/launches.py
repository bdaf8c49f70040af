"""Launches on CUDA: kernels of ops, compiled by NVRTC through CuPy, library calls in TF32, and chains. Also the
clocks of launches.

Kernels of ops are not compiled by RawModule, because it adds -ftz=true to all options, which turns numbers below
1.2e-38 into 0.

Two events around launches time them. A spinning kernel is enqueued first, so that no host time is measured. One
multiprocessor counts its cycles during a span of the global timer, which gives the clock right after the last
launch.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from gpubench.backends.contract import Buffer, Call, HostCall, Launch, StageReading
from gpubench.backends.shared.host import named_buffers, tuned_kernel, usable_cpus
from gpubench.base import hash_text
from gpubench.base.errors import BackendError, BuildError, DeviceLost, DeviceOutOfMemory
from gpubench.base.installation import cupy_commands
from gpubench.kernels.contract.kernel import CudaPass, CudaProduct, CudaProgram, Limits
from gpubench.kernels.contract.op import Dtype, Op
from gpubench.result.case import Case

# Words in errors of allocations and launches that mean a lack of memory.
_OUT_OF_MEMORY = ("OutOfMemory", "MemoryAllocation", "OUT_OF_MEMORY", "ALLOC_FAILED")


@contextlib.contextmanager
def vendor_errors() -> Iterator[None]:
    """Turn the exceptions that CuPy raises in the `with` block into BackendError, DeviceOutOfMemory or DeviceLost.
    Code outside this folder knows none of CuPy's exceptions."""
    import cupy

    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise DeviceOutOfMemory(str(error)) from error
    except (
        cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError, cupy.cuda.cublas.CUBLASError
    ) as error:  # fmt: skip
        if any(word in str(error) for word in _OUT_OF_MEMORY):
            raise DeviceOutOfMemory(str(error)) from error
        if isinstance(error, cupy.cuda.cublas.CUBLASError):
            raise BackendError(str(error)) from error
        raise DeviceLost(str(error)) from error
    except cupy.cuda.compiler.CompileException as error:
        raise build_error(error) from error


def build_error(error: Exception) -> BuildError:
    """Return the error for an exception of NVRTC, with a remedy if CUDA's headers are missing."""
    return BuildError(str(error), hint=cupy_commands() if "cannot open source file" in str(error) else "")


# A stream can queue 1024 launches. With more, the host waits for the device (H200: an empty launch takes 1.40 us with
# up to 1024 of them, and 2.24 us with 2048).
MOST_QUEUED = 1000


class CudaLaunch(Call):
    """A prepared call. `output` has the result of the last call. `queued` is the number of launches that fit into
    the stream, as far as known. `steps` are the kernels and products that a call enqueues; None means that a
    library decides."""

    def __init__(
        self,
        function: Callable[[], Any],
        kernel_hash: str | None = None,
        steps: Sequence[Callable[[], None]] | None = None,
    ) -> None:
        super().__init__(function, kernel_hash)
        self.steps = steps
        self.queued = MOST_QUEUED


class CudaPrograms:
    """The compiled programs of one session. Each program is compiled once, and then bound to any buffers."""

    def __init__(self, cupy: Any, limits: Limits) -> None:
        self._cupy = cupy
        self._limits = limits
        self._built: dict[tuple[str, str | None], tuple[CudaProgram, list[Any], str]] = {}
        self._functions: dict[tuple[str, str, tuple[str, ...]], Any] = {}

    def launch(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> CudaLaunch:
        """Return a launch of the case's CUDA kernel on these buffers. Raises Unsupported if the kernel exceeds a
        limit of the device, and BuildError with NVRTC's text if it does not compile."""
        program, functions, digest = self._program(op, case)
        buffers = named_buffers(op, inputs, output)
        for name, size in program.scratch.items():
            buffers[name] = self._cupy.zeros(size, self._cupy.uint8)
        steps = [
            CublasProduct(self._cupy, step, buffers, case.dtype)
            if isinstance(step, CudaProduct)
            else partial(function, step.grid, step.block, _arguments(step, buffers))
            for function, step in zip(functions, program.passes, strict=True)
        ]

        def call() -> Any:
            for step in steps:
                step()
            return output

        return CudaLaunch(call, digest, steps)

    def build(self, cases: Sequence[tuple[Op, Case]], enter: Callable[[], None]) -> None:
        """Compile the missing programs of these cases, with one thread for each usable CPU. Each thread calls
        `enter` first, to make the device current. Raises Unsupported if a kernel exceeds a limit of the device,
        and BuildError if a kernel does not compile."""
        programs = {(case.workload, case.variant): partial(self._make, op, case) for op, case in cases}
        passes = [step for key, made in programs.items() if key not in self._built for step in made().passes]
        missing = {
            _text(step): step
            for step in passes
            if isinstance(step, CudaPass) and _text(step) not in self._functions
        }

        def compile_step(step: CudaPass) -> bytes:
            enter()
            return self._compile(step)

        with ThreadPoolExecutor(usable_cpus()) as threads:
            for step, binary in zip(missing.values(), threads.map(compile_step, missing.values()), strict=True):
                self._load(step, binary)

    def _make(self, op: Op, case: Case) -> CudaProgram:
        # A stage runs the product of cuBLAS as a program, but for a whole case that product is the library call.
        kernel = op.kernel(case.backend, case.dtype, case.variant) or tuned_kernel(op, case)
        program: CudaProgram = kernel.build(case.params, case.dtype, self._limits)
        return program

    def _program(self, op: Op, case: Case) -> tuple[CudaProgram, list[Any], str]:
        key = (case.workload, case.variant)
        if key not in self._built:
            program = self._make(op, case)
            functions = [
                None if isinstance(step, CudaProduct) else self._function(step) for step in program.passes
            ]
            text = "\n".join(
                part
                for step in program.passes
                for part in ((repr(step),) if isinstance(step, CudaProduct) else (step.source, *step.options))
            )
            self._built[key] = (program, functions, hash_text(text))
        return self._built[key]

    def _function(self, step: CudaPass) -> Any:
        """Return the compiled function of a pass."""
        # Most source texts do not depend on the size, so one module is used for many sizes.
        if _text(step) not in self._functions:
            self._load(step, self._compile(step))
        return self._functions[_text(step)]

    def _compile(self, step: CudaPass) -> bytes:
        compiler = self._cupy.cuda.compiler
        try:
            binary: bytes = compiler.compile_using_nvrtc(step.source, ("--std=c++17", *step.options))[0]
        except compiler.CompileException as error:
            raise build_error(error) from error
        return binary

    def _load(self, step: CudaPass, binary: bytes) -> None:
        module = self._cupy.cuda.function.Module()
        module.load(binary)
        self._functions[_text(step)] = module.get_function(step.entry)


def _text(step: CudaPass) -> tuple[str, str, tuple[str, ...]]:
    return step.source, step.entry, step.options


def _arguments(step: CudaPass, buffers: dict[str, Buffer]) -> tuple[Any, ...]:
    """Return the arguments of the kernel: the buffers for names, and 64-bit integers for numbers."""
    import numpy as np

    return tuple(buffers[a] if isinstance(a, str) else np.int64(a) for a in step.arguments)


# ---------------------------------------------------------------- products

# cudaDataType_t of the elements, and cublasComputeType_t of the sums. Both 16-bit types are added in float32.
_CUDA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
_COMPUTE_32F, _COMPUTE_64F = 68, 70


class CublasProduct:
    """A call of cuBLAS, which expects matrices stored by columns. For cuBLAS, our C = A B, stored by rows, is
    C^T = B^T A^T.

    `arguments` are the arguments of cublasGemmStridedBatchedEx if `batched` is true, otherwise of cublasGemmEx.
    """

    def __init__(self, cupy: Any, step: CudaProduct, buffers: Mapping[str, Buffer], dtype: Dtype) -> None:
        import numpy as np

        cublas, handle = cupy.cuda.cublas, cupy.cuda.device.get_cublas_handle()
        wide, kind = dtype == "float64", _CUDA_TYPES[dtype]
        alpha, beta = (np.array(value, np.float64 if wide else np.float32) for value in (1, 0))
        a, b, out = (buffers[name] for name in (step.a, step.b, step.out))
        self._held = (alpha, beta, a, b, out)  # the arguments contain only their addresses
        sums, algorithm = _COMPUTE_64F if wide else _COMPUTE_32F, cublas.CUBLAS_GEMM_DEFAULT
        sides = (handle, int(step.tb), int(step.ta), step.n, step.m, step.k, alpha.ctypes.data)
        of_b = (b.data.ptr, kind, step.k if step.tb else step.n)
        of_a = (a.data.ptr, kind, step.m if step.ta else step.k)
        of_out = (out.data.ptr, kind, step.n)
        self.batched = step.batch > 1
        self.arguments = (
            (
                *sides, *of_b, step.k * step.n, *of_a, step.m * step.k, beta.ctypes.data, *of_out, step.m * step.n,
                step.batch, sums, algorithm,
            )
            if self.batched
            else (*sides, *of_b, *of_a, beta.ctypes.data, *of_out, sums, algorithm)
        )  # fmt: skip
        self._call = partial(cublas.gemmStridedBatchedEx if self.batched else cublas.gemmEx, *self.arguments)

    def __call__(self) -> None:
        self._call()


# ---------------------------------------------------------------- chains
#
# Launches in a row become one CUDA graph, which the driver launches in one call.
#
# A launch through CuPy takes the host 5 to 10 us, more than most stages of a small workload take on the device. The
# graph is captured at the chain's first call, so the correctness gate checks what is timed. Kernels do not run while
# they are captured, so a stage that adds to its state adds once.
#
# CuPy refuses to call cuBLAS while a stream captures. cuBLAS allows it (its documentation, section CUDA graphs), if it
# gets a workspace. So a captured product calls the library that CuPy has loaded directly.

# The workspace that cuBLAS allocates on Hopper (its documentation, cublasSetWorkspace). With a smaller one it might
# choose other kernels.
WORKSPACE_BYTES = 32 << 20
# A graph of a single launch is slower than the launch itself.
FEWEST = 2

_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_SIDES = (_P, _I, _I, _I, _I, _I, _P)
_GEMM = (*_SIDES, _P, _I, _I, _P, _I, _I, _P, _P, _I, _I, _I, _I)
_BATCHED = (*_SIDES, _P, _I, _I, _L, _P, _I, _I, _L, _P, _P, _I, _I, _L, _I, _I, _I)


class CapturedCublas:
    """The functions of cuBLAS that a capture needs, and their workspace. Raises OSError if the library cannot be
    loaded."""

    def __init__(self, cupy: Any) -> None:
        cublas, self._handle = cupy.cuda.cublas, cupy.cuda.device.get_cublas_handle()
        major = cublas.getVersion(self._handle) // 10_000
        windows = sys.platform == "win32"
        library = ctypes.CDLL(f"cublas64_{major}.dll" if windows else f"libcublas.so.{major}")
        self._error = cublas.CUBLASError
        self._workspace = cupy.empty(WORKSPACE_BYTES, cupy.uint8)
        self._set_stream, self._set_workspace = library.cublasSetStream_v2, library.cublasSetWorkspace_v2
        self._set_stream.argtypes, self._set_workspace.argtypes = (_P, _P), (_P, _P, ctypes.c_size_t)
        self._gemm, self._batched = library.cublasGemmEx, library.cublasGemmStridedBatchedEx
        self._gemm.argtypes, self._batched.argtypes = _GEMM, _BATCHED

    def begin(self, stream: int) -> None:
        """Send products to this stream from now on, until CuPy's next call of cuBLAS sets CuPy's stream."""
        self._check(self._set_stream(self._handle, stream))
        self._check(self._set_workspace(self._handle, self._workspace.data.ptr, WORKSPACE_BYTES))

    def product(self, step: CublasProduct) -> None:
        self._check((self._batched if step.batched else self._gemm)(*step.arguments))

    def _check(self, status: int) -> None:
        if status:
            raise self._error(status)


class CudaGraphs:
    """Makes CUDA graphs of the chains of a session. Their products share one workspace, because chains run one
    after the other."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._cublas: CapturedCublas | None = None

    def chain(self, launches: Sequence[Launch], output: Buffer) -> CudaLaunch | None:
        """Return the launches as one graph, or None if there are fewer than `FEWEST` of them, or if one of them is
        a library call."""
        own = [launch for launch in launches if not isinstance(launch, HostCall)]
        # A library call may allocate memory, which is impossible in a graph.
        if len(own) < FEWEST or not all(
            isinstance(step, CudaLaunch) and step.steps is not None for step in own
        ):
            return None
        return CudaGraph(self, launches, output)

    def capture(self, steps: Sequence[Any]) -> Any:
        """Capture the steps as a graph that can be launched. Raises errors of CuPy, the driver and cuBLAS."""
        stream = self._cupy.cuda.Stream(non_blocking=True)
        if self._cublas is None and any(isinstance(step, CublasProduct) for step in steps):
            self._cublas = CapturedCublas(self._cupy)
        with stream:
            # Relaxed: other threads may copy meanwhile, and kernels may be loaded.
            stream.begin_capture(self._cupy.cuda.runtime.streamCaptureModeRelaxed)
            try:
                if self._cublas is not None:
                    self._cublas.begin(stream.ptr)
                for step in steps:
                    if isinstance(step, CublasProduct):
                        assert self._cublas is not None
                        self._cublas.product(step)
                    else:
                        step()
            except Exception:
                with contextlib.suppress(Exception):  # the capture is dropped, and the stream is free again
                    stream.end_capture()
                raise
            return stream.end_capture()


class CudaGraph(CudaLaunch):
    """A chain: first the steps on the host, then all other launches as one graph. If the driver cannot capture
    the graph, the launches run one by one."""

    def __init__(self, graphs: CudaGraphs, launches: Sequence[Launch], output: Buffer) -> None:
        super().__init__(lambda: output)
        self._graphs = graphs
        self._hosts = [launch for launch in launches if isinstance(launch, HostCall)]
        self._own = [launch for launch in launches if isinstance(launch, CudaLaunch)]
        self._replay: Callable[[], None] | None = None

    def __call__(self) -> None:
        for host in self._hosts:
            host()
        if self._replay is None:
            self._replay = self._capture()
        self._replay()
        self.output = self._function()

    def _capture(self) -> Callable[[], None]:
        try:
            graph = self._graphs.capture([step for launch in self._own for step in launch.steps or ()])
        except Exception:  # a driver, a virtual GPU or a build of cuBLAS that cannot capture

            def one_by_one() -> None:
                for launch in self._own:
                    launch()

            return one_by_one
        replay: Callable[[], None] = graph.launch
        return replay


# ---------------------------------------------------------------- TF32
#
# Float32 inputs are rounded to 10 bits of mantissa for the tensor cores, only if a case asks for it.

# cublasMath_t: CUBLAS_TF32_TENSOR_OP_MATH, for which CuPy has no name.
_MATH_TF32 = 3


def pin_off() -> None:
    """Switch TF32 off, whatever the user's environment says. Call this before CuPy and cuBLAS are loaded, which
    read the variables then."""
    os.environ["CUPY_TF32"] = "0"
    os.environ.pop("NVIDIA_TF32_OVERRIDE", None)


def with_tf32(cupy: Any, call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that makes the call with cuBLAS allowed to round float32 inputs to TF32."""
    cublas, handle = cupy.cuda.cublas, cupy.cuda.device.get_cublas_handle()

    def launch() -> Any:
        cublas.setMathMode(handle, _MATH_TF32)
        try:
            return call()
        finally:
            cublas.setMathMode(handle, cublas.CUBLAS_DEFAULT_MATH)

    return launch


# ---------------------------------------------------------------- clocks

# The kernels of the clocks. The global timer advances in steps, of 32 ns to 1 us depending on the device. `count`
# begins and ends with a step, so that the length of its span is exact.
CLOCK_KERNELS = r"""
__device__ unsigned long long global_timer() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
extern "C" __global__ void spin(long long nanoseconds) {
    const unsigned long long start = global_timer();
    while (global_timer() - start < nanoseconds) {}
}
extern "C" __global__ void nothing() {}
extern "C" __global__ void count(unsigned long long nanoseconds, unsigned long long* elapsed) {
    unsigned long long before = global_timer(), begin, end;
    do { begin = global_timer(); } while (begin == before);
    long long first = clock64();
    do { end = global_timer(); } while (end - begin < nanoseconds);
    elapsed[0] = end - begin;
    elapsed[1] = clock64() - first;
}
"""
# Longest wait before queued launches, far shorter than a watchdog allows.
LONGEST_DELAY_S = 0.1
LAUNCH_S = 10e-6  # first guess of the host time of a launch (CuPy: 5 to 15 us)
SPARE_S = 50e-6
# How many calls, each followed by an event, are queued together, and the host time of such a call. The stream can
# queue 1024 entries, and a call may be several kernels.
PORTION = 200
STEP_S = 25e-6


class EventClock:
    """Measures the device seconds of launches on the current stream. `spin` is a kernel of
    CLOCK_KERNELS. Writing `flush_bytes` bytes empties the caches."""

    def __init__(
        self, cupy: Any, spin: Any, flush_bytes: int, *, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._cupy, self._spin, self._now = cupy, spin, now
        self._flush: Any = None
        self._flush_bytes = flush_bytes
        self._launch_s = LAUNCH_S

    def time(self, launch: CudaLaunch, repeat: int = 1, *, cold: bool = False) -> float:
        """Return the seconds between two events around `repeat` launches, without host time. With `cold`, the
        caches are emptied first."""
        total, rest = 0.0, repeat
        while rest:
            # Once the stream is full, the host waits for the device at every launch, and its time would be
            # measured. So launches that the stream cannot hold are timed in portions.
            count = -(-rest // -(-rest // launch.queued))  # portions of about the same length
            seconds, hidden = self._span(launch, count, cold=cold)
            if hidden or count == 1:
                total, rest = total + seconds, rest - count
            else:
                launch.queued = max(1, count // 2)
        return total

    def each(self, calls: Sequence[CudaLaunch]) -> StageReading:
        """Return the seconds of each call, by events between the calls. The calls are queued in portions, so that
        no host time is measured."""
        seconds: list[float] = []
        for start in range(0, len(calls), PORTION):
            portion = calls[start : start + PORTION]
            seconds += self._queue(portion, STEP_S * len(portion) + SPARE_S)[0]
        return StageReading(seconds, sum(seconds), clock="event")

    def _span(self, launch: CudaLaunch, count: int, *, cold: bool) -> tuple[float, bool]:
        """Return the seconds of `count` launches, and whether all of them were queued before the first began."""

        def enqueue() -> None:
            for _ in range(count):
                launch()

        (seconds,), host_s, hidden = self._queue([enqueue], self._launch_s * count + SPARE_S, cold=cold)
        if hidden and count > 16:
            self._launch_s = max(LAUNCH_S, 1.5 * host_s / count)
        return seconds, hidden

    def _queue(
        self, parts: Sequence[Callable[[], None]], delay_s: float, *, cold: bool = False
    ) -> tuple[list[float], float, bool]:
        """Enqueue the parts behind a delay, and again behind a longer one while it does not hide the host's time, up
        to LONGEST_DELAY_S or a full stream. Return the device's seconds of each part, the host's seconds of all, and
        whether all were queued before the first began."""
        import numpy as np

        cuda, before_s = self._cupy.cuda, 0.0
        events = [cuda.Event() for _ in range(len(parts) + 1)]
        while True:
            cuda.get_current_stream().synchronize()
            self._spin((1,), (1,), (np.int64(delay_s * 1e9),))
            if cold:
                self.write_over_the_caches()
            events[0].record()
            start = self._now()
            for part, event in zip(parts, events[1:], strict=True):
                part()
                event.record()
            host_s = self._now() - start
            # True only if the end was queued, too: otherwise host time would be included.
            hidden = not events[0].done
            events[-1].synchronize()
            # A full stream makes the host wait, and no delay is long enough.
            full = before_s > 0 and host_s > 1.5 * before_s
            if hidden or full or delay_s >= LONGEST_DELAY_S:
                between = itertools.pairwise(events)
                seconds = [float(cuda.get_elapsed_time(*pair)) * 1e-3 for pair in between]
                return seconds, host_s, hidden
            delay_s, before_s = min(max(2 * delay_s, 1.5 * host_s), LONGEST_DELAY_S), host_s

    def close(self) -> None:
        """Free the memory that empties the caches."""
        self._flush = None

    def write_over_the_caches(self) -> None:
        """Enqueue the write that empties the caches."""
        if self._flush is None:
            self._flush = self._cupy.empty(self._flush_bytes, self._cupy.uint8)
        self._flush.data.memset_async(0, self._flush_bytes)


# Reading the timer takes less than 0.1 us at each end, 0.1 % of this span.
SPAN_NS = 100_000
# Clocks outside this range do not exist. They mean that the counters of a virtual GPU are not the device's.
PLAUSIBLE_HZ = (1e7, 1e11)


class CycleCounter:
    """Counts the cycles per second of one multiprocessor, on the current stream. `kernel` is `count` of
    CLOCK_KERNELS."""

    def __init__(self, cupy: Any, kernel: Any) -> None:
        self._kernel = kernel
        # Allocated before any workload, which may leave no room for sixteen bytes.
        self._elapsed: Any = cupy.zeros(2, cupy.uint64)

    def hertz(self) -> float | None:
        """Return the clock in Hz right after all enqueued work, counted for SPAN_NS nanoseconds. Returns None
        if the counters do not advance or give an implausible value."""
        import numpy as np

        self._kernel((1,), (1,), (np.uint64(SPAN_NS), self._elapsed))
        nanoseconds, cycles = (int(value) for value in self._elapsed.get())
        hertz = cycles / nanoseconds * 1e9 if nanoseconds else 0.0
        return hertz if PLAUSIBLE_HZ[0] < hertz < PLAUSIBLE_HZ[1] else None

    def close(self) -> None:
        """Free the counter's sixteen bytes."""
        self._elapsed = None
