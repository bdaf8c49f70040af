"""What a run without accidents records: rounds, regimes, parts, both clocks, sessions, the same for a seed."""

import json
from collections import defaultdict
from functools import partial
from itertools import pairwise
from statistics import median
from unittest.mock import Mock

import numpy as np
import pytest

from gpubench import backends, kernels
from gpubench.analysis.analyse import analyse
from gpubench.backends.contract import HostCall
from gpubench.backends.shared.host import clock_calls
from gpubench.measure.case_run import BLOCK_SAMPLES
from gpubench.measure.worker import parts, timer
from gpubench.measure.worker.timer import TOO_SHORT
from gpubench.measure.worker.workspace import gate, kind_of
from gpubench.result.case import Case
from gpubench.result.store import load

ARGUMENTS = "--devices fake:cpu,fake:gpu --ops add,matmul --sizes 64,1k --sizes matmul=64,256".split()


@pytest.fixture(scope="module")
def ran(run_well):
    # Time enough that precision ends a case on a busy machine, too.
    return run_well(*ARGUMENTS, *"--sessions 2 --min-samples 12 --max-samples 20 --max-time 5s".split())


def blocks(ran, part=""):
    """(case id, block) of every block, in the order in which they were measured."""
    found = [(name, block) for name, o in ran.outcomes.items() if part in name for block in o["blocks"]]
    return sorted(found, key=lambda pair: (pair[1]["session"], pair[1]["t_s"]))


REGIMES_OF_GPU = ("resident-waited", "resident-queued", "transfer-once-10", "transfer-always")


def kept(outcome):
    return [value for block in outcome["blocks"] for value in block["wall_s"][block["warmup"] :]]


@pytest.mark.check
def test_every_case_is_measured_and_the_file_is_complete(ran):
    result = ran.result
    assert (result["complete"], result["exit_code"], result["exit_reason"]) == (True, 0, "ok")
    sizes = (("add", 64), ("add", 1024), ("matmul", 64), ("matmul", 256))
    places = ("resident@fake:cpu", *(f"{name}@fake:gpu" for name in REGIMES_OF_GPU))
    expected = {f"{op}/n={n}/float32/library/{place}" for op, n in sizes for place in places}
    assert set(ran.outcomes) == expected
    assert {(o["type"], o["check"]["ok"]) for o in ran.outcomes.values()} == {("measurement", True)}
    assert [s["index"] for s in result["sessions"]] == [0, 1]


def test_each_round_holds_one_block_of_every_case_and_every_second_round_is_reversed(ran):
    rounds = defaultdict(list)
    for name, block in blocks(ran, "add/n=1024/"):
        rounds[block["session"], block["round"]].append((block["position"], name))
    orders = {key: [name for _, name in sorted(cases)] for key, cases in rounds.items()}
    for (session, number), cases in rounds.items():
        assert [position for position, _ in cases] == list(range(5)), "positions are the order in time"
        if number % 2:
            assert orders[session, number] == orders[session, number - 1][::-1]
    assert {number for _, number in rounds} == set(range(12 // BLOCK_SAMPLES)), "until there are 12 samples"
    assert {session for session, _ in rounds} == {0, 1}
    assert orders[0, 0] != orders[0, 2] or orders[0, 0] != orders[1, 0], "the order is drawn anew"


def test_sessions_workloads_and_samples(ran):
    """Workloads come one after the other, repeat counts stay, and nothing is kept but samples that are long enough."""
    for session in ran.result["sessions"]:
        own = [name for name, block in blocks(ran) if block["session"] == session["index"]]
        order = [name.rpartition("/")[0].rpartition("/")[0] for name in own]
        assert sum(a != b for a, b in pairwise(order)) == len(set(order)) - 1
        assert sorted(w["device_id"] for w in session["workers"]) == ["fake:cpu", "fake:gpu"]
        assert all(len(w["overhead_s"]) >= 100 for w in session["workers"])
    target_s = ran.result["settings"]["sample_s"]
    for name, outcome in ran.outcomes.items():
        assert len({(b["repeat"], b["hot_repeat"]) for b in outcome["blocks"]}) == 1
        assert {b["session"] for b in outcome["blocks"]} == {0, 1}
        stops = [(stop["session"], stop["reason"]) for stop in outcome["stops"]]
        assert stops == [(0, "precision"), (1, "precision")]
        for block in outcome["blocks"]:
            assert (block["warmup"], len(block["wall_s"]), block["discarded"]) == (0, BLOCK_SAMPLES, {}), name
            assert block["repeat"] * min(block["wall_s"]) >= TOO_SHORT * target_s, name
            on_device = "resident-queued@fake:gpu" in name
            assert bool(block["device_hot_s"]) == bool(block["device_cold_s"]) == on_device, name
            if on_device:
                assert max(block["device_hot_s"]) <= min(block["wall_s"]) + 1e-9


def test_the_regimes_cost_what_the_script_says(ran):
    cases = (ran.outcomes[f"add/n=1024/float32/library/{regime}@fake:gpu"] for regime in REGIMES_OF_GPU)
    waited, resident, once, always = (median(kept(case)) for case in cases)
    assert resident < once < always
    assert resident < waited < always, "each launch has its own wait"
    # transfer-once shares one upload and download among ten launches.
    copies = 2 * (8e-6 + 4096 / 5e10) + 8e-6 + 4096 / 5e10
    assert once == pytest.approx(resident + copies / 10, rel=0.1)


def test_with_cold_caches_every_sample_is_one_launch(run_well):
    ran = run_well(
        "--devices", "fake:gpu", "--ops", "relu", "--sizes", "1k", "--cache", "cold",
        "--regimes", "resident-queued,transfer-once", "--min-samples", "2", "--max-samples", "2",
    )  # fmt: skip
    assert ran.result["settings"]["cache"] == "cold"
    for name, outcome in ran.outcomes.items():
        assert {block["repeat"] for block in outcome["blocks"]} == {10 if "once" in name else 1}, name
    assert "caches cold" in ran.out


def test_sequential_order_finishes_one_case_before_the_next(run_well):
    ran = run_well("--devices", "fake:cpu,fake:gpu", "--ops", "add", "--sizes", "1k", "--order", "sequential",
              "--precision", "1%", "--min-samples", "10", env={"GPUBENCH_FAKE_NOISE": "0.05"})  # fmt: skip
    order = [name for name, _ in blocks(ran)]
    assert len(order) > len(set(order)), "more than one block a case"
    assert sum(a != b for a, b in pairwise(order)) == len(set(order)) - 1


def scripted(result):
    """A result without what real time, the machine and chance put into it."""
    fields = ("selection", "settings", "outcomes", "warnings", "exit_code")
    kept_fields = {name: result[name] for name in fields}
    for outcome in kept_fields["outcomes"]:
        for block in outcome["blocks"]:
            del block["t_s"]
            # A warm-up ends by real time, too, where the machine is busy.
            block["wall_s"] = block["wall_s"][block.pop("warmup") :]
    workers = [[{**w, "open_s": None} for w in session["workers"]] for session in result["sessions"]]
    return json.dumps([kept_fields, workers], sort_keys=True)


def test_the_same_seed_gives_the_same_result_byte_for_byte(run):
    # Time enough that precision ends each case on a busy machine, too.
    arguments = ("--devices", "fake:cpu,fake:gpu", "--ops", "gelu", "--sizes", "64", "--max-time", "5s")
    first, second, other = run(*arguments), run(*arguments), run(*arguments, "--seed", "2")
    assert scripted(first.result) == scripted(second.result)
    errors = [[o["check"]["max_error"] for o in r.result["outcomes"]] for r in (first, other)]
    assert errors[0] != errors[1], "another seed draws other inputs"


# ---------------------------------------------------------------------- the parts of a call are the whole, exactly, or a warning says so


OPS = ("--ops", "matmul,add,softmax", "--sizes", "matmul=1k", "--sizes", "add=64k", "--sizes", "softmax=4k")
# The file has six digits: half of the last one for the whole and for each of six parts.
ROUNDING = 7 * 5e-6
SHORTEST_S = 2e-9  # no time in a file is 0


CALLS = [("gpu", "matmul", 96), ("gpu", "add", 1000), ("no-clock", "max", 5000)]


@pytest.mark.parametrize(("device", "op", "n"), CALLS)
def test_the_residual_is_exactly_zero(tmp_path, device, op, n):
    """On a clock that nothing disturbs, and with nothing rounded: what is left are the digits of a float."""
    session, declared = backends.load("fake").open(f"fake:{device}"), kernels.load(op)
    case = Case(op, declared.group, {"n": n}, "float32", "library", "transfer-always", f"fake:{device}")
    workspace = kind_of(declared)(session, declared, case, 1, "random", tmp_path)
    cycle = timer.Timer(workspace, case, gate(workspace, case, lambda phase: None).launch)
    whole = cycle.seconds(1)
    flushed = cycle.flush = Mock()
    one = parts.parts_of_call(cycle)
    assert flushed.call_count == 1, "where caches are to be cold"
    kernel = session.time(cycle.launch, 1, cold=True)
    if kernel is None:
        kernel = one["single_s"] - one["launch_s"] - one["sync_s"]
    listed = [one[name] for name in ("alloc_s", "upload_s", "launch_s", "sync_s", "download_s")]
    assert min(listed) > 0
    assert whole - sum(listed) - kernel == pytest.approx(0, abs=1e-16)
    session.close()


@pytest.fixture(scope="module")
def rows(run_well):
    """The calls that copy, by device and op."""
    ran = run_well("--devices", "fake:cpu,fake:gpu,fake:no-clock,fake:overlaps", *OPS)
    assert "transfer-mismatch" not in ran.out
    clocks = {device["id"]: (device["clock"] or {}).get("kind") for device in ran.result["devices"]}
    assert (clocks["fake:cpu"], clocks["fake:no-clock"]) == (None, "derived")
    cases = analyse(load(ran.folder / "r.json")).cases
    return {(row.case.device_id, row.case.op): row for row in cases if row.case.regime == "transfer-always"}


@pytest.mark.parametrize("device", ["fake:gpu", "fake:no-clock"])
def test_the_parts_in_a_file_are_the_whole_to_its_last_digit(rows, device):
    for op in ("matmul", "add", "softmax"):
        parts = rows[device, op].time_breakdown
        assert abs(parts.residual_s) <= ROUNDING * parts.whole_s + SHORTEST_S, op
        assert parts.first_result_s is not None
        assert parts.kernel_derived == (device == "fake:no-clock")


def test_where_copies_and_kernels_overlap_the_steps_of_the_call_still_add_up(rows):
    """The kernel of 54 us hides behind an upload of 184: parts timed alone would add up to a fifth more."""
    row = rows["fake:overlaps", "matmul"]
    assert abs(row.time_breakdown.residual_share) < 0.01
    assert "transfer-mismatch" not in row.findings
    assert row.time_breakdown.first_result_s is not None


# ---------------------------------------------------------------------- the script itself, in microseconds by the host's clock

VARIABLES = {"GPUBENCH_FAKE_GPUS": "2", "GPUBENCH_FAKE_SLOWER": "1.5", "GPUBENCH_FAKE_SLOW": "gpu0=3 gpu1=2", "GPUBENCH_FAKE_HEAT": "gpu1=0.0001"}  # fmt: skip
SCRIPT = {
    ("cpu", "matmul", 512): "0.9 100.9 28.97 1010 0.001 0.001 336.5 0.001 14.49 0.001 0.1 0.001 336.5 28.97 1 4 1 1 4 1 354.5 336.5 0.001 336.5 0.001 20 356.5 0.001",
    ("cpu", "add", 262144): "0.9 100.9 28.97 238.9 0.001 0.001 79.64 0.001 14.49 0.001 0.1 0.001 79.64 28.97 1 4 1 1 4 1 97.62 79.64 0.001 79.64 0.001 20 99.64 0.001",
    ("gpu", "add", 262144): "0.9 100.9 28.97 12 13.15 18.1 4 36.02 14.49 14.49 0.1 20 11.05 28.97 1 4 1 1 4 1 25.02 14.49 0.001 4 62.92 20 4 82.92",
    ("no-clock", "matmul", 512): "0.9 100.9 28.97 12 27.9 0.001 4 40.94 14.49 14.49 0.1 20 15.97 28.97 1 4 1 1 4 1 29.94 14.49 0.001 4 62.92 20 4 82.92",
    ("implausible", "matmul", 512): "0.9 100.9 28.97 12 2.394 10.39 4 31.37 6.097 6.097 0.1 20 6.394 28.97 1 4 1 1 4 1 20.37 14.49 0.001 4 62.92 20 4 82.92",
    ("overlaps", "add", 262144): "0.9 100.9 0.001 12 16.97 18.1 4 36.02 0.001 28.97 0.1 20 11.05 0.1 1 4 1 1 4 1 25.02 14.49 0.001 4 62.92 20 4 82.92",
    ("one-queue", "add", 262144): "0.9 100.9 28.97 12 13.15 18.1 4 36.02 14.49 14.49 0.1 20 11.05 28.97 1 4 1 1 4 1 25.02 36.02 0.001 4 62.92 20 4 82.92",
    ("unified", "matmul", 512): "0.9 100.9 28.97 12 27.9 27.93 4 40.94 14.49 14.49 0.1 20 15.97 28.97 1 4 1 1 4 1 29.94 14.49 0.001 4 11.97",
    ("noisy", "add", 262144): "0.8765 94.21 33.86 12 10.41 18.69 4 37.1 16.46 15.44 0.09236 20 9.209 46.58 0.7644 4.304 1.018 0.8468 4.687 0.9905 31.54 11.91 0.001 4 53.28 20 4 112.5",
    ("gpu1", "add", 262144): "0.9 101.1 36.21 12 71.3 56.87 4 62.65 18.11 18.11 0.125 20 31.68 36.21 1.25 5 1.25 1.25 5 1.25 48.9 26.43 0.001 4 78.64 25 4 103.6",
}  # fmt: skip


def requests(session, op, case):
    """Calls for everything that takes time, some with other work still under way."""
    host = np.ones(op.inputs[0].shape(case.params), np.float32)
    x, y = (session.allocate(host.shape, "float32") for _ in "xy")
    launch, tuned, run = session.compile(op, case, [x, y], None), session.transfers("tuned"), session.run
    yield from (partial(session.allocate, (9,), "float32"), partial(session.allocate_fresh, (9,), "float32"))
    yield from (
        partial(session.upload, x, host),
        partial(run, launch, 3),
        session.sync,
        partial(session.time, launch, 2),
    )
    yield from (partial(run, launch), partial(session.download, x, host), partial(tuned.upload, x, host))
    yield from (
        partial(tuned.download, x, host),
        partial(session.free, x),
        partial(run, session.empty_launch(), 5),
    )
    yield partial(session.stage_times, [(launch, x), (HostCall(session, lambda: (), ()), ())])
    yield partial(session.both, partial(session.upload, x, host), partial(session.free, x))
    streams = [session.stream() for _ in range(2)]
    for stream in streams:
        yield from (
            partial(stream.upload, y, host),
            partial(stream.run, launch),
            partial(stream.download, y, host),
        )
    yield from (stream.wait for stream in streams)
    for memory in ("mapped", "managed")[: 1 + (not session.device.unified)]:
        within = session.in_place(memory)
        yield from (
            partial(within.upload, y, host),
            partial(run, within.compile(op, case, [x, y], None)),
            session.sync,
        )


@pytest.mark.parametrize(("word", "name", "n"), SCRIPT)
def test_what_a_device_is_asked_for_takes_the_time_of_the_script(monkeypatch, word, name, n):
    for variable, value in VARIABLES.items() if word == "gpu1" else ():
        monkeypatch.setenv(variable, value)
    session, op = backends.load("fake").open(f"fake:{word}"), kernels.load(name)
    case = Case(name, op.group, {"n": n}, "float32", "library", "resident", f"fake:{word}")
    took_s = clock_calls(session, list(requests(session, op, case)))
    assert " ".join(f"{seconds * 1e6:.4g}" for seconds in took_s) == SCRIPT[word, name, n]
