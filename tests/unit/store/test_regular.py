"""Only a regular file is opened: a FIFO does not hang, a folder and a device are refused, a link is followed."""

import os
import socket

import pytest

from gpubench.store.regular import open_regular


def test_a_regular_file_is_read_also_through_a_link(tmp_path):
    (tmp_path / "file").write_bytes(b"text\r\n")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"text\r\n"


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
@pytest.mark.parametrize(
    "make",
    [lambda path: os.mkfifo(path), os.mkdir, make_socket, lambda path: os.symlink("/dev/zero", path),
     lambda path: os.symlink(path, path), lambda path: os.symlink("nowhere", path)],
    ids=["fifo", "folder", "socket", "device", "link to itself", "dangling link"],
)  # fmt: skip
def test_anything_else_is_refused_at_once(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)  # a socket's name is short
    make("there")
    with pytest.raises(OSError, match=r"."):
        open_regular("there")
