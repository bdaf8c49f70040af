"""What holds for every room of the house; docs/architecture.md shows the figures."""

import ast
import re
from pathlib import Path

import pytest

from benchmarks import house

pytestmark = pytest.mark.check


def test_no_public_type_is_defined_twice():
    assert house.types_defined_twice() == []


def test_a_small_module_is_a_room_of_its_own_only_where_several_go_there():
    assert house.small_with_one_importer() == []


def test_few_functions_take_many_parameters():
    assert len(house.long_signatures()) <= 10


def test_the_page_leads_one_size_through_a_dozen_files():
    way = house.PAGE.read_text(encoding="utf-8").partition("## One size")[2].partition("\n## ")[0]
    stops = re.findall(r"^\d+\. `([a-z_/]+\.py)`", way, re.M)
    assert 6 <= len(stops) <= 12
    assert [stop for stop in re.findall(r"`([a-z_/]+\.py)`", way) if not (house.PACKAGE / stop).is_file()] == []


def test_tests_use_public_names_alone():
    """What a test needs of the product is public; what a named tuple or a library has under `_` is not the product's."""
    theirs = {"_replace", "_asdict", "_fields", "_make", "_exit", "_shutdown", "_run_exitfuncs", "_repr_html_"}
    # A tenth of the files: to parse all of them takes seconds.
    suspect = re.compile(r"\._[a-zA-Z]|\bimport\b[^\n(]*\b_[a-zA-Z]|\bimport \([^)]*\b_[a-zA-Z]")
    found = []
    for path in sorted((Path(__file__).parents[2] / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not suspect.search(text):
            continue
        nodes = list(ast.walk(ast.parse(text)))
        own = {node.name for node in nodes if isinstance(node, ast.FunctionDef)} | theirs
        for node in nodes:
            names = []
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") not in ("self", "cls"):
                names = [node.attr]
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("gpubench"):
                names = [alias.name for alias in node.names]
            private = [name for name in names if name.startswith("_") and not name.startswith("__")]
            found += [f"{path.name}:{node.lineno} {name}" for name in private if name not in own]
    assert found == []
