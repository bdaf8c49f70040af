"""The private folder of a run, or of a cluster that we start, and the removal of folders that killed runs
left."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gpubench.base import disk
from gpubench.base.errors import GpubenchError
from gpubench.measure.plan import UNKNOWN_MEMORY_BYTES
from gpubench.result.store import Lock, NoLocks

PREFIX = "gpubench-scratch-"
# Prefix for a cluster that we start, whose sockets need short paths. Other programs may use these letters too.
CLUSTER_PREFIX = "gb-"
# Each of our folders holds this file, which is locked while its run lives.
MARKER = ".gpubench-scratch-lock"
# Share of the host's free memory that the files of references may take.
_REFERENCES_SHARE = 1 / 16
MEMORY = Path("/dev/shm")
# The folder of a run that could not lock holds this file. The folder is then not empty, so no run removes it.
_UNLOCKED = ".gpubench-scratch-unlocked"


class Scratch:
    """A new temporary folder. Its lock keeps other runs from removing it."""

    def __init__(self, prefix: str = PREFIX, host_bytes: int | None = None) -> None:
        """Remove the folders that killed runs left, then make a new folder. Raises GpubenchError if that fails.
        References may take a share of `host_bytes`, the free memory of the host (None: unknown)."""
        try:
            room = int(_REFERENCES_SHARE * (UNKNOWN_MEMORY_BYTES if host_bytes is None else host_bytes))
            memory = _memory(room) if prefix == PREFIX else None
            for place in {MEMORY, Path(tempfile.gettempdir())}:
                _remove_orphans(place)
            self.folder, self._lock = _make_folder(prefix, memory)
            self._room = min(room, shutil.disk_usage(self.folder).free // 2)
            # References by the series under measurement when they appeared, those of the last step last.
            self._served: frozenset[str] = frozenset()
            self._references: dict[frozenset[str], set[Path]] = {}
        except OSError as error:
            raise GpubenchError(
                "no-scratch", why=f"{disk.reason(error)} ({tempfile.tempdir or 'TMPDIR'})",
                hint=disk.remedy(error, "name another folder in TMPDIR"),
            ) from error  # fmt: skip

    def serve(self, series: Iterable[str]) -> None:
        """Note that these series are measured next, and free room if the references are too large together. The
        references of series that were measured longest ago are removed. They are computed again when they are
        needed."""
        sizes: dict[Path, int] = {}
        for file in self.folder.glob("*.npy"):
            with contextlib.suppress(OSError):
                sizes[file] = file.stat().st_size
        listed = {file for files in self._references.values() for file in files}
        self._references.setdefault(self._served, set()).update(sizes.keys() - listed)
        self._served = frozenset(series)
        self._references[self._served] = self._references.pop(self._served, set())
        for other in list(self._references)[:-1]:
            if sum(sizes.values()) <= self._room:
                return
            for file in self._references.pop(other):
                sizes.pop(file, None)
                with contextlib.suppress(OSError):
                    file.unlink()

    def remove(self) -> None:
        """Remove the folder. Never raises."""
        discard(self.folder, self._lock)


def _memory(room: int) -> Path | None:
    """Return the folder of the file system in memory if it has twice `room` bytes free, else None."""
    # To write files to a disk, the system takes a CPU from a kernel that uses all of them.
    named = tempfile.tempdir is not None or any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    with contextlib.suppress(OSError):
        if not named and os.access(MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(MEMORY).free >= 2 * room:
            return MEMORY
    return None


def _make_folder(prefix: str, place: Path | None) -> tuple[Path, Lock]:
    """Return a new folder in `place` (None: the folder for temporary files) and the lock of its marker."""
    while True:
        # With its final name, since Windows cannot rename a folder that holds an open file.
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        lock = Lock(folder / MARKER)
        try:
            if lock.take():
                return folder, lock
        except FileNotFoundError:
            pass  # another run took it for an orphan before it was locked
        except NoLocks:
            (folder / _UNLOCKED).touch()
            return folder, lock
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def discard(folder: Path, lock: Lock) -> None:
    """Remove a folder, its marker last, so that the next run can finish an interrupted removal. Never raises."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name != MARKER and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != MARKER:
                with contextlib.suppress(OSError):
                    path.unlink()
    unfinished = True
    with contextlib.suppress(OSError):
        unfinished = any(path.name != MARKER for path in folder.iterdir())
    lock.release(keep=unfinished)
    if not unfinished:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_orphans(temporary: Path) -> None:
    """Remove the folders that dead runs left, with gigabytes of references."""
    for folder in (path for prefix in (PREFIX, CLUSTER_PREFIX) for path in temporary.glob(f"{prefix}*")):
        marker = folder / MARKER
        with contextlib.suppress(OSError):
            if not _is_own_folder(folder) or marker.is_symlink():
                continue
            if not marker.is_file():
                # It is of a run that was killed before it had a marker, unless anything is in it. A living run makes
                # another one.
                if not folder.name.startswith(CLUSTER_PREFIX):
                    folder.rmdir()
                continue
            lock = Lock(marker)
            if lock.take():
                discard(folder, lock)


def _is_own_folder(path: Path) -> bool:
    """Return whether the path is a folder of this user and not a link."""
    about = path.lstat()
    user = os.geteuid() if hasattr(os, "geteuid") else about.st_uid
    return stat.S_ISDIR(about.st_mode) and about.st_uid == user
