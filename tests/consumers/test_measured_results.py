"""The results that this repository holds, measured on a real GPU."""

from pathlib import Path

from gpubench.analysis.estimate import case_results
from gpubench.result import store

FOLDER = Path(__file__).parents[2] / "results"


def test_no_number_of_the_newest_results_is_beyond_its_peaks():
    for path in sorted(FOLDER.glob("*/*.json*"), key=lambda path: path.name)[-8:]:
        assert [row.id for row in case_results(store.load(path)) if row.label == "implausible"] == [], path.name
