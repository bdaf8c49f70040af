"""The hint that a user reads can be pasted: for this checkout or this package, for this interpreter."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from gpubench.base import installation
from gpubench.base.installation import install_command, locate, repair_command, upgrade_command

ROOT = Path(__file__).parents[2]
OURS = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PIP = [sys.executable, "-m", "pip", "install"]


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Let the program believe that its source lies in a folder, beside a pyproject.toml if there is a text for one."""

    def place(name, project):
        folder = tmp_path / name
        folder.mkdir()
        if project is not None:
            (folder / "pyproject.toml").write_text(project, encoding="utf-8")
        monkeypatch.setattr(installation, "__file__", str(folder / "gpubench" / "base" / "installation.py"))
        installation.checkout.cache_clear()
        return folder

    yield place
    installation.checkout.cache_clear()


@pytest.mark.parametrize("name", ["checkout", 'it\'s "so" in $HOME `id` & co', "[extra] über"])
def test_a_checkout_is_named_as_a_shell_takes_it(source, name):
    folder = source(name, OURS)
    assert shlex.split(locate(install_command("cuda13"))) == [*PIP, f"{folder}[cuda13]"]
    before, _, command = upgrade_command().partition(", then ")
    assert shlex.split(command) == [*PIP, "--upgrade", str(folder)]
    assert "git pull" in before


@pytest.mark.parametrize("project", [
    None, '[project]\nname = "others"\n', "[project\n", "", "project = 1\n", "\0", "a = " + "[" * 100_000],
    ids=["none", "another", "cut", "empty", "no table", "junk", "deep"])  # fmt: skip
def test_without_our_pyproject_it_is_the_package(source, project):
    source("site", project)
    assert shlex.split(upgrade_command()) == [*PIP, "--upgrade", "gpubench-cli"]
    assert shlex.split(locate(install_command("cuda13"))) == [*PIP, "gpubench-cli[cuda13]"]


@pytest.mark.skipif(os.name == "nt", reason="a program with a mode bit")
def test_in_an_active_virtual_environment_pip_is_enough(tmp_path, monkeypatch):
    def pip(folder):
        folder.mkdir(parents=True)
        (folder / "pip").write_text("#!/bin/sh\n")
        (folder / "pip").chmod(0o755)
        return str(folder)

    active = pip(tmp_path / "venv" / "bin")
    monkeypatch.setattr(sys, "executable", f"{active}/python")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setenv("PATH", active)
    assert locate(install_command("plots")) == f"pip install {shlex.quote(f'{ROOT}[plots]')}"
    monkeypatch.setenv("PATH", pip(tmp_path / "others"), prepend=os.pathsep)
    assert locate(install_command("plots")).startswith(f"{active}/python -m pip install ")


def test_an_environment_without_pip_is_one_of_uv(monkeypatch):
    monkeypatch.setitem(sys.modules, "pip", None)
    upgrade = upgrade_command().partition(", then ")[2]
    for command in (locate(install_command("plots")), repair_command(), upgrade):
        assert shlex.split(command)[:3] == ["uv", "pip", "install"]
        assert shlex.split(command)[-2:] == ["--python", sys.executable]
