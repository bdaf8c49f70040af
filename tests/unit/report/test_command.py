"""`gpubench report`, `results` and `compare` as a user runs them: files, messages and exit codes. Files that cannot be
read: tests/cli/test_refusals.py."""

import contextlib
import functools
import json
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace

from gpubench.base.errors import UsageError
from gpubench.base.table import FEW, MANY, Cell, paint
from gpubench.cli.delivery import check_picture, chosen_format, count_colors, table_width
from gpubench.result.machine import Fact
from gpubench.result.store import save
from tests.unit.report.samples import full_run, interrupted_run
from tests.unit.report.sides import CASES, broken, changed, on_machine, pair


@pytest.fixture
def report(in_process):
    return functools.partial(in_process, "report")


@pytest.fixture
def folder(tmp_path):
    save(full_run(), tmp_path / "full.json")
    (tmp_path / "results" / "machine").mkdir(parents=True)
    return tmp_path


def test_a_folder_stands_for_its_results_oldest_first(report, folder):
    for day in (2, 1, 3):
        run = replace(full_run(), started_at=f"2026-01-0{day}T00:00:00Z", id=str(day))
        save(run, folder / "results" / "machine" / f"2026010{day}T000000Z-0000000{day}.json")
    twice = ("results", "results/machine/20260102T000000Z-00000002.json", "--format", "json")
    done = report(*twice, cwd=folder)
    assert done.stderr.startswith(f"left out: {twice[1]} holds the same run as ")
    assert not report(*twice, "--quiet", cwd=folder).stderr
    assert [source["run_id"] for source in json.loads(done.stdout)["sources"]] == ["1", "2", "3"]
    full = report("results", "--full", cwd=folder).stdout
    assert "3 runs, 2026-01-01T00:00:00Z to 2026-01-03T00:00:00Z" in full
    listed = [line for line in report("results", cwd=folder).stdout.splitlines() if line.startswith("2026")]
    names = [f"2026010{day}T000000Z-0000000{day}.json" for day in (3, 2, 1)]
    assert listed == [f"{name}  GPU wins 1 of 1, 1 of 2 copied" for name in names]


def test_a_folder_of_several_machines_has_a_table_for_each(report, folder):
    run = full_run()
    for day, cpu in ((1, "First CPU"), (2, "Second CPU"), (3, "First CPU")):
        host = replace(run.machine, cpu=replace(run.machine.cpu, model=Fact(cpu, "ok", "proc")))
        save(replace(run, machine=host, id=str(day)), folder / "results" / f"{day}.json")
    lines = report("results", cwd=folder).stdout.splitlines()
    headings = [line for line in lines if line.startswith("results: ")]
    assert [("First" in line, "Second" in line) for line in headings] == [(True, False), (False, True)]


@pytest.mark.parametrize(("file", "name"), [
    ("r.md", "markdown"), ("r.jsonl", "jsonl"), ("r.CSV", "csv"), ("r.txt", "plain"), ("r.svg", "svg"), ("-", "plain"), (None, "plain"),
])  # fmt: skip
def test_a_suffix_chooses_a_format_unless_one_is_named(file, name):
    assert chosen_format(None, file, to_terminal=False) == name
    assert chosen_format("go", file, to_terminal=False) == "go"


@pytest.mark.parametrize(("format", "terminal", "draws", "code"), [
    ("png", True, True, "not-text"), ("png", False, True, None), ("svg", True, True, None), ("svg", False, False, "no-plots"),
    ("table", True, False, None),
])  # fmt: skip
def test_a_picture_needs_what_draws_it_and_a_png_a_file(monkeypatch, format, terminal, draws, code):
    monkeypatch.setattr("gpubench.report.plots.can_draw", lambda: draws)
    with pytest.raises(UsageError) if code else contextlib.nullcontext() as refusal:
        check_picture(format, to_terminal=terminal)
    assert code is None or refusal.value.code == code


def test_no_page_is_opened_where_nobody_sees_one(gpubench, folder):
    variables = {"CI": "true", "DISPLAY": ":0"}
    done = gpubench("report", "full.json", "--open", "-o", "r.html", cwd=folder, env=variables)
    said = ("wrote r.html\n", "--open shows no page: ", "; open r.html yourself")
    assert (done.returncode, [text for text in said if text not in done.stderr]) == (0, [])


def test_a_page_is_opened_in_the_browser(gpubench, folder):
    browser = folder / "browser"
    browser.write_text('#!/bin/sh\necho "$1" > shown\n')
    browser.chmod(0o755)
    done = gpubench("report", "full.json", "--open", cwd=folder, env={"BROWSER": str(browser)})
    shown = (folder / "shown").read_text().strip().removeprefix("file://")
    assert f"wrote {shown}" in done.stderr
    assert Path(shown).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_the_newest_result_is_the_default_and_a_failed_run_is_read_with_exit_code_zero(report, folder):
    for day, run in ((1, full_run()), (2, interrupted_run())):
        save(run, folder / "results" / "machine" / f"2026010{day}T000000Z-0000000{day}.json")
    done = report(cwd=folder)
    assert done.returncode == 0
    assert all(said in done.stdout for said in ("gpubench report --full", "Stopped"))


def test_output_by_suffix(report, folder):
    done = report("full.json", "-o", "report.md", cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "wrote report.md\n")
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert text.startswith("## gpubench report\n")
    assert len(text.splitlines()) < 120
    assert text.endswith("as a page.\n")
    assert report("full.json", "-o", "report.md", "--full", "-q", cwd=folder).stderr == ""
    assert "### Break-even" in (folder / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("option", "environ", "terminal", "colors"), [
    ("always", {"NO_COLOR": "1"}, False, MANY), ("never", {"FORCE_COLOR": "1"}, True, 0),
    ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, 0),
    ("auto", {"NO_COLOR": "", "FORCE_COLOR": "1"}, False, MANY), ("auto", {"TERM": "dumb"}, True, 0),
    ("auto", {"TERM": "xterm"}, True, FEW), ("auto", {"TERM": "xterm", "COLORTERM": "truecolor"}, True, MANY),
    ("auto", {"TERM": "xterm-256color"}, True, MANY), ("auto", {}, False, 0),
])  # fmt: skip
def test_colour_order(option, environ, terminal, colors):
    assert count_colors(option, environ, terminal=terminal) == colors
    assert paint((Cell("GPU 2x", "gpu"),), color=FEW) == "\x1b[94mGPU 2x\x1b[0m"


@pytest.mark.parametrize(("columns", "expected"), [("20", 40), ("100", 100), ("400", 120)])
def test_width_follows_a_terminal_within_reason(monkeypatch, columns, expected):
    monkeypatch.setenv("COLUMNS", columns)
    assert (table_width(True), table_width(False)) == (expected, 80)


# ---------------------------------------------------------------- gpubench compare
@pytest.fixture
def compare(in_process, monkeypatch):
    for name in ("CI", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return functools.partial(in_process, "compare")


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    place = tmp_path_factory.mktemp("sides")
    (base, new), (_, lacking) = changed(), broken()
    few_base, few_new = pair({CASES[1].id: 1.3}, k=3)
    runs = {
        "base": base, "new": new, "few-base": few_base, "few-new": few_new, "broken": lacking,
        "here": on_machine(base, cpu="A"), "there": on_machine(new, cpu="B"),
    }  # fmt: skip
    for name, run in runs.items():
        save(run, place / f"{name}.json")
    return place


def test_a_page_lists_every_case_and_runs_nothing(compare, sides):
    done = compare("base.json", "broken.json", "-o", "found.html", cwd=sides)
    assert (done.returncode, done.stdout) == (3, "")
    text = (sides / "found.html").read_text(encoding="utf-8")
    words = ("<h1>gpubench compare</h1>", "script-src 'none'", *(item.id for item in CASES))
    assert all(word in text for word in words)
    assert "<script" not in text


@pytest.mark.parametrize(("options", "code"), [
    (["--advisory"], 0), (["--fail-on", "failed,missing"], 0), (["--fail-on", "slower"], 3), (["--threshold", "50%"], 0),
    (["--threshold", "matmul/n=128=50"], 0), (["--ignore", "matmul/n=128"], 0), (["--min-speedup", "matmul/n=256=1.2"], 3),
    (["--min-speedup", "matmul/n=256=1.2", "--fail-on", "failed"], 0), (["--min-speedup", "matmul=1.2x", "--fail-on", "failed"], 3),
    (["--alpha", "0.001", "--fail-on", "slower"], 4), (["--ignore", "*", "--fail-on", "noisy"], 4),
])  # fmt: skip
def test_gates_and_thresholds(compare, sides, options, code):
    done = compare("base.json", "new.json", *options, cwd=sides)
    assert done.returncode == code
    assert code == 4 or (done.stderr == "" and "\x1b" not in done.stdout)


def test_few_sessions_are_told_and_are_bad_input_where_the_gate_must_count(compare, sides):
    few = ("few-base.json", "few-new.json")
    plain = compare(*few, cwd=sides)
    assert (plain.returncode, plain.stderr) == (0, "")
    assert "no regression gate was applied" in plain.stdout
    for options, environ in ((["--fail-on", "slower"], {}), ([], {"CI": "true"})):
        done = compare(*few, *options, cwd=sides, env=environ)
        assert done.returncode == 4
        assert "few-sessions" in done.stdout  # the report comes all the same
        assert done.stderr.startswith("error: the gate on regressions could not be applied\n  why: ")
    assert compare(*few, cwd=sides, env={"CI": "false"}).returncode == 0


def test_different_machines_are_bad_input_naming_the_field(compare, sides):
    done = compare("here.json", "there.json", cwd=sides)
    assert (done.returncode, done.stdout) == (4, "")
    assert "cpu: A against B" in done.stderr
    allowed = compare("here.json", "there.json", "--allow-different-machine", cwd=sides)
    assert (allowed.returncode, "different-machine" in allowed.stdout) == (3, True)


def test_json_follows_its_schema(in_process, compare, sides):
    schema = json.loads(in_process("schema", "compare").stdout)
    document = json.loads(compare("base.json", "new.json", "--format", "json", cwd=sides).stdout)
    jsonschema.validate(document, schema)
    assert (document["name"], document["exit_code"], document["exit_reason"]) == ("gpubench-compare", 3, "gate")
    assert [row["verdict"] for row in document["cases"]] == ["SAME", "SLOWER", "FASTER", "SAME"]
