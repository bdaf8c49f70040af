"""`run` as a command on scripted devices: what it writes where, plans, checks and options that only show."""

import csv
import gzip
import json
import socket

import pytest

from gpubench import kernels

FAKE = ("--devices", "fake:cpu,fake:gpu", "--quick", "--min-samples", "5", "--max-time", "50ms")
ADD = (*FAKE, "--ops", "add", "--sizes", "1k")


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_every_kind_of_output_at_once(gpubench, tmp_path):
    names = ["r.json", "r.json.gz", "r.md", "r.csv", "r.txt"]
    ended = gpubench("run", *ADD, *(part for name in names for part in ("-o", name)))
    assert ended.returncode == 0, ended.stderr
    assert files(tmp_path) == sorted(names)
    plain = json.loads((tmp_path / "r.json").read_bytes())
    assert json.loads(gzip.decompress((tmp_path / "r.json.gz").read_bytes())) == plain
    assert plain["name"] == "gpubench-result"
    assert "| " in (tmp_path / "r.md").read_text()
    rows = list(csv.DictReader((tmp_path / "r.csv").open(newline="")))
    assert {row["case_id"] for row in rows} == {outcome["id"] for outcome in plain["outcomes"]}
    assert all(float(row["time_s"]) > 0 for row in rows)
    assert "\nRun: " in (tmp_path / "r.txt").read_text()
    assert {"saved r.json", "saved r.json.gz"} <= set(ended.stdout.splitlines())


def test_report_says_the_same_as_run_did(gpubench, tmp_path):
    for format in ("plain", "markdown", "csv"):
        ran = gpubench("run", *ADD, "--format", format, "-o", f"{format}.json")
        assert ran.returncode == 0, ran.stderr
        reported = gpubench("report", f"{format}.json", "--format", format)
        assert reported.stdout == ran.stdout


def test_json_on_stdout_is_the_result_document(gpubench, tmp_path):
    ended = gpubench("run", *ADD, "--format", "json", "-o", "r.json")
    assert (ended.returncode, json.loads(ended.stdout)) == (0, json.loads((tmp_path / "r.json").read_text()))


def test_without_o_the_result_goes_to_the_results_folder_and_report_finds_it(gpubench, tmp_path):
    ended = gpubench("run", *ADD, "--regimes", "resident-queued")
    assert ended.returncode == 0
    (path,) = files(tmp_path)
    assert path.startswith("results/")
    assert f"saved {path}" in ended.stdout.splitlines()
    said = [line for line in ended.stdout.splitlines() if not line.startswith("saved ")]
    assert gpubench("report").stdout.splitlines() == said
    full = gpubench("run", *ADD, "--regimes", "resident-queued", "--full", "-o", "r.json")
    assert gpubench("report", "r.json", "--full").stdout == full.stdout
    assert "saved r.json" in full.stderr.splitlines()


@pytest.mark.parametrize(
    "asked", ["", "--full", "-o -", "--format table", "--sections speedup", "--columns n", "--sort time"]
)
def test_who_asks_for_more_than_the_answer_gets_the_report_and_no_save_keeps_nothing(gpubench, tmp_path, asked):
    ended = gpubench("run", *ADD, "--regimes", "resident-queued", "--no-save", *asked.split())
    assert (ended.returncode, files(tmp_path)) == (0, []), ended.stderr
    assert ("Speedup" in ended.stdout) == bool(asked)
    assert ended.stdout.startswith("add at n = 1 K, queued on the GPU: ") or asked
    assert "saved" not in ended.stdout


def test_the_screen_has_the_gates_and_claims_that_were_asked_for(gpubench):
    ended = gpubench("run", *ADD, "--no-save", "--claims", "builtin", "--min-speedup", "add=1000")
    assert ended.returncode == 3
    assert "min-speedup add=1000: FAILED" in ended.stdout
    assert "Claims: " in ended.stdout


def test_a_dry_run_measures_nothing_and_writes_nothing(gpubench, tmp_path):
    ended = gpubench("run", *FAKE, "--ops", "add", "--sizes", "4k,1k,1k", "--dry-run", "-o", "r.json")
    assert (ended.returncode, files(tmp_path)) == (0, [])
    ids = [line for line in ended.stdout.splitlines() if "@" in line]
    regimes = ("resident-waited", "resident-queued", "transfer-once-10", "transfer-always")
    cases = ("resident@fake:cpu", *(f"{regime}@fake:gpu" for regime in regimes))
    assert ids == [f"add/n={n}/float32/library/{case}" for n in (1024, 4096) for case in cases]
    assert "10 cases" in ended.stdout
    assert ended.stderr == ""


def test_a_dry_run_tells_what_will_be_skipped(gpubench):
    ended = gpubench("run", *FAKE, "--ops", "add", "--sizes", "1G", "--dtypes", "f64,f32", "--dry-run")
    assert ended.returncode == 0
    assert "out-of-memory" in ended.stdout


def test_check_only_checks_without_timing(gpubench, tmp_path):
    ended = gpubench("run", *ADD, "--check-only", "-o", "r.json")
    assert ended.returncode == 0, ended.stderr
    outcomes = json.loads((tmp_path / "r.json").read_text())["outcomes"]
    assert len(outcomes) == 5
    for outcome in outcomes:
        assert outcome["type"] == "measurement"
        assert outcome["check"]["ok"]
        assert not outcome.get("blocks")


def test_check_only_checks_everything_up_to_the_top_of_each_ladder(gpubench, tmp_path):
    """Sizes that were not named are no reason to leave cases out: there is nothing to search for."""
    ended = gpubench("run", "--devices", "fake:gpu", "--ops", "add,softmax", "--check-only", "-o", "r.json")
    assert ended.returncode == 0, ended.stderr
    run = json.loads((tmp_path / "r.json").read_text())
    assert run["settings"]["budget_s"] is None
    assert {outcome["type"] for outcome in run["outcomes"]} == {"measurement"}
    for name in ("add", "softmax"):
        sizes = {outcome["case"]["params"]["n"] for outcome in run["outcomes"] if outcome["case"]["op"] == name}
        assert (len(sizes), max(sizes)) == (3, kernels.load(name).sizes.high)
    count = len(run["outcomes"])
    assert f"{count} cases are right; nothing was timed" in ended.stdout
    assert f"[ {count}/{count}]" in ended.stderr
    planned = gpubench("run", "--devices", "fake:gpu", "--ops", "add,softmax", "--check-only", "--dry-run")
    assert set(planned.stdout.splitlines()) >= {outcome["id"] for outcome in run["outcomes"]}


def test_a_check_that_its_budget_ends_says_what_it_left_out(gpubench, tmp_path):
    words = "run --devices fake:gpu --ops add,matmul --check-only --budget 1ms -o r.json"
    ended = gpubench(*words.split())
    assert ended.returncode == 124, ended.stderr
    outcomes = json.loads((tmp_path / "r.json").read_text())["outcomes"]
    assert {outcome["reason"] for outcome in outcomes} == {"budget"}
    assert f"{len(outcomes)} of {len(outcomes)} cases were not checked: add and matmul" in ended.stderr
    assert "cases were not checked" in gpubench("report", "r.json", "--sections", "warnings").stdout


def test_check_only_finds_a_wrong_result(gpubench):
    ended = gpubench(
        *["run", "--devices", "fake:wrong", "--ops", "add", "--sizes", "1k", "--check-only", "--no-save"]
    )
    assert ended.returncode == 1
    assert "add on fake gave wrong numbers" in ended.stdout


def test_quiet_and_no_progress(gpubench):
    quiet = gpubench("run", *ADD, "--regimes", "resident-queued", "-q", "-o", "r.json")
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert "saved r.json" in quiet.stdout
    calm = gpubench("run", *ADD, "--regimes", "resident-queued", "--no-progress", "-o", "r.json")
    assert calm.stderr == ""


def test_what_is_asked_for_is_what_is_measured(gpubench, tmp_path):
    ended = gpubench(
        "run", *FAKE, "--ops", "add,relu", "--sizes", "1k", "--sizes", "relu=2k", "--dtypes", "f32,f64",
        "--regimes", "transfer-once,resident", "--calls", "3", "--skip", "add/*/float64", "-o", "r.json",
        "--label", "a label", "--tag", "one", "--tag", "two", "--context", "runner=large",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    workloads = {o["id"].rsplit("/", 2)[0] for o in result["outcomes"]}
    assert workloads == {"add/n=1024/float32", "relu/n=2048/float32", "relu/n=2048/float64"}
    regimes = {o["id"].split("/")[-1].split("@")[0] for o in result["outcomes"]}
    assert regimes == {"resident", "resident-waited", "resident-queued", "transfer-once-3"}
    assert (result["label"], result["tags"]) == ("a label", ["one", "two"])
    assert (result["environment"]["context"], result["selection"]["calls"]) == ({"runner": "large"}, 3)


def test_inputs_of_one_value_carry_a_warning(gpubench, tmp_path):
    ended = gpubench("run", *ADD, "--regimes", "resident-queued", "--inputs", "zeros", "--full", "-o", "r.json")
    assert ended.returncode == 0
    result = json.loads((tmp_path / "r.json").read_text())
    assert "inputs-not-random" in [warning["code"] for warning in result["warnings"]]
    assert "zeros" in ended.stdout


def test_the_result_names_no_path_user_or_host(gpubench, tmp_path, home):
    ended = gpubench("run", *ADD, "--regimes", "resident-queued", "-o", str(tmp_path / "r.json"))
    assert ended.returncode == 0
    text = (tmp_path / "r.json").read_text()
    host = socket.gethostname()
    for private in (str(tmp_path), str(tmp_path.parent), f'"{host}', f'{host}"', str(home)):
        assert private not in text
    assert "r.json" in json.loads(text)["argv"]


def test_the_search_finds_where_the_gpu_begins_to_win(gpubench, tmp_path):
    """The script's break-even is known: 1e-6 + 12 n / 4e10 = 6e-6 + 12 n / 3e12, so n = 16,900 (resident)."""
    words = "run --devices fake:cpu,fake:gpu --ops add --skip add/n>=2M --budget 4s -o r.json"
    ended = gpubench(*words.split())
    assert ended.returncode == 0, ended.stderr
    report = json.loads(gpubench("report", "r.json", "--format", "json").stdout)
    (found,) = [b for b in report["break_even"] if b["regime"] == "resident-queued"]
    assert (found["verdict"], found["n"]) == ("at", pytest.approx(16_900, rel=0.15))
