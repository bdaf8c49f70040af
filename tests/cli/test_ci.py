"""Options for a CI, with the environment of a GitHub runner: files that are appended to, messages, exit codes."""

import json
import re
from pathlib import Path

import pytest

from gpubench.report import FORMATS
from gpubench.result.store import dumps, save
from tests.unit.report.builders import curve, run_of
from tests.unit.report.samples import full_run
from tests.unit.report.sides import CASES, pair

RUN = (
    "run", "--devices", "fake:cpu,fake:gpu", "--quick", "--min-samples", "5", "--max-time", "20ms", "--ops", "add",
    "--sizes", "1k,1M", "--no-progress",
)  # fmt: skip


@pytest.fixture
def runner(tmp_path):
    """The variables of a step; the summary holds what an earlier command of the step wrote."""
    (tmp_path / "summary.md").write_text("before, no newline", encoding="utf-8")
    (tmp_path / "output").write_text("", encoding="utf-8")
    return {
        "CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    base, new = pair({CASES[1].id: 1.3}, sigma=0.004)
    save(base, tmp_path / "base.json")
    save(new, tmp_path / "new.json")
    save(run_of(curve({64: 0.5, 256: 4.0})), tmp_path / "r.json")
    save(full_run(), tmp_path / "full.json")
    return tmp_path


ACTION = (Path(__file__).parents[2] / "action.yml").read_text()
ACTION_OUTPUTS = set(re.findall(r"steps\.judge\.outputs\.([\w-]+)", ACTION))


def outputs(folder):
    lines = (folder / "output").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_compare_tells_a_runner_everything(in_process, folder, runner):
    lost = in_process(
        "compare", "base.json", "new.json", "--summary", env={**runner, "GITHUB_STEP_SUMMARY": "nowhere/s"}
    )
    assert (lost.returncode, lost.stdout) == (1, ""), "found out before anything is compared"
    ended = in_process("compare", "base.json", "new.json", "--summary", "--alpha", "0.5", env=runner)
    assert ended.returncode == 3
    assert outputs(folder) == {
        "verdict": "slower", "slower": "1", "faster": "0", "unsure": "0", "gpu_wins": "",
        "exit-code": "3", "result-file": "new.json",
    }  # fmt: skip
    assert ended.stderr.splitlines() == [f"::error title=gpubench::slower: FAILED: {CASES[1].id}"]
    summary = (folder / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith("before, no newline\n## gpubench compare\n")
    assert ended.stdout.startswith("Base: ")


def test_two_commands_of_one_step_append(in_process, folder, runner):
    for _ in range(2):
        assert in_process("report", "r.json", "--summary", env=runner).returncode == 0
    assert (folder / "summary.md").read_text(encoding="utf-8").count("## gpubench report\n") == 2
    written = outputs(folder)
    verdicts = ("verdict", "slower", "faster", "unsure", "gpu_wins")
    assert [written[name] for name in verdicts] == ["ok", "", "", "", "1"]
    assert written.keys() <= ACTION_OUTPUTS, "action.yml passes on all of them"


@pytest.mark.parametrize("written", [None, 999_000, 999_990, 1_000_100])
def test_the_summary_stays_below_the_limit(in_process, folder, runner, written):
    """GitHub discards a summary above 1 MiB as a whole, with what came before."""
    if written is None:  # the report fits, but for the line's end before it
        in_process("report", "full.json", "--summary", env=runner)
        written = 999_999 - (folder / "summary.md").stat().st_size + len("before, no newline\n")
    (folder / "summary.md").write_bytes(b"x" * written)
    ended = in_process("report", "full.json", "--summary", env=runner)
    assert ended.returncode == 0
    size = (folder / "summary.md").stat().st_size
    assert size < 1_000_000 or size == written
    if written in (999_990, 1_000_100):
        assert (size, "the summary of this step is full" in ended.stderr) == (written, True)
    else:
        assert "**truncated**" in (folder / "summary.md").read_text(encoding="utf-8")


def test_a_summary_that_cannot_be_written_is_found_out_first(gpubench, folder):
    ended = gpubench(*RUN, "--summary", env={"GITHUB_STEP_SUMMARY": str(folder / "absent" / "s.md")})
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "cannot write" in ended.stderr


@pytest.mark.parametrize(("words", "variables", "reported"), [
    ([], {}, False), ([], {"GITHUB_ACTIONS": "true"}, True), (["--annotations", "always"], {}, True),
    (["--annotations", "never"], {"GITHUB_ACTIONS": "true"}, False), ([], {"GITHUB_ACTIONS": "false"}, False),
])  # fmt: skip
def test_when_messages_are_written(in_process, folder, words, variables, reported):
    ended = in_process("report", "r.json", "--min-speedup", "matmul=2", *words, env=variables)
    assert (ended.returncode, "::error" in ended.stderr) == (3, reported)
    assert "::" not in ended.stdout


def test_a_comment_starts_with_its_marker_and_fits(in_process, folder):
    ended = in_process(*"report full.json --format markdown --marker bench/1 --max-bytes 2000".split())
    assert ended.returncode == 0
    assert ended.stdout.startswith("<!-- gpubench:bench/1 -->\n## gpubench report\n")
    assert len(ended.stdout.encode()) <= 2000
    assert "**truncated**" in ended.stdout
    written = in_process("compare", "base.json", "new.json", "--marker", "x", "-o", "c.md")
    assert written.returncode == 3
    assert (folder / "c.md").read_text(encoding="utf-8").startswith("<!-- gpubench:x -->\n")


def test_a_failed_gate_is_the_exit_code_of_a_run_and_of_its_file(gpubench, tmp_path, runner):
    gates = ("--min-speedup", "add=2", "--fail-on", "incomplete", "-o", "g.json", "--summary")
    ended = gpubench(*RUN, *gates, env=runner)
    assert ended.returncode == 3, ended.stderr
    assert "min-speedup add=2: FAILED: below 2x: add/n=1024/" in " ".join(ended.stdout.split())
    stored = json.loads((tmp_path / "g.json").read_text())
    assert (stored["exit_code"], stored["exit_reason"], stored["complete"]) == (3, "gate", True)
    assert outputs(tmp_path)["result-file"] == "g.json"
    assert (outputs(tmp_path)["verdict"], outputs(tmp_path)["exit-code"]) == ("failed", "3")
    assert "### Gates" in (tmp_path / "summary.md").read_text(encoding="utf-8")


COMMAND = re.compile(r"(^|[\r\n])(\x1b\[[0-9;]*m|\s)*::(?!(error|warning) title=gpubench::)|##[\w.]*\[")
HOSTILE = "::error::pwn ##[error]pwn ##vso[task.complete]pwn"
_FILES = ("h.json", "i.json")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Two results whose every text is a command, at the start of what is printed and where a line is wrapped."""
    folder = tmp_path_factory.mktemp("hostile")
    (tmp := folder / "plain.json").write_bytes(dumps(full_run()))
    run = json.loads(tmp.read_bytes())
    run["label"] = "x" * 75 + " " + HOSTILE
    for device in run["devices"]:
        device["name"] = HOSTILE
    run["warnings"] = [{"code": "noisy", "message": HOSTILE, "hint": HOSTILE}]
    for outcome in run["outcomes"]:
        for key in ("detail", "hint"):
            if key in outcome:
                outcome[key] = HOSTILE
    text = json.dumps(run)
    for file, id in zip(_FILES, ("::add-mask::gpu:0", "##[group]gpu:0"), strict=True):
        (folder / file).write_text(text.replace("wgpu:0", id))
    (folder / "claims.json").write_text("##[error]")
    return folder


@pytest.mark.parametrize("command", [
    *(("report", "h.json", "--format", format) for format in FORMATS if format != "html"),
    *(("compare", *_FILES, "--format", format) for format in ("table", "plain", "markdown", "csv", "json")),
    ("report", "h.json", "--color", "always", "--format", "table"),
    ("report", "i.json", "--by-device", "--sections", "raw,environment,warnings,machines"),
    ("report", *_FILES, "--claims", "claims.json"), ("report", "--", "::error::no such file"),
    ("report", "##[error]no such file"), ("advise", "matmul", "--size", "64", "--from", "h.json"),
    ("advise", "::error::op", "--size", "64"), ("merge", *_FILES, "-o", "##[error].json"), ("noise", *_FILES),
    ("run", "--devices", "::error::x"), ("run", "--ops", "##[error]x", "--verbose"),
    ("run", "--config", "::error::x.toml"), ("##vso[task.complete]",),
], ids=" ".join)  # fmt: skip
def test_no_text_becomes_a_command_of_the_runner(in_process, hostile, runner, command):
    done = in_process(*command, env=runner, cwd=hostile)
    assert done.stdout or done.stderr
    assert "Traceback" not in done.stderr or "--verbose" in command
    assert not COMMAND.search(done.stdout), COMMAND.search(done.stdout)
    assert not COMMAND.search(done.stderr), COMMAND.search(done.stderr)


def test_a_broken_case_outweighs_a_gate(gpubench, tmp_path):
    devices = ("--devices", "fake:cpu,fake:wrong")
    ended = gpubench("run", *devices, *RUN[3:], "--min-speedup", "add=2", "-o", "g.json")
    reason = json.loads((tmp_path / "g.json").read_text())["exit_reason"]
    assert (ended.returncode, reason) == (1, "wrong-result")
