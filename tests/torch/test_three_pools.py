"""Threads of numba, PyTorch and OpenBLAS in one process: none beyond those asked for, none that runs beside a launch."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpubench.measure.worker_pool import THREAD_VARIABLES

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba"),
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux' processor time of each thread"),
]  # fmt: skip

# A second pool of PyTorch, and that of numba where it is not OpenMP's: threadpoolctl knows neither.
UNKNOWN_POOLS = 2
# A thread that works takes its share of the launches; one that spins beside them for more than this, a core.
WORKS = 0.25
RESTS = 0.2
# Beside a thread that spins a quarter of the processor time is that thread's; without `settle` it was 0.25 to 0.28.
MOST_BESIDE = 0.1


def looked_at(threads: int, *libraries: str) -> dict:
    """What `pools.py` finds in a process that has the variables of a worker."""
    root = Path(__file__).parents[2]
    command = [sys.executable, str(Path(__file__).with_name("pools.py")), str(threads), *libraries]
    variables = os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads)) | {"PYTHONPATH": str(root)}
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


NUMBA_FIRST, TORCH_FIRST = ("numba", "torch", "openblas"), ("torch", "openblas", "numba")


@pytest.mark.serial  # who else takes the cores would be seen, too
@pytest.mark.parametrize("libraries", [NUMBA_FIRST, TORCH_FIRST])
def test_three_libraries_share_the_cores(libraries):
    """Whichever comes first brings its OpenMP along, and the other may bring a second one."""
    threads = 2
    found = looked_at(threads, *libraries)
    assert found["right"] == dict.fromkeys(libraries, True)
    assert max(found["pools"].values()) <= threads
    assert found["threads"] <= 1 + (threads - 1) * (len(found["pools"]) + UNKNOWN_POOLS)
    for name in libraries:
        ran_s = found["at_work"][name]
        assert sum(s > WORKS * ran_s[0] for s in ran_s) <= threads, (name, ran_s)
        assert sum(found["at_rest"][name]) < RESTS * found["window_s"], (name, found["at_rest"][name])
    for pair, beside in found["beside"].items():
        assert beside < MOST_BESIDE, (pair, beside)


def test_more_threads_than_cores_are_right_too():
    """A machine of 128 cores: OpenBLAS has 64 threads at most, numba and PyTorch as many as asked for."""
    found = looked_at(128, "numba", "torch", "openblas")
    assert found["right"] == dict.fromkeys(("numba", "torch", "openblas"), True)
    assert max(found["pools"].values()) == 128
    assert found["threads"] <= 1 + 127 * (len(found["pools"]) + UNKNOWN_POOLS)
