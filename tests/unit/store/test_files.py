"""Files: atomic replacement under kill -9, and a message for every file that cannot be used."""

import errno
import gzip
import io
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from gpubench.base.errors import ExitCode, GpubenchError, InputError, UsageError
from gpubench.result import store
from gpubench.result.store import files


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "with space.json"])
def test_saved_files_load(tmp_path, run, name):
    path = tmp_path / name
    store.save(run, path)
    store.save(run, path)
    assert store.dumps(store.load(path)) == store.dumps(run)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_compression_is_told_by_content_and_is_deterministic(tmp_path, run):
    packed, other = tmp_path / "a.json.gz", tmp_path / "b.json"
    store.save(run, packed)
    other.write_bytes(packed.read_bytes())
    assert store.load(other).id == run.id
    store.save(run, packed)
    assert packed.read_bytes() == other.read_bytes()


def test_a_link_keeps_pointing(tmp_path, run):
    (tmp_path / "deep").mkdir()
    link = tmp_path / "latest.json"
    link.symlink_to("deep/a.json")
    store.save(run, link)
    assert link.is_symlink()
    assert store.load(tmp_path / "deep" / "a.json").id == run.id


def test_a_failed_save_keeps_the_old_file(tmp_path, run, monkeypatch):
    path = tmp_path / "a.json"
    store.save(run, path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GpubenchError, match="cannot save") as caught:
        store.save(run, path)
    assert (caught.value.why, path.read_bytes()) == ("No space left on device", before)
    assert len(list(tmp_path.iterdir())) == 1


_SAVE_FOREVER = """
import sys
from gpubench.result import store
run = store.load(sys.argv[1])
while True:
    store.save(run, sys.argv[1])
    print("saved", flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="kill -9 is a matter of POSIX")
def test_kill_9_never_leaves_a_broken_file(tmp_path, run):
    path = tmp_path / "a.json"
    store.save(run, path)
    for attempt in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", _SAVE_FOREVER, str(path)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout.readline() == "saved\n"
            time.sleep(0.005 * attempt)
            child.send_signal(signal.SIGKILL)
        assert store.load(path).id == run.id


def _refusal(path):
    with pytest.raises(InputError) as caught:
        store.load(path)
    error = caught.value
    assert error.exit_code == ExitCode.INPUT
    assert error.why
    assert error.hint
    return error


def test_files_that_cannot_be_read(tmp_path):
    assert "no such file" in _refusal(tmp_path / "absent.json").why
    assert "folder" in _refusal(tmp_path).why
    assert "not a directory" in _refusal(_touch(tmp_path / "file") / "below.json").why.lower()


def test_a_file_that_only_an_unfinished_run_has_is_found_under_its_other_name(tmp_path, run):
    path = tmp_path / "a.json"
    absent = _refusal(path)
    store.Journal(store.part_of(path)).write(run)
    left = _refusal(path)
    assert left.why.startswith(f"{absent.why}, but a run")
    assert (f"{path}.part" in left.hint, f"--append {path}" in left.hint) == (True, True)


def test_a_part_is_ours_empty_or_refused(tmp_path, run):
    path = tmp_path / "a.json"
    part = store.part_of(path)
    store.check_part(path)
    part.touch()
    store.check_part(path)
    store.Journal(part).write(run)
    store.check_part(path)
    part.write_text("the thesis", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        store.check_part(path)
    assert str(part) in caught.value.why


def test_permission_errors_are_told(monkeypatch):
    """By a patch: to root, who runs the tests in containers, no file says no."""

    def denied(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    assert "may not read" in _refusal("a.json").why


_ERRORS = pytest.mark.parametrize(
    ("error", "why", "mend"),
    [
        (
            OSError(5, "Input/output error"),
            "Input/output error",
            "look at the disk and the system's log (dmesg), or ",
        ),
        (OSError("no driver"), "no driver", ""),
    ],
    ids=["of the system", "of Python"],
)


@_ERRORS
def test_the_reason_is_what_the_system_says_without_its_number_and_the_remedy_belongs_to_the_number(
    tmp_path, monkeypatch, error, why, mend
):
    def fail(*args, **kwargs):
        raise error

    assert store.cannot_save("a.json", error).why == why
    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(UsageError) as caught:
        store.check_writable(tmp_path / "a.json")
    assert (caught.value.why, caught.value.hint) == (why, f"{mend}choose another place")
    assert (_refusal("a.json").why, _refusal("a.json").hint) == (why, f"{mend}name another file")
    stat_of = os.stat
    monkeypatch.setattr(os, "stat", lambda path: fail() if path == tmp_path else stat_of(path))
    with pytest.raises(UsageError) as caught:
        store.check_folder(tmp_path)
    assert (caught.value.why, caught.value.hint) == (why, f"{mend}choose another folder")


def test_damaged_compression(tmp_path, run):
    path = tmp_path / "a.json.gz"
    store.save(run, path)
    path.write_bytes(path.read_bytes()[:-20])
    assert _refusal(path).code == "truncated-file"
    path.write_bytes(b"\x1f\x8bnonsense")
    assert _refusal(path).code == "truncated-file"


def test_files_that_are_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    path = tmp_path / "a.json"
    path.write_bytes(b" " * 2000)
    assert _refusal(path).code == "too-large"
    path.write_bytes(gzip.compress(b" " * 100_000))
    assert _refusal(path).code == "too-large"


def test_standard_input(monkeypatch, run):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(store.dumps(run))))
    assert store.load("-").id == run.id
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"")))
    assert "standard input" in _refusal("-").message


def _touch(path):
    path.touch()
    return path


def test_places_that_can_be_written(tmp_path):
    store.check_writable("-")
    store.check_writable(tmp_path / "new.json")
    store.check_writable(_touch(tmp_path / "old.json"))
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]


def test_looking_whether_a_place_can_be_written_removes_no_file(tmp_path):
    theirs = tmp_path / f".a.json.{os.getpid()}.new"
    theirs.write_text("mine", encoding="utf-8")
    store.check_writable(tmp_path / "a.json")
    assert (list(tmp_path.iterdir()), theirs.read_text(encoding="utf-8")) == ([theirs], "mine")


def test_places_that_cannot_be_written(tmp_path, monkeypatch):
    file = _touch(tmp_path / "file")
    places = [(tmp_path, "folder"), (tmp_path / "no" / "a.json", "does not exist"), (file / "a.json", "not a")]
    places.append((Path(os.devnull), "regular file"))
    for place, why in places:
        with pytest.raises(UsageError) as caught:
            store.check_writable(place, option="-o")
        assert why in caught.value.why.lower() or place == file / "a.json"
        assert caught.value.message.startswith("-o: ")
        assert caught.value.hint
        assert caught.value.exit_code == ExitCode.USAGE

    def denied(*args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(UsageError) as caught:
        store.check_writable(tmp_path / "a.json")
    assert (caught.value.why, "writing" in caught.value.hint) == ("Read-only file system", True)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps the folder that a process works in")
@pytest.mark.parametrize("check", [store.check_folder, store.check_writable])
def test_a_working_folder_that_is_gone_is_named(tmp_path, monkeypatch, check):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError) as caught:
        check("below")
    assert (caught.value.why, caught.value.hint) == (
        "the working folder is no longer there", "change to a folder that exists",
    )  # fmt: skip


def test_saved_files_are_as_readable_as_others(tmp_path, run):
    store.save(run, tmp_path / "a.json")
    other = _touch(tmp_path / "b")
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == stat.S_IMODE(other.stat().st_mode)


def test_folders_that_can_and_cannot_be_made(tmp_path, monkeypatch):
    store.check_folder(tmp_path)
    store.check_folder(tmp_path / "not" / "there" / "yet")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="--results-dir") as caught:
        store.check_folder(_touch(tmp_path / "file") / "below")
    assert "is not a folder" in caught.value.why

    def denied(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(UsageError) as caught:
        store.check_folder(tmp_path / "a" / "b")
    assert caught.value.why == "Permission denied"


def test_a_closed_standard_input_is_refused(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="standard input"):
        store.load("-")


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot open a folder")
def test_a_file_is_on_the_disk_before_it_gets_its_name_and_the_name_before_save_returns(
    tmp_path, run, monkeypatch
):
    steps: list[str] = []
    sync, rename = os.fsync, os.replace

    def synced(descriptor):
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def replaced(source, target):
        steps.append("name")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    store.save(run, tmp_path / "a.json")
    assert steps == ["file", "name", "folder"]


@pytest.mark.skipif(os.name == "nt", reason="Windows opens no folder")
@pytest.mark.parametrize(
    "number", [errno.EINVAL, errno.EIO, errno.ENOTSUP, errno.EACCES, errno.EBADF, errno.ENOSYS]
)
def test_a_folder_that_refuses_fsync_fails_no_save(tmp_path, run, monkeypatch, number):
    """CIFS, shared folders of virtual machines, some FUSE: the file is whole and has its name."""
    sync = os.fsync

    def refused(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refused)
    store.save(run, tmp_path / "a.json")
    store.Journal(tmp_path / "b.json.part").write(run)
    assert store.load(tmp_path / "a.json").id == store.load(tmp_path / "b.json.part").id == run.id


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF, errno.ENOSYS])
def test_a_file_system_without_fsync_fails_no_save(tmp_path, run, monkeypatch, number):
    def refused(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refused)
    store.save(run, tmp_path / "a.json")
    journal = store.Journal(tmp_path / "b.json.part")
    journal.write(run)
    journal.write(replace(run, label="more"))
    assert store.load(tmp_path / "b.json.part").label == "more"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_bytes_that_fsync_reports_as_lost_fail_a_save_with_their_own_remedy(tmp_path, run, monkeypatch, number):
    def lost(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", lost)
    with pytest.raises(GpubenchError) as caught:
        store.save(run, tmp_path / "a.json")
    assert ("space" in caught.value.hint, list(tmp_path.iterdir())) == (number != errno.EIO, [])
