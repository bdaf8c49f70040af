"""Sections register themselves: those of gpubench, of a wing, and of a package by its entry point."""

import csv
import importlib
import io
import json
import re
import sys
from pathlib import Path

import pytest

from gpubench.base.errors import BadPlugin
from gpubench.base.plugins import sections
from gpubench.report import render
from tests.faults.packages import install
from tests.unit.report.samples import tool_run

PAGE = (Path(__file__).parents[3] / "docs" / "extending.md").read_text(encoding="utf-8")
EXAMPLE = re.search(r'```python\n("""The five cases.*?)```', PAGE, re.DOTALL)[1]


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A function that installs a package with a section, as pip would leave it behind."""

    def package(name, module):
        install(tmp_path / name, f"package_{name}", module, sections={name: f"package_{name}"})
        monkeypatch.syspath_prepend(str(tmp_path / name))
        importlib.invalidate_caches()

    return package


def test_the_documented_section_is_drawn_in_every_format(outside):
    outside("slowest", EXAMPLE)
    assert len(EXAMPLE.splitlines()) < 40
    look = {"sections": ("slowest",)}
    plain = render([tool_run()], "plain", **look)
    rows = json.loads(render([tool_run()], "json", **look))["slowest"]
    assert 0 < len(rows) <= 5
    assert rows[0].keys() == {"source", "id", "seconds"}
    for format in ("plain", "table", "markdown", "html"):
        assert "time" in render([tool_run()], format, **look)
    assert "\nThe five cases that take longest\n" in plain
    assert all(row["id"] in plain for row in rows)
    lines = csv.DictReader(io.StringIO(render([tool_run()], "csv", **look)))
    assert {line["case_id"] for line in lines if line["slow_s"]} == {row["id"] for row in rows}


def test_a_section_of_a_package_is_shown_where_it_is_named_alone(outside):
    before = [render([tool_run()], format) for format in ("plain", "json", "csv")]
    outside("slowest", EXAMPLE)
    render([tool_run()], "json", sections=("slowest",))
    assert [render([tool_run()], format) for format in ("plain", "json", "csv")] == before


def test_a_section_that_raises_costs_itself(outside):
    torn = EXAMPLE.replace('"slowest"', '"torn"').replace(
        "timed.sort", "raise KeyError('lost')\n    timed.sort"
    )
    outside("torn", torn)
    text = render([tool_run()], "plain", sections=("environment", "torn"))
    assert "left out: the section raises KeyError: 'lost'" in text
    assert "Environment" in text


def test_a_section_that_cannot_be_imported_names_its_package_and_one_of_ours_is_a_bug(outside, monkeypatch):
    outside("broken", "import a_library_that_is_not_there")
    with pytest.raises(BadPlugin, match="the section broken of the package package_broken") as raised:
        render([tool_run()], "plain", sections=("broken",))
    assert "a_library_that_is_not_there" in raised.value.why
    (module,) = (one.module for one in sections.declarations() if one.key == "environment")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError):
        render([tool_run()], "plain", sections=("environment",))


def test_what_files_declare_is_what_they_register():
    declared = {(one.module, one.key, one.order) for one in sections.declarations()}
    keys = {one.key for one in sections.declarations()}
    makers = [*sections.sections(keys), *sections.sections(keys, together=True)]
    registered = {(maker.make.__module__, maker.key, maker.order) for maker in makers}
    assert declared == {one for one in registered if one[0].startswith("gpubench.")}
    assert all(maker.key in keys for maker in sections.charts(keys))
    assert {one.key for one in sections.declarations() if one.help} == keys
