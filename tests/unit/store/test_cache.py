"""Files of the cache: whole or absent, this user's or absent, and what is wrong with them is said once."""

import os

import pytest

from gpubench.result.store import cache
from gpubench.result.store.cache import SUFFIX, SealedFiles

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has neither owners nor FIFOs")


@pytest.fixture(autouse=True)
def clean():
    """No note and no fallback of another test."""
    cache.forget()
    yield
    cache.forget()


def codes():
    return [note.code for note in cache.notes()]


def test_what_is_written_is_read_again_by_its_name_alone(tmp_path):
    files = SealedFiles(tmp_path / "not" / "yet")
    assert files.read("folder/name", "it") is None
    files.write("folder/name", b"content\r\n")
    assert files.read("folder/name", "it") == b"content\r\n"
    path = tmp_path / "not" / "yet" / "folder" / f"name{SUFFIX}"
    path.rename(path.with_name(f"other{SUFFIX}"))
    assert (files.read("folder/other", "it"), codes()) == (None, ["cache-damaged"])


def test_every_damage_of_a_file_is_seen_and_mended(tmp_path):
    files, path = SealedFiles(tmp_path), tmp_path / f"name{SUFFIX}"
    files.write("name", b"0123456789")
    whole = path.read_bytes()
    spoiled = [whole[:i] for i in range(len(whole))] + [whole + b"x", b"0123456789"]
    spoiled += [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]
    for data in spoiled:
        path.write_bytes(data)
        assert files.read("name", "it") is None, data
    assert [note.message for note in cache.notes()] == ["it in the cache is made anew: it is damaged"]
    files.write("name", b"new")
    assert files.read("name", "it") == b"new"


@posix
@pytest.mark.parametrize("make", [
    os.mkdir, lambda path: os.mkfifo(path), lambda path: os.symlink(path, path),
    lambda path: os.symlink("/dev/zero", path)],
    ids=["folder", "FIFO", "link to itself", "device"])  # fmt: skip
def test_what_is_no_file_does_not_hang_and_is_replaced(tmp_path, make):
    files = SealedFiles(tmp_path)
    make(tmp_path / f"name{SUFFIX}")
    assert (files.read("name", "it"), codes()) == (None, ["cache-damaged"])
    files.write("name", b"new")
    assert files.read("name", "it") == b"new"


def test_what_the_first_folder_does_not_take_the_second_keeps(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "first" / f"name{SUFFIX}" / "full").mkdir(parents=True)
    for first in (tmp_path / "file", tmp_path / "first"):
        files = SealedFiles(first, tmp_path / "second")
        files.write("name", b"content")
        assert files.read("name", "it") == b"content"
        files.remove("name")
        assert files.read("name", "it") is None
    assert [path.name for path in (tmp_path / "first").iterdir()] == [f"name{SUFFIX}"]


needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="it gives files away")


@posix
@pytest.mark.parametrize("level", ["root", "folder", "file"])
@pytest.mark.parametrize(("spoil", "why"), [
    pytest.param(lambda path: os.chown(path, 1234, 1234), "belongs to another user", marks=needs_root, id="owned by another"),
    pytest.param(lambda path: path.chmod(0o775), "", id="written by others"),
])  # fmt: skip
def test_what_others_own_or_may_write_is_not_read(tmp_path, monkeypatch, level, spoil, why):
    SealedFiles(tmp_path / "cache").write("folder/name", b"content")
    path = tmp_path / "cache" / "folder" / f"name{SUFFIX}"
    spoil({"root": tmp_path / "cache", "folder": path.parent, "file": path}[level])
    monkeypatch.setenv("GPUBENCH_CACHE_DIR", str(tmp_path / "cache"))
    cache.fall_back_to(tmp_path / "run")
    assert (cache.user_cache().read("folder/name", "it"), codes()) == (None, ["cache-not-trusted"])
    assert (why in cache.notes()[0].message, str(tmp_path) in cache.notes()[0].message) == (True, False)
    cache.user_cache().write("folder/name", b"new")
    assert cache.user_cache().read("folder/name", "it") == b"new"


@posix
def test_a_sticky_folder_is_no_danger(tmp_path, monkeypatch):
    """Others may add files there, which are looked at one by one, and change none of ours."""
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("GPUBENCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(tmp_path).st_uid or 1234)  # root is no danger either
    cache.user_cache().write("name", b"content")
    assert (cache.user_cache().read("name", "it"), codes()) == (b"content", [])


@posix
def test_nothing_of_ours_is_writable_by_others(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBENCH_CACHE_DIR", str(tmp_path / "not" / "yet"))
    before = os.umask(0)
    try:
        cache.user_cache().write("folder/name", b"content")
    finally:
        os.umask(before)
    made = list((tmp_path / "not").rglob("*"))
    assert len(made) == 3
    assert ([path for path in (tmp_path / "not", *made) if path.stat().st_mode & 0o022], codes()) == ([], [])


def test_without_a_folder_nothing_is_kept_and_that_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").touch(0o777)
    for place in ("file/folder", "folder"):
        with monkeypatch.context() as patch:
            patch.setattr(os, "access", lambda path, mode: mode != os.W_OK | os.X_OK or path != tmp_path)
            patch.setenv("GPUBENCH_CACHE_DIR", str(tmp_path / place))
            assert not cache.user_cache().keeps
            assert cache.notes()[-1].message.endswith("cannot be written")
    cache.forget()
    for name in ("GPUBENCH_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "USERPROFILE", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    cache.user_cache().write("name", b"content")
    files = cache.user_cache()
    assert (files.read("name", "it"), files.keeps, codes()) == (None, False, ["cache-not-kept"])
    cache.fall_back_to(tmp_path / "run")
    assert (cache.user_cache().keeps, [folder.is_dir() for folder in cache.fallbacks()]) == (True, [True])
