"""Our export has the fields of hyperfine's own, with the same types and meanings."""

import json
import statistics
import subprocess

import pytest

pytestmark = pytest.mark.consumers


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """What hyperfine itself writes about one command, scanned over a parameter."""
    path = tmp_path_factory.mktemp("hyperfine") / "export.json"
    command = [
        "hyperfine", "--runs", "3", "--style", "none", "--export-json", str(path), "-L", "n", "1,2", "true {n}",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return json.loads(path.read_text())


def test_the_fields_are_those_of_a_real_export(report, theirs):
    ours = json.loads(report("hyperfine").read_text())
    assert ours.keys() == theirs.keys()
    real = theirs["results"][0]
    for row in ours["results"]:
        # Newer releases add memory_usage_byte and the like; what 1.15 writes is in all of them.
        assert row.keys() == real.keys()
        for name, value in real.items():
            assert isinstance(row[name], type(value)), name


def test_both_exports_obey_the_same_rules(report, theirs):
    ours = json.loads(report("hyperfine").read_text())
    for row in [*ours["results"], *theirs["results"]]:
        times = row["times"]
        assert row["exit_codes"] == [0] * len(times)
        assert row["mean"] == pytest.approx(statistics.fmean(times), rel=1e-4)
        assert row["median"] == pytest.approx(statistics.median(times), rel=1e-4)
        assert row["stddev"] == pytest.approx(statistics.stdev(times), rel=1e-3)
        assert (row["min"], row["max"]) == pytest.approx((min(times), max(times)), rel=1e-5)
        assert all(isinstance(value, str) for value in row["parameters"].values())
