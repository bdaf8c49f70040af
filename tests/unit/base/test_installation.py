"""Commands that somebody may paste: for this checkout or this package, this interpreter and the shells of the system, and the right PyTorch for a GPU."""

import contextlib
import importlib
import json
import os
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpubench.base import installation, load_library, plugins
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
from gpubench.base.plugins import containment, wings
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


@pytest.mark.parametrize(("platform", "environ", "folder"), [
    ("linux", {"HOME": "/home/u"}, "/home/u/.cache"), ("linux", {"HOME": "/home/u", "XDG_CACHE_HOME": "/fast"}, "/fast"),
    ("linux", {"HOME": "/home/u", "XDG_CACHE_HOME": "fast"}, "/home/u/.cache"), ("linux", {"XDG_CACHE_HOME": "fast"}, None), ("linux", {}, None),
    ("darwin", {"HOME": "/Users/u", "XDG_CACHE_HOME": "/fast", "LOCALAPPDATA": "/local"}, "/Users/u/Library/Caches"), ("darwin", {}, None),
    ("win32", {"LOCALAPPDATA": "/local", "USERPROFILE": "/u", "XDG_CACHE_HOME": "/fast"}, "/local"), ("win32", {"USERPROFILE": "/u"}, None),
    ("linux", {"USERPROFILE": "/u"}, "/u/.cache"),
])  # fmt: skip
def test_the_folder_of_a_user_is_where_the_system_has_such_files(platform, environ, folder):
    assert installation.user_folder(installation.CACHE, environ, platform) == (
        folder and Path(folder) / "gpubench"
    )


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


# ------------------------------------------------------------------- what has failed, and which part of a wing is left out


def distribution(name, **texts):
    """An installed package with these files; `top_level` stands for top_level.txt."""
    return SimpleNamespace(
        name=name, version="1 a", read_text=lambda file: texts.get(file.removesuffix(".txt"))
    )


NONE = distribution("none")
BROKEN = SimpleNamespace(name="broken", read_text=lambda file: 1 / 0)


@pytest.mark.parametrize(("installed", "clash"), [
    ([NONE, BROKEN, distribution("Other Bench", top_level="a\ngpubench\n")], ("Other?Bench", "1?a")), ([NONE, BROKEN], None),
    ([distribution("b", RECORD="x.py,\ngpubench/x.py,")], ("b", "1?a")), ([distribution("b", RECORD="gpubench.py,")], ("b", "1?a")),
    ([distribution("b", RECORD="gpubench_b/x.py,", top_level="gpubench_b")], None), ([distribution("GPUbench_.cli", top_level="gpubench")], None)])  # fmt: skip
def test_another_package_of_the_same_name_is_found(monkeypatch, installed, clash):
    monkeypatch.setattr("importlib.metadata.distributions", lambda: installed)
    assert installation.find_clash() == clash


@pytest.mark.parametrize(("error", "why", "fix"), [
    (ImportError("no", name="gpubench.cli.x"), "files of gpubench are missing or replaced", "--force-reinstall"),
    (ImportError("no", name="json.x"), "this Python lacks its module json", "install another Python"),
    (ImportError("no", name="nowhere.x"), "the package nowhere, which gpubench needs, is not installed", "pip install"),
    (ImportError("no", name="numpy.x"), "the package numpy does not load", "--upgrade --force-reinstall numpy"),
    (ImportError("no"), "this is a bug in gpubench", "report"), (ValueError("no"), "this is a bug in gpubench", "report")])  # fmt: skip
def test_an_unexpected_failure_has_its_cause_and_a_remedy(monkeypatch, capsys, error, why, fix):
    monkeypatch.setattr(installation, "find_clash", lambda: None)
    assert installation.tell_bug(error) == 1
    told = capsys.readouterr().err
    assert f"{type(error).__name__}: no" in told
    (end,) = [text.partition("\n  fix: ") for text in told.split("\n  why: ")[1:]]
    assert (end[0].startswith(why), fix in end[2], "error: gpubench " in told) == (True, True, True)
    monkeypatch.setattr(installation, "find_clash", lambda: ("other", "1"))
    installation.tell_bug(error)
    assert "\n  why: other 1 installs a folder gpubench too" in capsys.readouterr().err


def test_a_wing_that_breaks_is_left_out_and_it_is_told_once(monkeypatch, capsys):
    def load(module):
        if module == "gpubench.broken":
            raise ValueError("no luck")
        return importlib.import_module(module)

    def load_entry(entry):
        if entry.name == "bad":
            raise plugins.PluginError("it is bad")
        return entry.name

    broken = {}
    monkeypatch.setattr(wings, "_broken", broken)
    monkeypatch.setattr(wings, "OWN", ("absent", "broken", "energy"))
    with monkeypatch.context() as patched:
        patched.setattr(wings, "importlib", SimpleNamespace(import_module=load))
        assert [wing.__class__.__name__ for wing in wings.own.__wrapped__()] == ["Wing"]
    assert broken == {"broken": "ValueError: no luck"}
    monkeypatch.setattr(
        plugins, "entries", lambda group: [SimpleNamespace(name=name) for name in ("bad", "good")]
    )
    monkeypatch.setattr(plugins, "load", load_entry)
    for _ in range(2):
        wings.tell_broken()
        assert wings.foreign.__wrapped__() == ("good",)
    places = {"json": "json:loads", "gone": "nowhere:x", "wing": "gpubench.energy.nowhere:x"}
    assert (wings.find_all(places), json.loads) == ({"json": json.loads}, wings.find("json:loads"))
    parts = [
        f"the part {name} of a wing cannot be used: ModuleNotFoundError: No module named '{name}'"
        for name in ("nowhere", "gpubench.energy.nowhere")
    ]
    told = (
        "the wing broken cannot be used: ValueError: no luck",
        "the wing bad cannot be used: it is bad",
        *parts,
    )
    assert capsys.readouterr().err.splitlines() == [f"warning: {text}" for text in told]
    with pytest.raises(ModuleNotFoundError):
        wings.find("gpubench.base.nowhere:x")
    monkeypatch.setattr(wings, "brought", lambda what: {"stages": "json:loads", "split": "json:dumps"})
    assert [wings.for_op("ops", SimpleNamespace(stages=a, split=b)) for a, b in ((1, 1), (0, 1), ((), ""))] == [
        json.loads,
        json.dumps,
        None,
    ]


@pytest.mark.parametrize(("text", "raises", "why"), [("raise SystemExit(3)", ImportError, "SystemExit: 3"), ("raise KeyboardInterrupt", KeyboardInterrupt, ""),
                                                     ("1 / 0", ZeroDivisionError, "division"), ("x = 1", None, "")])  # fmt: skip
def test_a_library_that_ends_the_process_counts_as_absent(monkeypatch, tmp_path, text, raises, why):
    (tmp_path / "own_library.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_library", raising=False)
    with pytest.raises(raises, match=why) if raises else contextlib.nullcontext():
        assert load_library("own_library").x == 1


def test_limits_that_a_system_lacks_are_no_part_of_the_state(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)
    assert containment.lasting_state()["the limits"] == []
