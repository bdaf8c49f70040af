"""Commands that somebody may paste: quoted for the shells of the system, and the right PyTorch for a GPU."""

import sys

import pytest

from gpubench.base import installation
from gpubench.base.installation import EXTRAS, locate, quote, torch_command, torch_hint
from gpubench.detect import inspection
from gpubench.detect.facts import make_fact
from gpubench.result.machine import Gpu

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


def gpu(vendor, kind="discrete"):
    return Gpu(id="api:x:0", vendor=make_fact(vendor, "x"), kind=make_fact(kind, "x"))


@pytest.mark.parametrize(("vendor", "version", "names"), [
    ("amd", "", "ROCm"), ("amd", "2.14.0", "ROCm"), ("amd", "2.14.0+cpu", "ROCm"), ("amd", "2.14.0+rocm7.2", ""),
    ("intel", "2.14.0+cu130", "XPU"), ("intel", "2.14.0+xpu", ""), ("nvidia", "", ""), ("apple", "", ""),
])  # fmt: skip
def test_a_gpu_without_its_pytorch_is_told(vendor, version, names, monkeypatch):
    monkeypatch.setattr(inspection, "_torch_version", lambda: version)
    told = inspection.torch_warnings([gpu(vendor)])
    assert [one.code for one in told] == ["RUNTIME_MISSING"] * bool(names)
    assert all(names in one.text for one in told)
    assert inspection.torch_warnings([gpu(vendor, "integrated")]) == []
