"""A disk that fails during the run, and a temporary folder without room: it measures on, prints the report, and saves where there is room."""

import contextlib
import resource
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from gpubench.result import store
from gpubench.result.run import Failure
from tests.forking import environment

PLAN = ("--devices fake:cpu,fake:gpu --ops add,mul --sizes 1k,64k --sessions 3 --regimes resident,transfer-once "
        "--min-samples 5 --max-samples 10").split()  # fmt: skip


def small_disk(folder, size):
    """A file system of its own, which tests fill or turn read-only."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root; the file-size limit is tested without it")
    yield folder
    while subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False).returncode == 0:
        pass  # a second mount makes it read-only


@pytest.fixture
def disk(tmp_path):
    yield from small_disk(tmp_path / "disk", "2m")


@pytest.fixture
def temporary(tmp_path):
    yield from small_disk(tmp_path / "tmp", "256k")


@pytest.fixture
def spoiled(starter):
    """A run whose place is spoiled once it has measured something."""

    def ended(folder, *arguments, spoil, home, temporary=None, largest_file=None):
        env = environment(home, {"TMPDIR": str(temporary)} if temporary else {})
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = starter.begin("run", *PLAN, *arguments, "--no-progress", cwd=home, env=env, **streams)
        if largest_file is not None:  # a program that starts under a limit would start its workers too
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (largest_file, largest_file))
        while not any(folder.rglob("*.part")) and process.poll() is None:
            time.sleep(0.01)
        spoil()
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess([], process.returncode, out, err)

    return ended


def no_space(folder):
    with contextlib.suppress(OSError), open(folder / "ballast", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def no_space_for_a_while(folder):
    no_space(folder)
    time.sleep(0.2)
    (folder / "ballast").unlink()


# What becomes of the place, whether that is a disk of its own, options, and what the message names as the cause.
NO_SPACE, GONE = "No space left on device", "No such file or directory"
RESULT = ("-o", "{place}/r.json")
SPOILED = {
    "a disk that fills up": (no_space, True, RESULT, NO_SPACE),
    "a results folder that is deleted": (shutil.rmtree, False, ("--results-dir", "{place}/results"), GONE),
    "a disk that turns read-only": (
        lambda folder: subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(folder)], check=True), True, RESULT, "Read-only file system"),
    "a home that fails too": (no_space, True, RESULT, NO_SPACE)}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_the_result_is_rescued_and_the_message_names_both_places(spoiled, request, tmp_path, gpubench, name):
    """The report is printed, the message tells the cause and the next command; the result is whole."""
    spoil, own_disk, options, why = SPOILED[name]
    place = request.getfixturevalue("disk") if own_disk else folder_of(tmp_path, "work")
    home, temporary = folder_of(tmp_path, "somebody"), folder_of(tmp_path, "tmp")
    places = temporary if name == "a home that fails too" else home
    ended = spoiled(place, *(option.format(place=place) for option in options), spoil=lambda: spoil(place),
                    home=place if places == temporary else home, temporary=temporary)  # fmt: skip
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False), ended.stderr
    assert "add" in ended.stdout
    (found,) = [path for path in places.rglob("*.json") if path.stat().st_size]
    last = ended.stderr.split("error:")[-1]
    assert (Path(options[1]).name in last, str(found) in last, why in last) == (True, True, True), last
    assert f"gpubench run --append {found}" in last
    run = store.load(found)
    assert (run.complete, len(run.sessions)) == (True, 3)
    assert all(getattr(outcome, "blocks", [1]) for outcome in run.outcomes)
    if name == "a disk that fills up":
        assert gpubench("run", "--append", str(found), "--sessions", "1", "-q").returncode == 0


def folder_of(parent, name):
    (parent / name).mkdir()
    return parent / name


def test_a_limit_on_the_size_of_files(spoiled, tmp_path):
    """As `ulimit -f` sets it: no place at all takes the result, and nothing but the result is lost."""
    home, folder, temporary = (folder_of(tmp_path, name) for name in ("somebody", "work", "tmp"))
    places = {"home": home, "temporary": temporary}
    ended = spoiled(folder, "-o", str(folder / "r.json"), spoil=lambda: None, largest_file=24 << 10, **places)
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False), ended.stderr
    assert "File too large" in ended.stderr
    assert "neither your data folder nor the temporary folder takes it" in ended.stderr
    assert "add" in ended.stdout, "the report is printed all the same"


def test_a_place_that_comes_back_gets_the_result(spoiled, disk, tmp_path):
    home = folder_of(tmp_path, "somebody")
    ended = spoiled(disk, "--sessions", "4", "-o", str(disk / "r.json"),
                    spoil=lambda: no_space_for_a_while(disk), home=home)  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert store.load(disk / "r.json").complete
    assert sorted(path.name for path in disk.iterdir()) == ["r.json"]


def test_a_report_that_cannot_be_written_costs_neither_result_nor_screen(spoiled, disk, tmp_path):
    home = folder_of(tmp_path, "somebody")
    (disk / "r.md").write_text("the old one")
    outputs = ("-o", "r.json", "-o", str(disk / "r.md"), "-o", str(disk / "r.jsonl"))
    ended = spoiled(home, *outputs, spoil=lambda: no_space(disk), home=home)
    assert (ended.returncode, "Traceback" in ended.stderr, "r.md" in ended.stderr) == (1, False, True)
    assert ("r.jsonl" in ended.stderr, "add" in ended.stdout) == (True, True), ended.stderr
    assert store.load(home / "r.json").complete
    assert (disk / "r.md").read_text() == "the old one"


@pytest.mark.parametrize("size", ["64k", "4M"])  # written as a file, and through memory
def test_a_reference_that_the_temporary_folder_does_not_take(gpubench, tmp_path, temporary, size):
    ended = gpubench("run", "--devices", "fake:cpu", "--ops", "add", "--sizes", f"1k,{size}", "--quick",
                     "--max-samples", "5", "--min-samples", "5", "--no-progress", "-o", "r.json",
                     env={"TMPDIR": str(temporary)})  # fmt: skip
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False), ended.stderr
    outcomes = store.load(tmp_path / "r.json").outcomes
    failure = next(outcome for outcome in outcomes if isinstance(outcome, Failure))
    assert f"the temporary folder {temporary} does not take the reference" in failure.detail
    assert "No space left on device" in failure.detail
    assert failure.hint.startswith("free some space there, or name another folder in TMPDIR")
    assert not list(temporary.iterdir())
