"""What is told of sizes that were not tried, and of results that are not equal."""

import dataclasses
import functools
import math
import sys
import time
import weakref
import zipfile
from collections import namedtuple
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import numba
import numpy as np
import pytest
import scipy.sparse
from pandas import NA

from gpubench import backends, kernels
from gpubench.backends.contract.protocols import LaunchClock
from gpubench.base import processes
from gpubench.base.errors import BackendError, Unsupported, UsageError
from gpubench.base.plugins import PluginError
from gpubench.functions import loading, sources, trial
from gpubench.functions.declare import UserFunction, gpu_library
from gpubench.functions.describe import Code, CodeSource, Description, Shown, extrapolate, make_op, shape_text
from gpubench.functions.loading import equal, load_source, make_inputs, size
from gpubench.functions.session import (
    Allowed,
    CallSession,
    Translated,
    allow_condition,
    allowed_error,
    compare,
    program_library,
    program_on,
)
from gpubench.functions.session import answer as answer_of
from gpubench.kernels.templates.formula import Untraceable
from gpubench.measure.plan import Constraints, Series, Target
from gpubench.measure.points import Rungs
from gpubench.measure.targets import DeviceSelection
from gpubench.measure.worker.functions import CallOperands, CallWorkspace, Round, find_false_time
from gpubench.measure.worker.workspace import Wrong
from gpubench.result.case import Case
from gpubench.result.run import Check, Device
from tests.raising import raised

CALLS: list[int] = []
REQUEST = trial.TrialRequest(CodeSource("own", "file", "own.py"))
THREE, NAN = np.array([1.0, 2.0, 2.0]), np.array([1.0, np.nan, np.inf])
Output = dataclasses.make_dataclass(  # as those of Transformers, whose items are the fields that are there
    "Output", ["a", "lacking"], bases=(dict,), namespace={"__post_init__": lambda self: self.update(a=self.a)}
)
Held, Pair = dataclasses.make_dataclass("Held", "ab", frozen=True), namedtuple("Pair", "a b")


def slept(xp, x):
    time.sleep(0)
    return x * 2


def counted(xp, x):
    global COUNT
    COUNT = 1
    time.sleep(0)  # what its own code does is told first
    return x


def polynomial(xp, x):
    total = 0.0
    for factor in (1.0, 2.0, 3.0):
        total = total * abs(x) + factor
    return xp.where(x > 0, total, math.sqrt(2) * max(1, 2)) + sum([x, x])


@pytest.mark.parametrize(("trying", "why"), [
    ("slow", "slow is left out: its first call did not end within 60 s"),
    ("", "did not end within 60 s; the last error that it printed: ValueError: of a pool")])  # fmt: skip
def test_a_call_and_an_import_have_a_minute(monkeypatch, tmp_path, trying, why):
    (tmp_path / "mine.py").write_text("", encoding="utf-8")
    reports = [trial.TrialReport(known=["slow"], trying=trying), trial.TrialReport(known=["slow"], trying=None)]

    def run_all(commands):
        report = reports.pop(0)
        status = None if reports else 0
        errors = "" if trying else "KeyError: 1\nProcess 2:\nValueError: of a pool\nTimeout (0:01:00)!\n"
        return [processes.Ended(status, msgspec.json.encode([report]).decode(), errors, 60.0)]

    monkeypatch.setattr(processes, "run_all", run_all)
    monkeypatch.setattr(sources, "add_to_manifest", lambda *_: None)
    assert raised(UsageError, sources.declare, [sources.CodePlace(str(tmp_path / "mine.py"), "")]).why == why


def test_a_file_that_is_imported_once_alone_is_refused(monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text("", encoding="utf-8")
    tried = Description("mine", "good", "", "", [], [], [], [(64, 1e-3)], 64, 256, ["float32"])
    reports = [
        trial.TrialReport([tried], known=["good", "dies"], trying="dies"),
        trial.TrialReport(broken="a folder exists", trying=None),
    ]
    monkeypatch.setattr(processes, "run_all", lambda _: [
        processes.Ended(7, msgspec.json.encode([reports.pop(0)]).decode(), "", 1.0)])  # fmt: skip
    place, *others = map(sources.parse_place, (str(tmp_path / "mine.py"), "C:/mine.py", "my:f", "f"))
    assert raised(UsageError, sources.declare, [place]).why == "a folder exists"
    assert (place.name, others) == ("", [("C:/mine.py", ""), ("my", "f"), None])


@pytest.mark.parametrize(("function", "why", "options"), [
    (slept, "calls time.sleep", {}), (counted, "assigns to COUNT", {}), (polynomial, "is compared by same=", {"same": equal}),
    (lambda xp, x: (CALLS.append(1), x)[1], "calls list.append", {})])  # fmt: skip
def test_a_function_that_does_more_than_return_is_not_compiled(function, why, options):
    """Its kernel would leave that out, and be a million times faster."""
    with pytest.raises(Untraceable, match=why):
        loading.formula(UserFunction(function, **options), ["x"], [np.ones(4)], 4)
    assert loading.trace_pure(UserFunction(polynomial), ["x"]).operations


def sum_of(values):
    return sum(values)


@pytest.mark.parametrize(("points", "n", "value"), [
    ([(64, 64)], 1000, 1000), ([(64, 4096)], 1000, 1_000_000), ([(64, 10)], 1000, 10),
    ([(64, 64), (256, 256)], 1000, 1000), ([(64, 7), (256, 7)], 1000, 7),
    ([(64, 64**2), (256, 256**2)], 1000, 1_000_000), ([(64, 62), (256, 254), (1024, 1022)], 5000, 4998),
    ([(64, 1.9e-4), (256, 1.9e-2), (1024, 2.2)], 512, 2.2 / 2**3),  # seconds of a cubic function
    ([(64, 300), (256, 1190), (1024, 4700)], 2**20, 4700 * 1024),  # not a parabola through noise
    ([(100, 200), (200, 300.5), (300, 400)], 1200, 1300), ([(100, 200), (200, 300.6), (300, 400)], 1200, 800), ([], 9, 0.0),
    ([(100, 1.0), (200, 1.525), (300, 2.0)], 1200, 4.0), ([(64, 0.0), (128, 2.5e-9)], 256, 2.5e-9 * 2**1.5), ([(64, 1e-12), (128, 4e-10)], 256, 4e-10),
])  # fmt: skip
def test_sizes_between_and_beyond(points, n, value):
    assert extrapolate(points, n) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(("extents", "text"), [
    ([[(8, 8), (32, 32)]], "(n)"), ([[(8, 64), (32, 1024)], [(8, 3), (32, 3)]], "(n^2, 3)"),
    ([[(8, 10), (32, 20)]], "(10 at n = 8)"), ([], "()"), ([[(8, 3)]], "(3)")])  # fmt: skip
def test_a_shape_is_told_in_n(extents, text):
    assert shape_text(Shown("x", extents, [])) == text


@pytest.mark.parametrize("slow", ["seconds", "inputs_s"])
def test_a_search_begins_at_a_size_that_takes_little(slow):
    times = {"seconds": [(64, 1e-6)], slow: [(64, 2e-4), (256, 1.3e-2), (1024, 0.37)]}
    shown = [Shown("x", [[(64, 64), (256, 256), (1024, 1024)]], [(64, 256), (256, 1024), (1024, 4096)])]
    about = Description("o", "f", "", "", shown, shown, [], low=64, high=2048, dtypes=["float32"], **times)
    op = make_op(about, Code(lambda xp, x: x))
    rungs = Rungs(Series(op, "float32"), Constraints((), None, None))
    rungs.sizes, rungs.left = [64, 128, 256, 512, 2048], [64, 128, 256, 512, 2048]
    assert rungs.next() == [64, 128]
    growth = rungs.series.work(2048) / rungs.series.work(1024)
    assert growth == pytest.approx(2**2.5 if slow == "seconds" else 2, rel=1e-3)


@pytest.mark.torch
def test_a_default_device_is_for_those_who_create_tensors():
    import torch
    from torch.overrides import _get_current_function_mode_stack as modes

    deep, compiled = [], []

    def square(x):
        deep.append(len(modes()))
        return x.mul_(2)

    def compiler(graph, _):
        compiled.append(graph)
        return graph.forward

    def results(program, x):
        call = program_on(UserFunction(program, program), x.device.type)
        return [call(x) for _ in range(2)]

    x = torch.ones(())
    assert [results(square, x)[1].item(), deep] == [4, [1, 0, 0]]
    fast = torch.compile(lambda x: x * x, backend=compiler)
    assert [*results(fast, x), len(compiled)] == [16, 16, 1]
    x = torch.ones(3, device="meta")
    assert {y.device.type for y in results(lambda x: x + torch.arange(3), x)} == {"meta"}


class Frame:
    """A table of a library, as its programs take it."""


Frame.__module__ = "pandas.core.frame"


@pytest.mark.parametrize(("program", "inputs", "library"), [
    (lambda x: sorted_there(Fraction(x)), [1.0], "cupy"), (lambda frame: frame.sum(), [Frame()], "pandas"),
    (lambda x: [numba.prange(x) for _ in x], [1.0], "numba"), (lambda x: np.exp(time.time() * x), [1.0], None),
    (scipy.sparse.csr_matrix.dot, [1.0], "scipy"),
    (numba.njit(sum_of), [[1.0]], "numba"), (lambda x: x + 1, [np.ones(3)], None), (len, [np.ones(3)], None), (sum_of, [[1.0]], "sum_of"),
    (functools.partial(sum_of), [Frame()], "pandas"), (type("Own", (Frame,), {"__call__": sum_of})(), [1.0], "pandas")])  # fmt: skip
def test_a_pair_is_called_by_the_library_of_its_program(program, inputs, library):
    assert program_library(UserFunction(program, program), inputs) == library


DRIVEN = {"numpy": "cpu", "cupy": "gpu", "torch": "gpu"}


def sorted_there(x):
    import cupy

    return cupy.sort(x)


@dataclasses.dataclass
class Unhashed:
    """A program that compares by value, so that it has no hash."""

    axis: int = 0

    def __call__(self, x):
        return sorted_there(x)


@pytest.mark.parametrize(("program", "library", "only"), [
    (sorted_there, "cupy", ("numpy", "cupy")), (partial(lambda x, k: sorted_there(x), k=1), "cupy", ("numpy", "cupy")),
    (numba.njit(sum_of), "numba", ("numpy", "cupy")), (lambda x: x + 1, "", ()), (Unhashed(), "", ()),
])  # fmt: skip
def test_a_gpu_program_is_measured_by_one_backend(program, library, only):
    assert gpu_library(program) == library
    op = msgspec.structs.replace(kernels.load("add"), one_of=tuple(trial.one_of(UserFunction(sum_of, program))))
    devices = [
        Device(id=f"{name}:0", backend=name, name=name, kind=kind, api=name) for name, kind in DRIVEN.items()
    ]
    targets = tuple(Target(device, ("library",)) for device in devices)
    assert DeviceSelection(targets, (), ()).equip(op).only == only


class Sparse:
    """A matrix of a million rows and columns, whose elements fit into memory and whose zeros do not."""

    shape = (10**6, 10**6)

    def __init__(self, value):
        self.data = np.array([1.0, value])
        self.indices, self.indptr = np.array([3, 9]), np.array([0, 1, 2])

    def tocsr(self):
        return self

    def toarray(self):
        raise MemoryError


def test_a_sparse_matrix_is_compared_by_its_elements_sorted_and_summed():
    """CuPy's product sorts and sums those of its input."""
    assert equal([Sparse(2.0)], [Sparse(2.0)])
    assert not equal([Sparse(2.0)], [Sparse(2.5)])
    parts = np.array([1.0, np.nan, 4.0, 8.0]), np.array([2, 0, 2, 1]), np.array([0, 3, 4])
    matrix = scipy.sparse.csr_matrix(parts, shape=(2, 3))
    sorted_matrix = matrix.copy()
    sorted_matrix.sum_duplicates()
    assert equal(matrix, sorted_matrix)
    assert (len(matrix.data), len(sorted_matrix.data)) == (4, 3)
    assert not equal(matrix, 2 * sorted_matrix)
    assert not equal(matrix, sorted_matrix[:, [1, 0, 2]])


@pytest.mark.parametrize(("device_id", "pair", "implementation", "regime", "why"), [
    ("numpy:0", False, "library", "resident", ""), ("numpy:0", False, "tuned", "resident", "has no tuned implementation"),
    ("numpy:0", False, "library-tf32", "resident", "has no library-tf32"), ("numpy:0", True, "library", "transfer-always", "already at home"),
    ("fake:cpu", True, "library", "resident", ""), ("torch:cpu", True, "library", "resident", "measured once, as numpy's"),
    ("torch:cpu", False, "library", "resident", ""), ("torch:cuda", True, "library", "transfer-always", ""),
    ("wgpu:0", False, "library", "resident-waited", "wgpu has no arrays")])  # fmt: skip
def test_which_cases_of_a_function_run(device_id, pair, implementation, regime, why):
    kind = "cpu" if device_id in ("numpy:0", "fake:cpu", "torch:cpu") else "gpu"
    device = SimpleNamespace(id=device_id, backend=device_id.partition(":")[0], kind=kind)
    inner = SimpleNamespace(device=device, limits=None, threads=None, blas=None)
    session = CallSession(inner, UserFunction(sum_of, sum_of if pair else None))
    name, _, variant = implementation.partition("-")
    case = Case("mine.f", "function", {"n": 8}, "float32", name, regime, device_id, variant=variant or None)
    refused = session.supports(SimpleNamespace(name="mine.f"), case)
    assert refused is None if not why else why in str(refused)


@pytest.mark.parametrize(("error", "reason", "text"), [
    (AttributeError("module 'array_api_compat.torch' has no attribute 'ptp'"), "bad-function", "torch has no ptp"),
    (AttributeError("a Tensor has no attribute 'foo'"), "bad-function", "it raises AttributeError: a Tensor"),
    (ValueError("module 'torch' has no attribute 'ptp'"), "bad-function", "it raises ValueError: module"),
    (ValueError("Failed in nopython mode pipeline (step: a)\nUnknown" + 99 * " x"), "bad-function", "it raises ValueError: Unk"),
    (MemoryError(), "out-of-memory", "no memory"), (RuntimeError("CUDA out of memory"), "out-of-memory", "CUDA out of memory"),
    (Unsupported("as it is"), "unsupported", "as it is"), (KeyboardInterrupt(), None, ""),
], ids=repr)  # fmt: skip
def test_what_a_call_raises_is_the_reason_of_a_skip(error, reason, text):
    def call():
        with Translated(UserFunction(slept)):
            raise error

    told = raised(BackendError if reason else KeyboardInterrupt, call)
    assert (getattr(told, "reason", None), str(told)[: len(text)]) == (reason, text)
    assert len(str(told)) < 280, "a compiler writes pages"


def test_an_input_is_refilled_in_the_array_that_is_there():
    session = CallSession(backends.load("numpy").open("numpy:0", 1), UserFunction(lambda xp, x: x))
    buffer = session.allocate((3,), "float32")
    session.upload(buffer, np.ones(3))
    there = buffer.value
    session.refill(buffer, np.zeros(3))
    assert (buffer.value is there, there.any()) == (True, False)
    session.refill(buffer, np.ones(4))
    assert (buffer.value is there, buffer.value.shape) == (False, (4,))
    session.close()


class Tensor:
    """One of PyTorch's, as far as inputs are concerned."""

    dtype = "torch.float32"
    detach = cpu = data_ptr = lambda self: self

    def numpy(self):
        return np.ones(3)


def test_tensors_among_the_inputs_are_arrays_for_a_function_and_pytorchs_affair_for_a_pair(monkeypatch):
    monkeypatch.setattr("gpubench.functions.session._device_wait", lambda inner: None)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    function = UserFunction(lambda xp, x: x, inputs=lambda n: Tensor())
    (drawn,) = make_inputs(function, ["x"], 3, "float32", 1)
    assert (type(drawn), drawn.dtype) == (np.ndarray, np.float32)
    pair = UserFunction(sum_of, sum_of, inputs=lambda n: Tensor())
    (drawn,) = make_inputs(pair, ["x"], 3, "float32", 1)
    assert type(drawn) is Tensor
    device = SimpleNamespace(id="cupy:0", backend="cupy", kind="gpu")
    session = CallSession(SimpleNamespace(device=device, limits=None, threads=None, blas=None), pair)
    refused = raised(Unsupported, session.upload, session.allocate((3,), "float32"), drawn)
    assert "the backend torch measures it" in str(refused)


def test_a_call_has_the_memory_of_the_one_before_it():
    results, dead = [], []

    def call(xp, x):
        dead.append([result() is None for result in results])
        result = Frame()
        results.append(weakref.ref(result))
        return result

    session = CallSession(backends.load("numpy").open("numpy:0", 1), UserFunction(call))
    shown = [Shown("x", [[(8, 8)]], [(8, 32)])]
    about = Description("mine", "f", "", "", shown, shown, [], [(8, 1e-3)], 8, 8, ["float32"])
    op = make_op(about, Code(lambda xp, x: x, calls=session.function))
    case = Case("mine.f", "function", {"n": 8}, "float32", "library", "resident", "numpy:0")
    session.run(session.compile(op, case, [session.allocate((8,), "float32")], None), 3)
    session.close()
    assert dead == [[], [True], [True, True]]


def test_the_clock_of_a_device_times_functions_of_arrays_alone():
    class Clocked(LaunchClock):
        device, limits = SimpleNamespace(id="fake:gpu", backend="fake", kind="gpu"), None
        threads = blas = None

        def time(self, launch, repeat=1, *, cold=False):
            return 2.0 * repeat if cold else 1.0 * repeat

    plain = backends.load("numpy").open("numpy:0", 1)
    assert CallSession(plain, UserFunction(sum_of)).time(None) is None
    plain.close()
    assert CallSession(Clocked(), UserFunction(sum_of, sum_of)).time(None) is None, "a pair has its own streams"
    session = CallSession(Clocked(), UserFunction(sum_of))
    assert [session.time(None), session.time(None, 3), session.time(None, 3, cold=True)] == [1.0, 3.0, 6.0]


def test_the_answer_is_numpys_in_float64_and_what_may_differ_from_it():
    def answer(call, *more, dtype="float32", wrong=False, **options):
        function = UserFunction(call, *more, inputs=lambda rng, n, dtype: [np.linspace(0, 1, n, dtype=dtype)],
                                **options)  # fmt: skip
        inputs = loading.make_inputs(function, ["x"], 1000, dtype, 1)
        want, allowed = answer_of(function, inputs, dtype)
        return want, allow_condition(function, inputs, dtype, want, allowed) if wrong else allowed

    def lossy(xp, x):
        return (x + np.float32(1e6)) - np.float32(1e6)

    want, allowed = answer(lambda xp, x: x + 1)
    assert (want.dtype, allowed) == (np.float64, Allowed(256 * 2**-24, 0))
    assert answer(lambda xp, x: x + 1, dtype="float16")[1] == Allowed(0.01, 0)
    # Linear algebra of NumPy is computed in float64 in every dtype, so its own error tells nothing.
    steep = answer(lambda xp, x: np.exp(50 * x.astype("float64")), wrong=True)[1].floating
    assert steep == pytest.approx(256 * 45 * 2**-24, rel=0.1)
    assert answer(lambda x: np.exp(50 * x.astype("float64")), sum_of, wrong=True)[1].floating == pytest.approx(
        steep, rel=1
    )
    assert answer(lambda xp, x: np.floor(999 * x.astype("float64")), wrong=True)[1] == Allowed(0.01, 0), (
        "a jump"
    )
    labels = answer(lambda xp, x: np.where(np.rint(x) == x, 2.0**20, 0.0))[1]
    assert labels == Allowed(256 * 2**-24, 0), "whole numbers stay"
    assert list(loading.nudge(np.ma.masked_array([0.1, 0.2], [0, 1]), 0.1).mask) == [False, True]
    error = raised(Unsupported, answer, lossy)
    assert (error.reason, "in float32 NumPy's own result is off by" in str(error)) == ("bad-function", True)
    assert answer(lossy, tolerance=0.5, wrong=True)[1] == Allowed(0.5, 0.5)
    assert answer(lossy, same=lambda a, b: True)[1] == Allowed(0.0, 0.0)
    want, allowed = answer(lambda x: lossy(np, x), sum_of)
    assert (want.dtype, allowed) == (np.float32, Allowed(256 * 2**-24, 0)), "a program may know one dtype"
    assert answer(lambda x: x, sum_of, tolerance=0.5)[1] == Allowed(0.5, 0.5)


def test_counts_may_differ_where_numpy_differs_from_itself():
    exact = np.full(100, 1000)
    moved = exact.copy()
    moved[[3, 4]] += [1, -1]
    strict, loose = (allowed_error(exact, got, "float32") for got in (exact, moved))
    assert (strict.integers, compare(moved, exact, strict).words) == (0, "out[3] is 1001, not 1000")
    assert (compare(moved, exact, loose).right, compare(exact + 20, exact, loose).right) == (True, False)
    allowed = allowed_error([1.0, exact], [1.0, moved], "float32")
    assert not compare([1.0 + 1e-3, exact], [1.0, exact], allowed).right
    assert compare(moved, exact, Allowed(1e-4, 1e-4)).right


@pytest.mark.parametrize(("got", "want", "error", "place", "words"), [
    ((THREE, 1), (THREE,), np.inf, [], "it returns 2 results, not 1"), (THREE[:2], THREE, np.inf, [], "out has the shape (2,), not (3,)"),
    (THREE + np.array([0, 0, 0.1]), THREE, 0.1 / (2 + 3**0.5), [2], ""), (THREE + np.array([0.1j, 0, 0]), THREE, 0.1 / (1 + 3**0.5), [0], ""),
    (THREE * 2e200, THREE * 1e200, 2 / (2 + 3**0.5), [1], ""), (THREE * 0, THREE * 1e-200, 2 / (2 + 3**0.5), [1], ""),
    (NAN + 0j, NAN + 0j, 0.0, [0], ""), (-NAN + 0j, NAN + 0j, np.inf, [2], ""), (np.array([1.7e308j]), np.array([1.7e308 + 1.7e308j]), 1 / 8**0.5, [0], ""),
    (NAN, NAN, 0.0, [0], ""), (-NAN, NAN, np.inf, [2], ""), (THREE, NAN, np.inf, [1], ""), (THREE[:0], THREE[:0], 0.0, [], ""),
    (THREE * 0, THREE * 0, 0.0, [0], ""), (Output(THREE, None), {"a": THREE}, 0.0, [0], ""), (THREE * 0 + 0.5, THREE * 0, 0.5, [0], ""),
    ({"a": THREE, "b": (5, 7)}, {"a": THREE, "b": (5, 8)}, 1 / 8, [], "out['b'][1] is 7, not 8"),
    (np.array(["x"]), np.array(["y"]), np.inf, [0], "out[0] is x, not y"), (np.array(["x"]), np.array([1.0]), np.inf, [0], "out[0] is x, not 1.0"), (np.array([3, 1]), np.array([3, 3]), 1 / 3, [1], "out[1] is 1, not 3"),
    (np.zeros(2, int), np.array([0, 0]), 0.0, [], ""), (np.zeros(1, "f4,i4"), np.zeros(1), np.inf, [0], "out[0] is (0.0, 0), not 0.0"), (np.array([1, 0]), np.array([0, 0]), 1.0, [0], "out[0] is 1, not 0")])  # fmt: skip
def test_results_differ_by_their_largest_error_and_where_it_is(got, want, error, place, words):
    told = compare(got, want, Allowed(0.0, 0.0))
    assert (told.error, told.place, told.words) == (pytest.approx(error), place, words)
    assert told.right == (error == 0)


@pytest.mark.parametrize(("values", "others", "dtype"), [
    ([1, None, np.nan, NA, "a"], [1, None, float("nan"), NA, "a"], object), ([2, 1, np.nan, NA, 1, "a"], [1, np.nan, 1, 1, NA, None], object),
    ([1, np.nan, np.nan], [1, np.nan, np.nan], float), ([2, 1, np.nan], [1, np.nan, 1], float)])  # fmt: skip
def test_a_missing_value_is_equal_to_itself_alone(values, others, dtype):
    wrong = loading.differences(*(np.array(x, dtype) for x in (values, others)))
    assert set(wrong.tolist()) == {values[0] != others[0]}


def test_an_option_that_no_function_has_is_named_with_one_that_is_like_it():
    for name, hint in (("tolerence", "did you mean 'tolerance'?"), ("colour", "options of the run")):
        error = raised(UsageError, UserFunction, sum_of, **{name: 1})
        assert (name in error.message, "tolerance, same" in error.why, hint in error.hint) == (True, True, True)


@pytest.mark.parametrize(("value", "told"), [
    (SimpleNamespace(__cuda_array_interface__={}, get=lambda: [1.0, 2.0]), [1.0, 2.0]), (SimpleNamespace(get=None, to_numpy=lambda: [3.0]), [3.0]),
    (SimpleNamespace(__cuda_array_interface__={}, toarray=lambda: [4.0]), [4.0]), (SimpleNamespace(array=[5.0]), [5.0]),
    (SimpleNamespace(to_pandas=lambda: SimpleNamespace(to_numpy=lambda: [6.0])), [6.0]), (7, 7),
    ([SimpleNamespace(dtype=None, __cuda_array_interface__={}, get=lambda: 9.0), 1], [9.0, 1.0]), (np.array([8]), [8]), (object(), None)])  # fmt: skip
def test_a_result_of_any_library_comes_to_the_host(value, told):
    if told is None:
        told = str(raised(loading.Unreadable, loading.on_host, value))
        assert "it returns an object of type object, which is no array" in told
    else:
        np.testing.assert_equal(loading.on_host(value), np.array(told))


@pytest.mark.parametrize(("limit_s", "calls"), [(None, 3), (9.0, 3), (8.5, 2), (6.0, 2), (5.5, 1)])
def test_a_function_is_tried_as_often_as_a_budget_leaves_time_for(monkeypatch, limit_s, calls):
    clock, made = [9.0], []

    def slow(xp, x):
        clock[0] += 3.0
        made.extend([x] if isinstance(x, np.ndarray) else [])
        return x

    monkeypatch.setattr(trial, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    request = msgspec.structs.replace(REQUEST, limit_s=limit_s)
    (found,) = trial.describe("slow", UserFunction(slow), request)
    assert (len(made), found.seconds) == (calls, [(64, 3.0)])


@pytest.mark.parametrize(
    ("first_s", "call_s", "peak", "sizes", "tried"),
    [  # seconds of the first call at a size and of the others, bytes
        (0, 0, 0, [], [64 * 4**k for k in range(8)]), (0, 0, 0, [100, 200, 400, 800], [100, 200, 400]),
        (0.85, 0.85, 0, [], [64]), (0.12, 0.12, 0, [], [64, 256]), (0.0025, 0.0025, 0, [], [64, 256, 1024]),
        (0.1, 0, 0, [], [64, 256, 1024]), (0.08, 0, 0, [], [64, 256, 1024, 4096]),
        (0, 0, 130 << 20, [], [64]), (0, 0, 33 << 19, [], [64, 256])])  # fmt: skip
def test_larger_sizes_are_tried_while_calls_are_short(monkeypatch, first_s, call_s, peak, sizes, tried):
    clock, calls = [9.0], []

    def timed(xp, x):
        if isinstance(x, np.ndarray):
            clock[0] += call_s if len(x) in calls else first_s
            calls.append(len(x))
            bytearray(peak)
        return xp.sqrt(x)

    monkeypatch.setattr(trial, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    request = trial.TrialRequest(CodeSource("own", "file", "own.py"), sizes=sizes)
    *_, told = trial.describe("timed", UserFunction(timed), request)
    assert [n for n, _ in told.seconds] == tried
    quick = not (first_s or call_s or peak)
    assert not quick or told.high == (100 << 17 if sizes else 1 << 24), "a power of two times the lowest"
    times = [6, *[5] * (len(tried) - 1)]
    assert [calls.count(n) for n in tried] == times or first_s + call_s > 0.1


@pytest.mark.parametrize(("program", "widens", "dtypes"), [
    (lambda x: x * np.sqrt(2), True, []), (lambda x: x * math.sqrt(2), False, []), (lambda x: x * np.sqrt(2), False, ["float64"]),
    (lambda x: x.sum() * np.sqrt(2), False, []), (lambda x: [x, x > 1], False, []), (lambda x: (x, x.astype(float)), True, []),
])  # fmt: skip
def test_a_function_that_makes_float64_of_float32_is_noted(program, widens, dtypes):
    request = trial.TrialRequest(CodeSource("mine", "", ""), sizes=[64], dtypes=dtypes)
    (described,) = trial.describe("f", UserFunction(program), request)
    assert described.widens is widens


def test_arrays_of_floating_point_numbers_alone_have_the_dtype_of_the_case():
    values = [THREE, THREE > 1, scipy.sparse.eye(3), 1.5]
    function = UserFunction(lambda xp, *values: [value * 2 for value in values], inputs=lambda n: values)
    *_, told = trial.describe("f", function, trial.TrialRequest(CodeSource("own", "file", "own.py"), sizes=[3]))
    assert [shown.floating for shown in told.inputs] == [True, False, False, False]
    made = {"a": Held(THREE, 3), "b": (Pair(THREE, [1.5, 2.5]), [THREE])}
    (inside,) = make_inputs(UserFunction(sum_of, inputs=lambda n: iter([made])), ["values"], 3, "float16", 1)
    (pair, (second,)), held = inside["b"], inside["a"]
    assert [x.dtype for x in (held.a, pair.a, second, made["a"].a)] == ["float16"] * 3 + ["float64"]
    assert (pair.b, held.b, size(held)) == ([1.5, 2.5], 3, held.a.nbytes + sys.getsizeof(3))


@pytest.mark.parametrize("usable_bytes", [2**30, 0])
def test_a_size_beyond_the_memory_is_not_tried(usable_bytes):
    request = trial.TrialRequest(CodeSource("own", "file", "own.py"), sizes=[2**26], usable_bytes=usable_bytes)
    with pytest.raises(PluginError, match="n = 67108864 needs about 1 GiB of memory: choose smaller --sizes"):
        list(trial.describe("sort", UserFunction(lambda xp, x: xp.sort(x)), request))


def tried(n, peak=0, seconds=0.0, inputs_s=0.0, held=0):
    """A trial with so many bytes of results, and twice as many of inputs."""
    inputs, result = (np.zeros(count, np.int8) for count in (2 * held, held))
    return trial.Trial(n, [inputs], [("out", result)], inputs_s, seconds, peak)


@pytest.mark.parametrize(("trials", "usable_bytes", "high"), [
    ([tried(64)], None, 2**24), ([tried(2**26)], None, 2**26), ([tried(64)], 0, 2**24), ([tried(64, peak=64)], 0, 64),
    ([tried(64, peak=64), tried(128, peak=128)], 5 << 20, 2**20), ([tried(n, held=n) for n in (64, 128)], 5 << 20, 2**18),
    *(([tried(n, **{key: by * n}) for n in (64, 128)], None, 2**15)
      for share in (2**-16, 0.6 * 2**-16) for key, by in (("seconds", share), ("inputs_s", 4 * share))),
    ([tried(64), tried(256, seconds=7e-5)], None, 2**16)])  # fmt: skip
def test_the_search_ends_where_memory_or_time_does(trials, usable_bytes, high):
    """Three times the peak of a call is held: the float64 reference takes twice as much."""
    assert trial.highest_size(trials, msgspec.structs.replace(REQUEST, usable_bytes=usable_bytes)) == high


def drawn_slowly(n):
    time.sleep(1e-7 * n * n)
    return np.ones(n)


def test_the_answer_takes_as_long_as_its_inputs_too(tmp_path):
    case = Case("mine.f", "function", {"n": 1000}, "float32", "library", "resident", "numpy:0")
    function = UserFunction(sum_of, sum_of, inputs=drawn_slowly)
    op = SimpleNamespace(calls=function, inputs=[SimpleNamespace(name="values")], digest="")
    assert CallOperands(op, 1, "random", tmp_path).answer(case)[2] >= 0.1


@pytest.mark.parametrize(("text", "told"), [
    ("import gpubench\nundefined\n", "line 2: NameError"), ("x = 1\ndef f(\n", "line 2: SyntaxError"),
    ("\nimport broken_helper\n", "line 2: SyntaxError")])  # fmt: skip
def test_the_line_of_an_error_is_one_of_the_users_file(tmp_path, text, told, monkeypatch):
    monkeypatch.setattr("gpubench.functions.declare.MEASURES", True)  # loading unsets it
    (tmp_path / "broken_helper.py").write_text("a = 1\nb = 2\nc = (\n", encoding="utf-8")
    (tmp_path / "own.py").write_text(text, encoding="utf-8")
    source = CodeSource("own", "file", str(tmp_path / "own.py"), path=(str(tmp_path),))
    with pytest.raises(PluginError, match=f"^{told}"):
        load_source(source)


def test_a_function_is_called_with_other_values_only_where_the_budget_leaves_time_for_it(monkeypatch):
    case = Case("add", "vector", {"n": 64}, "float32", "library", "resident", "numpy:0")
    operands = SimpleNamespace(weights=SimpleNamespace(passed=True), page_locked=False,
                               inputs=lambda case: [np.ones(64, np.float32)] * 2,
                               answer=lambda case: (object(), None, 3.0),
                               false=Wrong(Check(ok=False, max_error=None, limit=0.0, scale="value")))  # fmt: skip
    session = SimpleNamespace()
    session.home = session
    op = msgspec.structs.replace(kernels.load("add"), calls=UserFunction(sum_of))
    workspace = CallWorkspace(session, op, case, 1, "random", Path(), operands)
    (note,) = workspace.require_fresh(10.0)
    assert "was not called with other values" in note.message
    for limit_s in (100.0, None):
        raised(Wrong, workspace.require_fresh, limit_s)
    caller = Mock()
    monkeypatch.setattr("gpubench.measure.worker.functions.Caller", lambda *_: caller)
    workspace.compile, operands.false = lambda *_: None, None
    operands.others = Mock(side_effect=Unsupported("other values are none for it"))
    assert workspace.require_fresh(None) == []
    caller.call.assert_called_once_with(workspace.inputs)
    assert workspace.answer_samples() == []
    with pytest.raises(Unsupported, match="which is no array") as refused:
        workspace.verify_host_output(case)
    assert refused.value.reason == "bad-function"


def test_a_module_in_an_archive_is_a_source(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("gpubench.functions.declare.MEASURES", True)  # loading unsets it
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        archive.writestr("in_an_archive.py", "import gpubench\n@gpubench.function\ndef f(xp, x): return x\n")
    place = CodeSource("in_an_archive", "module", "in_an_archive", path=(str(tmp_path / "mine.zip"),))
    before = np.random.default_rng, [*sys.meta_path]
    assert set(load_source(place).functions) == {"f"}
    assert (np.random.default_rng, sys.meta_path) == before


@pytest.mark.parametrize(("milliseconds", "words"), [  # of the first call, of another one, and of reading 40 kB
    ((9.0, 1.1, 0.0), "takes 8 times"), ((9.0, 1.15, 0.0), ""), ((1.05, 0.01, 0.0), "takes 105 times"), ((1.0, 0.01, 0.0), ""),
    ((1.0, 1.0, 7.1), "when it is read"), ((1.0, 1.0, 6.9), ""), ((2.0, 2.0, 10.1), "when it is read"), ((2.0, 2.0, 9.9), ""),
])  # fmt: skip
def test_times_that_measure_no_work_are_told_by_their_distance(milliseconds, words):
    result = np.zeros(10_000, np.float32)
    only = Round((result, result), *(value / 1e3 for value in milliseconds))
    told = find_false_time([only], lambda: [only])
    assert (bool(told), words in told) == (bool(words), True)
    assert (
        find_false_time([], list),
        find_false_time([only], lambda: [Round((result, result), 1e-3, 1e-3, 0.0)]),
    ) == ("", "")
