"""Files: atomic replacement under kill -9, and a message for every file that cannot be used."""

import errno
import gzip
import io
import os
import signal
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from gpubench.base.errors import ExitCode, GpubenchError, InputError, UsageError
from gpubench.result import store
from gpubench.result.store import files
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
    for path, why in ((tmp_path / "absent.json", "no such file"), (tmp_path, "folder"), (touch(tmp_path / "file") / "below", "not a directory")):  # fmt: skip
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
    assert error.why == "the working folder is no longer there"
    assert error.hint == "change to a folder that exists"


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
