"""Recorded machines of other people, which lie beside a checkout at most: RECORDED_MACHINES names their folder."""

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

_BESIDE = Path(__file__).parents[3] / "shared/acceptance/detect/trees"
ARCHIVES = sorted(Path(os.environ.get("RECORDED_MACHINES", _BESIDE)).glob("*.tar.gz"))
# An Arm processor, cards without an address, partitions, old control groups and sparse nodes.
IN_EVERY_RUN = "arm-gb10 drm-vega-and-igpu kfd-mi25 kfd-mi300x-cpx cpuset-v1 power9-gpu-memory-nodes".split()
MISSING = "no recorded machines: RECORDED_MACHINES names their folder"


def name(archive: Path) -> str:
    return archive.name.partition(".")[0]


def each() -> list[Any]:
    """The machines, of which `make fuzz` alone takes those whose files tell what no other's do not."""
    fuzzed = [[] if name(archive) in IN_EVERY_RUN else pytest.mark.fuzz for archive in ARCHIVES]
    return [pytest.param(archive, marks=marks) for archive, marks in zip(ARCHIVES, fuzzed, strict=True)]


def unpack(archive: Path, target: Path) -> Path:
    """The machine's tree in `target`."""
    with tarfile.open(archive) as stream:
        # Python before 3.11.4, such as Debian 12's, has no filters.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        stream.extractall(target, **safe)  # type: ignore[arg-type]
    return target


def last_answer(probe: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
    """What a probe of several devices says in the end."""
    *_, answer = probe(*arguments, **options)
    return answer
