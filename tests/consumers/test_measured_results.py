"""The results that this repository holds, measured on a real GPU, in every format that programs read."""

from pathlib import Path

import pytest

from gpubench.analysis.estimate import case_results
from gpubench.report import render
from gpubench.result import store
from tests.consumers import go_text

FOLDER = Path(__file__).parents[2] / "results"
FILES = [next(FOLDER.glob(f"*/*-{name}.json*")) for name in ("5cec675a", "9aaa659e", "d6111fff")]
# Three sessions; a default run with its searches; all ops.


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.stem)
def run(request):
    return store.load(request.param)


def test_go(run):
    found = go_text.read(render([run], "go"))
    counted = [row for row in run.sessions if not row.superseded]
    assert {row.configuration["goarch"] for row in found} == {"amd64"}
    assert len(found) <= len(counted) * len(run.outcomes)
    assert all(value > 0 for row in found for value in row.values.values())


def test_no_number_of_the_newest_results_is_beyond_its_peaks():
    for path in sorted(FOLDER.glob("*/*.json*"), key=lambda path: path.name)[-8:]:
        assert [row.id for row in case_results(store.load(path)) if row.label == "implausible"] == [], path.name
