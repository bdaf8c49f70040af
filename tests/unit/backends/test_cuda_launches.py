"""How CUDA programs are compiled, bound, launched, chained and timed, on stand-ins for CuPy; what CUDA raises, and the vendor's peaks by attributes of real devices."""

from __future__ import annotations

import itertools
import os
import re
import sys
import threading
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.backends import cupy as backend
from gpubench.backends.contract import HostCall
from gpubench.backends.cupy import launches
from gpubench.backends.cupy.launches import CudaGraphs, CudaLaunch, CudaPrograms
from gpubench.backends.shared.host import trial_params
from gpubench.base.errors import BackendError, BuildError, DeviceLost, DeviceOutOfMemory
from gpubench.kernels.contract.kernel import Limits
from gpubench.result.case import Case
from tests.rows import rows
from tests.unit.backends.streams import DEPTH, Stream

LIMITS = Limits(max_buffer_bytes=2**37, max_binding_bytes=2**37, multiprocessors=132, clusters=True)


class CompileError(Exception):
    pass


class Recorder:
    """The part of CuPy that `CudaPrograms` uses."""

    uint8 = np.uint8

    def __init__(self, fails=False):
        self.fails = fails
        self.modules, self.launched = [], []
        self.cuda = self.compiler = self.function = self
        self.CompileException = CompileError

    def zeros(self, size, dtype):
        return np.zeros(size, dtype)

    def compile_using_nvrtc(self, source, options):
        if self.fails:
            raise CompileError("line 1: no")
        self.modules.append((source, options))
        return b"binary", {}

    def Module(self):
        return self

    def load(self, binary):
        assert binary == b"binary"

    def get_function(self, entry):
        return lambda grid, block, arguments: self.launched.append((entry, grid, block, arguments))


def case(name, params, dtype="float32"):
    return Case(name, kernels.load(name).group, params, dtype, "tuned", "resident-queued", "cupy:0")


def launch(cupy, name, params, dtype="float32", inputs=1):
    programs = CudaPrograms(cupy, LIMITS)
    buffers = [object() for _ in range(inputs)]
    return buffers, programs.launch(kernels.load(name), case(name, params, dtype), buffers, "the output")


def test_scratch_is_zero_before_the_first_launch():
    cupy = Recorder()
    (x,), prepared = launch(cupy, "sum", {"n": 10**7})
    prepared()
    ((entry, grid, block, (*operands, partial, ticket, n)),) = cupy.launched
    assert (entry, block, operands) == ("gpubench_sum", (256, 1, 1), [x, "the output"])
    assert partial.size >= 4 * grid[0] > 4
    assert (ticket.any(), n, n.dtype) == (False, 10**7, np.int64)


def test_passes_run_in_order_and_share_their_scratch():
    cupy = Recorder()
    (a, x), prepared = launch(cupy, "gemv", {"m": 2, "n": 2**20}, inputs=2)
    prepared()
    prepared()
    assert [entry for entry, *_ in cupy.launched] == ["gpubench_gemv", "gpubench_gemv_add"] * 2
    first, second = (arguments for *_, arguments in cupy.launched[:2])
    assert (first[:2], second[:2]) == ((a, x), (first[2], "the output"))


@pytest.mark.parametrize(("cupy", "numpy", "why"), [
    ("14.0.0", "2.1.2", ""), ("14.0.0rc1", "2.4.0.dev0", ""), ("15.1", "3.0.0", ""),
    ("13.6.0", "2.3.0", "CuPy 13.6.0 has no bfloat16 arrays; CuPy 14 has"),
    ("14.1.1", "2.1.1", "CuPy has bfloat16 arrays with NumPy 2.1.2 and above; this is NumPy 2.1.1"),
    ("14.1.1", "2.0.2", "CuPy has bfloat16 arrays with NumPy 2.1.2 and above; this is NumPy 2.0.2"),
])  # fmt: skip
def test_bfloat16_needs_these_versions(cupy, numpy, why):
    assert backend.no_bfloat16(cupy, numpy) == why


@pytest.mark.parametrize(("expression", "why"), [
    (lambda xp, a, b: a @ b, ""),
    (lambda xp, a, b: (a @ b).astype(np.float32), "CuPy computes this expression in float32"),
    (Mock(side_effect=TypeError("data type 'E' not understood")), "CuPy cannot compute this expression in float16: data type 'E' not understood"),
])  # fmt: skip
@pytest.mark.parametrize("params", [{"n": 5000}, {"n": 3, "batch": 10**9}, {"n": 1, "k": 9}])
def test_an_expression_that_leaves_its_dtype_is_told_in_words(expression, why, params):
    op = msgspec.structs.replace(kernels.load("matmul"), expr=expression)
    assert backend.no_expression(np, op, "float16", trial_params(op, params)) == why


def test_the_texts_of_many_cases_are_compiled_side_by_side_and_once(monkeypatch):
    texts = {"linear_relu": {"n": 1, "k": 8, "m": 8}, "linear": {"n": 1, "k": 8, "m": 4}, "sigmoid": {"n": 64}}
    compiling, begun, entered = threading.Barrier(2, timeout=300), itertools.count(), []
    monkeypatch.setattr(launches, "usable_cpus", lambda: 2)

    class Waiting(Recorder):
        def compile_using_nvrtc(self, source, options):
            if next(begun) < 2:
                compiling.wait()  # the first waits until a second thread compiles too
            return super().compile_using_nvrtc(source, options)

    cupy = Waiting()
    programs = CudaPrograms(cupy, LIMITS)
    cases = [(kernels.load(name), case(name, params)) for name, params in texts.items()]
    half = (kernels.load("sigmoid"), case("sigmoid", {"n": 64}, "float16"))
    programs.build([*cases, half, *cases], lambda: entered.append(threading.get_ident()))
    assert len(cupy.modules) == len(set(cupy.modules)) == len(texts) + 1
    assert {options for _, options in cupy.modules} == {
        ("--std=c++17",), ("--std=c++17", "--prec-div=false", "-ftz=true"),
    }  # fmt: skip
    assert threading.get_ident() not in entered
    made = [programs.launch(op, one, [object() for _ in op.inputs], "the output") for op, one in (*cases, half)]
    assert len(cupy.modules) == len(texts) + 1, "a launch finds what was compiled ahead"
    assert len({launch.kernel_hash for launch in made}) == len(made)


@pytest.mark.parametrize("ahead", [True, False])
def test_a_text_that_does_not_compile_is_a_build_error(ahead):
    op, one = kernels.load("gelu"), case("gelu", {"n": 64})
    programs = CudaPrograms(Recorder(fails=True), LIMITS)
    with pytest.raises(BuildError, match="line 1: no"):
        programs.build([(op, one)], lambda: None) if ahead else programs.launch(op, one, [object()], "out")


ERRORS = {
    "memory.OutOfMemoryError": [("Out of memory allocating 8 bytes", DeviceOutOfMemory)],
    "runtime.CUDARuntimeError": [
        ("cudaErrorMemoryAllocation: out of memory", DeviceOutOfMemory), ("cudaErrorIllegalAddress: an access", DeviceLost)
    ],
    "driver.CUDADriverError": [
        ("CUDA_ERROR_OUT_OF_MEMORY: out of memory", DeviceOutOfMemory), ("CUDA_ERROR_LAUNCH_FAILED: a failure", DeviceLost)
    ],
    "compiler.CompileException": [
        ("x.cuh(5): error: cannot open source file \"cuda_fp16.h\"", BuildError), ("expected a \";\"", BuildError)
    ],
    "cublas.CUBLASError": [
        ("CUBLAS_STATUS_ALLOC_FAILED", DeviceOutOfMemory), ("CUBLAS_STATUS_NOT_SUPPORTED", BackendError)
    ],
}  # fmt: skip


def test_each_error_of_cuda_becomes_ours(monkeypatch):
    cuda = SimpleNamespace()
    for name in ERRORS:
        module, kind = name.split(".")
        setattr(cuda, module, SimpleNamespace(**{kind: type(kind, (RuntimeError,), {})}))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    for name, texts in ERRORS.items():
        module, kind = name.split(".")
        for text, ours in texts:
            with pytest.raises(BackendError, match=re.escape(text)) as caught, launches.vendor_errors():
                raise getattr(getattr(cuda, module), kind)(text)
            assert type(caught.value) is ours, text
            assert ("cuda13" in caught.value.hint) == ("source file" in text)
    with pytest.raises(ZeroDivisionError), launches.vendor_errors():
        raise ZeroDivisionError


# Attributes in the order of ASKED: clock, multiprocessors, memory clock (in kHz), bits of the bus.
ASKED = (backend.CLOCK_KHZ, backend.MULTIPROCESSORS, backend.MEMORY_CLOCK_KHZ, backend.MEMORY_BUS_BITS)


@pytest.mark.parametrize(("capability", "attributes", "bytes_per_s", "flops_per_s"), [
    ((9, 0), (1_980_000, 132, 2_619_000, 5120), 3.35e12, 67e12),  # H100 SXM
    ((8, 0), (1_410_000, 108, 1_593_000, 5120), 2.04e12, 19.5e12),  # A100 80 GB
    ((6, 0), (1_480_000, 56, 715_000, 4096), 732e9, 10.6e12),  # P100 SXM
    ((8, 9), (2_520_000, 128, 10_501_000, 384), 1.008e12, None),  # RTX 4090: it runs faster than CUDA tells
    ((8, 7), (1_300_000, 16, 1_600_000, 256), None, None),  # a board whose memory is the CPU's
    ((9, 0), (None, 132, 0, 5120), None, None),  # what is not told, or 0
])  # fmt: skip
def test_data_sheets_agree_within_a_percent(capability, attributes, bytes_per_s, flops_per_s):
    runtime = SimpleNamespace(deviceGetAttribute=lambda number, _: int(attributes[ASKED.index(number)]))
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    peaks = backend.vendor_peaks(partial(backend.read_attribute, cupy, 0), capability)
    assert peaks.bytes_per_s == (bytes_per_s and pytest.approx(bytes_per_s, rel=0.01))
    assert peaks.flops_per_s == ({"float32": pytest.approx(flops_per_s, rel=0.01)} if flops_per_s else {})
    assert bool(peaks.source) == bool(bytes_per_s)


def test_the_mode_is_on_during_the_call_alone_even_if_it_fails(monkeypatch):
    monkeypatch.setenv("CUPY_TF32", "1")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    launches.pin_off()
    assert (os.environ["CUPY_TF32"], "NVIDIA_TF32_OVERRIDE" in os.environ) == ("0", False)
    modes, device = [], SimpleNamespace(get_cublas_handle=lambda: 7)
    cublas = SimpleNamespace(CUBLAS_DEFAULT_MATH=0, setMathMode=lambda *asked: modes.append(asked))
    cupy = SimpleNamespace(cuda=SimpleNamespace(cublas=cublas, device=device))
    assert (launches.with_tf32(cupy, lambda: "out")(), modes) == ("out", [(7, 3), (7, 0)])
    with pytest.raises(ZeroDivisionError):
        launches.with_tf32(cupy, lambda: 1 // 0)()
    assert modes[2:] == [(7, 3), (7, 0)]


# ---------------------------------------------------------------------- chains as CUDA graphs


class Driver:
    """A number on the device, and what `CudaGraphs` uses of CuPy. While a stream captures, steps only are recorded."""

    streamCaptureModeRelaxed = 2

    def __init__(self, refuses: bool = False) -> None:
        self.cuda = self.runtime = self
        self.refuses = refuses
        self.number, self.submitted, self.captures = 0, 0, 0
        self.captured: list | None = None

    def Stream(self, non_blocking: bool) -> Driver:
        return self

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_) -> None:
        pass

    def begin_capture(self, mode: int) -> None:
        self.captured = []
        self.captures += 1

    def end_capture(self) -> Driver:
        self.graph, self.captured = self.captured, None
        if self.refuses:
            raise RuntimeError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")
        return self

    def launch(self) -> None:
        self.submit(*self.graph)

    def submit(self, *changes) -> None:
        self.submitted += 1
        for change in changes:
            self.number = change(self.number)

    def step(self, change) -> None:
        if self.captured is None:
            self.submit(change)
        elif change is spoil:
            raise RuntimeError("not while capturing")
        else:
            self.captured.append(change)

    def upload(self, buffer, number) -> None:
        self.number = number


def double(number):
    return 2 * number


def add(number):
    return number + 1


def spoil(number):
    return number + 5


def launch_of(driver: Driver, *changes, library: bool = False) -> CudaLaunch:
    steps = [partial(driver.step, change) for change in changes]
    return CudaLaunch(lambda: [step() for step in steps], None, None if library else steps)


# Launches and their steps, whether the driver captures, the number after each of two calls, what both submit.
@rows("launches, refuses, numbers, submitted", {
    "one graph a call": ([(double, add), (double,)], False, [2, 10], 2),
    "launches one by one where nothing is captured": ([(double, add), (double,)], True, [2, 10], 6),
    "launches one by one where a step cannot be captured": ([(double,), (spoil,)], False, [5, 15], 4),
})  # fmt: skip
def test_a_chain_computes_what_its_launches_do_at_every_call(launches, refuses, numbers, submitted):
    driver = Driver(refuses)
    whole = CudaGraphs(driver).chain([launch_of(driver, *changes) for changes in launches], "the output")
    found = []
    for _ in numbers:
        whole()
        found.append(driver.number)
    assert (found, driver.submitted, whole.output) == (numbers, submitted, "the output")
    assert driver.captured is None, "the stream is free"
    assert driver.captures == 1, "later calls pay for none"


def test_what_the_host_uploads_is_there_for_the_graph_of_every_call():
    driver, numbers = Driver(), iter((3, 7))
    host = HostCall(driver, lambda: next(numbers), "buffer")
    whole = CudaGraphs(driver).chain([launch_of(driver, double), host, launch_of(driver, add)], "the output")
    found = []
    for _ in range(2):
        whole()
        found.append(driver.number)
    assert found == [7, 15]


@pytest.mark.parametrize("library", [[], [False], [False, True]], ids=["none", "one", "a library's"])
def test_launches_of_which_no_graph_is_made(library):
    """One launch gains nothing; a library's call takes memory, which a graph cannot."""
    driver = Driver()
    launches = [launch_of(driver, add, library=one) for one in library]
    assert CudaGraphs(driver).chain(launches, "the output") is None


# ---------------------------------------------------------------------- the event clock on a simulated stream, and the cycle counter


def timed(kernel_s, repeat, *, host_s=4e-6, kernels=1, cold=False):
    stream = Stream(host_s)
    clock = launches.EventClock(stream, stream.spin, 1 << 20, now=lambda: stream.host)

    def call():
        for _ in range(kernels):
            stream.enqueue(kernel_s)

    launch = CudaLaunch(call, None)
    first = clock.time(launch, repeat, cold=cold)
    assert clock.time(launch, repeat, cold=cold) == pytest.approx(first, rel=1e-6)
    return first, launch, stream


@given(st.floats(1e-6, 1e-3), st.integers(1, 3000), st.floats(1e-6, 3e-5), st.integers(1, 6), st.booleans())
@example(8e-6, 1, 2.9e-5, 1, False)  # the end comes late where enqueueing is slow
@pytest.mark.slow
def test_no_host_time_is_inside(kernel_s, repeat, host_s, kernels, cold):
    seconds, _, stream = timed(kernel_s, repeat, host_s=host_s, kernels=kernels, cold=cold)
    assert (seconds, stream.flushed > 0) == (pytest.approx(kernel_s * kernels * repeat, rel=1e-6), cold)


def test_a_launch_of_several_kernels_is_queued_in_smaller_portions():
    seconds, launch, _ = timed(1.4e-6, 512, kernels=8)
    assert seconds == pytest.approx(512 * 8 * 1.4e-6, rel=1e-6)
    assert launch.queued * 8 < DEPTH
    assert timed(1.4e-6, 512)[1].queued == 1000
    # 50 us a launch: the first try is too short, and the second time there is one try.
    assert timed(2e-6, 200, host_s=5e-5)[2].spins == timed(2e-6, 200)[2].spins + 1


@pytest.mark.parametrize("host_s", [1e-6, 4e-5])
def test_events_between_the_stages_of_a_chain_tell_the_time_of_each(host_s):
    """However slow the host is: no launch is inside, and a chain that is longer than the stream is cut."""
    stream = Stream(host_s)
    clock = launches.EventClock(stream, stream.spin, 1 << 20, now=lambda: stream.host)
    seconds = [1e-3, 2e-6, 5e-4] * launches.PORTION
    reading = clock.each([CudaLaunch(partial(stream.enqueue, one), None) for one in seconds])
    assert (reading.clock, reading.steps_s) == ("event", pytest.approx(seconds, rel=1e-6))
    assert reading.span_s == pytest.approx(sum(seconds))


@pytest.mark.parametrize(("nanoseconds", "cycles", "hertz"), [
    (100_000, 198_000, 1.98e9), (100_000 + 24, 198_000, 1.98e14 / (100_000 + 24)),
    # Counters that stand still, or cannot be true, are no clock.
    (0, 0, None), (100_000, 0, None), (100_000, 100, None), (100_000, 10**8, None),
])  # fmt: skip
def test_cycles_are_counted_against_the_global_timer(nanoseconds, cycles, hertz):
    elapsed = [7, 7]

    def kernel(grid, block, arguments):
        assert arguments[0] == 100_000
        elapsed[:] = nanoseconds, cycles

    cupy = SimpleNamespace(uint64="uint64", zeros=lambda count, dtype: SimpleNamespace(get=lambda: elapsed))
    assert launches.CycleCounter(cupy, kernel).hertz() == hertz
