"""Files where a run writes and reads: nothing that was measured is lost, two writers wait for each other, and nothing hangs or ends in a traceback."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from gpubench.base.errors import ExitCode
from gpubench.result import store
from gpubench.result.run import Measurement
from tests.forking import environment

FAKE = "--devices fake:cpu,fake:gpu --ops add --quick --min-samples 5 --max-samples 5".split()
PLAN = (*FAKE, "--no-progress", "--sizes", "1k", "--regimes", "resident-queued")
NO_FILES = pytest.mark.skipif(os.name == "nt", reason="Windows has no FIFO, socket or device in a folder")
STRANGE = {"folder": Path.mkdir, "FIFO": lambda path: os.mkfifo(path),
           "dangling link": lambda path: path.symlink_to("nowhere"),
           "link to itself": lambda path: path.symlink_to(path.name)}  # fmt: skip


def sizes(path):
    run = store.load(path)
    return len(run.sessions), sum(len(case.blocks) for case in run.outcomes if isinstance(case, Measurement))


@pytest.fixture(scope="module")
def left(starter, tmp_path_factory):
    """r.json of one session, and r.json.part of a run that added two and was killed."""
    folder = tmp_path_factory.mktemp("left")
    path = folder / "r.json"
    command = ("run", *PLAN, "-o", "more.json", "--sessions", "3", "-q")
    assert starter.run(*command, cwd=folder, env=environment(folder)).returncode == 0
    run = store.load(folder / "more.json")
    store.Journal(store.part_of(path)).write(msgspec.structs.replace(run, complete=False, finished_at=None))
    first = run.sessions[0].index
    for case in run.outcomes:
        for samples in (case.blocks, case.stops):
            samples[:] = [one for one in samples if one.session == first]
    store.save(msgspec.structs.replace(run, sessions=run.sessions[:1]), path)
    return path


@pytest.fixture
def killed(left, tmp_path):
    for path in (left, store.part_of(left)):
        shutil.copy2(path, tmp_path / path.name)
    return tmp_path / left.name


@pytest.mark.parametrize("name", ["r.json", "r.json.part"])
def test_what_a_killed_append_measured_is_kept_whatever_the_times_say(
    gpubench, in_process, tmp_path, killed, name
):
    before = sizes(store.part_of(killed))
    os.utime(killed, (2e9, 2e9))  # from the future
    (tmp_path / "results").mkdir()
    for one in (killed, store.part_of(killed)):
        shutil.copy2(one, tmp_path / "results" / one.name)
    assert "3 sessions" in in_process("report").stdout, "report without FILE"
    gpubench("run", "--append", name, "--sessions", "1", "-q", "--no-progress", status=0)
    assert all(now > then for now, then in zip(sizes(killed), before, strict=True))
    assert not store.part_of(killed).exists()


@pytest.mark.check
@pytest.mark.parametrize("option", ["-o", "--append"])
def test_what_a_run_does_not_go_on_with_is_kept_under_a_name_and_said(gpubench, tmp_path, killed, option):
    """Begun anew, or beside a result of another run."""
    before = sizes(store.part_of(killed))
    if option == "--append":
        other = msgspec.structs.replace(store.load(killed), id="00000000-0000-4000-8000-00000000beef")
        store.save(other, killed)
    plan = PLAN if option == "-o" else ("--no-progress",)
    ended = gpubench("run", *plan, option, "r.json", "--sessions", "1", "-q", status=0)
    (aside,) = tmp_path.glob("r.*.json.part")
    assert f"kept as {aside}" in ended.stderr
    assert sizes(aside) == before
    name = aside.name.removesuffix(".part")
    assert f"--append {tmp_path / name}" in ended.stderr
    assert gpubench("run", "--append", name, "--sessions", "1", "-q").returncode == 0
    assert sizes(tmp_path / name)[0] > before[0]


@NO_FILES
@pytest.mark.parametrize(
    ("name", "kind"),
    [  # through a dangling link a result is written, as a shell does it
        *(("r.json.part", kind) for kind in ("folder", "FIFO", "dangling link")), (".r.json.gpubench-lock", "FIFO"),
        ("r.json", "FIFO"), ("r.json", "link to itself")])  # fmt: skip
def test_what_lies_where_a_run_writes_is_refused_before_it_measures(in_process, tmp_path, name, kind):
    STRANGE[kind](tmp_path / name)
    ended = in_process("run", *PLAN, "-o", "r.json")
    assert (ended.returncode, ended.stdout) == (ExitCode.USAGE, ""), ended.stderr
    assert ended.stderr.startswith("error: --output: cannot write r.json\n")
    assert "Traceback" not in ended.stderr


def test_a_run_that_measured_nothing_is_not_the_newest_and_begins_no_session(gpubench, in_process, tmp_path):
    assert gpubench("run", *PLAN, "-q").returncode == 0
    (measured,) = (tmp_path / "results").rglob("*.json")
    os.rename(measured, measured.with_name("20200101T000000Z-aaaaaaaa.json"))
    for more in ((), ("--check-only",)):
        nothing = gpubench("run", *FAKE, "--sizes", "16G", "--sessions", "3", *more)
        assert (nothing.returncode, "no case can run here" in nothing.stderr) == (ExitCode.FAILED, True)
    fresh = tmp_path / "fresh"
    assert gpubench("run", *PLAN, "--check-only", "--results-dir", str(fresh)).returncode == 0
    assert not fresh.exists()
    # Such a run is kept only where somebody names a file.
    assert len(list((tmp_path / "results").rglob("*.json*"))) == 1
    kept = tmp_path / "results" / "empty.json"
    for option in ("-o", "--append"):
        assert gpubench("run", *FAKE, "--sizes", "16G", option, str(kept)).returncode == ExitCode.FAILED
        assert store.load(kept).sessions == []
    assert "Nothing was measured" in in_process("report", str(kept)).stdout
    assert "n = 1 K" in in_process("report").stdout


# ---------------------------------------------------------------------- two runs that write one file


@pytest.fixture
def start(tmp_path, starter):
    def begin(*arguments):
        around = {"cwd": tmp_path, "env": environment(tmp_path), "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}  # fmt: skip
        return starter.begin("run", *arguments, "--no-progress", **around)

    return begin


def test_two_appends_at_once_add_the_sessions_of_both(tmp_path, gpubench, start):
    assert gpubench("run", *PLAN, "-o", "ap.json", "-q").returncode == 0
    first = start("--append", "ap.json", "--sessions", "8")
    while not (tmp_path / "ap.json.part").exists():
        assert first.poll() is None
    second = start("--append", "ap.json", "--sessions", "4", "--lock-timeout", "120s")
    said = [process.communicate(timeout=200)[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), said
    assert len(store.load(tmp_path / "ap.json").sessions) == 13
    assert ["waiting for another run: process" in text for text in said] == [False, True]
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
    both = ("-o", "r.json", "-o", str(tmp_path / "r.json"))
    gpubench("run", *PLAN, *both, "-q", "--lock-timeout", "100ms", status=0)


@pytest.mark.check
def test_a_file_of_somebody_else_beside_the_result_is_not_touched(tmp_path, gpubench, start):
    (tmp_path / "r.json.part").write_text("half a download")
    ended = gpubench("run", *PLAN, "-o", "r.json")
    assert (ended.returncode, "r.json.part" in ended.stderr) == (2, True), ended.stderr
    assert (tmp_path / "r.json.part").read_text() == "half a download"
