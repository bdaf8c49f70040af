"""What the release page counts on: a changelog whose newest section is the version, and Pythons that are tried."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from gpubench import __version__

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^## \[([^]]+)\] - (\S+)$", CHANGELOG, re.M)

pytestmark = pytest.mark.check


def test_the_newest_section_is_this_version() -> None:
    assert SECTIONS
    assert SECTIONS[0][0] == __version__
    assert len(re.findall(r"^## ", CHANGELOG, re.M)) == len(SECTIONS)


def test_only_the_newest_section_may_lack_its_date() -> None:
    (_, newest), *older = SECTIONS
    dates = [date.fromisoformat(day) for _, day in older]
    if newest != "unreleased":
        dates.insert(0, date.fromisoformat(newest))
    assert all(later >= earlier for later, earlier in pairwise(dates))


def test_changes_are_of_the_kinds_that_readers_know() -> None:
    kinds = set(re.findall(r"^### (.+)$", CHANGELOG, re.M))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_every_python_that_the_package_names_is_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {found for text in project["classifiers"] if (found := text.rpartition(":: ")[2]).startswith("3.")}
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    assert set(jobs["linux"]["strategy"]["matrix"]["python"]) == named
    assert min(named, key=lambda text: int(text[2:])) == project["requires-python"].removeprefix(">=")
    elsewhere = jobs["elsewhere"]["strategy"]["matrix"]
    assert set(elsewhere["python"]) <= named
    assert {re.sub(r"-.*", "", system) for system in elsewhere["os"]} == {"macos", "windows"}
