"""Files: replaced as a whole or not at all, and read with a message for everything that can be wrong."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path
from typing import IO

from gpubench.errors import GpubenchError, InputError, UsageError
from gpubench.model.result import Run
from gpubench.store.document import Encoder, dumps, loads

# Far above any real run (about 1 MB per thousand blocks); protects from /dev/zero and zip bombs.
MAX_BYTES = 256 * 2**20
_GZIP_MAGIC = b"\x1f\x8b"


def save(run: Run, path: str | Path, encoder: Encoder | None = None) -> None:
    """Replace `path` by the JSON of `run`, compressed if it ends in `.gz`. Who saves often keeps an `encoder`.

    Whoever reads or kills at any moment finds the old file or the new one, never a part: the bytes go
    to a new file in the same folder, reach the disk, and take the name in one step. Raises GpubenchError.
    """
    replace(path, encoder.dumps(run) if encoder else dumps(run))


def replace(path: str | Path, data: bytes) -> None:
    """`save` of a document that was encoded already. Raises GpubenchError."""
    target = Path(os.path.realpath(path))  # a link keeps pointing at the file
    if target.suffix == ".gz":
        import gzip

        data = gzip.compress(data, mtime=0)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        _write_through(part, data)
        os.replace(part, target)
        _sync_folder(target.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise GpubenchError(
            "cannot-save",
            f"cannot save the results to {path}",
            why=error.strerror or str(error),
            hint="free some space or choose another place with --output",
        ) from error


def load(path: str | Path) -> Run:
    """The Run in `path` (`-`: standard input), compressed or not. Raises InputError."""
    return loads(*read(path))


def read(path: str | Path) -> tuple[bytes, str]:
    """What `path` holds (`-`: standard input), unpacked, and how messages name it. Raises InputError."""
    source = "standard input" if str(path) == "-" else str(path)
    try:
        if str(path) == "-":
            if sys.stdin is None:  # closed before we started
                raise OSError(errno.EBADF, "it is closed")
            data = _read(sys.stdin.buffer)
        else:
            with open(path, "rb") as file:
                data = _read(file)
    except OSError as error:
        raise _unreadable(source, error) from error
    if data.startswith(_GZIP_MAGIC):
        data = _decompress(data, source)
    if len(data) > MAX_BYTES:
        raise InputError(
            "too-large",
            f"{source} cannot be used",
            why=f"it holds more than {MAX_BYTES // 2**20} MiB, and no result is that large",
            hint="give a file that `gpubench run` has written",
        )
    return data, source


def check_writable(path: str | Path, *, option: str = "--output") -> None:
    """Find out before measuring that `path` could not be saved. Raises UsageError; leaves nothing behind."""
    if str(path) == "-":
        return
    target = Path(os.path.realpath(path))
    why, hint = _obstacle(target)
    if why:
        raise UsageError("cannot-write", f"{option}: cannot write {path}", why=why, hint=hint)


def check_folder(path: str | Path, *, option: str = "--results-dir") -> None:
    """Find out before measuring that files could not be put into the folder `path`, which need not exist yet.

    Raises UsageError; creates nothing.
    """
    folder = Path(os.path.realpath(path))
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        why, hint = _obstacle(folder / "probe.json") if folder.is_dir() else (f"{folder} is not a folder", "")
    except OSError as error:  # a folder above it that may not be entered, or a name that is too long
        why, hint = error.strerror or str(error), ""
    if why:
        hint = hint or "choose another folder"
        raise UsageError("cannot-write", f"{option}: cannot write into {path}", why=why, hint=hint)


def _obstacle(target: Path) -> tuple[str, str]:
    """Why `target` cannot be replaced and what to do about it; two empty texts if it can."""
    elsewhere = f"create the folder {target.parent} first, or choose another place"
    try:
        if target.exists():
            if target.is_dir():
                return "it is a folder", "name a file inside it"
            if not stat.S_ISREG(target.stat().st_mode):
                return "it is not a regular file, so it cannot be replaced", "write to - for standard output"
            if not os.access(target, os.W_OK):
                return "the file is there and write-protected", "choose another name or change its permissions"
        if not target.parent.exists():
            return f"the folder {target.parent} does not exist", elsewhere
        if not target.parent.is_dir():
            return f"{target.parent} is not a folder", "choose another place"
        # Permission bits do not tell about read-only mounts, quotas, or root: only an attempt does.
        probe = target.with_name(f".{target.name}.{os.getpid()}.part")
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        return error.strerror or str(error), "choose another place or change the permissions of the folder"
    return "", ""


def _read(file: IO[bytes]) -> bytes:
    return file.read(MAX_BYTES + 1)


def _unreadable(source: str, error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError):
        why, hint = "there is no such file", "check the name, or run `gpubench run` first"
    elif isinstance(error, IsADirectoryError):
        why, hint = "it is a folder", f"name a file inside it, for example {source.rstrip('/')}/*.json"
    elif isinstance(error, PermissionError):
        why, hint = "you may not read it", f"change its permissions: chmod u+r {source}"
    else:
        why, hint = error.strerror or str(error), "check the file and the disk that it is on"
    return InputError("unreadable", f"{source} cannot be read", why=why, hint=hint)


def _decompress(data: bytes, source: str) -> bytes:
    import gzip
    import io
    import zlib

    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            return file.read(MAX_BYTES + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(
            "truncated-file",
            f"{source} cannot be used",
            why=f"its gzip data is damaged: {error}",
            hint="give a file that `gpubench run` has written",
        ) from error


def _write_through(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    # Without this a power failure may bring the old name back. Windows cannot open a folder.
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
