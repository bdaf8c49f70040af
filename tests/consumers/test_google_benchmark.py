"""google-benchmark's compare.py sets two of our reports side by side."""

import re
import subprocess
import sys

import pytest

from tests.consumers.conftest import small_run

pytestmark = pytest.mark.consumers
COMPARE = "/usr/share/benchmark/compare.py"


def compare(*arguments):
    command = [sys.executable, COMPARE, "--no-color", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_reports_are_compared_session_by_session(report):
    base = report("google-benchmark", small_run(1e-3, sessions=10), "base.json")
    new = report("google-benchmark", small_run(1.5e-3, sessions=10), "new.json")
    text = compare("benchmarks", base, new)
    case = "matmul/n=1024/float32/library/resident-queued@cupy:0 "
    rows = [line for line in text.splitlines() if line.startswith(case)]
    assert len(rows) == 10
    assert all(re.search(r"\+0\.5000 +\+0\.5000 +1000000 +1500000", row) for row in rows)
    # Its test over the repetitions ran: one row a session is what it wants.
    assert "resident-queued@cupy:0_pvalue" in text
    assert "U Test, Repetitions: 10 vs 10" in text
