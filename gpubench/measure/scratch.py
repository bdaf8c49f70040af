"""The folder of shared references: one a run, gone with it, and gone later if the run was killed."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

_NAME = re.compile(r"gpubench-(\d+)-.+")


def new_folder() -> Path:
    """A fresh folder that carries our process id; folders of runs that are no more are removed first."""
    _remove_orphans()
    return Path(tempfile.mkdtemp(prefix=f"gpubench-{os.getpid()}-"))


def _remove_orphans() -> None:
    """References take gigabytes, and `kill -9` leaves them behind."""
    for folder in Path(tempfile.gettempdir()).glob("gpubench-*-*"):
        found = _NAME.fullmatch(folder.name)
        if found and not _alive(int(found[1])):
            shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # somebody else's
    return True
