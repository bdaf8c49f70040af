"""Programs on a simulated Windows or macOS: `simulation/` says what differs, `libraries/` what is installed there.

On a real Windows or macOS the same tests run without the simulation, those of that system.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.forking import environment

HERE = Path(__file__).parent
SIMULATED = sys.platform == "linux"


class Computer(NamedTuple):
    """A simulated system, with a home and a working folder of its own."""

    system: str
    folder: Path
    env: dict[str, str]

    def start(self, *arguments, **options):
        """Start `python -m gpubench ARGUMENTS`, or Python alone if the first argument is "-c"."""
        command = arguments if arguments[:1] == ("-c",) else ("-m", "gpubench", *arguments)
        return subprocess.Popen([sys.executable, *command], cwd=self.folder, env=self.env,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                encoding="cp1252" if self.system == "win32" else "utf-8",
                                **{"stdin": subprocess.DEVNULL, **options})  # fmt: skip

    def run(self, *arguments, status=None):
        """Run a program to its end, which has to be this status where one is given."""
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=300)
        assert status in (None, process.returncode), errors
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def files(self):
        """Return the names of all that lies in the working folder and in the temporary one."""
        return sorted(path.relative_to(self.folder.parent).as_posix() for name in ("work", "temporary")
                      for path in (self.folder.parent / name).rglob("*"))  # fmt: skip


@pytest.fixture
def computer(tmp_path, cache_folder):
    """Make a computer with Windows ("win32") or macOS ("darwin"); `libraries` False: without NVML, wgpu and py-cpuinfo."""

    def make(system, *, libraries=True):
        if sys.platform not in ("linux", system):
            pytest.skip(f"{system} is simulated on Linux alone")
        for name in ("home", "temporary", "work"):
            (tmp_path / name).mkdir()
        installed = HERE / ("libraries" if libraries else "bare")
        simulation = [HERE / "simulation"] if SIMULATED else []
        paths = os.pathsep.join(map(str, (*simulation, installed)))
        home = str(tmp_path / "home")
        extra = {"PYTHONPATH": paths, "GPUBENCH_SIMULATED": system, "TMPDIR": str(tmp_path / "temporary")}
        if system == "win32":
            extra |= {"USERPROFILE": home, "APPDATA": home, "LOCALAPPDATA": home, "PYTHONIOENCODING": "cp1252"}
        return Computer(system, tmp_path / "work", environment(tmp_path / "home", extra))

    return make
