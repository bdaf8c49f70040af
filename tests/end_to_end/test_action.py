"""The composite action and the example workflow: their steps, executed as shell with the environment of a runner.

Python's `venv` and `pip` are stand-ins that note what is installed where; everything else is the real thing: bash as
the runner calls it, git with a remote, and gpubench on a scripted device that the new version makes slower.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.forking import environment

ROOT = Path(__file__).resolve().parents[2]
BASH = "bash --noprofile --norc -e -o pipefail".split()
EXPRESSION = re.compile(r"\$\{\{\s*([^}]+?)\s*\}\}")
# `python -m venv DIR` gives DIR a python whose pip only writes down what it is asked for, and the gpubench of the side.
PYTHON = """#!/bin/sh
set -eu
[ "$1 $2" = "-m venv" ]
mkdir -p "$3/bin"
printf '#!/bin/sh\\nprintf "%%s|%%s|%%s\\\\n" "{side}" "$(pwd -P)" "$*" >>"$PIP_LOG"\\n' | sed "s|{side}|$(basename "$3")|" >"$3/bin/python"
printf '#!/bin/sh\\nif [ {side} = new ]; then export GPUBENCH_FAKE_SLOWER="$NEW_SLOWER"; else unset GPUBENCH_FAKE_SLOWER; fi\\nexec "$GPUBENCH" "$@"\\n' \\
    | sed "s|{side}|$(basename "$3")|" >"$3/bin/gpubench"
chmod +x "$3/bin/python" "$3/bin/gpubench"
"""


def load(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


class Runner:
    """A job on a runner: the folders, the files that steps append to, and the action's steps one after the other."""

    def __init__(self, folder, command):
        self.folder = folder
        self.workspace, self.temp = folder / "a workspace", folder / "temp"
        self.temp.mkdir()
        self.summary = folder / "summary.md"
        self.outputs: dict[str, dict[str, str]] = {}
        self.log = ""
        self.python = self._program("python3", PYTHON)
        self.gpubench = self._program("a gpubench", f'#!/bin/sh\nexec {command} "$@"\n')
        self._repository()

    def _program(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def _repository(self):
        """The checkout of a pull request whose target is the branch `main` of its remote."""

        def git(*words, cwd=self.folder):
            name = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
            subprocess.run(["git", *name, *words], cwd=cwd, check=True, capture_output=True)

        git("init", "--bare", "origin.git")
        git("clone", "origin.git", "a workspace")
        for version in ("older", "base", "new"):
            (self.workspace / "version").write_text(version)
            git("add", "version", cwd=self.workspace)
            git("commit", "-m", version, cwd=self.workspace)
            if version == "base":
                git("push", "origin", "HEAD:main", cwd=self.workspace)

    def act(self, *, slower=1.0, only=None, **inputs):
        """Every step of the action (or `only` one), as long as they succeed; the exit code of the last one."""
        action = load("action.yml")
        values = {name: row["default"] for name, row in action["inputs"].items()}
        given = {name.replace("_", "-"): value for name, value in inputs.items()}
        assert given.keys() <= values.keys()
        values |= {"python": self.python, **given}
        for step in action["runs"]["steps"]:
            if only not in (None, step["id"]):
                continue
            code = self._step(step, values, {"NEW_SLOWER": str(slower)})
            if code:
                return code
        return 0

    def _step(self, step, inputs, more):
        assert step["shell"] == "bash"
        script, output = self.folder / "step.sh", self.folder / f"output-{step['id']}"
        script.write_text(step["run"])
        output.write_text("")
        self.summary.touch()
        environ = {
            **environment(self.folder), "CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(self.summary), "RUNNER_TEMP": str(self.temp),
            "GITHUB_WORKSPACE": str(self.workspace), "GPUBENCH": self.gpubench,
            "PIP_LOG": str(self.folder / "pip.log"), **more,
            **{name: self._filled(text, inputs) for name, text in step["env"].items()},
        }  # fmt: skip
        ended = subprocess.run(
            [*BASH, str(script)], cwd=self.workspace, env=environ, capture_output=True, text=True, timeout=300,
            check=False,
        )  # fmt: skip
        self.log += ended.stdout + ended.stderr
        lines = output.read_text().splitlines()
        self.outputs[step["id"]] = dict(line.split("=", 1) for line in lines)
        return ended.returncode

    def _filled(self, text, inputs):
        known = {f"inputs.{name}": value for name, value in inputs.items()}
        for step, rows in self.outputs.items():
            known |= {f"steps.{step}.outputs.{name}": text for name, text in rows.items()}
        return EXPRESSION.sub(lambda found: {**known, "github.action_path": str(ROOT)}[found[1]], text)

    @property
    def kept(self):
        """Where the results of this use of the action lie."""
        return Path(self.outputs["install"]["folder"])

    @property
    def installed(self):
        """(side, folder, words of pip) in order."""
        lines = (self.folder / "pip.log").read_text().splitlines()
        return [tuple(line.split("|")) for line in lines]  # type: ignore[misc]


@pytest.fixture
def runner(tmp_path, starter):
    return Runner(tmp_path, starter.command())


SMALL = {"ops": "add,relu", "sizes": "1k relu=4k", "args": "--devices fake:cpu --max-time 20ms --min-samples 7"}
CASE = "relu/n=4096/float32/library/resident@fake:cpu"


def test_a_slower_version_fails_the_job_and_says_so_everywhere(runner):
    assert runner.act(**SMALL, packages=".", base_ref="main", slower=1.3) == 3, runner.log
    assert runner.outputs["judge"] == {
        "verdict": "slower", "slower": "2", "faster": "0", "unsure": "0", "gpu_wins": "", "exit-code": "3",
        "result-file": str(runner.kept / "new.json"),
    }  # fmt: skip
    slower = f"slower: FAILED: add/n=1024/float32/library/resident@fake:cpu, {CASE}"
    assert f"::error title=gpubench::{slower}" in runner.log
    summary = runner.summary.read_text(encoding="utf-8")
    assert summary.startswith("## gpubench compare\n")
    assert "not-interleaved" not in summary, "both versions took turns"
    comment = (runner.kept / "comment.md").read_text(encoding="utf-8")
    assert comment.startswith("<!-- gpubench:gpubench -->\n")
    assert runner.installed == [
        ("new", str(runner.workspace), f"-m pip install --quiet {ROOT}"),
        ("new", str(runner.workspace), "-m pip install --quiet ."),
        ("base", str(runner.workspace), f"-m pip install --quiet {ROOT}"),
        ("base", str(runner.kept / "base-tree"), "-m pip install --quiet ."),
    ]
    assert (runner.kept / "base-tree" / "version").read_text() == "base"
    assert not (runner.workspace / ".git" / "shallow").exists(), "later steps have the whole history"


def test_a_base_file_stands_in_for_a_ref(runner):
    assert runner.act(**SMALL, extras="cuda12") == 0, runner.log
    assert runner.installed == [("new", str(runner.workspace), f"-m pip install --quiet {ROOT}[cuda12]")]
    kept = runner.workspace / "base of ours.json"
    (runner.kept / "new.json").rename(kept)
    assert runner.act(**SMALL, base_file=kept.name, slower=1.3) == 3, runner.log
    assert runner.outputs["judge"]["verdict"] == "slower"
    assert "not-interleaved" in runner.summary.read_text(encoding="utf-8")
    assert runner.act(only="judge", threshold="50") == 0, runner.log
    assert runner.act(only="judge", compare_args="--advisory --ignore relu") == 0, runner.log
    assert (runner.outputs["judge"]["verdict"], runner.outputs["judge"]["slower"]) == ("slower", "1")


def test_without_a_base_it_reports_and_its_gates_count(runner):
    words = {**SMALL, "args": "--devices fake:cpu,fake:gpu,fake:wrong --max-time 20ms", "sessions": "1"}
    assert runner.act(**words) == 1, runner.log
    assert (runner.outputs["judge"]["verdict"], runner.outputs["judge"]["exit-code"]) == ("failed", "1")
    assert "wrong-result" in runner.summary.read_text(encoding="utf-8")
    words["args"] = "--devices fake:cpu,fake:gpu --max-time 20ms"
    assert runner.act(**words, compare_args="--min-speedup relu=1000") == 3, runner.log
    assert runner.outputs["judge"]["verdict"] == "failed"
    assert "## gpubench report" in runner.summary.read_text(encoding="utf-8")


def test_a_file_that_the_base_does_not_have_is_measured_alone_or_left_out(runner):
    (runner.workspace / "f.py").write_text(
        "import gpubench\n@gpubench.function\ndef f(xp, x):\n    return x + 1\n"
    )
    words = {"functions": "f.py:f", "sizes": "1k", "args": "--backends numpy --max-samples 4", "sessions": "1"}
    assert runner.act(**words, base_ref="main", threshold="9", compare_args="--advisory") == 0, runner.log
    assert "::warning title=gpubench::the base has no f.py yet" in runner.log
    assert "## gpubench report" in runner.summary.read_text(encoding="utf-8")
    assert runner.act(**words, ops="add", base_ref="main", compare_args="--advisory") == 0, runner.log
    assert "## gpubench compare" in runner.summary.read_text(encoding="utf-8")


@pytest.mark.parametrize(("inputs", "code", "reported"), [
    ({"base_ref": "main"}, 2, "base-ref needs packages"),
    ({"base_ref": "main", "base_file": "x.json", "packages": "."}, 2, "leave one of them out"),
    ({"base_file": "absent.json"}, 1, "absent.json"), ({"ops": "adds"}, 2, "did you mean 'add'?"),
    ({"base_ref": "absent", "packages": "."}, 128, "absent"),
    ({"ops": '$(touch "$RUNNER_TEMP/evil")'}, 2, "there is no"),
    ({"args": "; touch evil"}, 2, "is not a file with functions"),
])  # fmt: skip
def test_bad_inputs_end_the_job_at_once(runner, inputs, code, reported):
    assert runner.act(**{**SMALL, **inputs}) == code, runner.log
    assert reported in runner.log
    assert "judge" not in runner.outputs
    assert not list(runner.folder.rglob("evil")), "an input is never executed"


def test_the_action_has_the_shape_that_github_wants():
    action = load("action.yml")
    assert action.keys() == {"name", "description", "branding", "inputs", "outputs", "runs"}
    assert action["branding"]["color"] in set("white yellow blue green orange red purple gray-dark".split())
    for row in action["inputs"].values():
        assert row.keys() == {"description", "default"}
        assert all(isinstance(value, str) for value in row.values())
    steps = action["runs"]["steps"]
    assert (action["runs"].keys(), action["runs"]["using"]) == ({"using", "steps"}, "composite")
    assert all(step.keys() == {"id", "name", "shell", "env", "run"} for step in steps)
    ids = [step["id"] for step in steps]
    assert len(set(ids)) == len(ids)
    for row in action["outputs"].values():
        assert row.keys() == {"description", "value"}
        for expression in EXPRESSION.findall(row["value"]):
            assert expression.split(".")[1] in ids
    used = {found for step in steps for text in step["env"].values() for found in EXPRESSION.findall(text)}
    others = {"github.action_path", "steps.install.outputs.folder"}
    assert used == {f"inputs.{name}" for name in action["inputs"]} | others
    # Whatever a pull request may choose reaches the shell as a variable, never as a piece of the script.
    assert not [step["id"] for step in steps if EXPRESSION.search(step["run"])]


def test_the_example_workflow_writes_and_finds_its_comment(tmp_path):
    """The last step with a `gh` that notes what it is called with and answers as GitHub does."""
    steps = load("examples/github-workflow.yml")["jobs"]["compare"]["steps"]
    (step,) = [step for step in steps if "comment" in step.get("name", "")]
    gh = tmp_path / "gh"
    gh.write_text('#!/bin/sh\necho "$*" >>"$GH_LOG"\ncase "$*" in *--paginate*) printf "%s" "$KNOWN";; esac\n')
    gh.chmod(0o755)
    (tmp_path / "comment.md").write_text("<!-- gpubench:gpubench -->\n")
    for known, wanted in (
        ("", "--method POST repos/o/r/issues/7/comments"),
        ("42\n43\n", "--method PATCH repos/o/r/issues/comments/42"),
    ):
        log = tmp_path / f"log{len(known)}"
        environ = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}", "GH_LOG": str(log), "KNOWN": known, "GITHUB_REPOSITORY": "o/r",
            "PULL_REQUEST": "7", "COMMENT": str(tmp_path / "comment.md"),
        }  # fmt: skip
        subprocess.run([*BASH, "-c", step["run"]], env=environ, check=True)
        assert wanted in log.read_text().splitlines()[-1]


def test_the_gitlab_job_calls_check_as_it_is(starter, tmp_path):
    (script,) = (job["script"] for job in load("examples/gitlab-ci.yml").values())
    program, *words = shlex.split(script[-1])
    assert program == "new/bin/gpubench"
    plan = words[words.index("--") + 1 :]
    (tmp_path / plan[0]).write_text(
        "import gpubench\n@gpubench.function\ndef f(xp, x):\n    return x + 1\n"
        "@f.inputs\ndef _(rng, n):\n    return [rng.uniform(0, 1, n)]\n"
    )
    (tmp_path / "base-tree").mkdir()
    told = starter.run(*words, cwd=tmp_path, env=environment(tmp_path))
    assert (told.returncode, "BASE: there is no gpubench in base" in told.stderr) == (2, True), told.stderr
    planned = starter.run("run", *plan, "--dry-run", cwd=tmp_path, env=environment(tmp_path))
    assert (planned.returncode, "f/n=" in planned.stdout) == (0, True), planned.stderr


def test_the_example_workflow_fits_the_action_and_leaves_out_what_a_fork_may_not_write():
    action, workflow = load("action.yml"), load("examples/github-workflow.yml")
    steps = workflow["jobs"]["compare"]["steps"]
    ours = next(step for step in steps if step.get("id") == "gpubench")
    assert ours["with"].keys() <= action["inputs"].keys()
    used = set(EXPRESSION.findall((ROOT / "examples/github-workflow.yml").read_text()))
    outputs = {name.split(".")[3] for name in used if name.startswith("steps.gpubench.outputs.")}
    assert outputs <= action["outputs"].keys()
    # The token of a fork's pull request cannot comment: a step that tried would fail the job.
    for step in steps:
        if "GH_TOKEN" in step.get("env", {}):
            assert "head.repo.full_name == github.repository" in step["if"], step["name"]
