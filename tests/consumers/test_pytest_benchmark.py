"""pytest-benchmark reads, compares and would have computed what `--format pytest-benchmark` writes."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_benchmark.stats import Stats

from gpubench.report.exporters import sample_stats
from tests.consumers.conftest import small_run


def compare(folder, *arguments):
    command = [sys.executable, "-m", "pytest_benchmark", "compare", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    assert "Failed to load" not in done.stdout + done.stderr
    return done.stdout + done.stderr


def test_history_by_machine_takes_the_file_as_a_saved_run(report, tmp_path):
    storage = tmp_path / ".benchmarks" / "Linux-CPython-3.11-64bit"
    storage.mkdir(parents=True)
    for number, seconds in (("0001", 1e-3), ("0002", 2e-3)):
        path = report("pytest-benchmark", small_run(seconds))
        path.rename(storage / f"{number}_run.json")
    table = compare(tmp_path, "--group-by", "name", "--columns", "min")
    assert table.count("resident-queued@cupy:0") >= 2
    assert "0001_run" in table
    assert "0002_run" in table


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60))
def test_the_statistics_are_those_that_it_computes_itself(samples):
    theirs = Stats()
    for value in samples:
        theirs.update(value)
    ours = sample_stats(samples, 7)
    for field in Stats.fields:
        expected = getattr(theirs, field)
        if field in ("outliers", "iqr_outliers", "stddev_outliers", "ld15iqr", "hd15iqr"):
            continue  # a value exactly on a fence may fall on either side of it by the last bit
        assert ours[field] == pytest.approx(expected, rel=1e-6, abs=1e-12), field
    assert ours["data"] == samples
    assert ours["iterations"] == 7
