"""What a pip or pipx user gets: the wheel, installed elsewhere, is the same program."""

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from gpubench import __version__

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    ended = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stdout[-1500:] + ended.stderr[-1500:]
    return ended.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the files that a release would have; it has run the headline commands in a clean environment."""
    folder = tmp_path_factory.mktemp("dist")
    options = ("--dry-run", "--offline", "--dist", folder)
    told = run(sys.executable, ROOT / "scripts" / "release.py", __version__, *options, cwd=folder)
    assert [line.partition(" ")[0] for line in told.splitlines()] == [*["gpubench"] * 4, __version__]
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return next(dist.glob("*.whl"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"gpubench/__main__.py", "gpubench/py.typed", "gpubench/cli/command.py"} <= set(names)
    page = ("page.css", "page.html", "page.js", "vega.LICENSE")
    parts = {f"gpubench/report/renderers/html/{name}" for name in page}
    data = {f"gpubench/kernels/data/{name}" for name in ("text.txt", "ranks.txt")}
    assert parts | data <= set(names)
    assert all(name.startswith(("gpubench/", f"gpubench_cli-{__version__}.dist-info/")) for name in names)
    shipped = {name for name in names if name.startswith("gpubench/") and name.endswith(".py")}
    written = {str(path.relative_to(ROOT)) for path in (ROOT / "gpubench").rglob("*.py")}
    assert shipped == written


class Environment:
    """A virtual environment: ours is installed as a user does it, what it needs is that of the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "a venv" / "bin"
        run(sys.executable, "-m", "venv", "--without-pip", folder / "a venv", cwd=folder)
        packages = self._packages()
        (packages / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def _packages(self) -> Path:
        return next((self.folder / "a venv" / "lib").glob("python*/site-packages"))

    def pip(self, *arguments: str | Path) -> None:
        run(sys.executable, "-m", "pip", f"--python={self.programs / 'python'}", *arguments, cwd=self.folder)

    def install(self, wheel: Path, *options: str) -> None:
        # pip must not see what the tests installed: it would remove the gpubench of the checkout.
        hidden = self._packages() / "tests.pth"
        hidden.rename(hidden.with_suffix(".hidden"))
        self.pip("install", "--no-deps", "--no-index", "--no-compile", "--quiet", *options, wheel)
        hidden.with_suffix(".hidden").rename(hidden)

    def call(self, *command: str) -> subprocess.CompletedProcess[str]:
        first, *rest = command
        return subprocess.run(
            [str(self.programs / first), *rest], cwd=self.folder, capture_output=True, text=True, timeout=300, check=False
        )  # fmt: skip


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment that tests leave as they found it."""
    environment = Environment(tmp_path_factory.mktemp("installed"))
    environment.install(wheel)
    return environment


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """What the package index gives for `gpubench`, as far as pip looks at it."""
    info = "gpubench-1.0.0.dist-info"
    files = {
        "gpubench/__init__.py": "",
        "gpubench/main.py": "def main():\n    print('GPU burn')\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: gpubench\nVersion: 1.0.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ngpubench = gpubench.main:main\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    path = tmp_path / "gpubench-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_the_installed_program_runs_from_anywhere(installed: Environment) -> None:
    for command in (["python", "-m", "gpubench"], ["gpubench"]):
        ended = installed.call(*command, "--version")
        assert (ended.stdout, ended.stderr) == (f"gpubench {__version__}\n", "")


def test_the_installed_program_tells_how_to_upgrade_the_package(installed: Environment) -> None:
    (installed.folder / "newer.json").write_text('{"name": "gpubench-result", "schema_version": 99}')
    ended = installed.call("gpubench", "report", "newer.json")
    assert ended.returncode == 4
    python = f"'{installed.programs / 'python'}'"
    assert ended.stderr.endswith(f"upgrade gpubench: {python} -m pip install --upgrade gpubench-cli\n")


def test_the_other_package_is_named_until_it_is_gone(installed: Environment, wheel: Path, other: Path) -> None:
    clash = "gpubench 1.0.0 installs a folder gpubench too"

    installed.install(other)  # after ours: it overwrites our __init__.py and our command
    assert installed.call("gpubench").stdout == "GPU burn\n"
    assert clash in installed.call("python", "-m", "gpubench", "--version").stderr
    installed.pip("uninstall", "--yes", "--quiet", "gpubench")  # takes our __init__.py and our command along
    ended = installed.call("python", "-m", "gpubench", "--version")
    assert "files of gpubench are missing or replaced" in ended.stderr
    assert "-m pip install --force-reinstall gpubench-cli" in ended.stderr
    installed.install(wheel, "--force-reinstall")
    assert installed.call("gpubench", "--version").stdout == f"gpubench {__version__}\n"
