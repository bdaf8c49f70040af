"""Commands that somebody may paste: for this checkout or this package, this interpreter and the shells of the system, and the right PyTorch for a GPU."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from gpubench.base import installation
from gpubench.base.installation import (
    EXTRAS,
    install_command,
    locate,
    quote,
    repair_command,
    torch_command,
    torch_hint,
    upgrade_command,
)
from gpubench.detect import inspection
from gpubench.detect.facts import make_fact
from gpubench.result.machine import Compute, Gpu

INDEX = "--index-url https://download.pytorch.org/whl/"


@pytest.mark.parametrize(("text", "posix", "windows"), [
    ("r.json", "r.json", "r.json"), ("my run.json", "'my run.json'", '"my run.json"'),
    (r"C:\Users\u\r.json", r"'C:\Users\u\r.json'", r"C:\Users\u\r.json"),
    (r"C:\Program Files\r.json", r"'C:\Program Files\r.json'", r'"C:\Program Files\r.json"'),
    ("a&b (1).json", "'a&b (1).json'", '"a&b (1).json"'), (".[cuda13]", "'.[cuda13]'", '".[cuda13]"'),
    ("it's", "'it'\"'\"'s'", '"it\'s"'), ("", "''", '""'),
])  # fmt: skip
def test_a_word_is_quoted_for_the_shells_of_the_system(text, posix, windows):
    assert (quote(text, "linux"), quote(text, "darwin"), quote(text, "win32")) == (posix, posix, windows)


@pytest.mark.parametrize(("vendor", "platform", "command"), [
    ("amd", "linux", f"pip install torch {INDEX}rocm7.2"), ("intel", "win32", f"pip install torch {INDEX}xpu"),
    ("nvidia", "win32", f"pip install torch {INDEX}cu130"),
    ("nvidia", "linux", "pip install '.[torch]' (in the checkout of gpubench)"),  # it brings CUDA along
    ("apple", "darwin", "pip install '.[torch]' (in the checkout of gpubench)"),  # it drives Metal
])  # fmt: skip
def test_the_pytorch_of_a_gpu(vendor, platform, command):
    assert torch_command(vendor, platform) == command


def test_the_hint_of_a_system_names_what_its_usual_wheel_does_not_drive():
    assert "rocm" in torch_hint("linux")
    assert "cu1" not in torch_hint("linux")
    assert {"cu130", "xpu"} <= set(torch_hint("win32").replace(";", "/").replace(" ", "/").split("/"))
    assert INDEX not in torch_hint("darwin")


@pytest.mark.parametrize("quotes", ["'", '"'])
def test_a_command_of_another_system_is_located_too(quotes):
    for extra in EXTRAS:
        text = f"pip install {quotes}.[{extra}]{quotes} (in the checkout of gpubench)"
        assert "in the checkout" not in locate(text)
    assert "-m pip install torch --index-url" in locate(torch_command("amd", "linux"))


@pytest.mark.parametrize("command", ["gpubench-cli", "'gpubench-cli[ray]'", '"gpubench-cli[ray]"'])
@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_a_command_of_the_package_index_is_located_once(command, platform, monkeypatch):
    monkeypatch.setattr(installation, "checkout", lambda: None)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(installation, "_pip", lambda arguments: f"located pip {arguments}")
    assert locate(f"pip install {command}").count("located") == 1


def gpu(vendor, kind="discrete", arch="gfx1030"):
    compute = Compute(arch=make_fact(arch, "x"))
    return Gpu(id="api:x:0", vendor=make_fact(vendor, "x"), kind=make_fact(kind, "x"), compute=compute)


@pytest.mark.parametrize(("vendor", "version", "names"), [
    ("amd", "", "ROCm"), ("amd", "2.14.0", "ROCm"), ("amd", "2.14.0+cpu", "ROCm"), ("amd", "2.14.0+rocm7.2", ""),
    ("intel", "2.14.0+cu130", "XPU"), ("intel", "2.14.0+xpu", ""), ("nvidia", "", ""), ("apple", "", ""),
])  # fmt: skip
def test_a_gpu_without_its_pytorch_is_told(vendor, version, names, monkeypatch):
    monkeypatch.setattr(inspection, "_torch_version", lambda: version)
    told = inspection.torch_warnings([gpu(vendor)])
    assert [one.code for one in told] == ["RUNTIME_MISSING"] * bool(names)
    assert all(names in one.text for one in told)
    unserved = [gpu(vendor, "integrated"), *(gpu("amd", arch=arch) for arch in ("gfx803", "gfx1010"))]
    assert inspection.torch_warnings(unserved) == []
    # WSL takes AMD's wheels for Windows, and a Mac has none.
    told = inspection.torch_warnings([gpu(vendor)], wsl=True)
    assert all(("index-url" in one.text) == (vendor == "intel") for one in told)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert inspection.torch_warnings([gpu(vendor)]) == []


ROOT = Path(__file__).parents[3]
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
        monkeypatch.setattr(installation, "ROOT", str(folder))
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
