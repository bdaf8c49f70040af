"""What is read beside the blocks, and what becomes of samples that a slowed device gave: every way, scripted."""

import csv

import pytest

from gpubench import backends
from gpubench.measure.case_run import BLOCK_SAMPLES
from gpubench.measure.monitor import Monitor
from gpubench.measure.protocol import Sample
from gpubench.measure.worker_pool import Worker
from tests.fake.plans import carry_out, plan

CASE = "add/n=1024/float32/library/resident-queued@fake:"
ONE = ("--ops", "add", "--sizes", "1k", "--regimes", "resident-queued")
already = {}  # a scripted device does the same again


def measured(run, word, *more):
    command = ("--devices", f"fake:cpu,fake:{word}", *ONE, *more)
    ran = already[command] = already.get(command) or run(*command)
    assert ran.code == 0, ran.err
    return ran


def blocks_of(ran, word):
    """Of the first session: on a busy machine it may be repeated."""
    return [block for block in ran.outcomes[CASE + word]["blocks"] if block["session"] == 0]


def used(block):
    return len(block["wall_s"]) - block["warmup"]


def codes(ran):
    return [warning["code"] for warning in ran.result["warnings"]]


def test_clocks_are_read_in_every_block_of_the_gpu(run):
    ran = measured(run, "gpu")
    session = ran.result["sessions"][0]
    (read,) = session["telemetry"]
    blocks = blocks_of(ran, "gpu")
    columns = [read[name] for name in ("clock_hz", "memory_clock_hz", "temperature_c", "power_w", "throttle")]
    times = read["t_s"]
    assert (read["device_id"], {len(column) for column in columns}) == ("fake:gpu", {len(times)})
    assert (len(times) >= len(blocks), times) == (True, sorted(times))
    for block in blocks:
        assert (block["clock_hz"], block["throttle"]) == ([1.98e9] * used(block), [])
    on_cpu = ran.outcomes["add/n=1024/float32/library/resident@fake:cpu"]["blocks"]
    assert {block["clock_hz"] for block in on_cpu} == {None}
    assert "no-telemetry" not in codes(ran)


@pytest.mark.usefixtures("forked_children")
def test_nothing_is_read_while_the_cpu_is_timed(monkeypatch):
    """Whenever a device is asked for a sample, nothing is watched but a GPU that is the one asked."""
    watched, asked = [], set()
    watch, rest, send = Monitor.watch, Monitor.rest, Worker.send

    def sent(self, request):
        if isinstance(request, Sample):
            device_id = request.case_id.rpartition("@")[2]
            asked.add(device_id)
            assert watched == ([device_id] if device_id == "fake:gpu" else [])
        return send(self, request)

    monkeypatch.setattr(Monitor, "watch", lambda self, name: (watched.append(name), watch(self, name)))
    monkeypatch.setattr(Monitor, "rest", lambda self: (watched.clear(), rest(self))[1])
    monkeypatch.setattr(Worker, "send", sent)
    carry_out(plan([d for d in backends.load("fake").devices() if d.id in ("fake:cpu", "fake:gpu")]))
    assert asked == {"fake:cpu", "fake:gpu"}


def test_whoever_is_on_the_gpu_before_a_worker_opens_it_is_told_once(run, in_process):
    ran = measured(run, "shared", "--sessions", "2")
    (found,) = [warning for warning in ran.result["warnings"] if warning["code"] == "other-gpu-users"]
    assert (found["severity"], found["session"]) == ("warning", 0)
    assert "another process was computing on fake:shared" in found["message"]
    assert "another process was computing on fake:shared" in ran.err
    assert "other-gpu-users" in ran.out
    table = in_process("report", str(ran.folder / "r.json"), "--format", "csv").stdout.splitlines()
    told = {row["device"]: "other-gpu-users" in row["warnings"] for row in csv.DictReader(table)}
    assert told == {"fake:cpu": False, "fake:shared": True}
    assert "other-gpu-users" not in codes(measured(run, "gpu"))


def test_throttled_samples_are_kept_marked_and_taken_again_three_times(run):
    ran = measured(run, "throttle")
    blocks = blocks_of(ran, "throttle")
    assert [block["round"] for block in blocks] == [0, 0, 0, 0], "one block and three tries"
    for block in blocks:
        numbers = range(block["warmup"], len(block["wall_s"]))
        assert (len(numbers), block["throttle"]) == (BLOCK_SAMPLES, ["hw_thermal_slowdown"])
        assert block["discarded"] == {str(number): "throttled" for number in numbers}
    assert "throttled (1 case)" in ran.out
    assert blocks[-1]["t_s"] - blocks[0]["t_s"] >= 1.3, "pauses of 0.05, 0.25 and 1 s"


@pytest.mark.serial  # a block that another program stretches beyond 20 ms is read twice
def test_a_device_that_recovers_is_measured_again_and_carries_no_label(run):
    ran = measured(run, "cools")
    first, *rest = blocks_of(ran, "cools")
    assert len(first["discarded"]) == used(first) == BLOCK_SAMPLES
    assert not any(block["discarded"] for block in rest)
    assert sum(used(block) for block in rest) >= 5
    reported = " ".join(ran.out.split())
    assert "throttled (1 case): samples taken while the device was throttled were set aside" in reported
    assert "was throttled; no headline" not in reported


def test_a_driver_that_does_not_answer_ends_and_delays_nothing(run):
    ran = measured(run, "monitor-dies")
    assert all(outcome["type"] == "measurement" and outcome["stops"] for outcome in ran.outcomes.values())
    assert [line for line in ran.out.splitlines() if "1024" in line.split()[:2]], "no table is empty"
    (warning,) = [w for w in ran.result["warnings"] if w["code"] == "no-telemetry"]
    words = ("the monitor ended", "fake:monitor-dies")
    assert (warning["severity"], [word in warning["message"] for word in words]) == ("info", [True, True])
    assert all(block["clock_hz"] is None for block in blocks_of(ran, "monitor-dies"))
    assert all(session["telemetry"] == [] for session in ran.result["sessions"])


def test_a_case_above_a_peak_is_shown_with_both_numbers_and_excluded(run_well):
    """A device that is faster than its own arithmetic and its own link gets no number."""
    ran = run_well(
        "--devices", "fake:cpu,fake:implausible,fake:gpu", "--ops", "add,matmul,relu", "--sizes", "add=1k",
        "--sizes", "matmul=512", "--sizes", "relu=1M", "--regimes", "resident-queued,transfer-always",
    )  # fmt: skip
    peaks = ran.result["sessions"][0]["peaks"]
    assert {c["device_id"]: c["flops_per_s"] for c in peaks if c["flops_per_s"]} == {
        "fake:cpu": 8e11, "fake:implausible": 4.5e13, "fake:gpu": 4.5e13,
    }  # fmt: skip
    assert {c["device_id"] for c in peaks if c["upload_bytes_per_s"]} == {"fake:implausible", "fake:gpu"}
    assert "FLOP/s is above 1.10 x" in ran.out
    assert "B/s over the link is above 1.10 x" in ran.out
    excluded = ran.out.partition("excluded")[2].partition("\n\n")[0]
    for size, regime in (("matmul/n=512", "resident-queued"), ("relu/n=1048576", "transfer-always")):
        fast, other = (f"{size}/float32/library/{regime}@fake:{word}" for word in ("implausible", "gpu"))
        assert (fast in ran.out, other in excluded) == (True, False)
        assert ran.outcomes[fast]["type"] == "measurement", "the samples stay in the file"
