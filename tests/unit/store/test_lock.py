"""One writer a file: the second reads who the first is, and the kernel lets go for the dead."""

import errno
import json
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from gpubench.base.errors import ExitCode, InputError, UsageError
from gpubench.result import store
from gpubench.result.store.journal import lock_of
from tests.raising import raised
from tests.unit.store.test_files import failing

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
    assert why in error.why
    assert (str(lock_of(path)) in error.why) == (kind == "lock")
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
