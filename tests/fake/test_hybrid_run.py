"""Whole runs with a split: swept in the first session, at one share afterwards, and what goes wrong costs one case."""

import json

import pytest

from tests.fake.conftest import SHORT
from tests.forking import environment

DEVICES = "fake:cpu,fake:gpu,hybrid:fake:gpu"
SPLIT = "add/n=16384/float32/tuned/transfer-once-10@hybrid:fake:gpu"
ARGUMENTS = "--ops add --sizes 16k --regimes transfer-once --sessions 2 --max-samples 5 --page-locked".split()
QUEUED = ("--regimes", "resident-queued", "--devices")


@pytest.fixture(scope="module")
def ran(run):
    return run(*ARGUMENTS, "--devices", DEVICES)


def test_the_first_session_sweeps_and_all_measure_at_the_share_that_was_fastest(ran):
    assert ran.code == 0, ran.err
    blocks = ran.outcomes[SPLIT]["blocks"]
    swept = [block for block in blocks if block.get("phase") == "sweep"]
    main = [block for block in blocks if block.get("phase", "main") == "main"]
    assert [{block["session"] for block in part} for part in (swept, main)] == [{0}, {0, 1}]
    shares = [block["gpu_share"] for block in swept]
    assert (shares[:2], len(set(shares))) == ([0.0, 1.0], len(shares))
    assert len(shares) > 4
    (chosen,) = {block["gpu_share"] for block in main}
    middle = {block["gpu_share"]: sorted(block["wall_s"][block["warmup"] :])[2] for block in swept}
    assert middle[chosen] == min(seconds for share, seconds in middle.items() if 0 < share < 1)
    assert len({block["repeat"] for block in main}) == 1
    best = middle[0.0] / (middle[0.0] + middle[1.0])
    assert min(abs(share - best) for share in middle) < 1 / 128, "the optimum of the model is among the shares"
    parts = [(part["session"], set(part["stage_s"])) for part in ran.outcomes[SPLIT]["parts"]]
    assert parts == [(session, {"cpu_alone_s", "gpu_alone_s", "cpu_beside_s"}) for session in (0, 1)]


def test_the_report_estimates_the_gain_from_the_other_session(ran, in_process):
    path = str(ran.folder / "r.json")
    (row,) = json.loads(in_process("report", path, "--format", "json", status=0).stdout)["hybrid"]
    text = in_process("report", path, "--full").stdout
    assert "float32, page-locked arrays." in text
    assert "The caller's arrays are page-locked." in text
    assert (row["id"], row["selected_in_sample"]) == (SPLIT, False)
    assert row["gain"] <= row["ideal_gain"] * 1.01
    assert "Hybrid: one op split over CPU and GPU" in ran.out


def test_another_run_of_the_same_plan_keeps_the_share(ran, starter):
    command = "--like r.json --sessions 1 -q -o like.json"
    reported = starter.run("run", *SHORT[:1], *command.split(), cwd=ran.folder, env=environment(ran.folder))
    assert reported.returncode == 0, reported.stderr
    outcomes = json.loads((ran.folder / "like.json").read_text())["outcomes"]
    blocks = next(o for o in outcomes if o["id"] == SPLIT)["blocks"]
    known = [b for b in ran.outcomes[SPLIT]["blocks"] if b.get("phase", "main") == "main"]
    assert {(b["gpu_share"], b.get("phase", "main")) for b in blocks} == {(known[0]["gpu_share"], "main")}


def test_one_session_is_marked(run):
    ended = run("--ops", "add", "--sizes", "4k", *QUEUED, "hybrid:fake:gpu")
    assert ended.code == 0, ended.err
    assert "*" in ended.out.partition("Hybrid")[2]


def test_a_gpu_that_fails_costs_the_case(run):
    failing = {
        "crash": ("failure", "worker-crashed"), "wrong": ("failure", "wrong-result"), "oom": ("skip", "out-of-memory"),
        "build": ("failure", "build-error"),
    }  # fmt: skip
    ended = run("--ops", "add", "--sizes", "1k", *QUEUED, ",".join(f"hybrid:fake:{word}" for word in failing))
    assert ended.code == 1, ended.err
    told = {o["id"].rpartition(":")[2]: (o["type"], o["reason"]) for o in ended.outcomes.values()}
    assert told == failing
    assert "Traceback" not in ended.err


@pytest.mark.check
def test_only_the_check_takes_no_sweep_and_an_op_with_one_unit_is_a_named_skip(run_well):
    ended = run_well("--ops", "add", "--sizes", "1,1k", *QUEUED, "hybrid:fake:gpu", "--check-only")
    outcomes = {o["case"]["params"]["n"]: o for o in ended.outcomes.values()}
    assert (outcomes[1]["type"], outcomes[1]["reason"]) == ("skip", "no-split")
    assert (outcomes[1024]["check"]["ok"], outcomes[1024].get("blocks", [])) == (True, [])
    assert all(s["peaks"] == [] and s["telemetry"] == [] for s in ended.result["sessions"])


def test_after_a_search_one_split_is_tried_where_both_sides_are_near(run_well):
    """The second session repeats the split beside both sides."""
    ended = run_well("--ops", "gemv", *QUEUED, DEVICES, "--sessions", "2", "--skip", "gemv/n>=2k")
    (split,) = (outcome for key, outcome in ended.outcomes.items() if "hybrid" in key)
    n = split["case"]["params"]["n"]
    places = ("resident@fake:cpu", "resident-queued@fake:gpu")
    sides = (ended.outcomes[f"gemv/n={n}/float32/library/{place}"] for place in places)
    cpu_s, gpu_s = (side["blocks"][-1]["wall_s"][-1] for side in sides)
    assert 0.1 < cpu_s / gpu_s < 10
    blocks = {(block.get("phase", "main"), block["session"]) for block in split["blocks"]}
    assert blocks == {("sweep", 0), ("main", 0), ("main", 1)}
