"""Peaks: which are asked for, how they are found, and every reason for which there is none."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench import backends, kernels
from gpubench.backends.contract import Session, Transfers
from gpubench.backends.shared import peaks as chains
from gpubench.base.errors import Unsupported
from gpubench.measure import protocol
from gpubench.measure.plan import Workload, limit_s, plan_peaks
from gpubench.measure.protocol import PeakRequest
from gpubench.measure.worker import hardware
from gpubench.measure.worker_pool import DeviceGone, WorkerGone, WorkerPool
from gpubench.result.case import Case
from gpubench.result.machine import Cache, Cpu, Fact, Machine, Memory
from gpubench.result.run import SessionRecord, Settings
from tests.examples import examples
from tests.rows import rows
from tests.unit.measure.builders import device

CPU, VULKAN = device("numpy:0", "cpu"), device("wgpu:0", api="vulkan", gpu_id="GPU-a")
GPU = device("cupy:0", api="cuda", cache_bytes=50 << 20, gpu_id="GPU-a")
CACHE = Cache(level=3, type="unified", size_bytes=32 << 20, instances=2)
MACHINE = Machine(cpu=Cpu(caches=Fact([CACHE], "ok", "proc")))


def workload(op, n, *devices, dtype="float32", regime="resident-queued"):
    declared = kernels.load(op)
    cases = tuple(Case(op, declared.group, {"n": n}, dtype, "library", regime, device.id) for device in devices)
    return Workload(declared, {"n": n}, dtype, cases)


def unlike(kind):
    return msgspec.structs.replace(VULKAN, kind=kind)


LARGE = workload("copy", 28 << 20, CPU, GPU, VULKAN)  # 224 MiB: four caches of the CPU have 256, of the GPU 200
COPYING = [workload("relu", 1 << 18, GPU, regime=regime) for regime in ("transfer-always", "transfer-once")]


# Workloads, devices, and by device whether memory, link and which arithmetic are asked for.
@rows("workloads, devices, expected", {
    "small cases come near no peak": ([workload("add", 1 << 20, CPU, GPU), workload("matmul", 256, CPU, GPU)], (CPU, GPU), {}),
    "arithmetic where a case has enough of it, in its dtypes": (
        [workload("matmul", 1024, GPU), workload("matmul", 1024, CPU, GPU, dtype="float64")], (CPU, GPU),
        {"numpy:0": (False, False, ["float64"]), "cupy:0": (False, False, ["float32", "float64"])},
    ),
    "memory above four caches, once of a GPU": ([LARGE], (CPU, GPU, VULKAN), {"cupy:0": (True, False, [])}),
    "an unknown cache is a large one": ([LARGE], (CPU, VULKAN), {}),
    "memory of the CPU": ([workload("copy", 40 << 20, CPU)], (CPU, GPU), {"numpy:0": (True, False, [])}),
    "half a MiB there and back is no link": ([workload("relu", 1 << 16, GPU, regime="transfer-always")], (CPU, GPU), {}),
    "nor is what stays": ([workload("relu", 1 << 18, CPU, GPU, regime="resident")], (CPU, GPU), {}),
    **{f"the link for {item.cases[0].regime}": ([item, workload("relu", 1 << 18, CPU)], (CPU, GPU), {"cupy:0": (False, True, [])})
       for item in COPYING},
    "the link for an upload": ([workload("upload", 1 << 20, GPU)], (CPU, GPU), {"cupy:0": (False, True, [])}),
    "and not for memory alone": ([workload("allocate", 1 << 20, GPU)], (CPU, GPU), {}),
    **{f"none of {kind}": ([workload("matmul", 4096, unlike(kind))], (unlike(kind),), {}) for kind in ("software", "hybrid")},
})  # fmt: skip
def test_a_peak_is_asked_for_where_a_case_may_come_near_it(workloads, devices, expected):
    found = plan_peaks(workloads, devices, Settings(), MACHINE)
    assert {id: (what.memory, what.link, what.compute) for id, what in found.items()} == expected
    assert {what.cache_bytes for id, what in found.items() if id == "numpy:0"} <= {64 << 20}


@pytest.mark.parametrize(("usable", "host", "each"), [
    (None, None, 2**30), (2**33, None, 2**30), (2**33, 2**32, 2**29), (2**31, 2**40, 2**28), (None, 2**31, 2**28),
])  # fmt: skip
def test_the_arrays_of_a_peak_are_an_eighth_of_the_smaller_memory(usable, host, each):
    item = workload("matmul", 1024, CPU)
    cpu = msgspec.structs.replace(CPU, usable_bytes=usable)
    machine = Machine(memory=Memory(usable_bytes=Fact(host, "ok" if host else "missing", "proc")))
    assert plan_peaks([item], [cpu], Settings(), machine)[CPU.id].memory_bytes == each


@pytest.mark.parametrize(("chosen", "seconds"), [
    (Settings(), 1.0), (Settings(preset="quick"), 0.3), (Settings(budget_s=60.0), 0.4),
    (Settings(preset="quick", budget_s=3.0), 0.02),
])  # fmt: skip
def test_a_small_run_stays_a_small_one(chosen, seconds):
    assert limit_s(chosen) == pytest.approx(seconds)


class Broken:
    """A worker that dies over its peaks, or refuses."""

    next_id = 7

    def __init__(self, reply=None):
        self.reply, self.killed = reply, False

    def ask(self, request, deadline_s):
        assert deadline_s > request.peaks.limit_s
        if self.reply is None:
            raise WorkerGone("worker-crashed", "it fell over", "peaks", "")
        return self.reply

    def kill(self):
        self.killed = True


@pytest.mark.parametrize(("worker", "reason"), [
    (Broken(), "it fell over"), (Broken(protocol.Refused(id=7, reason="out-of-memory", detail="too big")), "too big"),
])  # fmt: skip
def test_a_device_that_breaks_over_its_peaks_is_measured_without(tmp_path, worker, reason):
    gone = {"gone:0": DeviceGone("device-lost", "it is gone")}
    pool = WorkerPool(Settings(), tmp_path, gone, (), Machine())
    pool.workers["cupy:0"] = worker
    asked = PeakRequest(memory=True, compute=[], cache_bytes=0, memory_bytes=0, limit_s=1.0)
    pool.measure_peaks({"gone:0": asked, "cupy:0": asked})
    record = pool.enter_into(SessionRecord(index=0, started_at="2026-01-01T00:00:00Z"))
    assert [(c.device_id, c.reason) for c in record.peaks] == [("cupy:0", reason)]
    assert worker.killed == (worker.reply is None), "a dead worker is replaced"


class Scripted(Session):
    """A device whose product of side n runs at `rates[n]`, and whose memory moves a byte a nanosecond."""

    def __init__(self, rates=None, kind="gpu", spoil=0.0):
        self.device = msgspec.structs.replace(GPU, id="cupy:0", kind=kind)
        self.rates, self.spoil, self.launched, self.held, self.longest_s = rates or {}, spoil, [], 0, 0.0

    def supports(self, op, case):
        return None if case.implementation == "library" and self.device.kind != "hybrid" else Unsupported("no")

    def host_array(self, shape, dtype, implementation):
        return np.empty(shape, dtype)

    def empty_launch(self):
        return SimpleNamespace(output=None)

    def allocate(self, shape, dtype):
        self.held += 1
        return np.empty(shape, dtype)

    def free(self, buffer):
        self.held -= 1

    def upload(self, buffer, host):
        buffer[...] = host

    def download(self, buffer, host):
        host[...] = buffer

    def compile(self, op, case, inputs, output):
        assert case.implementation == "library", "the other one is refused"
        self.launched.append((op.name, case.params["n"]))
        answer = np.asarray(op.expr(np, *inputs))
        answer.reshape(-1)[-1] += self.spoil
        if op.name == "matmul":
            self.each_s = op.flops(case.params) / self.rates[case.params["n"]]
        else:
            self.each_s = op.bytes(case.params, case.dtype) * 1e-9
        return SimpleNamespace(output=answer)

    run = sync = close = lambda self, *_: None

    def time(self, launch, repeat=1, *, cold=False):
        self.longest_s = max(self.longest_s, self.each_s * repeat)
        return self.each_s * repeat

    clock = staticmethod(float)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    sides = {"FIRST_SIDE": 32, "FIRST_SIDE_CPU": 32, "LAST_SIDE": 256}
    for name, value in (sides | {"ARRAY_BYTES": 1 << 16, "LINK_ARRAY_BYTES": 1 << 16}).items():
        monkeypatch.setattr(hardware, name, value)


def find(session, *, memory=False, compute=(), link=False, limit_s=60.0, memory_bytes=1 << 30):
    limits = {"cache_bytes": 0, "memory_bytes": memory_bytes, "limit_s": limit_s}
    found = hardware.measure_peaks(session, PeakRequest(memory=memory, compute=[*compute], link=link, **limits))
    assert getattr(session, "held", 0) == 0, "every buffer was given back"
    for peak in found:
        rate = peak.bytes_per_s or peak.flops_per_s or peak.upload_bytes_per_s
        assert (rate is None) != (peak.reason is None), "a rate, or the reason for none"
    return found


RISING, FLAT = {32: 1e9, 64: 2e9, 128: 3e9, 256: 4e9}, {32: 1e9, 64: 2e9, 128: 3e9, 256: 3.1e9}


# The device, what is asked for, and of each peak its rate or words of the reason for none.
@rows("session, asked, expected", {
    "products grow until the rate hardly rises": (Scripted(FLAT), {"compute": ["float32"]}, [3.1e9]),
    "a rate that falls again leaves the best": (Scripted({32: 1e9, 64: 2e9, 128: 1.5e9}), {"compute": ["float32"]}, [2e9]),
    "a rate that still rises is none": (Scripted(RISING), {"compute": ["float32"]}, ["still rose at n = 256"]),
    "nor one that time cut short": (Scripted(RISING), {"compute": ["float32"], "limit_s": 0.0}, ["still rose at n = 32"]),
    "memory that does not do": (Scripted(RISING), {"compute": ["float32"], "memory": True, "memory_bytes": 1 << 10}, ["memory"] * 2),
    "a wrong kernel sets none": (Scripted({32: 1e9, 64: 1e9}, spoil=1e3), {"compute": ["float32"], "memory": True},
        ["the result of copy is wrong", "the product is wrong"]),
    "a GPU's memory is the better of copying and reading": (Scripted(), {"memory": True}, [1e9]),
    "nothing that its device runs": (Scripted(kind="hybrid"), {"compute": ["float32"]}, ["no"]),
    "a CPU reads each line that it is about to write": (Scripted(kind="cpu"), {"memory": True}, [1.5e9]),
})  # fmt: skip
def test_a_peak_or_the_reason_for_none(session, asked, expected):
    found = find(session, **asked)
    for peak, want in zip(found, expected, strict=True):
        if isinstance(want, str):
            assert want in peak.reason
        else:
            assert (peak.bytes_per_s or peak.flops_per_s) == pytest.approx(want, rel=1e-3)
    assert not any(peak.own for peak in found)
    assert session.longest_s > 1e-3 / 2 or not session.launched
    if session.rates is FLAT:
        sides = [("matmul", n) for n in (32, 32, 64, 128, 256)]
        assert session.launched == sides, "the first sets the library up"
    if asked == {"memory": True}:
        launched = [(op, 1 << 14) for op in ("copy", "dot")]
        assert session.launched == launched[: 1 + (session.device.kind == "gpu")]


def test_a_device_that_knows_its_peaks_is_believed():
    session = backends.load("fake").open("fake:gpu")
    found = find(session, memory=True, compute=["float32"], memory_bytes=1, limit_s=0.0)
    rates = [(c.dtype, c.bytes_per_s, c.flops_per_s) for c in found]
    assert rates == [(None, 3e12, None), ("float32", None, 4.5e13)]


class Full(Scripted):
    """A device whose memory, or the host's, does not do, or whose product is chosen by trials."""

    def __init__(self, error, at):
        super().__init__({32: 1e9, 64: 1e9})
        self.error, self.at, self.tuned, self.ran, self.timed = error, at, [], False, []

    def upload(self, buffer, host):
        if self.held == self.at:
            raise self.error
        super().upload(buffer, host)

    def tune(self, op, case, inputs):
        self.tuned.append((op.name, len(inputs)))

    def run(self, *_):
        self.ran = True

    def time(self, launch, repeat=1, *, cold=False):
        assert self.ran, "a first launch is not timed"
        self.timed.append(repeat)
        return super().time(launch, repeat)


@pytest.mark.parametrize(
    ("error", "why"), [(MemoryError(), "the host's memory does not do for it"), (Unsupported("no"), "no")]
)
@pytest.mark.parametrize("at", [1, 2])
def test_a_trial_that_fails_gives_its_buffers_back(error, why, at):
    assert [peak.reason for peak in find(Full(error, at), compute=["float32"])] == [why]


def test_a_device_that_tunes_does_so_with_the_inputs_and_a_product_found_by_trials_has_no_peak():
    for each_s, timed in ((1e-4, [1, *[10] * 5]), (0.019, [1] * 6), (0.02, [1] * 3)):
        session = Full(None, 0)
        session.rates = dict.fromkeys((32, 64), kernels.load("matmul").flops({"n": 32}) / each_s)
        find(session, compute=["float32"])
        assert session.timed[: len(timed)] == timed
    session = Full(None, 0)
    assert [peak.reason for peak in find(session, compute=["float32"])] == [None]
    assert {*session.tuned} == {("matmul", 2)}
    session.supports = lambda op, case: None
    session.device = msgspec.structs.replace(session.device, id="wgpu:0", backend="wgpu")
    (peak,) = find(session, compute=["float32"])
    assert peak.reason == "the best matmul of this device is found by trials at each size"
    op = kernels.load("allocate")
    case = Case("allocate", op.group, {"n": 64}, "float32", "library", "resident", "cupy:0")
    session.transfers = Transfers
    with pytest.raises(Unsupported, match="wgpu has no memory past its pool"):
        hardware.OverheadTimer(session, op, case, None)


class Linked(Scripted):
    """A device whose link carries `rate` bytes a second to it, and half as much back; `loses`: nothing arrives."""

    def __init__(self, rate=None, *, loses=False):
        super().__init__()
        self.rate, self.loses, self.now, self.under_way_s = rate, loses, 7.0, 0.0

    def clock(self):
        return self.now

    def transfers(self, implementation):
        way = Transfers(self)
        way.staging = "pinned" if implementation == "tuned" and self.rate else "pageable"
        return way

    def upload(self, buffer, host):
        super().upload(buffer, host * (not self.loses))
        self.under_way_s += host.nbytes / (self.rate or 1.0)

    def sync(self):
        self.now, self.under_way_s = self.now + self.under_way_s, 0.0

    def download(self, buffer, host):
        super().download(buffer, host)
        self.now += host.nbytes / (self.rate or 1.0) * 2


@given(st.floats(1e6, 1e12))
@settings(max_examples=examples(20), deadline=None)
def test_the_link_is_measured_in_both_directions_from_page_locked_memory(rate):
    (found,) = find(Linked(rate), link=True)
    assert (found.upload_bytes_per_s, found.download_bytes_per_s) == pytest.approx((rate, rate / 2))


def test_a_link_behind_a_copy_of_the_host_or_that_loses_data_has_no_peak():
    (staged,) = find(Linked(), link=True)
    (lost,) = find(Linked(1e9, loses=True), link=True)
    (crowded,) = find(Linked(1e9), link=True, memory_bytes=1 << 17)
    assert "copies each transfer once more" in staged.reason
    assert lost.reason == "what came back is not what was sent"
    assert "memory" in crowded.reason


@pytest.mark.parametrize("error", [np.nan, 0.5, -0.5])
def test_one_wrong_element_fails(error):
    a, b = chains.pattern((40, 30), "float32", 1), chains.pattern((30, 40), "float32", 2)
    c = a @ b
    c[39, 17] += error
    assert not chains.is_product(a, b, c, "float32")
    x, y = (chains.pattern((5000,), "float32", seed) for seed in (1, 2))
    other = x.copy()
    other[-1] += error
    assert (chains.is_copy(x.copy(), x), chains.is_copy(other, x)) == (True, False)
    sums = np.asarray(x @ y), np.asarray(x @ y + np.float32(2 * error))
    assert [chains.is_dot(found, x, y) for found in sums] == [True, False]


class Chained(Scripted):
    """A device that offers multiply-adds, at `rate` FLOP/s after `idle_s` a launch; `spoil` makes them wrong."""

    def __init__(self, rate, *, idle_s=0.0, spoil=0.0):
        super().__init__(spoil=spoil)
        self.rate, self.idle_s, self.rounds, self.timed = rate, idle_s, [], 0

    def multiply_adds(self, dtype, rounds):
        if dtype == "float64":
            raise Unsupported("no float64 here", reason="no-dtype")
        self.rounds.append(rounds)
        self.each_s = self.idle_s + chains.chain_flops(rounds) / self.rate
        return SimpleNamespace(output=self.allocate((chains.THREADS,), dtype))

    def run(self, launch, repeat=1):
        launch.output[...] = chains.chain_sums()
        launch.output[-1] += self.spoil

    def time(self, launch, repeat=1, *, cold=False):
        self.timed += 1
        return super().time(launch, repeat)


@pytest.mark.parametrize(("idle_s", "timings"), [(0.002, 20), (0.005, 10), (0.02, 5)])
def test_multiply_adds_work_for_a_twentieth_of_a_second_while_the_clock_rises(idle_s, timings):
    session = Chained(1e13, idle_s=idle_s)
    find(session, compute=["float32"])
    assert session.timed == 1 + timings


@given(st.floats(1e10, 1e14))
@settings(max_examples=examples(4), deadline=None)
@pytest.mark.slow
def test_multiply_adds_last_a_millisecond_and_tell_their_rate(rate):
    session = Chained(rate)
    (found,) = find(session, compute=["float32"])
    assert found.flops_per_s == pytest.approx(rate)
    assert session.each_s >= 1e-3
    assert (found.own, session.launched) == (True, []), "no product is tried"
    assert len(session.rounds) <= 5, "hardly more trials than a launch's own start makes needed"


def test_multiply_adds_that_are_wrong_or_missing_or_late_set_no_peak():
    (wrong,) = find(Chained(1e13, spoil=1.0), compute=["float32"])
    (missing,) = find(Chained(1e13), compute=["float64"])
    (late,) = find(Chained(1e13), compute=["float32"], limit_s=0.0)
    assert (wrong.reason, missing.reason) == ("the multiply-adds are wrong", "no float64 here")
    assert "time for it was over" in late.reason


def test_what_an_earlier_launch_left_does_not_pass_for_the_answer():
    session, kept = Chained(1e13), chains.chain_sums()

    def allocate(shape, dtype):
        session.held += 1
        return kept.copy()

    session.allocate = allocate
    session.run = lambda launch, repeat=1: None
    (found,) = find(session, compute=["float32"])
    assert found.reason == "the multiply-adds are wrong"
