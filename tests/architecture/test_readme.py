"""What README.md and the pages show is what the program prints of the result files that they name."""

import re
from pathlib import Path

import pytest

from gpubench.report import analyse_runs, plots
from gpubench.report.layout import RenderOptions
from gpubench.result import store
from tests.scripts import script

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "blocks"), [
    ("README.md", 1), ("docs/advice.md", 1), ("docs/claims.md", 1), ("docs/tutorial.md", 1),
    ("docs/workloads.md", 1),
])  # fmt: skip
def test_the_blocks_are_fresh(name, blocks):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert len(re.findall(r"^<!-- gpubench (?:report|advise) ", text, re.M)) >= blocks
    assert script("write_readme").page(text) == text, f"{name} is stale: make docs"


def test_the_map_is_that_of_the_answer_below_it_and_asks_nobody_for_anything():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    answer = re.search(r"^<!-- gpubench report (\S+) --sections answer -->", text, re.M)
    assert answer is not None
    drawn = (ROOT / "docs" / "images" / "map.svg").read_bytes()
    made = plots.plots(analyse_runs([store.load(ROOT / answer[1])]), "svg", RenderOptions(sections=("map",)))
    assert made["map.svg"] == drawn, "docs/images/map.svg is stale: scripts/write_readme.py"
    asked = set(re.findall(rb"https?://[^\"' )]+", drawn))
    assert asked <= {b"http://www.w3.org/2000/svg", b"http://www.w3.org/1999/xlink"}
    assert b"<script" not in drawn
    assert len(drawn) < 150_000


def test_the_bars_are_those_of_the_stages_beside_them():
    drawn = (ROOT / "docs" / "images" / "stages.svg").read_bytes()
    assert script("write_readme").stages_picture() == drawn, (
        "docs/images/stages.svg is stale: scripts/write_readme.py"
    )
    assert b"<script" not in drawn
