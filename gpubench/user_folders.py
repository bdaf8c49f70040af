"""The folders that a platform keeps for a user's programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Kind(NamedTuple):
    """Where one kind of file goes: variables of Windows and XDG, folders of macOS and XDG below the home."""

    windows: str
    macos: str
    xdg: str
    default: str


CONFIGURATION = Kind("APPDATA", "Library/Application Support", "XDG_CONFIG_HOME", ".config")
DATA = Kind("LOCALAPPDATA", "Library/Application Support", "XDG_DATA_HOME", ".local/share")
CACHE = Kind("LOCALAPPDATA", "Library/Caches", "XDG_CACHE_HOME", ".cache")


def user_folder(kind: Kind, environ: Mapping[str, str], platform: str) -> Path | None:
    """gpubench's own folder of that kind, not created; None where the environment does not tell."""
    home = environ.get("HOME") or environ.get("USERPROFILE")
    if platform == "win32":
        base = environ.get(kind.windows)
    elif platform == "darwin":
        base = home and f"{home}/{kind.macos}"
    else:
        base = environ.get(kind.xdg) or (home and f"{home}/{kind.default}")
    return Path(base) / "gpubench" if base else None
