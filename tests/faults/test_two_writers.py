"""Two runs that write one file lose nothing: the second waits, or is refused before it measures."""

import signal
import subprocess

import pytest

from gpubench.result import store
from tests.forking import environment

PLAN = "--devices fake:cpu,fake:gpu --ops add --sizes 1k --regimes resident-queued --quick --min-samples 5 --max-samples 5".split()  # fmt: skip


@pytest.fixture
def start(tmp_path, starter):
    def begin(*arguments):
        around = {"cwd": tmp_path, "env": environment(tmp_path), "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}  # fmt: skip
        return starter.begin("run", *arguments, "--no-progress", **around)

    return begin


def test_two_appends_at_once_add_the_sessions_of_both(tmp_path, gpubench, start):
    assert gpubench("run", *PLAN, "-o", "ap.json", "-q").returncode == 0
    both = [start("--append", "ap.json", "--sessions", "4", "--lock-timeout", "120s") for _ in range(2)]
    said = [process.communicate(timeout=200)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert len(store.load(tmp_path / "ap.json").sessions) == 9
    waiting = [text for text in said if "waiting for another run: process" in text]
    assert len(waiting) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ap.json"], "no lock is left"


def test_the_second_is_refused_and_told_who_writes(tmp_path, gpubench, start):
    first = start(*PLAN, "--sessions", "500", "--append", "r.json")
    while not (tmp_path / "r.json.part").exists():
        assert first.poll() is None
    second = gpubench("run", *PLAN, "--append", "./r.json", "--lock-timeout", "100ms")
    assert (second.returncode, second.stdout) == (4, "")
    for told in (f"process {first.pid} on ", f"run {PLAN[0]} {PLAN[1]}", "--lock-timeout"):
        assert told in second.stderr
    first.send_signal(signal.SIGINT)
    said = first.communicate(timeout=100)[1]
    assert first.returncode == 130, (said, len(store.load(tmp_path / "r.json").sessions))
    assert store.load(tmp_path / "r.json").sessions, "the first has lost nothing"


def test_a_killed_writer_holds_nothing(tmp_path, gpubench, start):
    first = start(*PLAN, "--sessions", "500", "-o", "r.json")
    while not (tmp_path / "r.json.part").exists():
        assert first.poll() is None
    first.kill()
    first.communicate()
    gpubench("run", *PLAN, "-o", "r.json", "-q", "--lock-timeout", "10s", status=0)


def test_a_run_does_not_wait_for_itself(tmp_path, gpubench):
    gpubench(
        "run", *PLAN, "-o", "r.json", "-o", str(tmp_path / "r.json"), "-q", "--lock-timeout", "100ms", status=0
    )


@pytest.mark.check
def test_a_file_of_somebody_else_beside_the_result_is_not_touched(tmp_path, gpubench, start):
    (tmp_path / "r.json.part").write_text("half a download")
    ended = gpubench("run", *PLAN, "-o", "r.json")
    assert (ended.returncode, "r.json.part" in ended.stderr) == (2, True), ended.stderr
    assert (tmp_path / "r.json.part").read_text() == "half a download"
