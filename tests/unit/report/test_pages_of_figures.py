"""Pages of docs whose figures benchmarks write: they are fresh, and their commands are valid."""

import pytest

from benchmarks import accuracy_page, performance
from benchmarks.performance_page import files_of, rewrite
from gpubench.cli import selection
from gpubench.result.case import select_cases


def test_every_command_of_the_plan_names_ops_that_there_are():
    for arguments in [arguments for runs in performance.plan(performance.SMALL).values() for arguments in runs]:
        words = dict(zip(arguments[::2], arguments[1::2], strict=False))
        names = selection.parse_ops(words["--ops"])
        sized = [arguments[i + 1] for i, word in enumerate(arguments) if word == "--sizes"]
        assert words["--ops"] == "roofline" or set(selection.parse_sizes(sized, names)) <= set(names)
        selection.parse_dtypes(words.get("--dtypes", "float32"))
        select_cases([], [arguments[i + 1] for i, word in enumerate(arguments) if word == "--skip"])


@pytest.mark.parametrize(("page", "anew", "command"), [
    (performance.PAGE, lambda text: rewrite(text, files_of(text)), "make docs"),
    (accuracy_page.PAGE, accuracy_page.renew, "python benchmarks/accuracy.py"),
], ids=["performance", "accuracy"])  # fmt: skip
def test_a_page_is_fresh(page, anew, command):
    text = page.read_text(encoding="utf-8")
    assert anew(text) == text, f"{page.name} is stale: {command}"
