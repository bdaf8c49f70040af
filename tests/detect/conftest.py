"""Small recorded machines, written by the tests themselves."""

from __future__ import annotations

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


CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Test CPU
flags\t\t: fpu lm avx avx2 fma

processor\t: 1
vendor_id\t: GenuineIntel
model name\t: Test CPU
flags\t\t: fpu lm avx avx2 fma avx512f
"""


@pytest.fixture
def host() -> dict[str, str | bytes | None]:
    """Two online CPUs on one core, 8 GiB of RAM."""
    cpu = "/sys/devices/system/cpu"
    tree: dict[str, str | bytes | None] = {
        "/proc/cpuinfo": CPUINFO,
        "/proc/meminfo": "MemTotal: 8388608 kB\nMemFree: 4194304 kB\nMemAvailable: 6291456 kB\nSwapTotal: 0 kB",
        "/proc/version": "Linux version 6.1.0-test (someone@somewhere) #1 SMP",
        f"{cpu}/online": "0-1",
        f"{cpu}/present": "0-1",
        "/sys/devices/system/node/node0/cpulist": "0-1",
        "/sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 8388608 kB\nNode 0 MemFree: 4194304 kB",
        "/sys/bus/pci/devices": None,
    }
    for number in (0, 1):
        tree[f"{cpu}/cpu{number}/topology/thread_siblings_list"] = "0-1"
        tree[f"{cpu}/cpu{number}/topology/physical_package_id"] = "0"
    return tree


@pytest.fixture
def pci() -> Callable[..., dict[str, str | bytes | None]]:
    """The files of one PCI function."""

    def describe(
        bdf: str, vendor: str, device: str, driver: str | None = None, *, pci_class: str = "0300", **more: str
    ) -> Any:
        folder = f"/sys/bus/pci/devices/{bdf}"
        tree = {
            f"{folder}/class": f"0x{pci_class}00",
            f"{folder}/vendor": f"0x{vendor}",
            f"{folder}/device": f"0x{device}",
        }
        if driver:
            tree[f"{folder}/driver"] = f"-> ../../../bus/pci/drivers/{driver}"
        return tree | {f"{folder}/{name.replace('__', '/')}": value for name, value in more.items()}

    return describe
