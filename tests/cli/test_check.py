"""`gpubench check`: two environments in turns, what is compared, and what stops it."""

import json
import signal
import subprocess

import pytest

from tests.forking import environment, is_alive

PLAN = ["--ops", "add", "--sizes", "1k", "--devices", "fake:cpu", "--max-time", "20ms", "--min-samples", "7"]
SMALL = ("--sizes", "100", "--backends", "numpy", "--implementations", "library", "--max-samples", "4", "--max-time", "5ms")  # fmt: skip
FUNCTION = """
import gpubench

@gpubench.function
def {name}(xp, x):
    return {text}

@{name}.inputs
def _(rng, n):
    return [rng.uniform({low}, 2, n)]
"""
# What each function returns in the new version, and from where its inputs are drawn; the base has x * x, from 1.
CHANGED = {"text": ("x ** 2", 1), "result": ("x * x + 1", 1), "inputs": ("x * x", 0)}


@pytest.fixture
def environments(tmp_path, starter):
    """environments(NAME, KEY=VALUE...): a folder like that of a virtual environment, whose gpubench has these
    variables."""

    def make(name, **variables):
        words = " ".join(f"{key}={value}" for key, value in variables.items())
        program(tmp_path / name / "bin" / "gpubench", f'#!/bin/sh\nexec env {words} {starter.command()} "$@"\n')
        return str(tmp_path / name)

    return make


@pytest.fixture
def check(tmp_path, starter):
    def run(*words, plan=PLAN):
        more = ("--", *plan) if plan else ()
        return starter.run("check", *words, *more, cwd=tmp_path, env=environment(tmp_path))

    return run


def program(path, text, mode=0o755):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def planned(script):
    """Return a program that has a plan, and whose runs are `script`."""
    return f'#!/bin/sh\ncase "$*" in *--dry-run) exit 0;; esac\n{script}\n'


def test_a_slower_version_ends_with_3_and_both_take_turns(environments, check, tmp_path):
    """A case that is broken on both sides keeps the regression from being found no more than it hides it."""
    sides = environments("old"), environments("new", GPUBENCH_FAKE_SLOWER="1.5")
    plan = [word.replace("fake:cpu", "fake:cpu,fake:wrong") for word in PLAN]
    ended = check(*sides, "--results-dir", "kept", plan=plan)
    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert "1 slower" in ended.stdout
    assert "slower: FAILED: add/n=1024/" in ended.stdout
    assert "not-interleaved" not in ended.stdout
    assert ended.stderr.startswith("5 sessions of each version in turns, about ")
    assert "4 of 5 sessions a side, about " in ended.stderr
    files = [json.loads((tmp_path / "kept" / f"{name}.json").read_text()) for name in ("base", "new")]
    begins = [[session["started_at"] for session in file["sessions"]] for file in files]
    assert all(a <= b for a, b in zip(*begins, strict=True))
    again = check(*sides, "--results-dir", "kept")
    assert (again.returncode, "has a base.json" in again.stderr) == (2, True)


def test_each_version_measures_its_own_functions(environments, check, tmp_path):
    both = environments("both")
    for side, own in (("base", dict.fromkeys(CHANGED, ("x * x", 1))), ("head", CHANGED)):
        texts = [FUNCTION.format(name=name, text=text, low=low) for name, (text, low) in own.items()]
        program(tmp_path / side / "shapes.py", "\n".join(texts))
    program(tmp_path / "head" / "fresh.py", texts[0])
    folders = ("--base-folder", "base", "--new-folder", "head", "--sessions", "1")
    for plan, said in (("fresh.py:text", "run fresh.py:text"), ("--ops fresh.py", "is no file fresh.py")):
        refused = check(both, both, *folders, plan=(*plan.split(), *SMALL))
        assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr
    ended = check(both, both, *folders, plan=("shapes.py", "fresh.py", *SMALL))
    assert ended.returncode in (0, 3), ended.stdout + ended.stderr
    assert "BASE has no fresh.py yet" in ended.stderr
    assert "3 cases compared" in ended.stdout, ended.stdout
    differing = {name for name in CHANGED if f"results of shapes.{name}: differ by" in ended.stdout}
    assert differing == {"result", "inputs"}, ended.stdout
    assert len(list((tmp_path / "results").glob("check-*/*.json"))) == 2


def test_a_version_that_cannot_be_measured_is_named_with_what_it_said(environments, check, tmp_path):
    both = environments("both")
    ended = check(both, both, plan=("--ops", "ad"))
    assert ended.returncode == 2
    assert all(said in ended.stderr for said in ("NEW could not be measured", "'ad'"))
    for words, said in (
        ((both, "absent"), "NEW: there is no gpubench in absent"), ((both, both, "--base-folder", "absent"), "--base-folder"),
        ((both, both, "--fail-on", "slowest"), "slowest"),
    ):  # fmt: skip
        refused = check(*words)
        assert (refused.returncode, said in refused.stderr) == (2, True)
    assert not list(tmp_path.rglob("base.json"))


BROKEN = {
    "is no program": (None, 2, "cannot be started"), "is killed": ("kill -9 $$", 1, "was ended by SIGKILL"),
    "saves nothing": ("echo 'error: cannot save the results' >&2; exit 1", 1, "why: error: cannot save the results"),
    "is not UTF-8": ("printf 'error: \\201 is lost' >&2; exit 5", 5, "is lost"), "measures nothing": ("exit 0", 1, "it said nothing"),
}  # fmt: skip


@pytest.mark.parametrize(("script", "code", "said"), BROKEN.values(), ids=BROKEN)
def test_a_base_that_cannot_be_run_is_told_at_once(check, tmp_path, script, code, said):
    program(tmp_path / "base", *(("no program", 0o644) if script is None else (planned(script),)))
    program(tmp_path / "new" / "Scripts" / "gpubench.exe", planned("exit 77"))  # as Windows has it
    ended = check("base", "new")
    told = (ended.returncode, "error: BASE" in ended.stderr, said in ended.stderr, "Traceback" in ended.stderr)
    assert told == (code, True, True, False), ended.stderr
    assert not list((tmp_path / "results").iterdir())


@pytest.mark.parametrize("options", [("-o", "absent/report.md"), ("--results-dir", "base"), ("--summary",)])
def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(check, tmp_path, options):
    program(tmp_path / "base", planned("touch measured"))
    ended = check("base", "base", *options, plan=())
    assert (ended.returncode, options[0].replace("-o", "--output") in ended.stderr) == (2, True), ended.stderr
    assert not (tmp_path / "measured").exists()


@pytest.mark.parametrize(("script", "saving_s", "number", "code"), [
    ('trap "touch kept/base.json; exit 143" TERM; sleep 60 >&- 2>&- & wait $!', 15.0, signal.SIGINT, 130),
    ('trap "" TERM; exec sleep 60', 0.2, signal.SIGTERM, 143),
], ids=["one that saves its session", "one that goes on"])  # fmt: skip
def test_an_interrupted_run_ends_and_quiet_says_nothing(starter, tmp_path, script, saving_s, number, code):
    program(tmp_path / "base", planned(f"sleep 0.5; echo $$ > number; mv number began; {script}"))
    words, module = ("check", "base", "base", "--results-dir", "kept", "-q"), "gpubench.cli.check"
    env = environment(tmp_path, {"TESTS_ALTER": f"{module}:OWN_END_S=0.1 {module}:SAVING_S={saving_s}"})
    with starter.begin(*words, cwd=tmp_path, env=env, stderr=subprocess.PIPE) as check:
        while not (tmp_path / "began").exists():
            assert check.poll() is None
        check.send_signal(number)
        assert (check.wait(30), check.stderr.read()) == (code, "")
    assert not is_alive(int((tmp_path / "began").read_text()))
    assert (tmp_path / "kept" / "base.json").exists() == ("touch" in script)
