"""Read, write and find result files, and check before a run that they can be written.

Results are stored in `results/<machine>/<UTC time>-<id>.json` or in the user's data folder.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import itertools
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gpubench.base import disk, units
from gpubench.base.errors import GpubenchError, InputError, UsageError
from gpubench.base.installation import DATA, quote, user_folder
from gpubench.result.machine import Machine
from gpubench.result.run import SCHEMA_VERSION, Run
from gpubench.result.store import document
from gpubench.result.store.document import MAX_BYTES, PART_SUFFIX, dumps, loads

if TYPE_CHECKING:
    import gzip

_GZIP_MAGIC = b"\x1f\x8b"
_PIECE = 1 << 20
# The reason why a relative path cannot be resolved, and the remedy.
_GONE = ("the working folder is no longer there", "change to a folder that exists")


def save(run: Run, path: str | Path) -> None:
    """Write the JSON of `run` to the file `path`, compressed if the name ends in `.gz`, in place of an existing
    file. Raises GpubenchError if the file cannot be written."""
    replace(path, dumps(run))


def replace(path: str | Path, data: bytes) -> None:
    """Write the encoded document `data` to the file `path`, compressed if the name ends in `.gz`. An existing
    file is replaced (`disk.write_whole`). Raises GpubenchError if the file cannot be written."""
    if os.path.realpath(path).lower().endswith(".gz"):
        import gzip

        data = gzip.compress(data, mtime=0)
    try:
        disk.write_whole(path, data)
    except OSError as error:
        raise cannot_save(path, error) from error


def cannot_save(path: str | Path, error: OSError) -> GpubenchError:
    """Return the error that a result could not be saved to `path`, with `error` as its cause."""
    refused = GpubenchError(
        "cannot-save", f"cannot save the results to {path}", why=disk.reason(error),
        hint=disk.remedy(error, "choose another place with --output")
    )  # fmt: skip
    refused.__cause__ = error
    return refused


def check_part(path: str | Path) -> None:
    """Check before measuring that a `.part` file can be written beside the result `path`. Raises UsageError if
    not."""
    beside = document.part_of(path)
    if not os.path.lexists(beside):
        return
    why = ""
    try:
        begin = disk.read_regular(beside, 100)
        if begin and not document.is_part(begin):
            why = "that is a file of something else"
        elif not os.access(beside, os.W_OK):
            why = "that file is write-protected"
    except FileNotFoundError:
        why = "that is a link that leads nowhere"
    except OSError as error:
        why = disk.reason(error)
    if why:
        raise UsageError(
            "cannot-write", f"--output: cannot write {path}",
            why=f"the run is kept in {beside} while it goes on, and there: {why}",
            hint="move that away, or choose another name"
        )  # fmt: skip


def load(path: str | Path) -> Run:
    """Return the Run in the file `path`, which may be compressed or a `.part` file. `-` is standard input.
    Raises InputError if the file cannot be read or is no valid result."""
    return loads(*read(path))


def read(path: str | Path) -> tuple[bytes, str]:
    """Return the document in the file `path` as JSON, and the name of the file for messages. `-` is standard
    input. A gzip file is decompressed, and the lines of a `.part` file are joined. Raises InputError if the
    file cannot be read, is damaged or is too large."""
    name = str(path)
    source = "standard input" if name == "-" else name
    with document.enough_memory(source):
        try:
            data = _read_standard_input() if name == "-" else disk.read_regular(path, MAX_BYTES + 1)
        except OSError as error:
            raise _unreadable(source, error) from error
        if data.startswith(_GZIP_MAGIC):
            data = _decompress(data, source)
        data = disk.as_utf8(data)
        if len(data) > MAX_BYTES:
            raise InputError(
                "too-large", f"{source} cannot be used",
                why=f"it holds more than {MAX_BYTES // 2**20} MiB, and no result is that large",
                hint="give a file that `gpubench run` has written"
            )  # fmt: skip
        if document.is_part(data):
            document.require(
                source, "lines", data.count(b"\n"), document.MAX_CONTAINERS
            )  # each line is an object
            document.require_json(data, source)
            data = document.join_lines(data, source)
        return data, source


def check_writable(path: str | Path, *sources: str) -> None:
    """Check before measuring that the file `path` can be saved, without leaving a file. Raises UsageError if
    not, or if it is one of `sources`, the files that are read. `-` is standard output as `path`, which is
    accepted, and standard input as a source."""
    if str(path) == "-":
        return
    try:
        why, hint = _obstacle(path)
    except OSError:
        why, hint = _GONE
    for source in sources:
        with contextlib.suppress(OSError):  # a file that does not exist is none of the sources
            # The shell has opened the file of standard input, whose descriptor is 0.
            if os.path.samefile(path, 0 if source == "-" else source):
                why, hint = "it is a file that is read, and its content would be lost", "name another file"
    if why:
        raise UsageError("cannot-write", f"--output: cannot write {path}", why=why, hint=hint)


def check_folder(path: str | Path, *, option: str = "--results-dir") -> None:
    """Check before measuring that files can be written to the folder `path`, which need not exist yet. Raises
    UsageError, which names `option`, if they cannot. Nothing is created."""
    try:
        folder = Path(os.path.abspath(path))
    except OSError:
        why, hint = _GONE
    else:
        why, hint = _folder_obstacle(folder)
    if why:
        raise UsageError(
            "cannot-write", f"{option}: cannot write into {path}", why=why, hint=hint or "choose another folder"
        )


def _folder_obstacle(folder: Path) -> tuple[str, str]:
    """Return the reason why `folder` cannot be created or written to, and the remedy, or two empty texts."""
    try:
        while True:
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISDIR(os.stat(folder).st_mode):
                    return f"{folder} is not a folder", ""
                return _obstacle(folder / "probe.json")
            if os.path.islink(folder):
                return (
                    f"{folder} is a link that leads nowhere",
                    "create what it leads to, or choose another folder",
                )
            if folder == folder.parent:
                return "its drive does not exist", ""
            folder = folder.parent
    except NotADirectoryError:
        return f"{folder.parent} is not a folder", ""
    except (
        OSError
    ) as error:  # a folder above it that may not be entered, a name that is too long, links in a circle
        return disk.reason(error), disk.remedy(error, "choose another folder")


def _obstacle(path: str | Path) -> tuple[str, str]:
    """Return the reason why the file `path` cannot be replaced, and the remedy, or two empty texts."""
    target = Path(os.path.realpath(path))
    try:
        with contextlib.suppress(FileNotFoundError):
            about = os.stat(path)
            if stat.S_ISDIR(about.st_mode):
                return "it is a folder", "name a file inside it"
            if not stat.S_ISREG(about.st_mode):
                return "it is not a regular file, so it cannot be replaced", "write to - for standard output"
            if not os.access(target, os.W_OK):
                return "the file is there and write-protected", "choose another name or change its permissions"
            if _is_anothers(about, os.stat(target.parent)):
                return (
                    "it is another user's, in a folder where users replace their own files alone",
                    "choose another name",
                )
        if not target.parent.exists():
            return (
                f"the folder {target.parent} does not exist",
                f"create the folder {target.parent} first, or choose another place",
            )
        # Permission bits do not tell about read-only mounts, quotas, or root: only an attempt does.
        descriptor, probe = disk.create_beside(target)
        os.close(descriptor)
        with contextlib.suppress(OSError):  # some file systems delete nothing
            probe.unlink()
    except OSError as error:
        return disk.reason(error), disk.remedy(error)
    return "", ""


def _is_anothers(file: os.stat_result, folder: os.stat_result) -> bool:
    """Return whether this user may not replace a file because its folder has a sticky bit, like /tmp."""
    user = getattr(os, "geteuid", lambda: 0)()
    return bool(folder.st_mode & stat.S_ISVTX) and user not in (0, file.st_uid, folder.st_uid)


def _read_standard_input() -> bytes:
    if sys.stdin is None:  # closed before we started
        raise OSError(errno.EBADF, "it is closed")
    return _read(sys.stdin.buffer)


def _read(file: IO[bytes] | gzip.GzipFile) -> bytes:
    """Return the bytes of a file, at most MAX_BYTES + 1 of them."""
    # In pieces, so that a small file needs little memory.
    parts, rest = [], MAX_BYTES + 1
    while part := file.read(min(rest, _PIECE)):
        parts.append(part)
        rest -= len(part)
    return b"".join(parts)


def _unreadable(source: str, error: OSError) -> InputError:
    why, hint = disk.reason(error), disk.remedy(error, "name another file")
    if isinstance(error, FileNotFoundError):
        why = "there is no such file"
        hint = "check the name (`gpubench report` alone takes the newest), or run `gpubench run` first"
        if os.path.islink(source):
            why, hint = "it is a link that leads nowhere", "name another file"
        elif os.path.exists(source + document.PART_SUFFIX):
            why += ", but a run that is under way or was killed left what it measured beside it"
            hint = f"name {source}{document.PART_SUFFIX}, or go on with gpubench run --append {source}"
    elif error.errno == errno.EISDIR:
        inside = next(iter(newest_first([source])), f"{source}/r.json")
        why, hint = "it is a folder", f"name a file inside it, for example {inside}"
    elif isinstance(error, disk.NotRegular):
        hint = f"name a file; what a command writes is read from standard input, as - (... - < {source})"
    elif isinstance(error, PermissionError):
        why = "you may not read it"
        hint = f"change its permissions: chmod u+r {quote(source)}"
        if sys.platform == "win32":
            why, hint = "it may not be read", "close the program that has it open, or change its permissions"
    return InputError("unreadable", f"{source} cannot be read", why=why, hint=hint)


def _decompress(data: bytes, source: str) -> bytes:
    import gzip
    import io

    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            return _read(file)
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(
            "truncated-file", f"{source} cannot be used", why=f"its gzip data is damaged: {error}"
        ) from error


RESULTS_FOLDER = "results"
_NAME = re.compile(r"(?P<time>\d{8}T\d{6}Z)-[0-9a-f]+\.json(\.gz)?(\.part)?")
RESULT_SUFFIXES = (".json", ".json.gz")
_LAST_S = 253_402_300_799.0  # the end of the year 9999, because the time of a file may lie later


def user_data_dir(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Return gpubench's folder among the user's data on this platform. The folder is not created."""
    # If the home is unknown, as for a user without an entry in a container, "~" stays as it is.
    home = environ.get("HOME") or environ.get("USERPROFILE") or os.path.expanduser("~")
    folder = user_folder(DATA, {**environ, "HOME": home}, platform)
    return folder or Path(home) / "AppData" / "Local" / "gpubench"


def default_results_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return `results` in the working folder if it is writable, else `results` in the user's data folder."""
    local = Path(RESULTS_FOLDER)
    if os.access(local if os.path.isdir(local) else ".", os.W_OK):
        return local
    return user_data_dir(environ) / RESULTS_FOLDER


def rescue(run: Run, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Save a run that could not be saved at the requested place. Returns the path, or None if that fails, too.
    The user's data folder is tried first, then a new temporary folder."""
    for folder in _rescue_folders(environ):
        try:
            path = result_path(folder, run)
            save(run, path)
            return path
        except (OSError, GpubenchError):  # remove what was created in vain
            for place in (folder / machine_name(run.machine), folder):
                with contextlib.suppress(OSError):
                    place.rmdir()
    return None


def _rescue_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    import tempfile

    yield user_data_dir(environ) / RESULTS_FOLDER
    with contextlib.suppress(
        OSError
    ):  # all users share it: a fresh name that nobody can have planted, and 0700
        yield Path(tempfile.mkdtemp(prefix="gpubench-results-"))


def newest(folders: Iterable[str | Path]) -> Path | None:
    """Return the newest result with samples in `folders` and their direct subfolders, else the newest of all,
    or None. The time of a result is the one in its file name, or else the time of the file. `.part` files are
    results, too. A file that cannot be read counts as one with samples."""
    from gpubench.result.store.journal import measured_something

    paths = newest_first(folders)
    return next(filter(measured_something, paths), next(iter(paths), None))


def newest_first(folders: Iterable[str | Path]) -> list[Path]:
    """Return the paths of all results in `folders` and their direct subfolders, newest first, by the same time
    as `newest`. A `.part` file with data that the result beside it lacks is included. If it continues that
    result, it takes the result's place."""
    paths = {path for folder in folders for path in _results(Path(folder))}
    return sorted(paths, key=lambda path: (_time(path), path.name), reverse=True)


def is_result_name(path: str | Path) -> bool:
    """Return whether the name is that of a result: it ends in .json or .json.gz, in upper or lower case."""
    return str(path).lower().endswith(RESULT_SUFFIXES)


def result_path(results_dir: str | Path, run: Run) -> Path:
    """Return the path `results_dir/<machine>/<UTC time>-<id>.json` and create its folder. Raises OSError if the
    folder cannot be created."""
    folder = Path(results_dir) / machine_name(run.machine)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / result_name(run)


def check_result_path(results_dir: str | Path, run: Run) -> None:
    """Check before measuring that a file can be saved where `result_path` places the run's result. Raises
    UsageError if it cannot. Nothing is created."""
    check_folder(Path(results_dir) / machine_name(run.machine))


def result_name(run: Run) -> str:
    """Return the file name of a run: its start in UTC and the first eight digits of its id. The disk is not
    accessed."""
    started = units.parse_time(run.started_at) or datetime.min.replace(tzinfo=UTC)
    return f"{started.year:04}{started:%m%dT%H%M%SZ}-{re.sub('[^0-9A-Za-z]', '', run.id)[:8]}.json"


def machine_name(machine: Machine) -> str:
    """Return a folder name for a machine, such as `intel-xeon-processor-16-cpus-nvidia-h200`. It has the CPU
    model, the number of usable CPUs and the model of the first GPU, as far as they are known. It holds nothing
    that changes from boot to boot."""
    gpu = machine.gpus[0].name.value if machine.gpus else None
    cpus = machine.cpu.available.value
    words = [machine.cpu.model.value or "cpu", *([f"{cpus} cpus"] if cpus else []), gpu or "no-gpu"]
    plain = [re.sub(r"\((r|tm|c)\)| @ .*", " ", word.lower()) for word in words]
    return "-".join(
        filter(None, (re.sub(r"[^a-z0-9]+", "-", word).strip("-")[:40].rstrip("-") for word in plain))
    )


def _results(folder: Path) -> list[Path]:
    """Return the paths of the results in `folder` and its direct subfolders. Of a result and the `.part` file
    beside it, only the one that has more of the same run is listed. If their runs differ, both are."""
    from gpubench.result.store.journal import part_relation

    paths = {
        path
        for pattern in ("[!.]*", "[!.]*/[!.]*")
        for path in map(folder.joinpath, glob.glob(pattern, root_dir=folder))
        if is_result_name(str(path).removesuffix(PART_SUFFIX)) and os.path.isfile(path)
    }
    for part in [path for path in paths if path.suffix == PART_SUFFIX]:
        whole = part.with_suffix("")
        if whole in paths and (relation := part_relation(whole)) != "apart":
            paths.discard(whole if relation == "ahead" else part)
    return sorted(paths)


def _time(path: Path) -> str:
    if named := _NAME.fullmatch(path.name):
        return named["time"]
    seconds = 0.0
    with contextlib.suppress(OSError):  # it went meanwhile
        seconds = path.stat().st_mtime
    return f"{datetime.fromtimestamp(min(max(seconds, 0.0), _LAST_S), UTC):%Y%m%dT%H%M%SZ}"


# A folder may hold tens of large results, but the head of a file is in its first pages. The head ends with this
# text. No string inside a JSON document contains it, because quotes in strings have a backslash.
_END = b',"sessions":['
_HEAD_PIECE, _MOST_HEAD = 1 << 15, 1 << 20


def load_head(path: Path) -> Run | None:
    """Return the run in the file `path` without sessions and outcomes, or the whole run if other fields follow
    them. Returns None if the file cannot be read or is no result. Only a whole run is checked as by `load`."""
    try:
        data = _beginning(path)
        if data is not None:
            return document.loads_as(Run, data, str(path), name=document.RESULT_NAME, newest=SCHEMA_VERSION)
    except (OSError, zlib.error, GpubenchError):
        pass  # another form, or no result: `load` finds out
    try:
        return load(path)
    except GpubenchError:  # somebody else's JSON beside our results
        return None


def _beginning(path: Path) -> bytes | None:
    """Return the document up to its sessions as valid JSON, or None if it has another form or a large head."""
    data = b""
    with disk.open_regular(path) as file:
        for piece in _unpack(iter(lambda: file.read(_HEAD_PIECE), b"")):
            start = max(0, len(data) - len(_END))
            data += piece
            end = data.find(_END, start)
            if end >= 0:
                return data[:end] + b"}"
            if len(data) > _MOST_HEAD:
                break
    return None


def _unpack(pieces: Iterator[bytes]) -> Iterator[bytes]:
    first = next(pieces, b"")
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 16) if first.startswith(_GZIP_MAGIC) else None
    for piece in itertools.chain((first,), pieces):
        while inflate is not None and piece:
            yield inflate.decompress(piece, _HEAD_PIECE)
            piece = inflate.unconsumed_tail
        yield piece
