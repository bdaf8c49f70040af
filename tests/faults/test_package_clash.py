"""Another package that installs a folder `gpubench` too is named, with the remedy, and also where it overwrote files."""

import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from gpubench.base.errors import ExitCode
from gpubench.base.installation import find_clash
from gpubench.cli.exit import guard
from tests.faults.packages import copy_gpubench, started

ROOT = Path(__file__).parents[2]
METADATA = "Metadata-Version: 2.1\nName: gpubench\nVersion: 1.0.0\n"
RECORD = "gpubench/__init__.py,sha256=47DEQpj8HBSa,0\ngpubench/main.py,sha256=pyZfaYU5czq,7625\n"
CLASH = "gpubench 1.0.0 installs a folder gpubench too"
COMMANDS = [
    [sys.executable, "-m", "gpubench", *words.split()] for words in ("--version", "run --nonsense", "schema")
]


def distribution(site, folder="gpubench-1.0.0.dist-info", **files):
    """A distribution in `site`, as pip leaves it."""
    info = site / folder
    info.mkdir(parents=True)
    for name, content in files.items():
        path = info / name.replace("_txt", ".txt")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return site


def test_the_page_for_unexpected_failures_names_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("gpubench.cli.command.run_app", Mock(side_effect=RuntimeError("oops")))
    assert guard([]) == ExitCode.FAILED
    assert "this is a bug in gpubench" in capsys.readouterr().err
    monkeypatch.syspath_prepend(distribution(tmp_path, METADATA=METADATA, RECORD=RECORD))
    assert guard([]) == ExitCode.FAILED
    reported = capsys.readouterr().err
    assert ("RuntimeError: oops" in reported, f"  why: {CLASH}" in reported) == (True, True), reported
    assert "pip uninstall gpubench && " in reported


@pytest.fixture
def site(tmp_path):
    copy_gpubench(tmp_path / "site")
    return tmp_path / "site"


@pytest.mark.parametrize(("file", "theirs"), [
    ("__init__.py", ""), ("cli/exit.py", "torch = None\n"), ("base/errors.py", "")])  # fmt: skip
def test_a_file_that_it_overwrote(site, tmp_path, file, theirs):
    distribution(site, METADATA=METADATA, RECORD=f"gpubench/{file},,\n")
    (site / "gpubench" / file).write_text(theirs)
    (tmp_path / "folder").mkdir()
    failed = 0
    for command in COMMANDS:
        ended = started(command, tmp_path / "folder", PYTHONPATH=str(site))
        if ended.returncode == ExitCode.FAILED:
            failed += 1
            *_, what, why, fix = ended.stderr.splitlines()
            assert what.startswith("error: gpubench")
            assert CLASH in why
            assert fix.endswith("-m pip install --force-reinstall gpubench-cli")
            assert " -m pip uninstall gpubench && " in fix
    assert failed


def test_a_file_that_went_with_it(site, tmp_path):
    """`pip uninstall gpubench` removes the files that both brought; then no other package is there to be named.

    tests/architecture/test_wheel.py removes the first: here Python would find that one in the checkout.
    """
    (site / "gpubench" / "cli" / "__init__.py").unlink()
    (tmp_path / "folder").mkdir()
    reported = "".join(started(words, tmp_path / "folder", PYTHONPATH=str(site)).stderr for words in COMMANDS)
    assert "  why: files of gpubench are missing or replaced\n" in reported
    assert f"  fix: {sys.executable} -m pip install --force-reinstall gpubench-cli\n" in reported


def test_detect_names_it(gpubench, tmp_path):
    env = {"PYTHONPATH": str(distribution(tmp_path / "site", METADATA=METADATA, RECORD=RECORD))}
    ended = gpubench("detect", "--debug", "--quiet", "--json", env=env)
    assert (ended.returncode, json.loads(ended.stdout)["name"]) == (0, "gpubench-detect")
    (reported,) = [line for line in ended.stderr.splitlines() if CLASH in line]
    assert "pip uninstall gpubench && " in reported
    assert f"pip install --force-reinstall {ROOT}" in reported
    assert CLASH not in gpubench("detect", "--quiet", env=env).stderr


def test_spoiled_metadata_of_others_hides_nothing(tmp_path, monkeypatch):
    junk = b"\xff\xfe\0" * 100
    distribution(tmp_path, "a-1.dist-info", METADATA=junk, RECORD=junk, top_level_txt=junk)
    distribution(tmp_path, "b-1.dist-info", RECORD=RECORD)
    distribution(tmp_path, "c-1.dist-info", METADATA=METADATA.replace("gpubench", "c"), RECORD=junk)
    (tmp_path / "d-1.dist-info" / "METADATA").mkdir(parents=True)
    hostile = METADATA.replace("gpubench", "x; rm -rf ~\x1b[31m").replace("1.0.0", "1\u202e")
    distribution(tmp_path, "x-1.dist-info", METADATA=hostile, RECORD=RECORD)
    monkeypatch.syspath_prepend(tmp_path)
    found = find_clash()
    assert found is not None
    assert not set("".join(found)) & set("; ~\x1b\u202e")
