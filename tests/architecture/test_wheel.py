"""What a pip or pipx user gets: the wheel, installed elsewhere, is the same program."""

from __future__ import annotations

import subprocess
import sys
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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without isolation: the build backend is among the development tools."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"gpubench/__main__.py", "gpubench/py.typed", "gpubench/cli/app.py"} <= set(names)
    parts = {f"gpubench/report/formats/_html/{name}" for name in ("page.css", "page.js", "vega.LICENSE")}
    assert parts <= set(names)
    assert all(name.startswith(("gpubench/", f"gpubench-{__version__}.dist-info/")) for name in names)
    shipped = {name for name in names if name.startswith("gpubench/") and name.endswith(".py")}
    written = {str(path.relative_to(ROOT)) for path in (ROOT / "gpubench").rglob("*.py")}
    assert shipped == written


def test_the_installed_program_runs_from_anywhere(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "a venv"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        f"--python={python}",
        "install",
        "--no-deps",
        "--quiet",
        wheel,
        cwd=tmp_path,
    )
    assert run(python, "-m", "gpubench", "--version", cwd=tmp_path) == f"gpubench {__version__}\n"
    assert run(environment / "bin" / "gpubench", "--version", cwd=tmp_path) == f"gpubench {__version__}\n"
