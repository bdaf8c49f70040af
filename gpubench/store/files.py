"""Result files: replaced as a whole or not at all, read with a message for everything that can be wrong, and where they
live: `results/<machine>/<UTC time>-<id>.json`, or the user's data folder."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from gpubench.errors import GpubenchError, InputError, UsageError
from gpubench.installation import DATA, user_folder
from gpubench.model.machine import Machine
from gpubench.model.result import Run
from gpubench.store import document, limits
from gpubench.store.document import PART_SUFFIX, dumps, loads, part_of
from gpubench.store.limits import MAX_BYTES

_GZIP_MAGIC = b"\x1f\x8b"
# Why a relative name has no place, and what to do about it.
_GONE = ("the working folder is no longer there", "change to a folder that exists")


def save(run: Run, path: str | Path) -> None:
    """Replace `path` by the JSON of `run`, compressed if it ends in `.gz`. Raises GpubenchError."""
    replace(path, dumps(run))


def replace(path: str | Path, data: bytes) -> None:
    """`save` of a document that was encoded already. Raises GpubenchError."""
    target = Path(os.path.realpath(path))  # a link keeps pointing at the file
    if target.suffix == ".gz":
        import gzip

        data = gzip.compress(data, mtime=0)
    try:
        write_whole(target, data)
    except OSError as error:
        raise cannot_save(path, error) from error


def cannot_save(path: str | Path, error: OSError) -> GpubenchError:
    """The error for a result that the system refused."""
    return GpubenchError("cannot-save", f"cannot save the results to {path}", why=error.strerror or str(error))


def write_whole(target: Path, data: bytes) -> None:
    """Replace `target` by `data`. Raises OSError.

    Whoever reads or kills at any moment finds the old file or the new one, never a part: the bytes go to a new file
    in the same folder, reach the disk, and take the name in one step.
    """
    fresh = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        with open(fresh, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, target)
        _sync_folder(target.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def _sync_folder(folder: Path) -> None:
    # Without this a power failure may bring the old name back. Windows cannot open a folder.
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_part(path: str | Path) -> None:
    """Find out before measuring that the `.part` of the result `path` is somebody else's file. Raises UsageError."""
    beside = document.part_of(path)
    with contextlib.suppress(FileNotFoundError), open(beside, "rb") as file:
        begin = file.read(100)
        if begin and not document.is_part(begin):
            raise UsageError(
                "cannot-write", f"--output: cannot write {path}",
                why=f"the run is kept in {beside} while it goes on, and that is a file of something else",
                hint="move that file, or choose another name",
            )  # fmt: skip


def load(path: str | Path) -> Run:
    """The Run in `path` (`-`: standard input), compressed or not. Raises InputError."""
    return loads(*read(path))


def read(path: str | Path) -> tuple[bytes, str]:
    """The document in `path` (`-`: standard input), unpacked and put together, and how messages name it. Raises
    InputError."""
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
    if document.is_part(data):
        limits.require_json(data, source)
        data = document.joined(data, source)
    return data, source


def check_writable(path: str | Path, *, option: str = "--output") -> None:
    """Find out before measuring that `path` could not be saved. Raises UsageError; leaves nothing behind."""
    if str(path) == "-":
        return
    try:
        why, hint = _obstacle(Path(os.path.realpath(path)))
    except OSError:
        why, hint = _GONE
    if why:
        raise UsageError("cannot-write", f"{option}: cannot write {path}", why=why, hint=hint)


def check_folder(path: str | Path, *, option: str = "--results-dir") -> None:
    """Find out before measuring that files could not be put into the folder `path`, which need not exist yet.

    Raises UsageError; creates nothing.
    """
    try:
        folder = Path(os.path.realpath(path))
    except OSError:
        raise UsageError(
            "cannot-write", f"{option}: cannot write into {path}", why=_GONE[0], hint=_GONE[1]
        ) from None
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
        probe = target.with_name(f".{target.name}.{os.getpid()}.new")
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
        if os.path.exists(source + document.PART_SUFFIX):
            why += ", but a run that is under way or was killed left what it measured beside it"
            hint = f"name {source}{document.PART_SUFFIX}, or go on with gpubench run --append {source}"
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
            "truncated-file", f"{source} cannot be used", why=f"its gzip data is damaged: {error}"
        ) from error


RESULTS_FOLDER = "results"
_NAME = re.compile(r"(?P<time>\d{8}T\d{6}Z)-[0-9a-f]+\.json(\.gz)?(\.part)?")
RESULT_SUFFIXES = (".json", ".json.gz")


def user_data_dir(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """The platform's folder for gpubench's data. Not created."""
    # Where nobody tells the home, as of a user without an entry in a container, "~" stays as it is.
    home = environ.get("HOME") or environ.get("USERPROFILE") or os.path.expanduser("~")
    found = user_folder(DATA, {**environ, "HOME": home}, platform)
    return found or Path(home) / "AppData" / "Local" / "gpubench"


def default_results_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """`results` in the working folder; where that cannot be written, `results` in the user's data folder."""
    local = Path(RESULTS_FOLDER)
    if os.access(local if os.path.isdir(local) else ".", os.W_OK):
        return local
    return user_data_dir(environ) / RESULTS_FOLDER


def rescue_dirs(environ: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Where a result goes whose wished place fails: the user's data folder, then the temporary folder."""
    import tempfile

    yield user_data_dir(environ) / RESULTS_FOLDER
    with contextlib.suppress(OSError):
        yield Path(tempfile.gettempdir()) / "gpubench" / RESULTS_FOLDER


def newest(folders: Iterable[str | Path]) -> Path | None:
    """The newest result in `folders` and in the folders right below them, or None.

    A name that gpubench gave tells its own time, which survives a checkout; other names go by file time.
    """
    return next(iter(newest_first(folders)), None)


def newest_first(folders: Iterable[str | Path]) -> list[Path]:
    """All results in `folders` and in the folders right below them, the newest first; see `newest`."""
    found = {path for folder in folders for path in _results(Path(folder))}
    return sorted(found, key=lambda path: (_time(path), path.name), reverse=True)


def result_path(results_dir: str | Path, run: Run) -> Path:
    """`results_dir/<machine>/<UTC time>-<id>.json`, its folder created. Raises OSError."""
    folder = Path(results_dir) / machine_name(run.machine, run.fingerprint.machine.hash)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / result_name(run)


def result_name(run: Run) -> str:
    """`<UTC time>-<id>.json`. Touches no disk: formats name the file that they hold by it."""
    started = datetime.fromisoformat(run.started_at).astimezone(UTC)
    return f"{started:%Y%m%dT%H%M%SZ}-{run.id.replace('-', '')[:8]}.json"


def machine_name(machine: Machine, fingerprint: str) -> str:
    """CPU model, GPU model and six hex digits of the machine's fingerprint, fit for a folder's name."""
    gpu = machine.gpus[0].name.value if machine.gpus else None
    words = [machine.cpu.model.value or "cpu", gpu or "no-gpu"]
    slugs = [re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")[:40].rstrip("-") for word in words]
    return "-".join([*slugs, fingerprint[:6]])


def _results(folder: Path) -> list[Path]:
    """The results there, and of runs that are under way or were killed what they left: it stands for the result beside
    it unless that was written later."""
    found = {
        path
        for suffix in (*RESULT_SUFFIXES, *(suffix + PART_SUFFIX for suffix in RESULT_SUFFIXES))
        for pattern in (f"*{suffix}", f"*/*{suffix}")
        for path in folder.glob(pattern)
        if os.path.isfile(path)
    }
    for part in [path for path in found if path.suffix == PART_SUFFIX]:
        whole = part.with_suffix("")
        if whole in found:
            found.discard(whole if unfinished(whole) else part)
    return sorted(found)


def unfinished(path: str | Path) -> Path | None:
    """The `.part` that holds more than the result `path`: a run that writes it is under way or was killed."""
    left = part_of(path)
    try:
        written = os.stat(left).st_mtime_ns
    except OSError:
        return None
    with contextlib.suppress(FileNotFoundError):
        return left if written > os.stat(path).st_mtime_ns else None
    return left


def _time(path: Path) -> str:
    named = _NAME.fullmatch(path.name)
    if named:
        return named["time"]
    return f"{datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y%m%dT%H%M%SZ}"
