"""Small recorded machines, written by the tests themselves."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpubench import detect

Tree = Mapping[str, str | bytes | None]


@pytest.fixture
def plant(tmp_path: Path) -> Callable[[Tree], Path]:
    """Write a tree: text, bytes, None for a folder, "-> target" for a link."""

    def write(tree: Tree, name: str = "root") -> Path:
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        for path, content in tree.items():
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                place.mkdir(exist_ok=True)
            elif isinstance(content, bytes):
                place.write_bytes(content)
            elif content.startswith("-> "):
                place.unlink(missing_ok=True)
                place.symlink_to(content[3:])
            else:
                place.write_text(content + "\n")
        return root

    return write


@pytest.fixture
def look(plant: Callable[[Tree], Path], plain: Any, tmp_path: Path) -> Callable[[Tree], Any]:
    """The document of a tree; and, for every tree, its recording reads the same."""

    def read(tree: Tree) -> Any:
        root = plant(tree)
        machine = detect.inspect(sysroot=root)
        copy = tmp_path / f"recording-{len(list(tmp_path.iterdir()))}"
        detect.save_recording(copy, root)
        assert plain(detect.inspect(sysroot=copy)) == plain(machine)
        return machine

    return read


@pytest.fixture
def plain() -> Callable[[Any], dict[str, Any]]:
    """A document as built-in types, without times and the place of the tree."""

    def convert(machine: Any) -> dict[str, Any]:
        document = msgspec.to_builtins(machine)
        document["took_s"] = 0
        document["sysroot"] = None
        for provider in document["providers"]:
            provider["took_s"] = 0
        return document

    return convert
