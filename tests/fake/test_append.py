"""--append adds sessions to a file by its own plan, and finishes what was interrupted; --like starts another."""

import functools
import json
import shutil
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from gpubench.base.units import parse_time
from gpubench.cli.options import commands

WHAT = ("--ops", "add", "--sizes", "1k,64k")
HOW = "--regimes resident-queued --quick --min-samples 5 --max-samples 5".split()
PLAN = ("--devices", "fake:cpu,fake:gpu", *WHAT, *HOW)


@pytest.fixture
def result(tmp_path):
    """The document in a file of the test's folder."""
    return lambda name="r.json": json.loads((tmp_path / name).read_text())


@pytest.fixture(scope="module")
def made(run):
    """A file of one session with the plan above."""
    return Path(run(*PLAN).folder / "r.json")


@pytest.fixture
def add(gpubench):
    """`gpubench run ... -q`, which has to end well."""

    def start(*arguments, env=None):
        ended = gpubench("run", *arguments, "-q", **({"env": env} if env else {}))
        assert ended.returncode == 0, ended.stderr
        return ended

    return start


SAME = ("id", "selection", "settings")


def blocks(document):
    return {outcome["id"]: outcome.get("blocks", []) for outcome in document["outcomes"]}


@pytest.mark.check
def test_the_first_call_creates_the_file_and_each_later_one_adds_the_presets_sessions(add, result):
    add(*PLAN, "--append", "r.json")
    first = result()
    add(*PLAN, "--append", "r.json")  # options that repeat the plan are welcome
    add("--append", "r.json", "--sessions", "2")
    last = result()
    sessions = [[session["index"] for session in document["sessions"]] for document in (first, last)]
    assert sessions == [[0], [0, 1, 2, 3]]
    assert [first[name] for name in SAME] == [last[name] for name in SAME]
    assert last["complete"]
    for case_id, found in blocks(last).items():
        assert {block["session"] for block in found} == {0, 1, 2, 3}
        (repeat,) = {block["repeat"] for block in found}
        assert repeat == blocks(first)[case_id][0]["repeat"], "never recalibrated"


@pytest.mark.parametrize(("options", "words"), [
    ("--dtypes f64", "--dtypes contradicts --append r.json"),
    ("--sizes 2k", "has add=1024,65536, and the option asks for add=2048"),
    ("--rigorous", "--rigorous contradicts"), ("--min-samples 7", "has 5, and the option asks for 7"),
    ("--devices fake:gpu", "--devices contradicts"), ("--backends fake,numpy", "--backends contradicts"),
    ("--backends numpy,fake?", "--backends contradicts"),
    ("--skip add/n=1024", "has none, and the option asks for add/n=1024"),
    ("--check-only", "--check-only contradicts"),
])  # fmt: skip
def test_an_option_that_contradicts_the_file_is_refused(made, in_process, tmp_path, options, words):
    shutil.copy(made, tmp_path / "r.json")
    ended = in_process("run", "--append", "r.json", *options.split())
    assert (ended.returncode, words in ended.stderr) == (2, True)
    assert (tmp_path / "r.json").read_bytes() == made.read_bytes()


@pytest.mark.parametrize("names", ["fake,numpy?", "numpy?", "auto"])
def test_a_backend_that_may_be_absent_contradicts_no_file(made, in_process, tmp_path, names):
    shutil.copy(made, tmp_path / "r.json")
    assert in_process("run", "--append", "r.json", "--backends", names, "--dry-run").returncode == 0


def test_a_file_that_is_there_has_to_have_the_plan_that_it_is_to_be_like(made, gpubench, add, tmp_path):
    base, new = tmp_path / "base.json", tmp_path / "new.json"
    shutil.copy(made, base)
    like = ("--like", "base.json", "--append", "new.json")
    ended = gpubench("run", *like, "--dtypes", "f64")
    assert (ended.returncode, "--dtypes contradicts --like base.json" in ended.stderr) == (2, True)
    assert not new.exists()
    add(*like, "--sessions", "1")
    document = json.loads(base.read_text())
    document["selection"]["devices"].reverse()
    base.write_text(json.dumps(document))
    add(*like)
    document["selection"]["sizes"]["add"] = [1024]
    base.write_text(json.dumps(document))
    before, ended = new.read_bytes(), gpubench("run", *like)
    assert (ended.returncode, "--like base.json contradicts --append new.json" in ended.stderr) == (2, True)
    assert "sizes is add=1024,65536 there, and add=1024 in the file to be like" in ended.stderr
    assert new.read_bytes() == before


def test_every_option_that_says_what_to_measure_is_held_against_the_file():
    options = commands()["run"]
    left = {name for name in options.measuring() if not options.declared[name].plan_field}
    assert left == {"sessions", "budget", "no_repeats", "allow_software"}, "each run says these for itself"


@pytest.mark.parametrize(("part", "changes", "words"), [
    ("fingerprint machine fields", {"cpu": "x"}, "the file is of another machine\n  why: cpu is x there"),
    ("fingerprint device fields", {"fake:gpu": "x"}, "the file is of another device\n  why: fake:gpu is x there"),
    ("settings", {"protocol": 3}, "it has protocol 3, and this version measures by protocol 4"), ("selection", {"skip": ["add/x"]}, "r.json: there is no selector 'add/x' here"), ("selection", {"devices": ["fake"]}, "r.json: there is no device 'fake' here"), ("selection", {"regimes": ["stremed"]}, "did you mean 'streamed'?"),
])  # fmt: skip
@pytest.mark.check
def test_a_file_that_cannot_go_on_here_is_refused_by_name(made, in_process, tmp_path, part, changes, words):
    document = json.loads(made.read_text())
    functools.reduce(dict.__getitem__, part.split(), document).update(changes)
    (tmp_path / "r.json").write_text(json.dumps(document))
    ended = in_process("run", "--append", "r.json")
    assert (ended.returncode, words in ended.stderr) == (4, True), ended.stderr


@pytest.mark.parametrize("budget_s", [None, 50.0])
def test_a_file_like_another_has_its_plan_all_its_cases_and_its_repeat_counts(add, result, tmp_path, budget_s):
    """Whatever a budget chose, or where the clock is less steady."""
    add(*PLAN, "--skip", "add/n=1024@fake:gpu", "--append", "base.json")
    base = result("base.json")
    base["settings"]["budget_s"] = 1e-3
    (tmp_path / "base.json").write_text(json.dumps(base))
    budget = ("--budget", "50s") if budget_s else ()
    add("--like", "base.json", "--append", "new.json", *budget, env={"GPUBENCH_FAKE_NOISE": "0.5"})
    new = result("new.json")
    assert base["id"] != new["id"]
    assert (base["selection"], base["settings"] | {"budget_s": budget_s}) == (new["selection"], new["settings"])
    assert (new["exit_reason"], blocks(new).keys()) == ("ok", blocks(base).keys())
    for case_id, found in blocks(new).items():
        assert [b["repeat"] for b in found] == [b["repeat"] for b in blocks(base)[case_id]]


def interrupt(process, at):
    """Ctrl-C at the progress line that starts so; the run has ended on return."""
    for line in process.stderr:
        if line.startswith(at):
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)


def test_an_interrupted_run_is_finished(start, add, result):
    plan = "--devices fake:cpu,fake:noisy --ops add,mul --sizes 1k:16k --sessions 2 --regimes resident-queued --max-samples 10"
    interrupt(start(*plan.split()), at="[  5/")
    cut = result()
    assert (cut["complete"], "planned" in {outcome["type"] for outcome in cut["outcomes"]}) == (False, True)
    add("--append", "r.json")
    whole = result()
    assert (whole["complete"], whole["exit_reason"], len(whole["outcomes"])) == (True, "ok", 20)
    for outcome in whole["outcomes"]:
        assert outcome["type"] == "measurement"
        stopped = [stop["session"] for stop in outcome["stops"]]
        assert len(stopped) == 2, "each case has the sessions that the plan has"
        assert {block["session"] for block in outcome["blocks"]} == set(stopped)


@pytest.mark.parametrize("killed", [False, True])
def test_the_time_between_two_commands_is_none_of_the_runs(made, add, result, tmp_path, killed):
    document = json.loads(made.read_text())
    began, ended = (parse_time(document[name]) for name in ("started_at", "finished_at"))
    document["started_at"] = document["sessions"][0]["started_at"] = (began - timedelta(days=1)).isoformat()
    document["finished_at"] = None if killed else (ended - timedelta(days=1)).isoformat()
    document["outcomes"][0]["blocks"][-1]["t_s"] = 1000.0
    (tmp_path / "r.json").write_text(json.dumps(document))
    add("--append", "r.json")
    whole = result()
    began, ended = (parse_time(whole[name]) for name in ("started_at", "finished_at"))
    assert 1000 * killed <= (ended - began).total_seconds() - whole["paused_s"] < 3600


def test_a_search_that_goes_on_keeps_to_the_selection_of_the_file(start, add, result):
    plan = "--devices fake:cpu,fake:gpu --ops add,mul --regimes resident-queued --quick"
    interrupt(start(*plan.split(), "--filter", "add/n>=4k", "--skip", "add/n>=2M"), at="[  1]")
    cut = result()
    chosen = cut["selection"]
    assert (cut["complete"], chosen["filter"], chosen["skip"]) == (False, ["add/n>=4k"], ["add/n>=2M"])
    add("--append", "r.json")
    cases = [outcome["case"] for outcome in result()["outcomes"]]
    assert len(cases) > len(cut["outcomes"]), "the search went on"
    assert {case["op"] for case in cases} == {"add"}
    assert all(4096 <= case["params"]["n"] < 2**21 for case in cases)
