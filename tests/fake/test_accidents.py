"""Each accident costs its cases alone: the run goes on, the file says what happened, the exit code too."""

from pathlib import Path

import pytest

from tests.faults.packages import install_scripted

ADD = ("--ops", "add", "--sizes", "1k,4k")
RESIDENT = ("--regimes", "resident-queued")
BARE = Path(__file__).parents[1] / "platforms" / "bare"  # without CuPy, whatever this machine has


def of(ran, device):
    return {name: outcome for name, outcome in ran.outcomes.items() if name.endswith(f"@{device}")}


def assert_the_rest_was_measured(ran, sizes=2):
    measured = of(ran, "fake:cpu")
    assert (ran.result["complete"], len(measured)) == (True, sizes)
    assert all(o["type"] == "measurement" and o["stops"] for o in measured.values())


WORDS = {
    "crash": ("failure", "worker-crashed", "first launch", "SIGABRT"),
    "exit": ("failure", "worker-crashed", "first launch", "exited with status 3"),
    "lost": ("failure", "device-lost", "first launch", "fell off the bus"),
    "build": ("failure", "build-error", "compile", "expected ';'"),
    "wrong": ("failure", "wrong-result", "check", "largest error"), "oom": ("skip", "out-of-memory", None, ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def accidents(run):
    """All of them in one run, beside a CPU and a GPU that have none."""
    return run("--devices", ",".join(f"fake:{word}" for word in ("cpu", "gpu", *WORDS)), *ADD[:3], "1k")


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.check
def test_an_accident_costs_its_cases(accidents, word):
    kind, reason, phase, detail = WORDS[word]
    broken = of(accidents, f"fake:{word}")
    assert len(broken) == 4, "four regimes"
    for outcome in broken.values():
        assert (outcome["type"], outcome["reason"], outcome.get("phase")) == (kind, reason, phase)
        assert detail in outcome["detail"]
        assert "blocks" not in outcome, "a failure has no number"
        if word == "wrong":
            check = outcome["check"]
            assert (check["ok"], len(check["index"]), check["max_error"] > check["limit"]) == (False, 1, True)
    assert f"{'failed' if kind == 'failure' else 'skipped'}, {reason}" in accidents.out


def test_the_rest_is_measured_and_the_worst_is_named(accidents):
    assert (accidents.code, accidents.result["exit_reason"]) == (1, "wrong-result")
    assert accidents.err.count("FAILED") == 4 * 5
    assert_the_rest_was_measured(accidents, 1)
    assert {outcome["type"] for outcome in of(accidents, "fake:gpu").values()} == {"measurement"}


def test_a_hang_is_killed_after_the_case_timeout(run):
    command = "--devices fake:cpu,fake:hang --ops add --sizes 1k --case-timeout 1s"
    ran = run(*command.split(), *RESIDENT)
    (hung,) = of(ran, "fake:hang").values()
    assert (ran.code, hung["type"], hung["reason"], hung["phase"]) == (1, "failure", "timeout", "first launch")
    assert "1 s" in hung["detail"]
    assert_the_rest_was_measured(ran, 1)


def test_a_budget_too_small_for_the_sizes(run):
    ran = run(*"--devices fake:cpu,fake:throttle --ops add,mul,sub --sizes 1k,2k,4k --budget 1s".split())
    assert (ran.code, ran.result["exit_reason"], ran.result["complete"]) == (124, "budget", True)
    reasons = {o.get("reason") for o in ran.outcomes.values() if o["type"] == "skip"}
    assert reasons == {"budget"}
    assert not [o for o in ran.outcomes.values() if o["type"] == "planned"]


@pytest.mark.check
@pytest.mark.parametrize(("chosen", "words"), [
    (("--backends", "cupy"), ("CuPy cannot be imported", "pip install")),
    (("--devices", "fake:cpu,fake:nope"), ("there is no device fake:nope",)),
])  # fmt: skip
def test_what_was_named_and_is_not_there(run, chosen, words):
    ran = run(*chosen, *ADD, env={"PYTHONPATH": str(BARE)})
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (5, "", 3)
    assert all(word in ran.err for word in words)
    assert list(ran.folder.iterdir()) == []


FLAKY = """
import os
import pathlib

import gpubench.backends.hidden.fake as fake
from gpubench.base.errors import DeviceLost

run = fake.FakeSession.run
seen = set()


def lose(self, launch, repeat=1):
    marker = pathlib.Path(os.environ["MARKER"])
    seen.add(id(launch))
    if self._word == "gpu" and len(seen) > 8 and not marker.exists():
        marker.touch()
        raise DeviceLost("scripted: it fell off the bus")
    run(self, launch, repeat)


fake.FakeSession.run = lose
"""


def test_a_device_that_is_lost_between_two_steps_builds_its_launches_again(run, tmp_path):
    """The step that comes next, and a size that had been prepared before, are measured by the worker that follows."""
    env = install_scripted(tmp_path / "site", "flaky", FLAKY)
    command = "--devices flaky:cpu,flaky:gpu --ops add,relu --sizes 1000,3000 --budget 20s"
    regimes = ("--regimes", "resident-queued,transfer-once")
    ran = run(*command.split(), *regimes, env={**env, "MARKER": str(tmp_path / "lost")})
    assert (tmp_path / "lost").exists()
    broken = {name for name, o in ran.outcomes.items() if o.get("failures") or o.get("reason")}
    assert len(broken) <= 1, "a loss costs the case that met it at most"
    assert all(len(o["blocks"]) >= 4 for name, o in ran.outcomes.items() if name not in broken)
