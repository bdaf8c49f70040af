"""The cache: files that can be made again, such as compiled kernels, in folders to which no other user may
write.

Each file is sealed by a digest of its name and content. A file counts as absent, and is made anew, if it is
damaged, is no regular file, or may have been written by another user. `notes` returns the problems that the
user should know.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from gpubench.base import disk, installation
from gpubench.base.messages import WarningCode
from gpubench.result.run import RunWarning, Severity, warning

SUFFIX = ".sealed"
_SEAL = re.compile(rb"gpubench-cache 1 ([0-9a-f]{64})\n")
_SEAL_BYTES = len(b"gpubench-cache 1 \n") + 64
_MOST_BYTES = 256 << 20
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

RUN_CACHE = "cache"  # the folder in a run's scratch that stands in for the user's cache
LOADING = "loading-{}-"  # begins the names of the marks there of workers that load the libraries of a backend

_fallback: list[Path] = []
_notes: dict[tuple[str, str], RunWarning] = {}


class SealedFiles:
    """Sealed files by name, in several folders. A file is read from the first folder that has it. Without
    folders nothing is stored."""

    def __init__(self, *folders: Path) -> None:
        self.folders = folders

    @property
    def keeps(self) -> bool:
        """Whether any folder accepts new files."""
        return any(_is_writable(folder) for folder in self.folders)

    def read(self, name: str, what: str) -> bytes | None:
        """Return the content of the file `name`, or None if no folder has it undamaged. `what` describes the
        file in a note to the user."""
        for folder in self.folders:
            try:
                return _unseal(name, _path(folder, name))
            except FileNotFoundError:
                pass
            except PermissionError as error:
                note("cache-not-trusted", f"{what} in the cache is not used: {disk.reason(error)}")
            except (OSError, ValueError) as error:
                note("cache-damaged", f"{what} in the cache is made anew: {disk.reason(error)}")
        return None

    def write(self, name: str, data: bytes) -> None:
        """Store `data` as the file `name` in the first folder that accepts it, if any does. Never raises."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                path = _path(folder, name)
                _make(path.parent)
                if not _doubt(os.stat(path.parent)):
                    if path.is_dir() and not path.is_symlink():
                        path.rmdir()
                    seal = f"gpubench-cache 1 {_digest(name, data)}\n".encode()
                    disk.replace_file(path, seal + data, mode=0o644, lasting=False)
                    return

    def remove(self, name: str) -> None:
        """Remove the file `name` from every folder. Never raises."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                _path(folder, name).unlink()


def user_cache() -> SealedFiles:
    """Return this user's cache. The folder of `fall_back_to` takes files that the first folder does not
    accept."""
    return SealedFiles(*_user_folder(), *_fallback)


def fall_back_to(folder: Path) -> None:
    """Use `folder` for files that the user's cache does not accept. The caller has to remove the folder."""
    with contextlib.suppress(OSError):
        _make(folder)
        _fallback[:] = [folder]


def fallbacks() -> Sequence[Path]:
    """Return the folder that was given to `fall_back_to`, or an empty sequence."""
    return tuple(_fallback)


def forget() -> None:
    """Forget all notes and the folder of `fall_back_to`, as in a new process."""
    _notes.clear()
    _fallback.clear()


def notes() -> Sequence[RunWarning]:
    """Return the problems with the cache that this process has found, each problem once."""
    return list(_notes.values())


def _user_folder() -> list[Path]:
    """Return the user's folder in a list if it can be trusted, else an empty list."""
    folder = installation.cache_folder()
    if folder is None:
        note("cache-not-kept", "there is no cache folder: the environment names no home", "info")
        return []
    where = installation.cache_variable()
    doubt = ""
    with contextlib.suppress(OSError):
        doubt = _doubt(os.stat(folder))
    if doubt:
        note("cache-not-trusted", f"the cache folder ({where}) is not used: {doubt}")
        return []
    if not _is_writable(folder):
        note("cache-not-kept", f"the cache folder ({where}) cannot be written", "info")
    return [folder]


def _is_writable(folder: Path) -> bool:
    """Return whether the folder accepts new files, also if it does not exist yet."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _doubt(status: os.stat_result) -> str:
    """Return the reason why another user may have written a file or folder, or ""."""
    if not hasattr(os, "geteuid"):  # Windows: the folder lies in the user's profile
        return ""
    if status.st_uid not in (os.geteuid(), 0):
        return "it belongs to another user"
    # In a folder such as /tmp others may add files but not change ours, and each file is checked by itself.
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    return "other users may write to it" if status.st_mode & _OTHERS_WRITE and not sticky else ""


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}{SUFFIX}"


def _unseal(name: str, path: Path) -> bytes:
    """Return the content of a sealed file, or raise OSError or ValueError if it must not be used."""
    with disk.open_regular(path) as file:
        doubt = _doubt(os.stat(path.parent)) or _doubt(os.fstat(file.fileno()))
        if doubt:
            raise PermissionError(doubt)
        data = file.read(_MOST_BYTES)
    seal, content = _SEAL.match(data), data[_SEAL_BYTES:]
    if seal is None or seal[1].decode() != _digest(name, content):
        raise ValueError("it is damaged")
    return content


def _digest(name: str, data: bytes) -> str:
    return hashlib.sha256(name.encode() + b"\n" + data).hexdigest()


def _make(folder: Path) -> None:
    """Create the folder and its parents, writable only by their owner."""
    if not folder.is_dir():
        _make(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o755)  # a umask can only take rights away


def note(code: WarningCode, message: str, severity: Severity = "warning") -> None:
    """Store a note for the user. A note with the same `code` and `message` as an earlier one is ignored."""
    _notes.setdefault((code, message), warning(code, message, severity=severity))
