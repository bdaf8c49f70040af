"""Functions that open, write, flush and rename files, and remedies for errors of the system.

Only regular files are opened, because opening a FIFO may wait for a writer forever, and reading a device may
have effects. The exceptions are /dev/null and a descriptor that a shell has opened for us (`gpubench report
<(command)`). This module imports no other module of gpubench.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import re
import stat
import sys
import time
from pathlib import Path
from typing import BinaryIO

StrPath = str | os.PathLike[str]

_PIECE = 16 << 20  # most bytes that are read at once
_PATIENCE_S, _RETRY_S = 2.0, 0.02
# Descriptors of this process, which only a user can have named, and the null device.
_DESCRIPTOR = re.compile(r"/dev/(?:stdin|stdout|stderr|null|fd/\d+)|/proc/self/fd/\d+")
_ALWAYS = sum(getattr(os, flag, 0) for flag in ("O_CLOEXEC", "O_NOCTTY", "O_BINARY", "O_NOINHERIT"))
# Error numbers of fsync() if data was lost. Any other number means that the file system does not support it.
LOST = frozenset({errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ESTALE, errno.ENXIO, errno.ENODEV})
# Names of errors with which a file system refuses to replace a file, or to give the new one its owner.
_REFUSED = ("EACCES", "EPERM", "EBUSY", "EXDEV", "ENOSYS", "EOPNOTSUPP", "ENOTSUP")
_KINDS = (
    (stat.S_ISDIR, errno.EISDIR, "it is a folder"),
    (stat.S_ISFIFO, errno.EINVAL, "it is a pipe (FIFO), not a file"),
    (stat.S_ISSOCK, errno.EINVAL, "it is a socket, not a file"),
    (stat.S_ISCHR, errno.EINVAL, "it is a device, not a file"),
    (stat.S_ISBLK, errno.EINVAL, "it is a device, not a file"),
)


class NotRegular(OSError):
    """Error: the path leads to a folder, a FIFO, a socket or a device, and not to a regular file."""


def open_descriptor(path: StrPath, flags: int = os.O_RDONLY) -> int:
    """Open a regular file with `flags`, as for os.open, and return its descriptor. The path may also name an
    open descriptor of this process (/dev/stdin, /dev/fd/3) or /dev/null. Raises OSError, including NotRegular."""
    try:
        if _DESCRIPTOR.fullmatch(os.fspath(path)):
            return os.open(path, flags | _ALWAYS)
        with contextlib.suppress(FileNotFoundError):  # `flags` may create it
            _require_regular(os.stat(path), path)
    except (TypeError, ValueError) as error:  # it is no path, or has a null character
        raise OSError(errno.EINVAL, str(error)) from error
    # Do not wait if a FIFO has replaced the file since we looked.
    descriptor = os.open(path, flags | _ALWAYS | getattr(os, "O_NONBLOCK", 0), 0o666)
    try:
        _require_regular(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: StrPath) -> BinaryIO:
    """Open a regular file for reading. Raises OSError, including NotRegular."""
    return os.fdopen(open_descriptor(path), "rb")


def read_regular(path: StrPath, most: int | None = None) -> bytes:
    """Return the first `most` bytes of a regular file, or all of them if `most` is None. A large `most` takes no
    memory for a small file. Raises OSError, including NotRegular."""
    descriptor = open_descriptor(path)
    try:
        parts: list[bytes] = []
        size = min(_PIECE, max(1 << 16, os.fstat(descriptor).st_size + 1))
        most = sys.maxsize if most is None else most
        while most and (part := os.read(descriptor, min(size, most))):
            parts.append(part)
            most -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def read_text(path: StrPath, most: int) -> bytes:
    """Return the bytes of a text file, converted by `as_utf8`. For a file of more than `most` bytes, returns
    `most` + 1 bytes, so that the caller sees that it is too long. Raises OSError, including NotRegular."""
    data = read_regular(path, most + 1)
    return data if len(data) > most else as_utf8(data)


def as_utf8(text: bytes) -> bytes:
    """Convert UTF-16 with a byte order mark to UTF-8, and remove the mark of UTF-8. Any other text stays
    unchanged, whether it is UTF-8 or not."""
    # Windows PowerShell writes UTF-16 (`> FILE`), and some editors write the mark of UTF-8.
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        with contextlib.suppress(UnicodeDecodeError):
            return text.decode("utf-16").encode()
    return text.removeprefix(codecs.BOM_UTF8)


def append(path: StrPath, data: bytes) -> None:
    """Append `data` to a regular file, which is created if it does not exist. Raises OSError, including
    NotRegular."""
    with os.fdopen(open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "wb") as file:
        file.write(data)


def write_whole(path: StrPath, data: bytes) -> None:
    """Replace the content of a regular file in one step, or create the file. A reader finds the whole old
    content or the whole new one, even if this process is killed. That does not hold for a file that can only be
    written in place. Raises OSError, including NotRegular."""
    about = None
    with contextlib.suppress(FileNotFoundError):
        about = os.stat(path)
    try:
        # The new file gets the name after its data has reached the disk. A link still leads to the file, which
        # keeps its owner and permissions.
        if not _DESCRIPTOR.fullmatch(os.fspath(path)):
            replace_file(Path(os.path.realpath(path)), data, about=about)
            return
    except OSError as error:
        # A file that can be written but not replaced, such as one that is mounted into a container, is written in
        # place. On Windows the error means that another program has the file open.
        refused = sys.platform != "win32" and errno.errorcode.get(error.errno or 0) in _REFUSED
        if not refused or (about is not None and not os.access(path, os.W_OK)):
            raise
    with os.fdopen(open_descriptor(path, os.O_WRONLY | os.O_CREAT), "wb") as file:
        if about is None or stat.S_ISREG(about.st_mode):
            _resize(file.fileno(), len(data))
        file.write(data)


def _resize(descriptor: int, size: int) -> None:
    """Make a file `size` bytes long. If the disk lacks room, leave the file as it was and raise OSError."""
    old_size = os.fstat(descriptor).st_size
    try:
        if size > old_size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, old_size, size - old_size)
    except OSError as error:
        if error.errno in LOST:
            os.ftruncate(descriptor, old_size)
            raise
    os.ftruncate(descriptor, size)


def replace_file(
    target: Path, data: bytes, *, mode: int = 0o666, about: os.stat_result | None = None, lasting: bool = True
) -> None:
    """Write `data` to a new file, and rename it to `target` in one step. A link of that name is replaced. The
    file gets the permissions `mode` less the umask, or the owner and permissions in `about`. If `lasting` is
    true, data and name are flushed to the disk. Raises OSError."""
    if about is not None:
        _require_regular(about, target)
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    descriptor, fresh = create_beside(target, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            if lasting:
                file.flush()
                sync(file.fileno())
        if about is not None:
            if sys.platform != "win32":
                os.chown(fresh, about.st_uid, about.st_gid)
            fresh.chmod(stat.S_IMODE(about.st_mode))
        replace(fresh, target)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
    if lasting:
        sync_folder(target.parent)


def create_beside(target: Path, mode: int = 0o666) -> tuple[int, Path]:
    """Create an empty file with a new name in the folder of `target`. Its permissions are `mode` less the umask.
    Returns its descriptor and path. Raises OSError if it cannot be created."""
    while True:
        fresh = target.with_name(f".{target.name}.{os.urandom(4).hex()}.new")
        with contextlib.suppress(FileExistsError):
            # Existing files and links, even planted ones, are left alone.
            return os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _ALWAYS, mode), fresh


def sync(descriptor: int) -> None:
    """Flush written data to the disk. Raises OSError if data was lost, but not if the file system does not
    support flushing."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno in LOST:
            raise


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, so that a power failure undoes no renaming. Does nothing if the
    system cannot. Never raises."""
    with contextlib.suppress(OSError):  # Windows opens no folder, CIFS and FUSE may refuse fsync
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace(source: StrPath, target: StrPath) -> None:
    """Rename `source` to `target` in one step, and replace an existing `target`. Raises OSError, on Windows
    after trying for 2 s."""
    # Windows refuses this while any program, such as a virus scanner, has one of the files open.
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return os.replace(source, target)
        except PermissionError:
            if os.name != "nt" or time.monotonic() >= until:
                raise
            time.sleep(_RETRY_S)


def _require_regular(about: os.stat_result, path: StrPath) -> None:
    if stat.S_ISREG(about.st_mode):
        return
    for is_kind, number, why in _KINDS:
        if is_kind(about.st_mode):
            raise NotRegular(number, why, path)
    raise NotRegular(errno.EINVAL, "it is not a regular file", path)


# ---------------------------------------------------------------- what the system says, and what to do about it


_MENDS = {  # by the name of the error number, since not every system has all numbers
    "ENOSPC": "free some space there",
    "EDQUOT": "free some space of your quota there",
    "EFBIG": "raise the limit on the size of files (ulimit -f)",
    "EACCES": "change the permissions there",
    "EPERM": "change the owner or the permissions there",
    "EROFS": "mount it for writing",
    "ENAMETOOLONG": "take a shorter name",
    "ELOOP": "remove the link that leads back to itself",
    "EIO": "look at the disk and the system's log (dmesg)",
    "ENOENT": "create the folder that is missing",
    "ENOTDIR": "correct the path: a part of it is a file and no folder",
    "EISDIR": "name a file inside that folder",
    "EMFILE": "raise the limit on open files (ulimit -n)",
    "ENFILE": "close other programs: the system has no more open files",
    "ENOMEM": "free some memory or raise the limit on it (ulimit -v, the memory of the container)",
    "ESTALE": "mount the file system again",
    "ENOTCONN": "mount the file system again",
    "EBUSY": "end the program or the mount that uses it",
    "ETXTBSY": "end the program that uses it",
}


# Error numbers of Windows: a program has opened the file, locked a part of it, or mapped it.
_HELD = (32, 33, 1224)


def reason(error: Exception) -> str:
    """Return the text of `error`. Leaves out the number and the path of an error of the system. Returns the name
    of its type if it has no text."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def mend(error: OSError) -> str:
    """Return what the user can do about this error, by its number, or an empty text if nothing is known."""
    if getattr(error, "winerror", None) in _HELD:
        return "close the program that has it open"
    text = "" if isinstance(error, NotRegular) else _MENDS.get(errno.errorcode.get(error.errno or 0, ""), "")
    # In parentheses stand commands of a POSIX shell.
    return text.partition(" (")[0] if sys.platform == "win32" else text


def remedy(error: OSError, otherwise: str = "choose another place") -> str:
    """Return what the user can do about `error`: the remedy of `mend`, if there is one, then `otherwise`, an
    alternative that always helps."""
    return f"{mend(error)}, or {otherwise}" if mend(error) else otherwise
