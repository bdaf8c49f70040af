"""The storage of a run that is under way: its `.part` file, how this file relates to the result beside it, and
the lock of a result.

`store.document` describes the lines of a `.part` file. The relation of two files follows from run ids and
sessions, never from times, because `touch`, `cp`, `git checkout` and a wrong clock change the times of files.
The lock makes sure that only one process writes a file. It is advisory, and the kernel releases it when its
holder ends in any way.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from gpubench.base import disk
from gpubench.base.errors import InputError, UsageError
from gpubench.result.run import Measurement, Outcome, Run, SessionRecord
from gpubench.result.store.document import FIRST_LINE, PART_SUFFIX, PartLine, encode, enough_memory, part_of
from gpubench.result.store.files import RESULT_SUFFIXES, read

FLUSH_S = 1.0  # the seconds of data that a power failure may cost; a kill costs nothing that was written
# Lines that were replaced later make the file longer than its content. If it is this many times as long, plus
# LEAST_BYTES, it is written anew.
MOST_TIMES, LEAST_BYTES = 3, 2**20


class Journal:
    """A writer that appends each change of a run to the `.part` file at `path`, flushed every `FLUSH_S`
    seconds. The telemetry of a session grows with every reading, so it is written only when the next session
    has begun."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._length = self._whole = 0
        self._flushed = 0.0
        self._head: Run | None = None
        self._sessions: dict[int, SessionRecord] = {}
        self._outcomes: dict[str, Outcome] = {}

    def write(self, run: Run) -> None:
        """Append the changes of `run` since the last call. Raises OSError, and ValueError for NaN and infinity.
        After an OSError, the next call also writes the missed changes."""
        head = replace(run, sessions=[], outcomes=[])
        last = run.sessions[-1].index if run.sessions else 0
        sessions = {
            record.index: record if record.index < last else replace(record, telemetry=[])
            for record in run.sessions
        }
        outcomes = {outcome.id: outcome for outcome in run.outcomes}
        if self._length > MOST_TIMES * self._whole + LEAST_BYTES:
            self.close()
        if self._file is None:
            self._head, self._sessions, self._outcomes = None, {}, {}
        lines = [
            *([PartLine(head=_raw(head))] if head != self._head else []),
            *(
                PartLine(index=i, session=_raw(record))
                for i, record in sessions.items()
                if self._sessions.get(i) != record
            ),
            *(
                _change(outcome, before)
                for name, outcome in outcomes.items()
                if (before := self._outcomes.get(name)) is not outcome
            ),
            *(PartLine(forgotten=name) for name in self._outcomes if name not in outcomes),
        ]
        self._append(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        self._head, self._sessions, self._outcomes = head, sessions, outcomes

    def close(self) -> None:
        """Stop writing and keep the file. Never raises."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None

    def remove(self) -> None:
        """Stop writing, and remove the file if this journal has written it. Never raises."""
        self.close()
        if self._length:  # else what lies there is not of this run
            with contextlib.suppress(OSError):
                self.path.unlink()
            self._length = 0

    def _append(self, data: bytes) -> None:
        """Append all of `data`, or nothing if writing fails."""
        if self._file is None:
            # What a killed run left under this name stands until it is replaced as a whole.
            disk.write_whole(self.path, FIRST_LINE + data)
            self._file = disk.open_descriptor(self.path, os.O_WRONLY)
            self._length, self._whole = len(FIRST_LINE), len(data)
        else:
            self._write_at_end(data)
        self._length += len(data)

    def _write_at_end(self, data: bytes) -> None:
        assert self._file is not None
        try:
            os.lseek(self._file, self._length, os.SEEK_SET)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            if time.monotonic() - self._flushed >= FLUSH_S:
                disk.sync(self._file)
                self._flushed = time.monotonic()
        except OSError:
            with contextlib.suppress(OSError):  # an incomplete line would damage the lines after it
                os.ftruncate(self._file, self._length)
            raise


def _change(outcome: Outcome, before: Outcome | None) -> PartLine:
    if not isinstance(outcome, Measurement) or not isinstance(before, Measurement):
        return PartLine(id=outcome.id, outcome=_raw(outcome, outcome.id))
    blocks, parts = _alike(outcome.blocks, before.blocks), _alike(outcome.parts, before.parts)
    new = replace(outcome, blocks=outcome.blocks[blocks:], parts=outcome.parts[parts:])
    return PartLine(id=outcome.id, outcome=_raw(new, outcome.id), blocks=blocks, parts=parts)


def _alike(new: Sequence[object], old: Sequence[object]) -> int:
    """Return the number of leading items that are the same objects in both sequences."""
    differ = (i for i, (item, other) in enumerate(zip(new, old, strict=False)) if item is not other)
    return next(differ, min(len(new), len(old)))


def _raw(value: msgspec.Struct, path: str = "") -> msgspec.Raw:
    return msgspec.Raw(encode(value, path))


_RETRY_S = 0.05
# The place of the byte that is locked on Windows. Locked bytes cannot be read, but the holder's name must be
# readable.
_FAR = 1 << 30
_MOST_NAMES = 1 << 16  # the most bytes of a lock file that are read


class Holder(msgspec.Struct, frozen=True):
    """The holder of a lock, as the lock file describes it."""

    pid: int  # the id of the process
    host: str  # the name of its machine
    command: str  # the command line of the holder
    since: str  # the local time at which the holder took the lock

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (gpubench {self.command}) has held it since {self.since}"


class NoLocks(OSError):
    """Raised if a file system has no locks or refuses this one, so that two runs cannot be kept apart."""


class Lock:
    """A lock that is held through the lock file `path`. Releasing the lock removes the file. A file that a
    killed process left behind is used again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def take(self) -> bool:
        """Take the lock if it is free, without waiting. Returns False if another process holds it. Raises
        OSError, including NoLocks."""
        while self._file is None:
            file = _open_lock(self.path)
            try:
                if not _lock(file):
                    return False
                if _is_at(file, self.path):  # else its holder removed it between our opening and our locking
                    self._file = file
            except OSError as error:
                self._remove_useless(file)
                raise NoLocks(error.errno, disk.reason(error)) from error
            finally:
                if self._file is None:
                    os.close(file)
        return True

    def _remove_useless(self, file: int) -> None:
        """Remove the lock file, which cannot be locked, if it is empty and still at its path."""
        with contextlib.suppress(OSError):
            if not os.fstat(file).st_size and _is_at(file, self.path):
                self.path.unlink()

    def sign(self, holder: Holder) -> None:
        """Write the holder into the lock file, for processes that wait. This process has the lock. Raises
        OSError."""
        assert self._file is not None
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, msgspec.json.encode(holder))

    def release(self, *, keep: bool = False) -> None:
        """Release the lock, and remove the file unless `keep` is True. Never raises."""
        if self._file is None:
            return
        refused = False
        try:
            if not keep and _is_at(self._file, self.path):
                self.path.unlink()  # first: whoever opened it meanwhile sees that it is gone
        except PermissionError:
            refused = True
        except OSError:
            pass
        with contextlib.suppress(OSError):
            os.close(self._file)
        if refused:
            # Windows removes no file that is open, also not one that somebody else has opened meanwhile.
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._file = None


def lock_of(path: str | Path) -> Path:
    """Return the path of the lock file of the result `path`."""
    target = Path(os.path.realpath(path))
    return target.with_name(f".{target.name}.gpubench-lock")


def lock_result(
    path: str | Path,
    command: str,
    timeout_s: float,
    waits: Callable[[str], None] = lambda holder: None,
    warn: Callable[[str], None] = lambda why: None,
) -> Lock:
    """Lock the result `path`. `command` is this process's command line, which other processes show.

    If the result is locked, call `waits` with its holder, and wait for at most `timeout_s` seconds. Without
    locks, call `warn` with the reason. Raises InputError if another process keeps the lock, and UsageError if a
    lock file cannot be opened.
    """
    lock = Lock(lock_of(path))
    until, announced = time.monotonic() + timeout_s, False
    try:
        while not lock.take():
            if time.monotonic() >= until:
                raise InputError("locked", f"{path} is being written by another run", why=_holder(lock.path))
            if not announced:
                waits(_holder(lock.path))
                announced = True
            time.sleep(_RETRY_S)
    except NoLocks as error:
        warn(f"{path} cannot be locked: {disk.reason(error)}; no other run may write it meanwhile")
        return lock
    except OSError as error:
        if os.path.lexists(lock.path):
            raise UsageError(
                "cannot-write", f"--output: cannot write {path}",
                why=f"{lock.path} keeps two runs from writing it, and cannot be opened: {disk.reason(error)}",
                hint="remove that file if no run writes there, or choose another place"
            ) from error  # fmt: skip
        return lock  # nothing can be created there: saving tells, if it matters
    with contextlib.suppress(OSError):
        lock.sign(Holder(os.getpid(), _host(), command, time.strftime("%H:%M:%S")))
    return lock


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        holder = msgspec.json.decode(disk.read_regular(path, _MOST_NAMES), type=Holder)
        if holder.host != _host() or _lives(holder.pid):  # else it could not sign: the file is another user's
            return str(holder)
    return "another process holds its lock"


def _lives(pid: int) -> bool:
    if os.name != "nt":
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except OSError:  # another user's
            pass
    return True


def _host() -> str:
    import platform

    return platform.node()


def _open_lock(path: Path) -> int:
    """Open the lock file, and create it if it does not exist."""
    flags = getattr(os, "O_NOFOLLOW", 0)
    try:
        return disk.open_descriptor(path, flags | os.O_RDWR | os.O_CREAT)
    except PermissionError:
        # Another user's file may be read-only, and in /tmp it may refuse O_CREAT.
        for access in (os.O_RDWR, os.O_RDONLY):
            with contextlib.suppress(PermissionError, FileNotFoundError):
                return disk.open_descriptor(path, flags | access)
        raise


def _is_at(file: int, path: Path) -> bool:
    """Return whether the open file is the file at `path`."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False


def _lock(file: int) -> bool:
    """Lock an open file without waiting, and return whether this process has the lock now."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(file, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# The relation of a `.part` file to the result: it continues the result; the result contains it; or each has
# data that the other lacks.
Relation = Literal["ahead", "behind", "apart"]


class _Session(msgspec.Struct, frozen=True):
    index: int  # the index of the session
    started_at: str = ""  # the time of its start, in UTC


class _Outcome(msgspec.Struct, frozen=True):
    blocks: list[msgspec.Raw] = []  # the blocks, not decoded


class _Progress(msgspec.Struct, frozen=True):
    """The progress of a run: its sessions and the blocks of its outcomes."""

    id: str  # the id of the run
    sessions: list[_Session] = []  # the sessions that have begun
    outcomes: list[_Outcome] = []  # the outcomes of its cases

    @property
    def blocks(self) -> int:
        return sum(len(outcome.blocks) for outcome in self.outcomes)


def part_to_resume(path: str | Path) -> Path | None:
    """Return the `.part` file from which the run of the result `path` can go on, or None. It must continue the
    result, if there is one. Raises InputError if the result or the file cannot be read."""
    part = part_of(path)
    if not os.path.isfile(part):
        return None
    return part if not os.path.exists(path) or _relation(path, part) == "ahead" else None


def part_relation(path: str | Path) -> Relation:
    """Return the relation of the `.part` file to the result `path` beside it. It is "ahead" if it continues the
    result, and "behind" if the result contains it or it is gone. It is "apart" otherwise, and if one of the two
    files cannot be read."""
    try:
        return _relation(path, part_of(path))
    except FileNotFoundError:  # the run has ended since the file was found
        return "behind"
    except InputError:
        return "apart"


def set_aside(path: str | Path, *, resumed: bool) -> Path | None:
    """Rename the `.part` file beside the result `path` if a run that writes `path` would lose its data. Raises
    OSError. `resumed` tells whether the run continues the existing data or begins anew. Returns the new path,
    which `--append` accepts, or None if nothing would be lost."""
    part = part_of(path)
    try:
        if not os.path.isfile(part) or not part.stat().st_size:
            return None
    except FileNotFoundError:
        return None
    if not os.path.exists(path):
        if resumed:
            return None
    elif (relation := part_relation(path)) == "behind" or (resumed and relation == "ahead"):
        return None
    progress = None
    with contextlib.suppress(InputError):
        progress = _progress(part)
    if progress is not None and not progress.sessions and not progress.blocks:
        return None
    aside = _free_name(part, "unreadable" if progress is None else _short(progress.id))
    disk.replace(part, aside)
    return aside


def measured_something(path: Path) -> bool:
    """Return whether a result contains samples. An unreadable file counts as one, so that reading it reports
    why."""
    try:
        return bool(_progress(path).blocks)
    except InputError:
        return True


def _relation(path: str | Path, part: Path) -> Relation:
    if not part.stat().st_size:  # a power failure may leave the name alone
        return "behind"
    result, addition = _progress(path), _progress(part)
    before, after = set(result.sessions), set(addition.sessions)
    if result.id != addition.id:
        return "apart" if after or addition.blocks else "behind"
    if before < after or (before == after and addition.blocks > result.blocks):
        return "ahead"
    return "behind" if after <= before else "apart"


def _progress(path: str | Path) -> _Progress:
    """Return the progress of the run in the file `path`, or raise InputError."""
    data, source = read(path)
    with enough_memory(source):
        try:
            return msgspec.json.decode(data, type=_Progress)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InputError("bad-document", f"{source} cannot be used", why=str(error)) from error


def _short(run_id: str) -> str:
    return "".join(letter for letter in run_id if letter.isascii() and letter.isalnum())[:8] or "unnamed"


def _free_name(part: Path, word: str) -> Path:
    """Return `r.WORD.json.part` for `r.json.part`, with a number if that name is taken."""
    whole = part.name.removesuffix(PART_SUFFIX)
    # The result may be a link to a file of any name.
    suffixes = (whole[-len(end) :] for end in reversed(RESULT_SUFFIXES) if whole.lower().endswith(end))
    suffix = next(suffixes, RESULT_SUFFIXES[0])
    stem, number = whole.removesuffix(suffix), 1
    while True:
        name = f"{stem}.{word}{f'-{number}' if number > 1 else ''}{suffix}"
        aside = part.with_name(name + PART_SUFFIX)
        if not os.path.lexists(aside) and not os.path.lexists(part.with_name(name)):
            return aside
        number += 1
