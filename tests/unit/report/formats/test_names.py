"""Suffixes of files: which format each means, and what is said of a wrong one."""

import pytest

from gpubench.base.errors import UsageError
from gpubench.cli.delivery import chosen_format


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("r.md", "markdown"), ("r.json", "json"), ("r.jsonl", "jsonl"), ("r.CSV", "csv"), ("r.html", "html"), ("r.txt", "plain"),
        ("r.svg", "svg"), ("r.png", "png"), ("-", "plain"), (None, "plain"),
    ],
)  # fmt: skip
def test_a_suffix_chooses_a_format_unless_one_is_named(file, name):
    assert chosen_format(None, file, to_terminal=False) == name
    assert chosen_format("go", file, to_terminal=False) == "go"


@pytest.mark.parametrize("file", ["r.xml", "r", "r.json.gz", ".md"])
def test_an_unknown_suffix_is_refused(file):
    with pytest.raises(UsageError, match="suffix") as caught:
        chosen_format(None, file, to_terminal=False)
    assert ".jsonl" in caught.value.why
