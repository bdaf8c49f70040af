"""Throw-away packages with entry points, as pip would leave them behind: a folder for PYTHONPATH."""

from __future__ import annotations

import shutil
from pathlib import Path

import gpubench


def install(folder: Path, name: str, module: str, **groups: dict[str, str]) -> Path:
    """The package `name` 1.0 with one module of that name; `ops` and `backends` map entry points to objects."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{name}.py").write_text(module)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, entries in groups.items():
        lines += [f"[gpubench.{group}]", *(f"{entry} = {target}" for entry, target in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def copy_gpubench(folder: Path) -> None:
    """Our package in `folder`, with its bytecode: to compile it takes seconds. What Python is just writing is left out."""
    ours = Path(gpubench.__file__).parent
    shutil.copytree(ours, folder / ours.name, ignore=shutil.ignore_patterns("*.pyc.*"))
