"""docs/performance.md: its tables come from result files, its prose stays, and every command of the plan is valid."""

from pathlib import Path

import pytest

from benchmarks import performance
from benchmarks.performance_page import command, files_of, rewrite
from gpubench.cli import selection
from gpubench.result.case import select_cases
from gpubench.result.store import dumps
from tests.unit.report.builders import run_of


def test_a_page_without_files_or_with_a_strange_block_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no line"):
        files_of("nothing")
    (tmp_path / "a.json").write_bytes(dumps(run_of([])))
    with pytest.raises(ValueError, match="block 'other'"):
        rewrite("<!-- begin: other -->\n<!-- end: other -->", ["a.json"], tmp_path)


def test_a_command_leaves_out_where_the_output_went():
    assert command(["run", "--ops", "a b", "-o", "x.json", "--format=csv"]) == "gpubench run --ops 'a b'"


@pytest.mark.parametrize("sizes", [performance.LARGE, performance.MIDDLE, performance.SMALL])
def test_every_command_of_the_plan_names_ops_that_there_are(sizes):
    for arguments in [arguments for runs in performance.plan(sizes).values() for arguments in runs]:
        words = dict(zip(arguments[::2], arguments[1::2], strict=False))
        names = selection.parse_ops(words["--ops"])
        sized = [arguments[i + 1] for i, word in enumerate(arguments) if word == "--sizes"]
        found = selection.parse_sizes(sized, names)
        assert words["--ops"] == "roofline" or set(found) <= set(names)
        selection.parse_dtypes(words.get("--dtypes", "float32"))
        select_cases([], [arguments[i + 1] for i, word in enumerate(arguments) if word == "--skip"])


def test_the_page_is_fresh():
    root = Path(performance.ROOT)
    text = performance.PAGE.read_text(encoding="utf-8")
    assert rewrite(text, files_of(text), root) == text, "docs/performance.md is stale: run make docs"
