"""`gpubench noise` as a user runs it: measured or from a file, thresholds that compare takes, and the gate."""

import json

import pytest

from gpubench.base.errors import GpubenchError
from gpubench.cli.noise import judge_sessions
from gpubench.cli.options import commands
from gpubench.result.run import Stop
from gpubench.result.store import save
from tests.unit.report.builders import failed, skipped
from tests.unit.report.sides import CASES, a_run, pair, timed


def test_it_measures_twice_as_many_sessions_as_a_side_has(gpubench, tmp_path):
    ended = gpubench(
        "noise", "--devices", "fake:cpu,fake:gpu", "--ops", "add", "--sizes", "1k", "--regimes", "resident-queued", "--quick",
        "--min-samples", "5", "--max-time", "20ms", "--no-progress", "-o", "noise.json", "--results-dir", "kept",
        "--check",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "0 % of 32 comparisons of 2 cases" in " ".join(ended.stdout.split())
    document = json.loads((tmp_path / "noise.json").read_text())
    assert (document["name"], document["schema_version"]) == ("gpubench-noise", 2)
    assert [row["threshold"] for row in document["cases"]] == [0.05, 0.05]
    (kept,) = (tmp_path / "kept").rglob("*.json")
    result = json.loads(kept.read_text())
    assert (result["settings"]["sessions"], document["run_id"]) == (10, result["id"])
    again = gpubench("noise", str(kept), "--format", "json")
    assert json.loads(again.stdout)["cases"] == document["cases"]


def test_it_takes_what_run_takes_to_choose_cases_and_to_measure_them():
    run, noise = commands()["run"], commands()["noise"]
    taken = noise.measuring()
    without = {"check_only", "label", "tag", "context", "energy"}  # about the file of a run, and no time
    assert {*run.measuring()} - {*taken} == without
    own = {"sessions", "budget"}  # twice as many sessions, and time for them
    changed = {name for name in taken if noise.declared[name] != run.declared[name]}
    assert changed == own


@pytest.fixture
def folder(tmp_path):
    quiet, _ = pair(k=10, sigma=0.004)
    # Every second session of one case is slower, by chance of the order: half of the permutations say so.
    loud = a_run([timed(CASES[0], [1e-3 * (1.2 if i % 2 else 1.0) * (1 + 0.001 * i) for i in range(10)])], 10)
    base, new = pair({CASES[1].id: 1.3}, sigma=0.004)
    for name, result in {"quiet": quiet, "loud": loud, "base": base, "new": new, "few": base}.items():
        save(result, tmp_path / f"{name}.json")
    return tmp_path


def test_the_gate_on_false_alarms(in_process, folder):
    assert in_process("noise", "quiet.json", "--check").returncode == 0
    loud = in_process("noise", "loud.json", "--check")
    document = json.loads(in_process("noise", "loud.json", "--format", "json").stdout)
    assert document["false_alarm_share"] > 0
    assert loud.returncode == (3 if document["false_alarm_share"] > 0.05 else 0)
    assert in_process("noise", "loud.json").returncode == 0, "only --check makes it a gate"
    # What is configured for measuring does not stand in the way of a file.
    (folder / "gpubench.toml").write_text('[noise]\nops = ["add"]\nquick = true\nresults-dir = "kept"\n')
    assert in_process("noise", "quiet.json", env={"GPUBENCH_SEED": "7"}).returncode == 0


def test_compare_takes_what_noise_wrote(in_process, folder):
    assert in_process("noise", "quiet.json", "-o", "noise.json").returncode == 0
    plain = in_process("compare", "base.json", "new.json", "--thresholds", "noise.json")
    assert plain.returncode == 3
    document = json.loads((folder / "noise.json").read_text())
    for row in document["cases"]:
        row["threshold"] = 0.5
    (folder / "noise.json").write_text(json.dumps(document))
    raised = in_process("compare", "base.json", "new.json", "--thresholds", "noise.json")
    assert raised.returncode == 0
    assert "Threshold 50 %" in raised.stdout
    typed = in_process("compare", "base.json", "new.json", "--thresholds", "noise.json", "--threshold", "10")
    assert typed.returncode == 3


def test_the_thresholds_go_through_a_pipe(in_process, folder):
    piped = in_process("noise", "quiet.json", "-o", "-")
    in_process("noise", "quiet.json", "-o", "noise.json")
    assert piped.stdout == (folder / "noise.json").read_text()
    assert not (folder / "-").exists()
    in_process("noise", "quiet.json", "-o", "noise.json.gz")
    compare = ("compare", "base.json", "new.json", "--thresholds")
    named, packed = (in_process(*compare, name) for name in ("noise.json", "noise.json.gz"))
    read = in_process(*compare, "-", input=piped.stdout)
    assert named.stdout == packed.stdout == read.stdout
    assert (named.returncode, read.returncode) == (3, 3)


@pytest.mark.parametrize(("device", "options", "code", "reported"), [
    ("fake:wrong", [], 1, "wrong-result: largest error"),
    ("fake:cpu", ["--budget", "1ms"], 1, "raise --budget"),
    ("fake:implausible", ["--ops", "matmul", "--sizes", "512", "--regimes", "resident-queued"], 4, "can be true"),
])  # fmt: skip
def test_a_measurement_with_nothing_to_compare_ends_as_the_run_did(gpubench, device, options, code, reported):
    asked = options if "--ops" in options else ["--ops", "add", "--sizes", "1k", *options]
    ended = gpubench("noise", "--devices", device, "--quick", "--max-time", "20ms", "--no-save", "-q", *asked)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert reported in ended.stderr
    assert "same options tells more" in ended.stderr or device != "fake:wrong"
    assert len(ended.stderr.splitlines()) == 3


@pytest.mark.parametrize(("outcomes", "sessions", "ending", "code", "reported"), [
    ([timed(CASES[0], [1e-3] * 3), skipped(CASES[1])], 3, 124, 124, "the time budget ended first"),
    ([timed(CASES[0], [1e-3] * 3), skipped(CASES[1])], 3, 0, 124, "the time budget ended first"),
    ([timed(CASES[0], [1e-3] * 9, stops=[Stop(session=9, reason="budget")]), skipped(CASES[1])], 10, 0, 124,
     "the time budget ended first"),
    ([timed(CASES[0], [1e-3] * 3), skipped(CASES[1]), skipped(CASES[2], "budget", "no time")], 3, 124, 124,
     "the time budget ended first"),
    ([timed(CASES[0], [1e-3] * 3), skipped(CASES[1]), failed(CASES[2])], 3, 1, 1, "wrong-result"),
    ([skipped(CASES[1])], 3, 1, 1, "out-of-memory"),
    ([skipped(CASES[1]), skipped(CASES[2], "budget", "no time")], 3, 124, 124, "budget: no time"),
    ([timed(CASES[0], [1e-3] * 9), skipped(CASES[1])], 10, 0, 4, "out-of-memory"),
])  # fmt: skip
def test_a_case_that_was_left_out_is_not_blamed_for_the_budget(outcomes, sessions, ending, code, reported):
    with pytest.raises(GpubenchError) as raised:
        judge_sessions(a_run(outcomes, sessions, exit_code=ending), 5)
    assert (reported in raised.value.why, raised.value.exit_code) == (True, code), raised.value.why
    assert ("--budget" in raised.value.hint) == ("budget" in reported)
