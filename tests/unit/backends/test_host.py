"""The host side that every backend shares: seeded inputs, hashes, threads."""

import ctypes
import hashlib
import os
import signal
import threading
import warnings
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.backends.contract import HostCall, StageReading
from gpubench.backends.shared import choices, host
from gpubench.backends.shared.memory import InPlaceSession
from gpubench.base.errors import DeviceOutOfMemory
from gpubench.kernels.contract.kernel import Limits
from gpubench.kernels.contract.op import Ids, Operand, Range
from gpubench.result.case import Case
from gpubench.result.run import Device

ADD = kernels.load("add")


@given(st.integers(-50, 50), st.integers(1, 100), st.booleans(), st.sampled_from(["random", "normal"]))
def test_inputs_stay_in_the_range_that_the_op_declares(low, span, whole, kind):
    x = msgspec.structs.replace(ADD.inputs[0], values=Range(low, low + span, whole))
    op = msgspec.structs.replace(ADD, inputs=(x, ADD.inputs[1]))
    for value, one in ((0, "zeros"), (1, "ones")):
        assert all((x == value).all() for x in host.random_inputs(op, {"n": 9}, "float16", 1, one))
    for below in (1, 2):  # ones stay in the range of ids
        ids = msgspec.structs.replace(x, values=Ids(lambda params, below=below: below), dtype="int32")
        assert (host.random_input(op, ids, {"n": 9}, "float32", 1, "ones") == below - 1).all()
    found, other = host.random_inputs(op, {"n": 500}, "float64", 1, kind)
    assert low <= found.min() <= found.max() < low + span
    assert bool((found == np.floor(found)).all()) == whole
    assert (np.abs(other).max() > 1) == (kind == "normal"), "what is normal has no bounds but a range's"


# How values are drawn, in which dtype, what a user asks for, how many rows, and a digest of the bytes.
DRAWN = {
    "uniform": ("uniform", "float32", "random", 2**18 + 2, "5c4e74d3"),
    "in double precision": ("uniform", "float64", "random", 9, "c579acfa"),
    "in half precision": ("uniform", "float16", "random", 9, "ba0eb7ea"),
    "normal": ("normal", "float32", "random", 9, "7bd4d969"),
    "normal, asked for": ("uniform", "float32", "normal", 9, "7bd4d969"),
    "relu": ("relu", "float32", "random", 9, "d3c104f0"),
    "weights": ("fan-in", "float32", "random", 9, "b485b232"),
    "a range": (Range(-3, 5), "float64", "random", 9, "cfcbc8db"),
    "whole numbers": (Range(-3, 5, True), "float32", "random", 9, "341e9658"),
    "ids": (Ids(lambda params: 7), "float32", "random", 9, "28a1579a"),
    "probabilities": ("probabilities", "float64", "random", 9, "6ded14dd"),
    "probabilities in slices": ("probabilities", "float32", "random", 2**17, "0a6aca1a"),
}  # fmt: skip
HASHES = {
    "add": "292767b7cd80", "embedding": "2c9b07c58c5a", "cache_append": "56250265ee4a", "argmax": "7ac140fc8a65",
    "attention_append": "9e5167023eb0",
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_inputs_are_those_of_earlier_versions(name):
    """Results of two versions compare only if both computed the same."""
    values, dtype, kind, n, digest = DRAWN[name]
    role = "weight" if values == "fan-in" else "activation"
    x = Operand("x", lambda params: (params["n"], 4), values, role, "int32" if name == "ids" else None)
    op = msgspec.structs.replace(ADD, inputs=(x,))
    (drawn,), (other,) = (
        host.random_inputs(op, {"n": n, "k": 3, "j": 1}, dtype, seed, kind) for seed in (1, 2)
    )
    assert hashlib.sha256(drawn.tobytes()).hexdigest()[:8] == digest
    assert other.tobytes() != drawn.tobytes(), "another seed draws others"


@pytest.mark.parametrize(("name", "params", "tried"), [
    ("matmul", {"n": 9000, "ta": 1, "tb": 0, "batch": 1}, {"n": 2, "ta": 1, "tb": 0, "batch": 1}),
    ("upload", {"n": 4096}, {"n": 4096}),
])  # fmt: skip
def test_an_op_is_tried_with_small_params_and_its_own_switches(name, params, tried):
    assert host.trial_params(kernels.load(name), params) == tried


def test_plain_values_bytes_and_hashes_are_those_of_earlier_versions():
    random = np.zeros(99, np.uint8)
    host.random_bytes(random, "key")
    drawn = (random, host.plain_values("normal", 2, 9, "float32", 1, "random"))
    assert [hashlib.sha256(x.tobytes()).hexdigest()[:8] for x in drawn] == ["9ce21376", "1369bb20"]
    assert {name: choices.op_hash(kernels.load(name)) for name in HASHES} == HASHES


def test_a_copy_takes_arrays_in_any_order_and_of_any_length():
    count = 2 * host.SLICE + 2
    whole = np.arange(count, dtype=np.int32).reshape(-1, 2)
    flat, turned, spread = (np.zeros(shape, np.int32) for shape in (whole.shape, whole.T.shape, (count, 2)))
    for target in (flat, turned.T, spread[::2]):
        back = np.zeros_like(whole)
        host.copy(whole, target)
        host.copy(target, back)
        assert [(target == whole).all(), (back == whole).all()] == [True, True]


def test_a_thread_that_runs_is_waited_for_and_one_that_sleeps_is_not():
    """By its state, not by processor time: one that wants a core and gets none would be taken for one that rests."""
    done, asleep = threading.Event(), threading.Event()

    def spin():
        while not done.is_set():
            hashlib.sha256(bytes(1 << 20))  # without the interpreter's lock

    others = [threading.Thread(target=spin), threading.Thread(target=asleep.wait)]
    for thread in others:
        thread.start()
    assert sum(host.others_run() for _ in range(20)) > 10
    done.set()
    others[0].join()
    host.settle()
    assert not host.others_run()
    asleep.set()
    others[1].join()


@pytest.mark.parametrize(("affinity", "bound", "usable", "copying"), [
    (16, None, 16, 8), (16, 2, 2, 2), (1, None, 1, 1), (2, 16, 2, 2), (128, None, 128, 8), (128, 128, 128, 8),
])  # fmt: skip
def test_affinity_and_the_bound_of_a_quota_limit_the_usable_cpus(monkeypatch, affinity, bound, usable, copying):
    cpus = {0: set(range(affinity))}
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: cpus.get(pid, set()), raising=False)
    host.bound_cpus(bound)
    try:
        assert (host.usable_cpus(), host.copying_threads()) == (usable, copying)
    finally:
        host.bound_cpus(None)


@pytest.mark.parametrize(("count", "usable"), [(6, 6), (None, 1)])
def test_a_system_without_affinities_counts_its_cpus(monkeypatch, count, usable):
    monkeypatch.delattr(host.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(host.os, "cpu_count", lambda: count)
    assert host.usable_cpus() == usable
    refused = Mock(side_effect=PermissionError("a sandbox"))
    monkeypatch.setattr(host.os, "sched_getaffinity", refused, raising=False)
    assert host.usable_cpus() == usable


@pytest.mark.parametrize(("share", "runs"), [(0.0, False), (0.6, True), (2.0, True), (0.4, False)])
def test_where_no_file_tells_processor_time_does(share, runs, monkeypatch):
    looks = []
    monkeypatch.setattr(ctypes, "WinDLL", lambda name: pytest.fail("this is no Windows"), raising=False)
    now = script_time(monkeypatch, "darwin", lambda now: looks.append(now) or now * share)
    assert host.others_run() == runs
    assert now[0] == pytest.approx(START_S + 0.0005), "a look"
    host.settle()
    ended_s = START_S + (0.251 if runs else 0.001)
    assert now[0] == pytest.approx(ended_s, abs=2e-4), "it ends where nothing rests, too"
    assert len(looks) // 2 == (pytest.approx(251, abs=1) if runs else 2), "between two looks it sleeps as long"


START_S = 100.001


def script_time(monkeypatch, platform, process_time):
    """Put a clock in place that sleeping moves on. Returns its time, in a list."""
    now = [START_S]
    monkeypatch.setattr(host, "_THREADS", "/no/such/folder")
    monkeypatch.setattr(host, "sys", SimpleNamespace(platform=platform))
    monkeypatch.setattr(host, "time", SimpleNamespace(
        perf_counter=lambda: now[0], process_time=lambda: process_time(now[0]), sleep=lambda s: now.append(now.pop() + s),
    ))  # fmt: skip
    return now


@pytest.mark.parametrize(("rate_hz", "runs"), [(3e9, True), (6e8, True), (4e8, False), (1e6, False)])
def test_windows_counts_cycles(rate_hz, runs, monkeypatch):
    """Its `process_time` has steps of 1/64 s: in a short look it stands still."""
    now = script_time(monkeypatch, "win32", lambda now: now // (1 / 64) / 64)

    def query(process, count):
        assert process.value == ctypes.c_void_p(-1).value, "this process"
        ctypes.cast(count, ctypes.POINTER(ctypes.c_uint64))[0] = round(now[0] * rate_hz)

    library = SimpleNamespace(QueryProcessCycleTime=query)
    monkeypatch.setattr(ctypes, "WinDLL", lambda name: library, raising=False)
    assert host.others_run() == runs
    assert now[0] < 100.01, "a short look is enough"


def test_threads_of_libraries_rest_soon_unless_the_user_says_otherwise(monkeypatch):
    usual = {"GOMP_SPINCOUNT": "30000", "OPENBLAS_THREAD_TIMEOUT": "20", "OMP_PROC_BIND": "true"}
    for own in ({}, dict.fromkeys(usual, "9")):
        for name in usual:
            monkeypatch.delenv(name, raising=False)
        for name, value in own.items():
            monkeypatch.setenv(name, value)
        host.set_up_threads()
        assert {name: host.os.environ[name] for name in usual} == usual | own


@pytest.mark.parametrize(("bound", "inside"), [("true", {3}), ("spread", {3, 5, 9}), (None, {3, 5, 9})])
def test_a_thread_is_kept_on_its_first_cpu_where_openmp_binds_and_gets_all_back(monkeypatch, bound, inside):
    cpus = [{3, 5, 9}]
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: set() if pid else {*cpus[0]}, raising=False)
    bind = lambda pid, new: pid or cpus.insert(0, {*new})  # noqa: E731
    monkeypatch.setattr(host.os, "sched_setaffinity", bind, raising=False)
    monkeypatch.delenv("OMP_PROC_BIND", raising=False)
    if bound:
        monkeypatch.setenv("OMP_PROC_BIND", bound)
    with host.on_first_cpu():
        assert cpus[0] == inside
    assert cpus[0] == {3, 5, 9}
    with host.on_all_cpus():
        cpus.insert(0, {5})
    assert cpus[0] == {3, 5, 9}


def test_several_slices_are_worked_on_beside_the_caller():
    starts = host.in_slices(lambda start: (start, threading.current_thread().name), 15, 10)
    assert [start for start, _ in starts] == [0, 10]
    assert all(name.startswith("gpubench-check") for _, name in starts)
    assert host.in_slices(lambda start: threading.current_thread(), 10, 10) == [threading.current_thread()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system forks no process")
def test_a_fork_has_threads_of_its_own():
    host.in_slices(int, 25, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that threads are no part of it is what is tried
        child = os.fork()
    if not child:
        signal.alarm(30)
        host.in_slices(int, 25, 10)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_thread_that_has_ended_does_not_run(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(host.os.path, "isdir", lambda path: True)
        patch.setattr(host.os, "listdir", lambda path: ["no such thread"])
        assert not host.others_run()


@pytest.mark.parametrize(("shape", "dtype"), [((), "float64"), ((3, 5), "float16"), ((1001,), "int32")])
def test_arrays_begin_at_a_cache_line(shape, dtype):
    arrays = [host.aligned_array(shape, dtype) for _ in range(9)]
    assert {(x.ctypes.data % 64, x.shape, x.dtype.name) for x in arrays} == {(0, shape, dtype)}


class Timed:
    """A session whose calls take the seconds that they name, and whose wait takes half a second."""

    def __init__(self):
        self.now, self.waits = 0.0, 0

    def clock(self):
        return self.now

    def run(self, seconds):
        self.now += seconds

    def sync(self):
        self.now, self.waits = self.now + 0.5, self.waits + 1


def test_the_stages_of_a_chain_are_timed_by_waits_or_by_the_device_behind_the_hosts():
    session = Timed()
    steps = [(HostCall(session, lambda: session.run(1.0) or (), ()), None), (2.0, None), (4.0, None)]
    assert host.read_stages(session, steps, [2.0, 4.0], None) == StageReading([1.5, 2.5, 4.5], 8.5, "waited")
    waits, reading = session.waits, StageReading([2.0, 4.0], 7.0, "event")
    read = host.read_stages(session, steps, [2.0, 4.0], lambda launches: reading)
    assert (read, session.waits) == (StageReading([1.0, 2.0, 4.0], 8.0, "event"), waits + 1)
    assert host.read_stages(session, steps, [2.0, 4.0], lambda launches: None) is None


def test_outputs_for_which_there_is_no_room_are_freed_but_for_what_is_the_callers():
    room, freed = ["loss"], []

    def allocate(shape, dtype):
        if not room:
            raise DeviceOutOfMemory("no room")
        return room.pop()

    session = SimpleNamespace(allocate=allocate, free=freed.append)
    op = kernels.load("cross_entropy")
    case = Case(op.name, op.group, {"n": 2}, "float32", "tuned", "resident", "numpy:0")
    with pytest.raises(DeviceOutOfMemory):
        host.allocate_outputs(session, op, case)
    assert freed == ["loss"]
    adds = msgspec.structs.replace(op, output=msgspec.structs.replace(op.output, name="z"))
    with pytest.raises(DeviceOutOfMemory):
        host.allocate_outputs(session, adds, case, ["z", "labels"])
    assert freed == ["loss"], "the input that is added to stays"
    room.append("dz")
    assert host.allocate_outputs(session, adds, case, ["z", "labels"]) == ("z", "dz")


class Plain(host.SingleDevice):
    """A device of this kind, and nothing else of a session."""

    def __init__(self, kind="gpu", *, bfloat16=True):
        self.device = Device(id="wgpu:0", backend="wgpu", kind=kind, name="a device", api="vulkan")
        self.limits, self.has_bfloat16 = Limits(max_buffer_bytes=1024, max_binding_bytes=1024), bfloat16

    def _refuse(self, op, case):
        return "its own reason"


Plain.__abstractmethods__ = frozenset()
ADD_ON = {"n": 8}


@pytest.mark.parametrize(("session", "name", "params", "dtype", "implementation", "regime", "why"), [
    (Plain(), "add", ADD_ON, "float32", "tuned", "resident-waited", "its own reason"),
    (Plain(), "add", ADD_ON, "bfloat16", "tuned", "resident-waited", "its own reason"),
    (Plain(bfloat16=False), "add", ADD_ON, "bfloat16", "tuned", "resident-waited", "no-dtype"),
    (Plain(), "tokenise", ADD_ON, "float16", "tuned", "resident-waited", "no-dtype"),
    (Plain("cpu"), "add", ADD_ON, "float32", "tuned", "resident", "its own reason"),
    (Plain("cpu"), "add", ADD_ON, "float32", "tuned", "transfer-always", "no-transfer"),
    (Plain("cpu"), "launch", {"n": 1}, "float32", "library", "resident", "no-implementation"),
    (Plain(), "launch", {"n": 1}, "float32", "library", "resident", None),
    (Plain(), "launch", {"n": 1}, "float32", "tuned", "resident", "no-implementation"),
    (Plain(), "upload", {"n": 1024}, "float32", "tuned", "resident", None),
    (Plain(), "upload", {"n": 1028}, "float32", "tuned", "resident", "limit"),
    (Plain(), "upload", {"n": 1024}, "float64", "tuned", "resident", "no-dtype"),
])  # fmt: skip
def test_what_no_device_of_a_kind_can_run_is_refused(session, name, params, dtype, implementation, regime, why):
    op = kernels.load(name)
    case = Case(name, op.group, params, dtype, implementation, regime, session.device.id)
    refusal = session.supports(op, case)
    assert getattr(refusal, "reason", refusal) == why


@pytest.mark.parametrize(("n", "reason"), [(128, None), (129, "limit")])
def test_operands_larger_than_the_device_are_refused(n, reason):
    case = Case("copy", "vector", {"n": n}, "float32", "library", "resident-waited", "torch:cuda:0")
    assert getattr(host.refuse_size(kernels.load("copy"), case, Plain().limits), "reason", None) == reason


@pytest.mark.parametrize(("values", "role", "dtype", "plain"), [
    ("uniform", "activation", None, True), (Range(0, 1), "activation", None, True), ("fan-in", "activation", None, False),
    ("uniform", "weight", None, False), ("uniform", "activation", "int32", False), (Range(0, 1), "state", None, False),
])  # fmt: skip
def test_plain_operands_are_activations_of_values_that_know_no_place(values, role, dtype, plain):
    assert host.is_plain(Operand("x", lambda params: (params["n"],), values, role, dtype)) == plain


def test_operands_in_host_memory_are_held_to_write_and_to_read_and_given_back():
    """The host looks at them only when the device has done its work, and by bytes."""
    memory, events, found = np.zeros(16, np.uint8), [], np.zeros(3, np.float32)

    def hold(buffers, *, write):
        events.append((*buffers, write))
        return [memory]

    device = SimpleNamespace(
        device=None, limits=None, threads=None, blas=None, sync=lambda: events.append("sync"),
        forget=lambda: events.append("forgotten"), enter=lambda: events.append("entered"),
    )  # fmt: skip
    held = SimpleNamespace(
        hold=hold, lend=lambda buffers: events.append((*buffers, "lent")), forget=lambda: events.append("freed"),
        close=lambda: events.append("closed"),
    )  # fmt: skip
    session = InPlaceSession(device, held)
    session.upload("x", np.arange(3.0, dtype=np.float32))
    session.download("x", found)
    assert [found.tolist(), session.memory("x", (3,), "float32").tolist()] == [[0, 1, 2]] * 2
    assert not memory[12:].any()
    assert events == ["sync", ("x", True), ("x", "lent"), *["sync", ("x", False), ("x", "lent")] * 2]
    assert session.home is device
    events.clear()
    session.enter()
    session.forget()
    session.close()
    assert events == ["entered", "forgotten", "freed", "closed"], "the device's session stays open"
