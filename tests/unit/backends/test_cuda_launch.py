"""How CUDA programs are bound and launched, on a stand-in for CuPy that records what it is asked for."""

import itertools
import threading

import msgspec
import numpy as np
import pytest

from gpubench import kernels
from gpubench.backends.cupy import launches, no_bfloat16, no_expression
from gpubench.backends.cupy.launches import CudaPrograms
from gpubench.base.errors import BuildError
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
        return lambda grid, block, arguments, shared_mem: self.launched.append((entry, grid, block, arguments))


def case(name, params, dtype="float32"):
    return Case(name, kernels.load(name).group, params, dtype, "tuned", "resident-queued", "cupy:0")


def launch(cupy, name, params, dtype="float32", inputs=1):
    programs = CudaPrograms(cupy, LIMITS)
    buffers = [object() for _ in range(inputs)]
    return buffers, programs.launch(kernels.load(name), case(name, params, dtype), buffers, "the output")


def test_a_program_without_passes_launches_nothing():
    cupy = Recorder()
    _, prepared = launch(cupy, "relu", {"n": 0})
    prepared()
    assert cupy.launched == []
    assert prepared.output == "the output"
    assert prepared.kernel_hash


def test_scratch_is_zero_before_the_first_launch():
    cupy = Recorder()
    (x,), prepared = launch(cupy, "sum", {"n": 10**7})
    prepared()
    ((entry, grid, block, arguments),) = cupy.launched
    assert entry == "gpubench_sum"
    assert grid[0] > 1
    assert block == (256, 1, 1)
    assert arguments[:2] == (x, "the output")
    partial, ticket, n = arguments[2:]
    assert partial.size >= 4 * grid[0]
    assert not ticket.any()
    assert n == 10**7
    assert n.dtype == np.int64


def test_passes_run_in_order_and_share_their_scratch():
    cupy = Recorder()
    (a, x), prepared = launch(cupy, "gemv", {"m": 2, "n": 2**20}, inputs=2)
    prepared()
    prepared()
    names = [entry for entry, *_ in cupy.launched]
    assert names == ["gpubench_gemv", "gpubench_gemv_add"] * 2
    first, second = (arguments for *_, arguments in cupy.launched[:2])
    assert first[:2] == (a, x)
    assert first[2] is second[0]
    assert second[1] == "the output"


def test_a_kernels_options_reach_the_compiler_and_its_hash():
    cupy = Recorder()
    _, half = launch(cupy, "sigmoid", {"n": 64}, "float16")
    _, single = launch(cupy, "sigmoid", {"n": 64})
    assert [options for _, options in cupy.modules] == [
        ("--std=c++17", "--prec-div=false", "-ftz=true"),
        ("--std=c++17",),
    ]
    assert half.kernel_hash != single.kernel_hash


def test_a_text_is_compiled_once_for_all_sizes():
    cupy = Recorder()
    programs = CudaPrograms(cupy, LIMITS)
    for n in (64, 64, 100, 2**20):
        programs.launch(kernels.load("relu"), case("relu", {"n": n}), [object()], object())
    assert len(cupy.modules) == 1


def test_what_the_compiler_says_is_our_error():
    with pytest.raises(BuildError, match="line 1: no"):
        launch(Recorder(fails=True), "relu", {"n": 64})


@pytest.mark.parametrize(("cupy", "numpy", "why"), [
    ("14.0.0", "2.1.2", ""), ("14.0.0rc1", "2.4.0.dev0", ""), ("15.1", "3.0.0", ""),
    ("13.6.0", "2.3.0", "CuPy 13.6.0 has no bfloat16 arrays; CuPy 14 has"),
    ("14.1.1", "2.1.1", "CuPy has bfloat16 arrays with NumPy 2.1.2 and above; this is NumPy 2.1.1"),
    ("14.1.1", "2.0.2", "CuPy has bfloat16 arrays with NumPy 2.1.2 and above; this is NumPy 2.0.2"),
])  # fmt: skip
def test_bfloat16_needs_these_versions(cupy, numpy, why):
    assert no_bfloat16(cupy, numpy) == why


def refuses(xp, a, b):
    raise TypeError("data type 'E' not understood")


@pytest.mark.parametrize(("expression", "why"), [
    (lambda xp, a, b: a @ b, ""),
    (lambda xp, a, b: (a @ b).astype(np.float32), "CuPy computes this expression in float32"),
    (refuses, "CuPy cannot compute this expression in float16: data type 'E' not understood"),
])  # fmt: skip
@pytest.mark.parametrize("params", [{"n": 5000}, {"n": 3, "batch": 10**9}])
def test_an_expression_that_leaves_its_dtype_is_told_in_words(expression, why, params):
    op = msgspec.structs.replace(kernels.load("matmul"), expr=expression)
    one = Case(op.name, op.group, params, "float16", "library", "resident-queued", "cupy:0")
    assert no_expression(np, op, one) == why


def test_the_texts_of_many_cases_are_compiled_side_by_side_and_once(monkeypatch):
    texts = {"linear_relu": {"n": 1, "k": 8, "m": 8}, "linear": {"n": 1, "k": 8, "m": 4}, "gelu": {"n": 64}}
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
    programs.build([*cases, *cases], lambda: entered.append(threading.get_ident()))
    assert len(cupy.modules) == len(set(cupy.modules)) == len(texts)
    assert threading.get_ident() not in entered
    for op, one in cases:
        programs.launch(op, one, [object() for _ in op.inputs], "the output")
    assert len(cupy.modules) == len(texts), "a launch finds what was compiled ahead"


def test_a_text_that_does_not_compile_ahead_is_a_build_error():
    op = kernels.load("gelu")
    with pytest.raises(BuildError, match="line 1: no"):
        CudaPrograms(Recorder(fails=True), LIMITS).build([(op, case("gelu", {"n": 64}))], lambda: None)
