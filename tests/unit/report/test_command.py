"""`gpubench report` as a user runs it: formats, files, stdin, messages and exit codes."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpubench.base.errors import UsageError
from gpubench.cli.rendering import chosen_format, table_width, wants_color
from gpubench.result.machine import Fact
from gpubench.result.store import save
from tests.forking import environment
from tests.unit.report.samples import full_run, interrupted_run


@pytest.fixture
def gpubench(starter):
    def run(*arguments, cwd, stdin=None, variables=None):
        folders = {"XDG_DATA_HOME": str(cwd / "data"), "XDG_CONFIG_HOME": str(cwd / "config")}
        environ = environment(cwd, folders)
        environ = {**environ, **(variables or {})}
        del environ["COLUMNS"]
        return starter.run("report", *arguments, cwd=cwd, env=environ, input=stdin)

    return run


@pytest.fixture
def folder(tmp_path):
    save(full_run(), tmp_path / "full.json")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_a_folder_stands_for_its_results_oldest_first(gpubench, folder):
    place = folder / "results" / "machine"
    place.mkdir(parents=True)
    for day in (2, 1, 3):
        run = replace(full_run(), started_at=f"2026-01-0{day}T00:00:00Z", id=str(day))
        save(run, place / f"2026010{day}T000000Z-0000000{day}.json")
    done = gpubench("results", "--format", "json", cwd=folder)
    assert [source["run_id"] for source in json.loads(done.stdout)["sources"]] == ["1", "2", "3"]
    full = gpubench("results", "--full", cwd=folder).stdout
    assert "3 runs, 2026-01-01T00:00:00Z to 2026-01-03T00:00:00Z" in full
    listed = [line for line in gpubench("results", cwd=folder).stdout.splitlines() if line.startswith("2026")]
    assert [line.split("  ", 1) for line in listed] == [
        [f"2026010{day}T000000Z-0000000{day}.json", "GPU wins 1 of 1, 1 of 2 copied"] for day in (3, 2, 1)
    ]


def test_a_folder_of_several_machines_has_a_table_for_each(gpubench, folder):
    place = folder / "results"
    place.mkdir()
    for day, cpu in ((1, "First CPU"), (2, "Second CPU"), (3, "First CPU")):
        run = full_run()
        host = replace(run.machine.cpu, model=Fact(cpu, "ok", "proc"))
        machine = replace(run.machine, cpu=host)
        save(replace(run, machine=machine, id=str(day)), place / f"{day}.json")
    text = gpubench("results", cwd=folder).stdout
    headings = [line for line in text.splitlines() if line.startswith("results: ")]
    assert ["First" in line for line in headings] == [True, False]
    assert "Second" in headings[1]


def test_a_result_begins_with_its_answer_and_says_what_the_rest_is(gpubench, folder):
    lines = gpubench("full.json", cwd=folder).stdout.splitlines()
    assert len(lines) <= 24
    assert lines[0].startswith("With data on the GPU the GPU wins matmul;")
    assert any(line.startswith("--full adds breakeven, ") for line in lines)
    assert lines[-1] == "all: gpubench report full.json --full   page: -o r.html"


@pytest.mark.parametrize("variables", [{"CI": "true", "DISPLAY": ":0"}, {}])
def test_no_page_is_opened_where_nobody_sees_one(gpubench, folder, variables):
    done = gpubench("full.json", "--open", "-o", "r.html", cwd=folder, variables=variables)
    assert done.returncode == 0
    assert "wrote r.html\n" in done.stderr
    assert "--open shows no page: " in done.stderr
    assert "; open r.html yourself" in done.stderr


def test_a_page_is_opened_in_the_browser(gpubench, folder):
    browser = folder / "browser"
    browser.write_text('#!/bin/sh\necho "$1" > shown\n')
    browser.chmod(0o755)
    done = gpubench("full.json", "--open", cwd=folder, variables={"BROWSER": str(browser)})
    shown = (folder / "shown").read_text().strip().removeprefix("file://")
    assert f"wrote {shown}" in done.stderr
    assert Path(shown).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_plain_text_where_there_is_no_terminal(gpubench, folder):
    done = gpubench("full.json", "--full", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("With data on the GPU the GPU wins matmul;")
    assert "\nRun: 2026-01-02T03:04:05Z" in done.stdout
    assert "\x1b" not in done.stdout


def test_standard_input(gpubench, folder):
    done = gpubench("-", "--json", cwd=folder, stdin=(folder / "full.json").read_text())
    assert done.returncode == 0
    assert json.loads(done.stdout)["name"] == "gpubench-report"


def test_the_newest_result_is_the_default(gpubench, folder):
    place = folder / "results" / "machine"
    place.mkdir(parents=True)
    save(full_run(), place / "20260101T000000Z-00000001.json")
    save(interrupted_run(), place / "20260102T000000Z-00000002.json")
    done = gpubench(cwd=folder)
    assert done.returncode == 0
    assert "gpubench report --full" in done.stdout
    assert "Stopped" in done.stdout


def test_no_result_at_all(gpubench, tmp_path):
    done = gpubench(cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, "")
    assert "error: there is no result to report" in done.stderr


def test_output_by_suffix(gpubench, folder):
    done = gpubench("full.json", "-o", "report.md", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "wrote report.md\n"
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert text.startswith("## gpubench report\n")
    assert len(text.splitlines()) < 120
    assert text.endswith("as a page.\n")
    assert gpubench("full.json", "-o", "report.md", "--full", "-q", cwd=folder).stderr == ""
    assert "### Break-even" in (folder / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["full.json", "--format", "markdwn"], 2, "did you mean 'markdown'?"),
        (["full.json", "--sections", "anser"], 2, "did you mean 'answer'?"),
        (["full.json", "-o", "nowhere/report.md"], 2, "nowhere does not exist"),
        (["full.json", "-o", "report.xyz"], 2, "name the format with --format"),
        (["full.json", "--filter", "matmul/4096"], 2, "is no size"),
        (["full.json", "--filter", "conv2d"], 2, "leave no case"),
        (["full.json", "--baseline", "tpu:0"], 4, "no measured case matches"),
        (["missing.json"], 4, "there is no such file"),
        (["empty"], 4, "it is a folder without a result file"),
    ],
)
def test_mistakes(gpubench, folder, arguments, code, message):
    done = gpubench(*arguments, cwd=folder)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 3


def test_a_failed_run_is_read_with_exit_code_zero(gpubench, tmp_path):
    save(interrupted_run(), tmp_path / "run.json")
    assert gpubench("run.json", "--format", "csv", cwd=tmp_path).returncode == 0


def test_colour_order():
    assert wants_color("always", {"NO_COLOR": "1"}, terminal=False)
    assert not wants_color("never", {"FORCE_COLOR": "1"}, terminal=True)
    assert not wants_color("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, terminal=True)
    assert wants_color("auto", {"NO_COLOR": "", "FORCE_COLOR": "1"}, terminal=False)
    assert not wants_color("auto", {"TERM": "dumb"}, terminal=True)
    assert wants_color("auto", {"TERM": "xterm"}, terminal=True)
    assert not wants_color("auto", {}, terminal=False)


def test_format_order():
    assert chosen_format("csv", "x.md", True) == "csv"
    assert chosen_format(None, "x.MD", True) == "markdown"
    assert chosen_format(None, "-", False) == "plain"
    assert chosen_format(None, None, True) == "table"
    with pytest.raises(UsageError):
        chosen_format(None, "x", True)


def test_width_follows_a_terminal_within_reason(monkeypatch):
    assert table_width(False) == 80
    for columns, expected in (("20", 60), ("100", 100), ("400", 120)):
        monkeypatch.setenv("COLUMNS", columns)
        assert table_width(True) == expected
