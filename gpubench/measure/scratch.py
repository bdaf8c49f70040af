"""The folder of one run for references and what else its workers share, and the removal of what killed runs left."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from pathlib import Path

from gpubench.errors import GpubenchError
from gpubench.store import Lock

PREFIX = "gpubench-scratch-"
# A folder of ours holds this file, which is locked while its run lives. A folder without it belongs to somebody else.
MARKER = ".gpubench-scratch-lock"
# Earlier versions gave a folder this name until it was locked.
_FORMER_PREFIX = "gpubench-new-"
# A run that has made its folder writes the marker within milliseconds.
_ABANDONED_S = 3600.0


class Scratch:
    """A fresh folder, and the lock that keeps other runs from removing it."""

    def __init__(self) -> None:
        """Remove what killed runs left, then make the folder. Raises GpubenchError if the temporary folder refuses."""
        try:
            _remove_orphans(Path(tempfile.gettempdir()))
            self.folder, self._lock = _make_locked()
            self._served: set[str] = set()
        except OSError as error:
            raise GpubenchError("no-scratch", why=f"{error.strerror or error}") from error

    def serve(self, series: set[str]) -> None:
        """Remove the references of all other series. One that is served again, in a later session too, finds its own:
        they serve all sizes of an op."""
        if series == self._served:
            return
        self._served = series
        for file in self.folder.glob("*.npy"):
            with contextlib.suppress(OSError):
                file.unlink()

    def remove(self) -> None:
        """Remove the folder. Never raises."""
        _discard(self.folder, self._lock)


def _make_locked() -> tuple[Path, Lock]:
    """Return a fresh folder and the lock of its marker. Raises OSError.

    The folder is made under its final name: Windows renames no folder that holds an open file.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = Lock(folder / MARKER)
        try:
            if lock.take():
                return folder, lock
        except FileNotFoundError:
            pass  # another run took it for an orphan before it was locked
        except OSError:
            if not lock.path.exists():
                raise
            return folder, lock  # where nothing can be locked, nobody takes a folder for an orphan


def _discard(folder: Path, lock: Lock) -> None:
    """Remove a folder, its marker last: the next run finishes a removal that was cut short. Never raises."""
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
    """References take gigabytes, and `kill -9` leaves them behind."""
    for folder in (*temporary.glob(f"{PREFIX}*"), *temporary.glob(f"{_FORMER_PREFIX}*")):
        marker = folder / MARKER
        if folder.is_symlink() or marker.is_symlink():
            continue
        with contextlib.suppress(OSError):
            if not marker.is_file():
                if time.time() - folder.stat().st_mtime > _ABANDONED_S:
                    folder.rmdir()  # of a run that was killed before it had a marker; refused if anything is in it
                continue
            lock = Lock(marker)
            if lock.take():
                _discard(folder, lock)
