"""Every code has one entry of the catalogue, and docs/troubleshooting.md shows the catalogue."""

from __future__ import annotations

import importlib.util
import typing
from pathlib import Path

import pytest

from gpubench.catalogue import ERRORS, REASONS, WARNINGS, ErrorCode, NoNumber, Reason, WarningCode
from gpubench.errors import InputError

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_catalogue():
    spec = importlib.util.spec_from_file_location(
        "troubleshooting", ROOT / "scripts" / "write_troubleshooting.py"
    )
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    shown = made.TARGET.read_text(encoding="utf-8")
    assert shown == made.page(), "docs/troubleshooting.md is stale: make docs"
    for code in (*REASONS, *WARNINGS, *ERRORS):
        assert f"\n| `{code}` | " in shown


@pytest.mark.parametrize(
    ("table", "declared"), [(REASONS, Reason | NoNumber), (WARNINGS, WarningCode), (ERRORS, ErrorCode)]
)
def test_every_declared_code_has_its_sentence_and_its_remedy(table, declared):
    codes = [code for kind in typing.get_args(declared) for code in typing.get_args(kind) or [kind]]
    assert sorted(table) == sorted(codes)
    assert all(entry.sentence and entry.remedy for entry in table.values())


def test_an_error_says_what_the_catalogue_says_where_the_place_gives_nothing_better():
    reported = InputError("no-charts", why="nothing was measured")
    assert (reported.message, reported.hint) == ERRORS["no-charts"]
    assert str(reported) == reported.message
    reported = InputError("no-charts", "no picture", hint="")
    assert (reported.message, reported.hint) == ("no picture", "")


def test_an_error_of_no_entry_cannot_be_raised():
    with pytest.raises(KeyError):
        InputError("melted", "the file melted")
