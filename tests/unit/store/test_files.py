"""Files: replaced whole under kill -9, refused with a message, found again, and written by one process."""

import errno
import gzip
import io
import json
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from gpubench.base.errors import ExitCode, GpubenchError, InputError, UsageError
from gpubench.result import store
from gpubench.result.machine import Cpu, Fact, Gpu, Machine
from gpubench.result.store import files
from gpubench.result.store.files import machine_name
from gpubench.result.store.journal import lock_of
from tests.raising import raised

posix = pytest.mark.skipif(os.name == "nt", reason="a matter of POSIX")


def refusal(path):
    error = raised(InputError, store.load, path)
    assert (error.exit_code, bool(error.why), bool(error.hint)) == (ExitCode.INPUT, True, True)
    return error


def usage(check, *arguments, **words):
    return raised(UsageError, check, *arguments, **words)


def touch(path):
    path.touch()
    return path


def failing(number, text=None):
    """A function of the system that always fails."""

    def fail(*arguments, **words):
        raise OSError(number, text or os.strerror(number))

    return fail


def test_compression_is_told_by_content_and_is_deterministic_and_damage_is_seen(tmp_path, run):
    packed, other = tmp_path / "a.json.gz", tmp_path / "b.json"
    store.save(run, packed)
    other.write_bytes(packed.read_bytes())
    assert store.load(other).id == run.id
    store.save(run, packed)
    assert packed.read_bytes() == other.read_bytes()
    for data in (packed.read_bytes()[:-20], b"\x1f\x8bnonsense"):
        packed.write_bytes(data)
        assert refusal(packed).code == "truncated-file"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_texts_as_windows_writes_them(tmp_path, run, encoding):
    path, mark = tmp_path / "a.json", "\ufeff" if encoding == "utf-16-be" else ""
    path.write_bytes((mark + store.dumps(run).decode()).encode(encoding))
    assert store.load(path).id == run.id
    path.write_bytes(b"\xff\xfe\x00")
    assert refusal(path).code == "not-json"


def test_a_link_keeps_pointing(tmp_path, run):
    (tmp_path / "deep").mkdir()
    link = tmp_path / "latest.json"
    link.symlink_to("deep/a.json")
    store.save(run, link)
    assert (link.is_symlink(), store.load(tmp_path / "deep" / "a.json").id) == (True, run.id)


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    for path, why in ((tmp_path / "absent.json", "no such file"), (tmp_path, "folder"), (touch(tmp_path / "file") / "below", "not a directory"),
                      ("a\0", "null"), (None, "path")):  # fmt: skip
        assert why in refusal(path).why.lower()
    # To root, who runs the tests in containers, no file says no.
    monkeypatch.setattr(os, "open", failing(errno.EACCES))
    assert "may not read" in refusal("a.json").why


def test_a_file_that_only_an_unfinished_run_has_is_found_under_its_other_name(tmp_path, run):
    path = tmp_path / "a.json"
    absent = refusal(path)
    store.Journal(store.part_of(path)).write(run)
    left = refusal(path)
    assert left.why.startswith(f"{absent.why}, but a run")
    assert (f"{path}.part" in left.hint, f"--append {path}" in left.hint) == (True, True)


def test_a_part_is_ours_empty_or_refused(tmp_path, run):
    path = tmp_path / "a.json"
    part = store.part_of(path)
    for make in (lambda: None, part.touch, lambda: store.Journal(part).write(run)):
        make()
        store.check_part(path)
    part.write_text("the thesis", encoding="utf-8")
    assert str(part) in usage(store.check_part, path).why


def test_files_that_are_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    path = tmp_path / "a.json"
    for data in (b" " * 2000, gzip.compress(b" " * 100_000)):
        path.write_bytes(data)
        assert refusal(path).code == "too-large"


class Pipe(io.BytesIO):
    """A pipe, which gives what its writer has written so far."""

    def read(self, size=-1):
        return super().read(min(size, 100))


def test_standard_input(monkeypatch, run):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Pipe(store.dumps(run))))
    assert store.load("-").id == run.id
    for closed in (SimpleNamespace(buffer=io.BytesIO(b"")), None):
        monkeypatch.setattr(sys, "stdin", closed)
        assert "standard input" in refusal("-").message


def test_looking_whether_a_place_can_be_written_makes_and_removes_no_file(tmp_path):
    theirs = tmp_path / f".a.json.{os.getpid()}.new"
    theirs.write_text("mine", encoding="utf-8")
    for place in ("-", tmp_path / "a.json", touch(tmp_path / "old.json")):
        store.check_writable(place)
    store.check_folder(tmp_path)
    store.check_folder(tmp_path / "not" / "there" / "yet")
    assert {*tmp_path.iterdir()} == {theirs, tmp_path / "old.json"}
    assert theirs.read_text(encoding="utf-8") == "mine"


def test_places_that_cannot_be_written(tmp_path, monkeypatch):
    file = touch(tmp_path / "file")
    for place, why in ((tmp_path, "folder"), (tmp_path / "no" / "a.json", "does not exist"), (file / "a.json", ""), (Path(os.devnull), "regular file")):  # fmt: skip
        error = usage(store.check_writable, place)
        assert (why in error.why.lower(), error.message[:10], bool(error.hint), error.exit_code) == (True, "--output: ", True, ExitCode.USAGE)  # fmt: skip
    below = usage(store.check_folder, file / "below")
    assert ("is not a folder" in below.why, "--results-dir" in below.message) == (True, True)
    monkeypatch.setattr(os, "unlink", failing(errno.EPERM))
    store.check_writable(tmp_path / "a.json")  # what cannot be deleted stays
    monkeypatch.setattr(os, "open", failing(30, "Read-only file system"))
    error = usage(store.check_writable, tmp_path / "a.json")
    assert (error.why, "writing" in error.hint) == ("Read-only file system", True)
    assert usage(store.check_folder, tmp_path / "a" / "b").why == "Read-only file system"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps the folder that a process works in")
@pytest.mark.parametrize("check", [store.check_folder, store.check_writable])
def test_a_working_folder_that_is_gone_is_named(tmp_path, monkeypatch, check):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    error = usage(check, "below")
    assert (error.why[:18], error.hint) == ("the working folder", "change to a folder that exists")


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot open a folder")
def test_a_file_is_on_the_disk_before_it_is_named_and_its_name_before_save_returns(tmp_path, run, monkeypatch):
    """That order is what a power failure tests."""
    steps: list[str] = []
    sync, rename = os.fsync, os.replace

    def synced(descriptor):
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda *names: (steps.append("name"), rename(*names)))
    store.save(run, tmp_path / "a.json")
    assert steps == ["file", "name", "folder"]


@pytest.mark.skipif(os.name == "nt", reason="Windows opens no folder")
@pytest.mark.parametrize(("number", "folders_alone"), [(errno.EIO, True), (errno.EINVAL, True), (errno.EINVAL, False)])  # fmt: skip
def test_a_refused_fsync_fails_no_save(tmp_path, run, monkeypatch, number, folders_alone):
    """CIFS, shared folders of virtual machines, some FUSE: the file is whole and has its name."""
    sync = os.fsync

    def refused(descriptor):
        if not folders_alone or stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refused)
    store.save(run, tmp_path / "a.json")
    journal = store.Journal(tmp_path / "b.json.part")
    journal.write(run)
    journal.write(replace(run, label="more"))
    assert (store.load(tmp_path / "a.json").id, store.load(tmp_path / "b.json.part").label) == (run.id, "more")


@posix
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_kill_in_the_middle_of_a_save_keeps_the_old_file(tmp_path, run, step):
    path = tmp_path / "a.json"
    store.save(run, path)
    before = path.read_bytes()
    if not (child := os.fork()):
        setattr(os, step, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        store.save(replace(run, label="new"), path)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert (path.read_bytes(), store.newest_first([tmp_path])) == (before, [path])
    store.save(replace(run, label="new"), path)
    assert store.load(path).label == "new"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_bytes_that_fsync_reports_as_lost_fail_a_save_and_keep_the_old_file(tmp_path, run, monkeypatch, number):
    path = tmp_path / "a.json"
    store.save(run, path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", failing(number))
    with pytest.raises(GpubenchError, match="cannot save") as caught:
        store.save(replace(run, label="new"), path)
    assert (caught.value.why, "space" in caught.value.hint) == (os.strerror(number), number != errno.EIO)
    assert ([*tmp_path.iterdir()], path.read_bytes()) == ([path], before)


# ---------------------------------------------------------------- where results are put and found again
def test_the_newest_goes_by_the_time_in_its_name(tmp_path):
    names = ("n/20270101T000000Z-bbbb.json.gz", "m/20260101T000000Z-aaaa.json", "o/20250101T000000Z-c.json", "a.json", "b.json", "mine.json")  # fmt: skip
    for name in (names[1], names[0], names[2]):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "n" / "notes.txt").touch()
    (tmp_path / "o" / "20280101T000000Z-dddd.json").mkdir()
    for seconds, name in ((0, "mine.json"), (200, "a.json"), (100, "b.json")):  # others go by the file's time
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (seconds, seconds))
    found = store.newest_first([tmp_path / "absent", tmp_path, tmp_path / "m"])
    assert found == [tmp_path / name for name in names]
    assert store.newest([tmp_path / "absent", tmp_path]) == tmp_path / names[0]
    assert (store.newest([]), store.newest([tmp_path / "absent"])) == (None, None)


def test_a_run_gets_a_path_of_its_own(tmp_path, run):
    run = replace(run, started_at="2026-11-20T20:00:00+01:00")
    path = store.result_path(tmp_path / "results", run)
    assert path == tmp_path / "results" / "cpu-no-gpu" / "20261120T190000Z-123e4567.json"
    store.save(run, path)
    assert store.newest([tmp_path / "results"]) == path
    assert store.result_path(tmp_path / "results", run) == path, "the machine's folder is there by now"


def test_machine_names_are_fit_for_folders():
    def name(cpu, gpu, **more):
        gpus = [Gpu(id="0", name=Fact(gpu, "ok", "p"))]
        return machine_name(Machine(cpu=Cpu(model=Fact(cpu, "ok", "p"), **more), gpus=gpus))

    sixteen = Fact(16, "ok", "p")
    cpu, gpu = "Intel(R) Xeon(R) Platinum 8480C @ 2.0GHz/../..", "../NVIDIA H200"
    assert name(cpu, gpu, available=sixteen) == "intel-xeon-platinum-8480c-16-cpus-nvidia-h200"
    assert name("龙芯", gpu) == "nvidia-h200", "no letter of its model is fit"
    # 40 letters of each model; what is cut ends in no hyphen.
    assert {name("C" * 41, "G" * 39 + " 2"), name("c" * 40, "g" * 39)} == {f"{'c' * 40}-{'g' * 39}"}


@pytest.mark.parametrize(("platform", "environ", "folder"), [
    ("linux", {"HOME": "/h"}, "/h/.local/share/gpubench"),
    ("linux", {"HOME": "/h", "XDG_DATA_HOME": "/x"}, "/x/gpubench"),
    ("darwin", {"HOME": "/h"}, "/h/Library/Application Support/gpubench"),
    ("win32", {"USERPROFILE": "/u", "LOCALAPPDATA": "/l"}, "/l/gpubench"),
    ("win32", {"USERPROFILE": "/u"}, "/u/AppData/Local/gpubench")])  # fmt: skip
def test_the_data_folder_of_each_platform(platform, environ, folder):
    assert store.user_data_dir(environ, platform) == Path(folder)


def test_results_stay_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert store.default_results_dir({}) == Path("results")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert store.default_results_dir({"XDG_DATA_HOME": "/x"}) == Path("/x/gpubench/results")


def test_a_result_whose_place_fails_goes_to_the_data_folder_then_to_a_temporary_one(tmp_path, run, monkeypatch):
    temporary, data = tmp_path / "tmp", tmp_path / "data"
    temporary.mkdir()
    planted = tmp_path / "planted"
    planted.mkdir()
    (temporary / "gpubench").symlink_to(planted)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    environ = {"HOME": "/h", "XDG_DATA_HOME": str(data)}
    saved = store.rescue(run, environ)
    assert saved.is_relative_to(store.user_data_dir(environ) / "results")
    shutil.rmtree(data)
    data.touch()  # no folder can be made there
    saved = store.rescue(run, environ)
    assert (saved.is_relative_to(temporary), store.load(saved).id) == (True, run.id)
    if os.name != "nt":
        assert stat.S_IMODE(saved.parents[1].stat().st_mode) == 0o700
    assert list(planted.iterdir()) == [], "a link that somebody planted in the shared folder is not followed"
    assert store.rescue(run, environ).parents[1] != saved.parents[1]


def test_a_rescue_that_fails_leaves_no_folder(tmp_path, run, monkeypatch):
    monkeypatch.setattr("gpubench.base.disk.write_whole", failing(errno.ENOSPC))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert store.rescue(run, {"HOME": str(tmp_path / "home")}) is None
    assert not list(tmp_path.glob("gpubench-*"))


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_a_folder_that_links_to_itself_or_nowhere_is_refused_before_anything_is_measured(tmp_path, run):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "lost").symlink_to("nowhere")
    for name, why in (("loop", "Too many levels"), ("loop/below", "Too many"), ("lost", "leads nowhere")):
        assert why in raised(UsageError, store.check_folder, tmp_path / name).why
    raised(UsageError, store.check_writable, tmp_path / "loop")
    results = tmp_path / "results"
    store.check_result_path(results, run)
    results.mkdir()
    folder = store.result_path(results, run).parent
    folder.rmdir()
    folder.touch()
    assert "is not a folder" in raised(UsageError, store.check_result_path, results, run).why


@pytest.mark.parametrize("started_at", ["2026-11-20T19:00:00Z", "yesterday", "9999-12-31T23:59:59-14:00"])
def test_a_result_has_a_name_whatever_its_time_reads(tmp_path, run, started_at):
    named = store.result_name(replace(run, started_at=started_at))
    assert re.fullmatch(r"\d{8}T\d{6}Z-123e4567\.json", named), named


def test_suffixes_are_compared_without_case(tmp_path, run):
    for name in ("a.JSON", "b.Json.GZ"):
        assert store.is_result_name(name)
        store.save(run, tmp_path / name)
        assert store.load(tmp_path / name).id == run.id
    for name in ("._a.json", ".ipynb_checkpoints/a-checkpoint.json"):  # of macOS and of Jupyter
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert (tmp_path / "b.Json.GZ").read_bytes().startswith(b"\x1f\x8b")
    assert {path.name for path in store.newest_first([tmp_path])} == {"a.JSON", "b.Json.GZ"}
    assert not store.is_result_name("a.md")


# ---------------------------------------------------------------- one writer a file
_HOLD = """
import sys
from gpubench.result import store
store.lock_result(sys.argv[1], "run --append a.json", 0)
print("held", flush=True)
sys.stdin.read()
"""


def _holder(path):
    process = subprocess.Popen([sys.executable, "-c", _HOLD, str(path)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_is_told_who_holds_it_and_gets_it_from_the_dead(tmp_path):
    path = tmp_path / "a.json"
    first = _holder(path)
    waited: list[str] = []
    error = raised(InputError, store.lock_result, path, "run", 0.2, waited.append)
    assert (error.exit_code, waited) == (ExitCode.INPUT, [error.why])
    assert (f"process {first.pid} " in error.why, "gpubench run --append a.json" in error.why) == (True, True)
    first.kill()
    first.wait()
    store.lock_result(path, "run", 5).release()
    assert list(tmp_path.iterdir()) == []


def test_it_waits_for_the_end_of_the_first(tmp_path):
    path = tmp_path / "a.json"
    first = _holder(path)
    store.lock_result(path, "run", 60, lambda holder: first.kill()).release()


def test_a_lock_that_is_released_while_another_waits_is_not_held_twice(tmp_path):
    """The holder removes the file that the other has opened: a lock on a removed file locks nothing."""
    path = tmp_path / "x"
    for _ in range(50):
        first, second = store.Lock(path), store.Lock(path)
        assert first.take()
        assert not second.take()
        first.release()
        assert second.take()
        assert not store.Lock(path).take()
        second.release()
        assert not path.exists()


def test_a_lock_on_a_file_that_was_removed_before_it_is_none(tmp_path, monkeypatch):
    """Between the opening of the one and its locking the other lets go, and removes what was opened."""
    first, second = store.Lock(tmp_path / "x"), store.Lock(tmp_path / "x")
    assert first.take()
    really = os.open

    def opened_and_removed(*arguments):
        file = really(*arguments)
        first.release()
        return file

    monkeypatch.setattr(os, "open", opened_and_removed)
    assert second.take()
    monkeypatch.undo()
    assert not store.Lock(tmp_path / "x").take()
    second.release()
    assert os.listdir(tmp_path) == []


def test_windows_locks_a_byte_far_behind_the_holders_name(tmp_path, monkeypatch):
    held = []

    def locking(file, mode, count):
        if held:
            raise PermissionError
        held.append((os.lseek(file, 0, os.SEEK_CUR), mode, count))

    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(LK_NBLCK="do not wait", locking=locking))
    monkeypatch.setattr("gpubench.result.store.journal.sys", SimpleNamespace(platform="win32"))
    first, second = store.Lock(tmp_path / "x"), store.Lock(tmp_path / "x")
    assert (first.take(), second.take(), held) == (True, False, [(1 << 30, "do not wait", 1)])
    first.release()


def test_where_nothing_can_be_locked_the_run_goes_on(tmp_path):
    store.lock_result(tmp_path / "absent" / "a.json", "run", 0).release()
    assert os.listdir(tmp_path) == []


def test_where_the_file_system_knows_no_locks_the_run_goes_on_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("gpubench.result.store.journal._lock", failing(errno.ENOLCK))
    said: list[str] = []
    store.lock_result(tmp_path / "a.json", "run", 0, warn=said.append).release()
    assert [os.strerror(errno.ENOLCK) in text and "a.json" in text for text in said] == [True]
    assert os.listdir(tmp_path) == [], "a file that locks nothing does not stay"


@pytest.fixture
def somebody(tmp_path):
    """A folder for all, as /tmp is, in which this test is another user than root."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o1777)
    yield place
    os.seteuid(0)


def test_the_lock_of_another_user_is_kept_too(somebody):
    path = somebody / "a.json"
    holder = store.lock_result(path, "run", 0)
    os.seteuid(65534)
    why = raised(InputError, store.lock_result, path, "run", 0).why
    assert f"process {os.getpid()} on " in why
    os.seteuid(0)
    holder.release()


FOREIGN = {
    "lock": (lambda path, run: lock_of(path).touch(0o600), lambda path, run: store.lock_result(path, "run", 0), "Permission denied"),
    "result": (lambda path, run: path.touch(0o666), lambda path, run: store.check_writable(path), "another user's"),
    "folder": (lambda path, run: store.result_path(path.parent, run), lambda path, run: store.check_result_path(path.parent, run), "Permission denied")}  # fmt: skip


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_another_user_owns_is_found_before_measuring(somebody, run, kind):
    make, check, why = FOREIGN[kind]
    path = somebody / "a.json"
    make(path, run)
    if path.exists():
        path.chmod(0o666)
    os.seteuid(65534)
    error = raised(UsageError, check, path, run)
    assert (why in error.why, str(lock_of(path)) in error.why) == (True, kind == "lock")
    assert ("permissions" in error.hint) == (kind == "folder") or kind != "folder"


def test_a_lock_file_that_another_user_left_is_locked_all_the_same(somebody):
    path = somebody / "a.json"
    holder = {"pid": 4194304, "host": platform.node(), "command": "run", "since": "1"}
    lock_of(path).write_text(json.dumps(holder))
    os.seteuid(65534)
    lock = store.lock_result(path, "run", 0)
    why = raised(InputError, store.lock_result, path, "run", 0).why
    assert why == "another process holds its lock", "the name in the file is of a process that has ended"
    lock.release()


def test_two_names_of_one_file_are_one_lock(tmp_path):
    (tmp_path / "link.json").symlink_to("a.json")
    lock = store.lock_result(tmp_path / "a.json", "run", 0)
    raised(InputError, store.lock_result, tmp_path / "link.json", "run", 0)
    lock.release()
