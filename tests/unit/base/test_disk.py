"""Regular files alone are opened, nothing waits, and each refusal of the system has its own remedy."""

import contextlib
import errno
import os
import socket
import threading
from pathlib import Path

import pytest

from gpubench.base import disk


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def _link_to_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


DEVICES = dict.fromkeys(("/dev/zero", "/dev/tty"), "it is a device")
LINKS = DEVICES | {"x": "Too many levels", "nowhere": "No such file"}
STRANGE = {
    "folder": (Path.mkdir, "it is a folder"), "FIFO": (os.mkfifo, "it is a pipe"), "socket": (_socket, "it is a socket"),
    "link to a FIFO": (_link_to_pipe, "it is a pipe"),
    **{f"link to {target}": (lambda path, target=target: path.symlink_to(target), why) for target, why in LINKS.items()},
}  # fmt: skip


@pytest.mark.skipif(os.name == "nt", reason="Windows has none of these")
@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, monkeypatch, kind, flags):
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    make, why = STRANGE[kind]
    make(Path("x"))
    with pytest.raises(OSError, match=why):
        os.close(disk.open_descriptor("x", flags))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no FIFO in a folder")
def test_a_pipe_that_takes_the_place_of_a_file_meanwhile_is_refused_too(tmp_path, monkeypatch):
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    file.touch()
    os.mkfifo(pipe)
    about = os.stat(file)
    monkeypatch.setattr(os, "stat", lambda path: about)
    with pytest.raises(disk.NotRegular):
        disk.open_descriptor(pipe)


def test_a_kind_that_has_no_name_is_no_regular_file(tmp_path, monkeypatch):
    """The mode of an epoll descriptor, and of some files in FUSE, tells no kind at all."""
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", lambda path: os.stat_result((0o600, *[0] * 9)))
        with pytest.raises(disk.NotRegular, match="not a regular file"):
            disk.read_regular(tmp_path / "it")


def test_a_file_beside_another_takes_no_name_that_is_there(tmp_path, monkeypatch):
    names = iter([b"aaaa", b"aaaa", b"bbbb"])
    monkeypatch.setattr(os, "urandom", lambda count: next(names))
    (tmp_path / f".a.json.{b'aaaa'.hex()}.new").symlink_to(tmp_path / "elsewhere")
    descriptor, path = disk.create_beside(tmp_path / "a.json")
    os.close(descriptor)
    assert (path.name, (tmp_path / "elsewhere").exists()) == (f".a.json.{b'bbbb'.hex()}.new", False)


def test_each_refusal_has_a_remedy_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = ["ENOSPC", "EDQUOT", "EACCES", "EROFS", "ENAMETOOLONG", "ELOOP", "EIO", "EFBIG", "EMFILE"]
    found = [disk.remedy(OSError(getattr(errno, name), "why")) for name in numbers]
    assert len(set(found)) == len(numbers)
    assert [text for text in found if "space" in text] == found[:2]
    for system, text in (
        ("linux", "raise the limit on open files (ulimit -n)"),
        ("win32", "raise the limit on open files"),
    ):
        monkeypatch.setattr(disk.sys, "platform", system)
        assert disk.mend(OSError(errno.EMFILE, "why")) == text
    held = OSError(errno.EACCES, "why")
    held.winerror = 32  # type: ignore[attr-defined]
    assert disk.mend(held) == "close the program that has it open"
    assert [disk.reason(e) for e in (OSError(errno.EIO, "why", "file"), OSError("only"), OSError())] == [
        "why",
        "only",
        "OSError",
    ]
    for unknown in (OSError(errno.EINVAL, "Invalid argument"), OSError("no number")):
        assert disk.remedy(unknown, "choose another name") == "choose another name"


# As another's file, one mounted into a container, and a file system that renames nothing.
@pytest.mark.parametrize(
    ("refused", "code"), [("", 0), ("chown", errno.EPERM), ("replace", errno.EBUSY), ("replace", errno.ENOSYS)]
)
def test_a_file_is_replaced_or_appended_to_and_nothing_else_is_written_to(tmp_path, monkeypatch, refused, code):
    def refuse(*_):
        raise OSError(code, "refused")

    if refused and hasattr(os, refused):
        monkeypatch.setattr(disk.os, refused, refuse)
    path, link = tmp_path / "a", tmp_path / "link"
    path.write_bytes(b"long")
    path.chmod(0o600)
    if os.name == "nt":
        link = path
    else:
        link.symlink_to("a")
        os.mkfifo(tmp_path / "pipe")
        for write in (disk.write_whole, disk.append):
            with pytest.raises(disk.NotRegular):
                write(tmp_path / "pipe", b"x")
    inode = os.stat(path).st_ino
    if refused and hasattr(os, "posix_fallocate"):  # a full disk
        with monkeypatch.context() as patched:
            patched.setattr(
                disk.os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))
            )
            with pytest.raises(OSError, match="full"):
                disk.write_whole(link, b"longer than before")
        assert path.read_bytes() == b"long"
    with monkeypatch.context() as patched:
        patched.setattr(disk.os, "access", lambda *_: False)
        with pytest.raises(PermissionError):
            disk.write_whole(link, b"not ours")
    assert path.read_bytes() == b"long"
    disk.write_whole(link, b"x")
    disk.append(link, b"y")
    assert (path.read_bytes(), link.is_symlink()) == (b"xy", os.name != "nt")
    if os.name != "nt":
        assert (path.stat().st_mode & 0o777, path.stat().st_ino == inode) == (0o600, bool(refused))
    disk.write_whole(os.devnull, b"gone"), disk.write_whole(tmp_path / "new", b"z")
    assert {file.name for file in tmp_path.iterdir()} - {"a", "link", "pipe"} == {"new"}


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="descriptors have names in /dev/fd")
def test_a_descriptor_that_the_shell_opened_is_read_to_its_end() -> None:
    """`gpubench report <(command)` names /dev/fd/63, a pipe."""
    (reader, writer), data = os.pipe(), b"x" * 300_000

    def fill() -> None:
        with os.fdopen(writer, "wb") as stream:
            stream.write(data)

    threading.Thread(target=fill).start()
    try:
        assert disk.read_regular(f"/dev/fd/{reader}") == data
    finally:
        os.close(reader)


@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_at_most_so_many_bytes_are_read(tmp_path: Path, size: int) -> None:
    path, free = tmp_path / "a", os.dup(2)
    os.close(free)
    path.write_bytes(b"x" * size)
    assert len(disk.read_regular(path)) == size
    with open(path) as next_file:
        assert next_file.fileno() == free, "what was opened is closed"
    assert all(len(disk.read_regular(path, most)) == min(size, most) for most in (0, 1, 65_536, 100_000))
    path.write_bytes(b"\xef\xbb\xbf" + b"x" * size)
    assert [len(disk.read_text(path, most)) for most in (size + 2, size + 3)] == [size + 3, size]


@pytest.mark.parametrize(("system", "free_at", "tries", "refused"), [
    ("nt", 0.0, 1, False), ("nt", 0.03, 3, False), ("nt", 1.99, 101, False), ("nt", 2.1, 101, True),
    ("posix", 0.0, 1, False), ("posix", 0.01, 1, True),
])  # fmt: skip
def test_a_file_that_windows_holds_open_is_replaced_within_two_seconds(monkeypatch, system, free_at, tries, refused):  # fmt: skip
    now, asked = [0.0], []

    def replace(source, target):
        asked.append(target)
        if now[0] < free_at:
            raise PermissionError(errno.EACCES, "held")

    with monkeypatch.context() as patched:
        patched.setattr(disk.time, "monotonic", lambda: now[0])
        patched.setattr(disk.time, "sleep", lambda seconds: now.append(round(now.pop() + seconds, 9)))
        patched.setattr(disk.os, "replace", replace)
        patched.setattr(disk.os, "name", system)
        with pytest.raises(PermissionError) if refused else contextlib.nullcontext():
            disk.replace("new", "old")
    assert asked == ["old"] * tries
