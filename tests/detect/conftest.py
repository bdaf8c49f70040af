"""Small recorded machines, written by the tests themselves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpubench import detect
from gpubench.result.machine import Machine
from tests.detect import trees
from tests.detect.trees import HOST, Tree


@pytest.fixture
def plant(tmp_path: Path) -> Callable[[Tree], Path]:
    """Write a tree into a folder of the test."""
    return lambda tree, name="root": trees.plant(tmp_path / name, tree)


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The document of HOST, with which `hold` compares others."""
    return detect.inspect(sysroot=trees.plant(tmp_path_factory.mktemp("host"), HOST))


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
