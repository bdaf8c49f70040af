"""The program on scripted devices: a real command line, real worker processes, a clock that costs nothing."""

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.forking import environment

# One session, few samples: scripted samples are alike, so more of them would tell nothing more.
SHORT = "--quick --min-samples 5 --max-samples 10 --max-time 50ms".split()


class Ran(NamedTuple):
    code: int
    out: str
    err: str
    folder: Path

    @property
    def result(self):
        return json.loads((self.folder / "r.json").read_text())

    @property
    def outcomes(self):
        """Its outcomes by case id."""
        return {outcome["id"]: outcome for outcome in self.result["outcomes"]}


@pytest.fixture(scope="module")
def run(tmp_path_factory, starter):
    """`gpubench run --full ARGUMENTS -o r.json` in a fresh folder: what tests read is the report."""

    def start(*arguments, env=None, timeout=300):
        folder = tmp_path_factory.mktemp("run")
        command = ("run", *SHORT, "--full", *arguments, "-o", "r.json")
        ended = starter.run(*command, cwd=folder, env=environment(folder, env), timeout=timeout)
        return Ran(ended.returncode, ended.stdout, ended.stderr, folder)

    return start


@pytest.fixture(scope="module")
def run_well(run):
    """The same, whose exit code has to be 0."""

    def start(*arguments, **options):
        ran = run(*arguments, **options)
        assert ran.code == 0, ran.err
        return ran

    return start


@pytest.fixture
def start(tmp_path, starter):
    """The same, not waited for: to be interrupted."""

    def begin(*arguments, env=None, **options):
        scratch = tmp_path / "tmp"
        scratch.mkdir()
        return starter.begin(
            "run", "--full", *arguments, "-o", "r.json",
            cwd=tmp_path, env=environment(tmp_path, {"TMPDIR": str(scratch), **(env or {})}),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
        )  # fmt: skip

    return begin
