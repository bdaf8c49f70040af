"""Throw-away packages with entry points, as pip would leave them behind: a folder for PYTHONPATH."""

import os
import shutil
import subprocess
from pathlib import Path

import gpubench


def install(folder, name, module, **groups):
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


_SCRIPTED = """
import msgspec
from gpubench.backends.hidden.fake import FakeBackend
class Scripted(FakeBackend):
    name = {name!r}
    def devices(self):
        devices = super().devices()[:2]
        return [msgspec.structs.replace(d, id=f"{name}:{{d.kind}}", backend={name!r}) for d in devices]
    def open(self, device_id, threads=None, *, autotune=True):
        return super().open(f"fake:{{device_id.partition(':')[2]}}", threads)
BACKEND = Scripted()
"""


def install_scripted(folder, name, habit):
    """The environment with a backend `name` that has the scripted CPU and GPU; `habit` alters what these do."""
    module = habit + _SCRIPTED.format(name=name)
    return {"PYTHONPATH": str(install(folder, name, module, backends={name: f"{name}:BACKEND"}))}


def started(command, cwd, **environ):
    """A program that has ended, without the PYTHONPATH of the tests."""
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=cwd, env=usual | environ, capture_output=True, text=True, timeout=300,
                          check=False)  # fmt: skip


def copy_gpubench(folder):
    """Our package in `folder`, with its bytecode: to compile it takes seconds. What Python is just writing is left out."""
    ours = Path(gpubench.__file__).parent
    shutil.copytree(ours, folder / ours.name, ignore=shutil.ignore_patterns("*.pyc.*"))
