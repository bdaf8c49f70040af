"""`gpubench compare` as a user runs it: exit codes, messages; stdout and stderr kept apart. What it prints stands in
tests/golden/comparisons.txt."""

import json

import jsonschema
import pytest

from gpubench.result.store import save
from tests.unit.report.sides import CASES, broken, changed, on_machine, pair


@pytest.fixture
def gpubench(in_process, monkeypatch):
    for name in ("CI", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return in_process


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("sides")
    (base, new), (_, lacking) = changed(), broken()
    few_base, few_new = pair({CASES[1].id: 1.3}, k=3)
    runs = {
        "base": base, "new": new, "alike": pair(sigma=0.004, seed=2)[1], "few-base": few_base, "few-new": few_new, "broken": lacking,
        "here": on_machine(base, cpu="A"), "there": on_machine(new, cpu="B"),
    }  # fmt: skip
    for name, run in runs.items():
        save(run, place / f"{name}.json")
    return place


def test_a_page_lists_every_case_and_runs_nothing(gpubench, folder):
    done = gpubench("compare", "base.json", "broken.json", "-o", "found.html", cwd=folder)
    assert (done.returncode, done.stdout) == (3, "")
    text = (folder / "found.html").read_text(encoding="utf-8")
    words = ("<h1>gpubench compare</h1>", "script-src 'none'", *(item.id for item in CASES))
    assert all(word in text for word in words)
    assert "<script" not in text


@pytest.mark.parametrize(("options", "code"), [
    (["--advisory"], 0), (["--fail-on", "failed,missing"], 0), (["--fail-on", "slower"], 3), (["--threshold", "50%"], 0),
    (["--threshold", "matmul/n=128=50"], 0), (["--ignore", "matmul/n=128"], 0), (["--min-speedup", "matmul/n=256=1.2"], 3),
    (["--min-speedup", "matmul/n=256=1.2", "--fail-on", "failed"], 0), (["--min-speedup", "matmul=1.2x", "--fail-on", "failed"], 3),
    (["--alpha", "0.001", "--fail-on", "slower"], 4), (["--ignore", "*", "--fail-on", "noisy"], 4),
])  # fmt: skip
def test_gates_and_thresholds(gpubench, folder, options, code):
    done = gpubench("compare", "base.json", "new.json", *options, cwd=folder)
    assert done.returncode == code
    assert code == 4 or (done.stderr == "" and "\x1b" not in done.stdout)


def test_few_sessions_are_told_and_are_bad_input_where_the_gate_must_count(gpubench, folder):
    few = ("compare", "few-base.json", "few-new.json")
    plain = gpubench(*few, cwd=folder)
    assert (plain.returncode, plain.stderr) == (0, "")
    assert "no regression gate was applied" in plain.stdout
    for options, environ in ((["--fail-on", "slower"], {}), ([], {"CI": "true"})):
        done = gpubench(*few, *options, cwd=folder, env=environ)
        assert done.returncode == 4
        assert "few-sessions" in done.stdout  # the report comes all the same
        assert done.stderr.startswith("error: the gate on regressions could not be applied\n  why: ")
    assert gpubench(*few, cwd=folder, env={"CI": "false"}).returncode == 0


def test_different_machines_are_bad_input_naming_the_field(gpubench, folder):
    done = gpubench("compare", "here.json", "there.json", cwd=folder)
    assert (done.returncode, done.stdout) == (4, "")
    assert "cpu: 'A' against 'B'" in done.stderr
    allowed = gpubench("compare", "here.json", "there.json", "--allow-different-machine", cwd=folder)
    assert (allowed.returncode, "different-machine" in allowed.stdout) == (3, True)


@pytest.mark.parametrize(("arguments", "code", "reported"), [
    (["base.json"], 2, "NEW"), (["base.json", "absent.json"], 4, "absent.json cannot be read"),
    (["base.json", "new.json", "--fail-on", "slow"], 2, "slower"),
    (["base.json", "new.json", "--threshold", "x"], 2, "--threshold"),
    (["base.json", "new.json", "--threshold", "matmul/n=128"], 2, "--threshold"),
    (["base.json", "new.json", "--threshold", "softmax=5"], 2, "'softmax' selects no case"),
    (["base.json", "new.json", "--ignore", "*@cupy"], 2, "'*@cupy' selects no case"),
    (["base.json", "new.json", "--ignore", "a//b"], 2, "not a selector"),
    (["base.json", "new.json", "--min-speedup", "softmax=2"], 2, "'softmax' selects no case"),
    (["base.json", "new.json", "--min-speedup", "softmax"], 2, "--min-speedup"),
    (["base.json", "new.json", "--alpha", "2"], 2, "--alpha"), (["base.json", "new.json", "--alpha", "nan"], 2, "--alpha"),
    (["-", "-"], 2, "more than once"), (["base.json", "new.json", "--format", "jsn"], 2, "did you mean 'json'?"),
    (["base.json", "new.json", "-o", "x.pdf"], 2, "suffix"), (["base.json", "new.json", "-o", "no/x.md"], 2, "no/x.md"),
    (["base.json", "new.json", "--time-unit", "h"], 2, "--time-unit: there is no"),
])  # fmt: skip
def test_bad_input_is_three_lines(gpubench, folder, arguments, code, reported):
    done = gpubench("compare", *arguments, cwd=folder)
    assert (done.returncode, done.stdout) == (code, "")
    assert reported in done.stderr
    assert [line.partition(":")[0].strip() for line in done.stderr.splitlines()] == ["error", "why", "fix"]


def test_json_follows_its_schema(gpubench, folder):
    schema = json.loads(gpubench("schema", "compare", cwd=folder).stdout)
    document = json.loads(gpubench("compare", "base.json", "new.json", "--format", "json", cwd=folder).stdout)
    jsonschema.validate(document, schema)
    assert (document["name"], document["exit_code"], document["exit_reason"]) == ("gpubench-compare", 3, "gate")
    assert [row["verdict"] for row in document["cases"]] == ["SAME", "SLOWER", "FASTER", "SAME"]
