"""How CUDA programs are bound and launched, on a stand-in for CuPy that records what it is asked for; what CUDA raises,
and the vendor's peaks by attributes of real devices."""

import itertools
import sys
import threading
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from gpubench import kernels
from gpubench.backends import cupy as backend
from gpubench.backends.cupy import launches
from gpubench.backends.cupy.launches import CudaPrograms
from gpubench.backends.shared.host import trial_params
from gpubench.base.errors import BackendError, BuildError, DeviceLost, DeviceOutOfMemory
from gpubench.kernels.contract.kernel import Limits
from gpubench.result.case import Case

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


def refuses(xp, a, b):
    raise TypeError("data type 'E' not understood")


@pytest.mark.parametrize(("expression", "why"), [
    (lambda xp, a, b: a @ b, ""),
    (lambda xp, a, b: (a @ b).astype(np.float32), "CuPy computes this expression in float32"),
    (refuses, "CuPy cannot compute this expression in float16: data type 'E' not understood"),
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
            with pytest.raises(BackendError, match=text) as caught, launches.vendor_errors():
                raise getattr(getattr(cuda, module), kind)(text)
            assert type(caught.value) is ours, text
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
    told = {key: value for key, value in zip(ASKED, attributes, strict=True) if value is not None}
    peaks = backend.vendor_peaks(told.__getitem__, capability)
    assert peaks.bytes_per_s == (bytes_per_s and pytest.approx(bytes_per_s, rel=0.01))
    assert peaks.flops_per_s == ({"float32": pytest.approx(flops_per_s, rel=0.01)} if flops_per_s else {})
    assert bool(peaks.source) == bool(bytes_per_s)
