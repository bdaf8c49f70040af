"""Where results live: `results/<machine>/<UTC time>-<id>.json`, or the user's data folder."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from gpubench.model.machine import Machine
from gpubench.model.result import Run

RESULTS_FOLDER = "results"
_NAME = re.compile(r"(?P<time>\d{8}T\d{6}Z)-[0-9a-f]+\.json(\.gz)?")


def user_data_dir(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """The platform's folder for gpubench's data. Not created."""
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or Path.home())
    if platform == "win32":
        return Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "gpubench"
    if platform == "darwin":
        return home / "Library" / "Application Support" / "gpubench"
    return Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "gpubench"


def default_results_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """`results` in the working folder; where that cannot be written, `results` in the user's data folder."""
    local = Path(RESULTS_FOLDER)
    if os.access(local if os.path.isdir(local) else ".", os.W_OK):
        return local
    return user_data_dir(environ) / RESULTS_FOLDER


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
    patterns = ("*.json", "*.json.gz", "*/*.json", "*/*.json.gz")
    return [path for pattern in patterns for path in folder.glob(pattern) if os.path.isfile(path)]


def _time(path: Path) -> str:
    named = _NAME.fullmatch(path.name)
    if named:
        return named["time"]
    return f"{datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y%m%dT%H%M%SZ}"
