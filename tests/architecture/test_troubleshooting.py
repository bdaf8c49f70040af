"""docs/troubleshooting.md has an entry for everything that the program says, and for nothing else."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def script():
    spec = importlib.util.spec_from_file_location(
        "troubleshooting", ROOT / "scripts" / "write_troubleshooting.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries(title):
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([a-z0-9-]+)` \|", section, re.M)


def test_the_errors_are_those_of_the_source():
    made = script()
    assert made.TARGET.read_text(encoding="utf-8") == made.page(), "docs/troubleshooting.md is stale: make docs"
    assert len(made.errors()) > 50


def test_every_reason_has_an_entry_and_no_entry_is_stale():
    assert sorted(entries("A case was skipped or failed")) == sorted(script().reasons())


def test_every_warning_has_an_entry_and_no_entry_is_stale():
    assert sorted(entries("A number carries a warning")) == sorted(script().warnings())


def test_every_error_says_what_to_do():
    assert not [code for code, told in script().errors().items() if any(not hint for _, hint in told)]
