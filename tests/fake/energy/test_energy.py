"""Energy by the command line, on scripted devices: what is unknown has its reason, and other runs have nothing of it."""

import json

import pytest

WORDS = ("--devices", "fake:cpu", "--ops", "add", "--sizes", "1k", "--regimes", "resident-waited")


@pytest.fixture(scope="module")
def ran(run):
    return run(*WORDS, "--energy")


def test_what_is_unknown_is_a_reason_and_no_number(ran, in_process):
    assert ran.code == 0, ran.err
    for outcome in ran.outcomes.values():
        (window,) = outcome["energy"]
        assert (bool(window["reason"]), window["power_w"]) == (True, None)
    path = str(ran.folder / "r.json")
    assert "Unknown for fake:cpu" in in_process("report", path, "--sections", "energy").stdout
    rows = json.loads(in_process("report", path, "--format", "json").stdout)["energy"]
    assert [row["joules"] for row in rows] == [None] * len(ran.outcomes)


def test_a_file_with_energy_names_the_sizes(ran, gpubench, in_process):
    path, env = ran.folder / "r.json", {"GPUBENCH_FAKE": "1"}
    done = gpubench("run", "--append", str(path), "--energy", "--sessions", "1", "--no-progress", env=env)
    assert done.returncode == 0, done.stderr
    without = ran.folder / "without.json"
    assert gpubench("run", *WORDS, "--sessions", "1", "-o", str(without), env=env).returncode == 0
    assert "Energy" not in in_process("report", str(without), "--full").stdout
    done = gpubench("run", "--append", str(without), "--energy", env=env)
    assert (done.returncode, "the file's plan has none" in " ".join(done.stderr.split())) == (2, True)
