"""Programs of the tests are forked, which takes a tenth of the time, unless they ask for a start."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpubench.measure.worker_pool import THREAD_VARIABLES
from tests.forking import Starter, environment
from tests.forking.server import at_start


@pytest.fixture(scope="module")
def late() -> Iterator[Starter]:
    """One that begins after a session of a CPU has set variables of its libraries in the process of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NUMBA_NUM_THREADS", "OPENBLAS_THREAD_TIMEOUT", "GOMP_SPINCOUNT"):
            patch.setenv(name, "1")
        with contextlib.closing(Starter()) as starter:
            yield starter


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
    late: Starter, tmp_path: Path, variables: dict[str, str], forked: bool
) -> None:
    env = environment(tmp_path, variables)
    with late.begin("--version", cwd=tmp_path, env=env, stdout=subprocess.PIPE) as program:
        counted = any(name.startswith("COVERAGE_PROCESS") for name in env)  # then every program is started
        assert program.forked == (forked and not counted)
        assert program.communicate()[0].startswith("gpubench ")
        assert program.returncode == 0


def test_a_file_that_a_program_writes_to_stays_open_here(late: Starter, tmp_path: Path) -> None:
    with open(tmp_path / "out", "w", encoding="utf-8") as file:
        assert late.begin("--version", cwd=tmp_path, env=environment(tmp_path), stdout=file).wait() == 0
        assert not file.closed
        file.write("")
        file.flush()
    assert (tmp_path / "out").read_text(encoding="utf-8").startswith("gpubench ")


def test_the_number_of_threads_of_a_session_keeps_no_worker_from_being_forked() -> None:
    """A worker that is started costs as much as the rest of a short run."""
    counts = dict.fromkeys(THREAD_VARIABLES, str(len(os.sched_getaffinity(0))))
    assert at_start(counts) == at_start({})
    assert at_start(dict.fromkeys(THREAD_VARIABLES, "0")) != at_start({})
