"""Save the files that detection reads as a recorded machine."""

from __future__ import annotations

from pathlib import Path


def save_recording(target: Path, sysroot: Path | None) -> None:
    """Placeholder."""
