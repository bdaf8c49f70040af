"""wgpu on a software adapter: its suite, clock, peaks and overheads, and nothing is left behind in small counts (`benchmarks/leaks.py` has the full ones)."""

import json
import time

import msgspec
import pytest

from benchmarks import leak_traces as leaks
from gpubench import kernels
from gpubench.backends import wgpu
from gpubench.backends.shared import peaks as chains
from gpubench.backends.wgpu.transfers import BUFFERS, CHUNK_BYTES
from gpubench.measure import conformance, protocol
from gpubench.measure.protocol import PeakRequest
from gpubench.measure.worker import hardware
from gpubench.measure.worker.hardware import OverheadTimer
from gpubench.result.case import Case

pytestmark = pytest.mark.vulkan


def test_the_suite(device):
    # Other sizes: tests of the kernels.
    checks = conformance.Checks(sizes=lambda op: conformance.usual_sizes(op)[3:4], seeds=(1,), exhaust=True)
    report = conformance.suite(wgpu.BACKEND, device.id, checks=checks)
    assert report.findings == []
    checked = {tuple(text.split("/")[i] for i in (0, 2, 3)) for text in report.checked}
    # Every op has a WGSL kernel in float32, and wgpu has no library implementation.
    assert {(name, "float32", "tuned") for name in kernels.usual()} <= checked
    assert {implementation for _, _, implementation in checked} == {"tuned"}
    assert set(report.refused.values()) <= {"no-dtype", "no-implementation", "unsupported", "limit"}
    assert conformance.LARGE_BYTES > BUFFERS * CHUNK_BYTES  # all staging buffers, and the first a second time


def test_the_file_names_the_kernel_and_has_the_step_that_the_open_device_told(tmp_path, gpubench, session):
    """Through the program and its workers: on a software adapter the kernel is the default, and nothing is remembered."""
    device, step_s = session.device, session.device.clock.step_s
    ended = gpubench(
        "run", "--ops", "matmul", "--sizes", "48", "--devices", f"fake:cpu,{device.id}", "--sessions", "1", "--regimes", "resident-queued",
        "--min-samples", "5", "--max-samples", "5", "--variant", "naive", "--no-autotune", "--no-progress", "-o", "r.json",
        env={"GPUBENCH_CACHE_DIR": str(tmp_path / "own")},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    run = json.loads((tmp_path / "r.json").read_text())
    clocks = {one["id"]: one["clock"] for one in run["devices"]}
    assert clocks["fake:cpu"] is None
    assert clocks[device.id] == {"kind": "pass-timestamp", "step_s": pytest.approx(step_s, rel=1e-5)}
    taken = {
        outcome["case"].get("variant"): outcome.get("kernel")
        for outcome in run["outcomes"]
        if outcome["case"]["device_id"] == device.id and outcome["type"] == "measurement"
    }
    assert set(taken) == {None, "naive"}
    assert taken["naive"] is None
    assert taken[None]
    assert run["settings"]["autotune"] is False
    assert not (tmp_path / "own" / "choices.json.sealed").exists()
    shown = gpubench("report", "r.json", "--format", "markdown", "--sections", "raw").stdout
    assert taken[None] in shown


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_multiply_adds_are_right_and_have_a_rate(session, dtype):
    if dtype == "float64" and not session.limits.float64:
        pytest.skip("this adapter has no double precision")
    wanted = PeakRequest(memory=False, compute=[dtype], cache_bytes=0, memory_bytes=1 << 33, limit_s=20.0)
    (found,) = hardware.measure_peaks(session, wanted)
    assert found.reason is None
    assert 1e8 < found.flops_per_s < 1e13


@pytest.mark.serial  # it compares times
def test_no_compiler_leaves_steps_out(session):
    """Sixteen times the rounds take about sixteen times as long; what is known beforehand would take no time."""

    def seconds(rounds):
        launch = session.multiply_adds("float32", rounds)
        session.run(launch)
        session.sync()
        # As long for both.
        found = min(hardware.launch_seconds(session, launch, 1) for _ in range(16 // rounds))
        session.free(launch.output)
        return found

    assert chains.chain_flops(16) == 16 * chains.chain_flops(1)
    assert seconds(16) > 4 * seconds(1)


def test_stages_are_timed_by_one_set_of_stamps_after_another_and_recordings_by_the_host(session, monkeypatch):
    times, encode = [], wgpu.Queue.encode
    monkeypatch.setattr(wgpu.Queue, "encode", lambda *given: times.append(given[-1]) or encode(*given))
    monkeypatch.setattr(wgpu, "_STAMP_SETS", 1)
    launch = session.empty_launch()
    for count in (1, 2, 1):
        reading = session.stage_times([(launch, None)] * count)
        assert (len(reading.steps_s), reading.clock) == (count, "pass-timestamp")
        assert 0 <= sum(reading.steps_s) <= reading.span_s * 1.001
    assert times == [1] * 4
    monkeypatch.setattr(wgpu.StampSet, "read", lambda stamps, encoder: [5, 3])
    assert session.stage_times([(launch, None)]) is None, "the clock went backwards"
    for software in (True, False):
        monkeypatch.setattr(session, "limits", msgspec.structs.replace(session.limits, software=software))
        recording = session.recording(launch)
        assert 0 < recording.first_s <= recording.whole_s < 1


def timer_of(session, name, implementation, n):
    case = Case(name, "overhead", {"n": n}, "float32", implementation, "resident", session.device.id)
    op = kernels.load(name)
    assert session.supports(op, case) is None
    opening = protocol.Open(
        id=1, device_id=session.device.id, threads=None, seed=1, inputs="random", scratch=b"", since=time.monotonic()
    )  # fmt: skip
    return OverheadTimer(session, op, case, opening)


@pytest.mark.parametrize("name", ["open", "launch", "roundtrip", "sync"])
def test_a_call_without_a_size(session, name):
    found = timer_of(session, name, "library", 1)
    assert found.verify().ok
    assert found.seconds(1 if name == "open" else 300) > 0
    found.release()


@pytest.mark.parametrize("n", [4, 1024, (1 << 16) + 4, (16 << 20) + 4])  # the last is above all staging buffers
@pytest.mark.parametrize("implementation", ["library", "tuned"])
@pytest.mark.parametrize("name", ["allocate", "upload", "download"])
def test_a_call_with_a_size(session, name, implementation, n):
    found = timer_of(session, name, implementation, n)
    assert found.verify().ok
    assert found.seconds(2) > 0
    assert found.verify().ok, "also after it was timed"
    assert found.staging == {"library": "pageable", "tuned": "mapped"}[implementation]
    found.release()


def test_launches_and_openings_leave_nothing_behind(device, tmp_path):
    session, sum_op = wgpu.BACKEND.open(device.id), kernels.load("sum")
    traces = [leaks.openings(wgpu.BACKEND, device.id, sum_op, tmp_path, leaks.Repeats(4))]
    # What is kept or lost depends neither on the dtype nor on the formula: one op of each template.
    for op in map(kernels.load, ("add", "softmax", "gemv", "transpose", "matmul", "sum")):
        case = Case(op.name, op.group, {"n": 65}, "float32", "tuned", session.device.resident_regime, device.id)
        if session.supports(op, case) is None:
            traces.append(leaks.launches(session, op, case, tmp_path, leaks.Repeats(100)))
    session.close()
    assert [trace.leaks() for trace in traces] == [[]] * 7


def test_a_device_that_is_not_closed_is_found(device, tmp_path):
    class Forgetful:
        name, implementations = "wgpu", ("tuned",)

        def __init__(self):
            self.kept = []

        def open(self, device_id, threads=None):
            session = wgpu.BACKEND.open(device_id)
            self.kept.append((session, session.close))
            session.close = lambda: None
            return session

    forgetful = Forgetful()
    found = leaks.openings(forgetful, device.id, kernels.load("add"), tmp_path, leaks.Repeats(4))
    for _, close in forgetful.kept:
        close()
    assert found.leaks()
