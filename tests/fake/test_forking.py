"""Programs of the tests are forked, which takes a tenth of the time, unless they ask for a start."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest

from tests.forking import Starter, environment


@pytest.mark.parametrize(
    ("variables", "forked"),
    [
        ({}, True),
        ({"GPUBENCH_OPS": "add"}, True),
        ({"OMP_NUM_THREADS": "1"}, False),
        ({"PYTHONUTF8": "1"}, False),
    ],
    ids=str,
)
def test_a_program_is_forked_unless_a_variable_is_read_at_its_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], forked: bool
) -> None:
    """Also where a session of a CPU ran in the process of the tests before and has set variables of its libraries."""
    for name in ("NUMBA_NUM_THREADS", "OPENBLAS_THREAD_TIMEOUT", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "1")
    env = environment(tmp_path, variables)
    with (
        contextlib.closing(Starter()) as starter,
        starter.begin("--version", cwd=tmp_path, env=env, stdout=subprocess.PIPE) as program,
    ):
        assert program.forked == forked
        assert program.communicate()[0].startswith("gpubench ")
        assert program.returncode == 0
