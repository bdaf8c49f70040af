"""The commands of docs/formats.md work as they are written there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpubench.report import FORMATS
from gpubench.result.store import dumps
from tests.forking import outside
from tests.unit.report.samples import tool_run
from tests.unit.report.sides import pair

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
PROSE = {"table", "plain", "markdown", "html"}
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)


@pytest.fixture
def folder(tmp_path, starter):
    """Two results by the names that the page gives them, and `gpubench` on the path."""
    (tmp_path / "base.json").write_bytes(dumps(pair()[0]))
    (tmp_path / "new.json").write_bytes(dumps(tool_run()))
    programs = tmp_path / "bin"
    programs.mkdir()
    python = shlex.quote(sys.executable)
    for name, command in (
        ("gpubench", starter.command()), ("pytest-benchmark", f"{python} -m pytest_benchmark"), ("python3", python)
    ):  # fmt: skip
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("block", [
    pytest.param(text, marks=[pytest.mark.consumers] * ("compare.py" in text), id=text.split("\n")[0][:60]) for text in BLOCKS
])  # fmt: skip
def test_block(folder, block):
    paths = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block], cwd=folder, env=outside() | paths, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or " -o " in block


def test_every_format_has_its_section():
    assert len(BLOCKS) >= 6
    for name in set(FORMATS) - PROSE:
        assert f"`{name}`" in PAGE
        assert re.search(rf"^## .*\b{re.escape(name)}\b", PAGE, re.M), name
