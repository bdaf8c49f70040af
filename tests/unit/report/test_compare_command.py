"""`gpubench compare` as a user runs it: formats, exit codes, messages; stdout and stderr kept apart."""

from __future__ import annotations

import csv
import io
import json

import jsonschema
import msgspec
import pytest

from gpubench.report import FORMATS as REPORT_FORMATS
from gpubench.report.comparison import FORMATS
from gpubench.result.store import save
from tests.forking import environment
from tests.unit.report.builders import case, failed
from tests.unit.report.sides import CASES, on_machine, pair


@pytest.fixture
def gpubench(starter):
    def run(*arguments, cwd, stdin=None, **variables):
        environ = environment(cwd, {"XDG_CONFIG_HOME": str(cwd / "config"), **variables})
        for name in {"COLUMNS", "CI", "FORCE_COLOR", "NO_COLOR"} - variables.keys():
            environ.pop(name, None)
        return starter.run(*arguments, cwd=cwd, env=environ, input=stdin)

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("sides")
    base, new = pair({CASES[1].id: 1.3, CASES[2].id: 0.7}, sigma=0.004)
    _, alike = pair(sigma=0.004, seed=2)
    few_base, few_new = pair({CASES[1].id: 1.3}, k=3)
    broken = msgspec.structs.replace(alike, outcomes=[failed(CASES[0]), *alike.outcomes[1:]])
    runs = {
        "base": base, "new": new, "alike": alike, "few-base": few_base, "few-new": few_new, "broken": broken,
        "here": on_machine(base, cpu="A"), "there": on_machine(new, cpu="B"),
    }  # fmt: skip
    for name, run in runs.items():
        save(run, place / f"{name}.json")
    return place


def test_a_regression_is_exit_3_and_told_first(gpubench, folder):
    done = gpubench("compare", "base.json", "new.json", cwd=folder)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith("Base: base.json, ")
    sentence = " ".join(done.stdout.split())
    assert f"Of 4 cases 1 slower, most of all {CASES[1].id} (1.30x [" in sentence
    assert "4 cases compared: 1 slower, 1 faster, 2 same\n" in done.stdout
    assert f"slower: FAILED: {CASES[1].id}\n" in done.stdout
    assert done.stdout.index("\nSlower\n") < done.stdout.index("\nFaster\n") < done.stdout.index("\nSame\n")
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_long_comparison_lists_what_changed_and_counts_the_rest(gpubench, tmp_path):
    cases = [case(n=2**i + j) for i in range(6, 16) for j in range(6)]
    slow = {item.id: 1.3 + 0.01 * i for i, item in enumerate(cases[:25])}
    for name, run in zip(("base", "new"), pair(slow, sigma=0.002, cases=cases), strict=True):
        outcomes = run.outcomes if name == "base" else [*run.outcomes[:-2], failed(cases[-2])]
        save(msgspec.structs.replace(run, outcomes=outcomes), tmp_path / f"{name}.json")
    short = gpubench("compare", "base.json", "new.json", "--threshold", "10", cwd=tmp_path)
    assert (short.returncode, len(short.stdout.splitlines()) < 80) == (3, True)
    assert "The 20 largest changes; 5 more: --full lists" in " ".join(short.stdout.split())
    # The largest change comes first, and each line of the rest says how many and why.
    table = short.stdout[short.stdout.index("\nSlower\n") :]
    assert table.index(cases[24].id) < table.index(cases[23].id)
    rest = short.stdout[short.stdout.index("\nThe rest\n") :].splitlines()
    assert [line.split()[:2] for line in rest if line[:6].strip().isdigit()] == [
        ["33", "same"], ["1", "failed"], ["1", "missing"],
    ]  # fmt: skip
    assert "BASE has a number and NEW has none" in short.stdout
    whole = gpubench("compare", "base.json", "new.json", "--threshold", "10", "--full", cwd=tmp_path).stdout
    assert all(item.id in whole for item in cases)


def test_a_page_lists_every_case_and_runs_nothing(gpubench, folder):
    done = gpubench("compare", "base.json", "broken.json", "-o", "found.html", cwd=folder)
    assert (done.returncode, done.stdout) == (3, "")
    text = (folder / "found.html").read_text(encoding="utf-8")
    assert "<h1>gpubench compare</h1>" in text
    assert all(item.id in text for item in CASES)
    assert "<script" not in text
    assert "script-src 'none'" in text


def test_no_change_is_exit_0(gpubench, folder):
    assert gpubench("compare", "base.json", "alike.json", cwd=folder).returncode == 0


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--advisory"], 0), (["--fail-on", "failed,missing"], 0), (["--fail-on", "slower"], 3), (["--threshold", "50%"], 0),
        (["--threshold", "matmul/n=128=50"], 0), (["--threshold", "50", "--threshold", "matmul/n=128=5"], 3),
        (["--threshold", "matmul/n=128=5", "--threshold", "50"], 3), (["--ignore", "matmul/n=128"], 0),
        (["--min-speedup", "matmul/n=256=1.2"], 3), (["--min-speedup", "matmul/n=256=1.2", "--fail-on", "failed"], 0),
        (["--min-speedup", "matmul=1.2x", "--fail-on", "failed"], 3), (["--min-speedup", "matmul=1.2", "--advisory"], 0),
        (["--alpha", "0.001"], 0), (["--alpha", "0.001", "--fail-on", "slower"], 4), (["--ignore", "*"], 0),
        (["--ignore", "*", "--fail-on", "noisy"], 4), (["--ignore", "matmul/n=64", "--min-speedup", "matmul/n=64=1"], 4),
    ],
)  # fmt: skip
def test_gates_and_thresholds(gpubench, folder, options, code):
    assert gpubench("compare", "base.json", "new.json", *options, cwd=folder).returncode == code


def test_a_case_that_broke_is_a_failed_gate(gpubench, folder):
    done = gpubench("compare", "base.json", "broken.json", cwd=folder)
    assert done.returncode == 3
    assert f"failed: FAILED: {CASES[0].id}" in done.stdout
    assert "wrong-result" in done.stdout


def test_few_sessions_are_told_and_are_bad_input_where_the_gate_must_count(gpubench, folder):
    plain = gpubench("compare", "few-base.json", "few-new.json", cwd=folder)
    assert (plain.returncode, plain.stderr) == (0, "")
    assert "no regression gate was applied" in plain.stdout
    assert "few-sessions" in plain.stdout
    asked = gpubench("compare", "few-base.json", "few-new.json", "--fail-on", "slower", cwd=folder)
    in_ci = gpubench("compare", "few-base.json", "few-new.json", cwd=folder, CI="true")
    for done in (asked, in_ci):
        assert done.returncode == 4
        assert "few-sessions" in done.stdout  # the report comes all the same
        assert done.stderr.startswith("error: the gate on regressions could not be applied\n  why: ")
    not_ci = gpubench("compare", "few-base.json", "few-new.json", cwd=folder, CI="false")
    assert not_ci.returncode == 0


def test_one_session_a_side_has_its_interval_and_ends_with_what_would_decide_more(gpubench, tmp_path):
    for name, run in zip(("base", "new"), pair(k=1), strict=True):
        save(run, tmp_path / f"{name}.json")
    done = gpubench("compare", "base.json", "new.json", cwd=tmp_path)
    assert "x [" in done.stdout
    assert "`gpubench run --like base.json --sessions 5 -o FILE`" in " ".join(done.stdout.split())


def test_different_machines_are_bad_input_naming_the_field(gpubench, folder):
    done = gpubench("compare", "here.json", "there.json", cwd=folder)
    assert (done.returncode, done.stdout) == (4, "")
    assert "cpu: 'A' against 'B'" in done.stderr
    allowed = gpubench("compare", "here.json", "there.json", "--allow-different-machine", cwd=folder)
    assert allowed.returncode == 3
    assert "different-machine" in allowed.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
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
    ],
)  # fmt: skip
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


def test_a_file_that_is_written_is_told_unless_quiet(gpubench, folder):
    assert "wrote x.md" in gpubench("compare", "base.json", "new.json", "-o", "x.md", cwd=folder).stderr
    assert not gpubench("compare", "base.json", "new.json", "-o", "x.md", "-q", cwd=folder).stderr


def test_csv_has_a_row_for_each_case(gpubench, folder):
    done = gpubench("compare", "base.json", "broken.json", "--format", "csv", cwd=folder)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["verdict"] for row in rows] == ["SAME", "SAME", "SAME", "failed"]
    assert rows[3]["case_id"] == CASES[0].id
    assert float(rows[0]["ratio"]) == pytest.approx(1, abs=0.02)


def test_markdown_folds_what_did_not_change(gpubench, folder):
    done = gpubench("compare", "base.json", "new.json", "-o", "found.md", cwd=folder)
    assert (done.returncode, done.stdout) == (3, "")
    text = (folder / "found.md").read_text(encoding="utf-8")
    assert text.startswith("## gpubench compare\n")
    assert "<summary>Same</summary>" in text
    assert text.index("### Slower") < text.index("<details>")


def test_the_same_files_give_the_same_bytes_in_every_format(gpubench, folder):
    for name in FORMATS:
        first, second = (
            gpubench("compare", "base.json", "new.json", "--format", name, cwd=folder).stdout for _ in range(2)
        )
        assert first == second
        assert first.endswith("\n")
        assert not first.endswith("\n\n")


def test_labels_standard_input_and_several_files(gpubench, folder):
    text = (folder / "base.json").read_text(encoding="utf-8")
    done = gpubench("compare", "-", "release=new.json", "alike.json", cwd=folder, stdin=text)
    assert done.returncode == 3
    assert "Base: standard input" in done.stdout
    assert "New: release, " in done.stdout
    assert "New: alike.json, " in done.stdout
    assert done.stdout.count("\nGates\n") == 1


def test_the_formats_are_those_of_report():
    assert set(FORMATS) <= set(REPORT_FORMATS)
