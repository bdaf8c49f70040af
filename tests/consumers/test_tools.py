"""Other programs read our reports; formats without a reader here are held against what is published of them."""

import json
import math
import re
import statistics
import subprocess
import sys

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pytest_benchmark.stats import Stats

from gpubench.report import render
from gpubench.report.exporters import sample_stats
from tests.consumers.conftest import small_run
from tests.unit.report.samples import cpu_run, full_run, interrupted_run, software_run


def output_of(*words, cwd=None):
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=300, cwd=cwd, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_history_by_machine_takes_the_file_as_a_saved_run(report, tmp_path):
    storage = tmp_path / ".benchmarks" / "Linux-CPython-3.11-64bit"
    storage.mkdir(parents=True)
    for number, seconds in (("0001", 1e-3), ("0002", 2e-3)):
        report("pytest-benchmark", small_run(seconds)).rename(storage / f"{number}_run.json")
    table = output_of(*"-m pytest_benchmark compare --group-by name --columns min".split(), cwd=tmp_path)
    assert "Failed to load" not in table
    assert table.count("resident-queued@cupy:0") >= 2
    assert "0001_run" in table
    assert "0002_run" in table


@example([96.7, 102.0, 103.0, 104.0, 105.0, 106.0, 107.0, 112.7])  # the first one lies inside of its fence
@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60))
def test_the_statistics_are_those_that_it_computes_itself(samples):
    theirs = Stats()
    for value in samples:
        theirs.update(value)
    ours = sample_stats(samples, 7)
    fences = [theirs.mean + side * theirs.stddev for side in (-1, 1)]
    fences += [quartile + side * 1.5 * theirs.iqr for side, quartile in ((-1, theirs.q1), (1, theirs.q3))]
    by_a_bit = any(math.isclose(value, fence, rel_tol=1e-6) for value in samples for fence in fences)
    for field in Stats.fields:
        if by_a_bit and field in ("outliers", "iqr_outliers", "stddev_outliers", "ld15iqr", "hd15iqr"):
            continue  # a value exactly on a fence may fall on either side of it
        expected = getattr(theirs, field)
        assert ours[field] == (
            expected if field == "outliers" else pytest.approx(expected, rel=1e-6, abs=1e-12)
        ), field
    assert ours["data"] == samples
    assert ours["iterations"] == 7


def test_pandas_computes_the_speedups_again(report):
    import pandas  # each worker of pytest would import it to collect this file

    table = pandas.read_csv(report("csv"))
    times = table.set_index("case_id")["time_s"]
    rows = table.dropna(subset=["speedup"])
    assert len(rows) > 10
    expected = rows["baseline_id"].map(times) / rows["time_s"]
    assert (expected / rows["speedup"] - 1).abs().max() < 1e-4


@pytest.mark.consumers
def test_two_reports_are_compared_session_by_session(report):
    base = report("google-benchmark", small_run(1e-3, sessions=10), "base.json")
    new = report("google-benchmark", small_run(1.5e-3, sessions=10), "new.json")
    text = output_of("/usr/share/benchmark/compare.py", "--no-color", "benchmarks", base, new)
    case = "matmul/n=1024/float32/library/resident-queued@cupy:0 "
    rows = [line for line in text.splitlines() if line.startswith(case)]
    assert len(rows) == 10
    assert all(re.search(r"\+0\.5000 +\+0\.5000 +1000000 +1500000", row) for row in rows)
    # Its test over the repetitions ran: one row a session is what it wants.
    assert "resident-queued@cupy:0_pvalue" in text
    assert "U Test, Repetitions: 10 vs 10" in text


@pytest.mark.consumers
def test_an_export_has_the_fields_of_a_real_one_and_obeys_its_rules(report, tmp_path):
    """Of one command, scanned over a parameter. Newer releases add memory_usage_byte and the like; what 1.15 writes is
    in all of them."""
    options = "hyperfine --runs 3 --style none --export-json export.json -L n 1,2".split()
    subprocess.run([*options, "true {n}"], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    theirs = json.loads((tmp_path / "export.json").read_text())
    ours = json.loads(report("hyperfine").read_text())
    assert ours.keys() == theirs.keys()
    real = {name: type(value) for name, value in theirs["results"][0].items()}
    for row in [*ours["results"], *theirs["results"]]:
        times = row["times"]
        assert {name: type(value) for name, value in row.items()} == real
        assert row["exit_codes"] == [0] * len(times)
        assert row["mean"] == pytest.approx(statistics.fmean(times), rel=1e-4)
        assert row["median"] == pytest.approx(statistics.median(times), rel=1e-4)
        assert row["stddev"] == pytest.approx(statistics.stdev(times), rel=1e-3)
        assert (row["min"], row["max"]) == pytest.approx((min(times), max(times)), rel=1e-5)
        assert all(isinstance(value, str) for value in row["parameters"].values())


RUNS = [full_run, cpu_run, software_run, interrupted_run, small_run]
# Bencher publishes this at bencher.dev/bmf.json; a benchmark's name has at most 1024 characters.
BENCHER = {
    "$schema": "http://json-schema.org/draft-07/schema", "type": "object",
    "patternProperties": {".+": {"type": "object", "patternProperties": {".+": {
        "type": "object", "required": ["value"],
        "properties": {name: {"type": "number"} for name in ("value", "lower_value", "upper_value")},
    }}}},
    "propertyNames": {"minLength": 1, "maxLength": 1024},
}  # fmt: skip
# The interface BenchmarkResult of github-action-benchmark; its action fails on an empty array.
GITHUB_ACTION = {
    "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "array", "minItems": 1,
    "items": {
        "type": "object", "required": ["name", "value", "unit"], "additionalProperties": False,
        "properties": {"name": {"type": "string"}, "value": {"type": "number"}, "unit": {"type": "string"},
                       "range": {"type": "string"}, "extra": {"type": "string"}},
    },
}  # fmt: skip
# What it takes a range for: a sign, and then nothing but a number.
RANGE = re.compile(r"(?:\+-|±)\s*(\d.*)")


@pytest.mark.parametrize("make", RUNS)
def test_bencher(make):
    found = json.loads(render([make()], "bmf"))
    jsonschema.Draft7Validator(BENCHER).validate(found)
    assert found
    for measures in found.values():
        assert {"latency", "throughput"} <= measures.keys() <= {"latency", "throughput", "speedup"}
        for metric in measures.values():
            assert metric["lower_value"] <= metric["value"] <= metric["upper_value"]
        assert measures["throughput"]["value"] == pytest.approx(1e9 / measures["latency"]["value"], rel=1e-5)


@pytest.mark.parametrize("make", RUNS)
@pytest.mark.parametrize("name", ["gha-smaller", "gha-bigger"])
def test_github_action_benchmark(make, name):
    found = json.loads(render([make()], name))
    jsonschema.Draft202012Validator(GITHUB_ACTION).validate(found)
    names = [row["name"] for row in found]
    assert len(set(names)) == len(names)
    for row in found:
        assert float(RANGE.fullmatch(row["range"])[1]) >= 0
