"""The documents agree with the program."""

import itertools
import re
from pathlib import Path

import pytest

from gpubench.base.errors import ExitCode
from tests.scripts import script

ROOT = Path(__file__).parents[2]


def test_the_command_line_page_is_fresh() -> None:
    writer = script("write_cli_docs")
    assert writer.TARGET.read_text(encoding="utf-8") == writer.page(), "docs/cli.md is stale: run make docs"


@pytest.mark.check
def test_every_exit_code_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    table = text.partition("## Exit codes")[2].partition("##")[0]
    documented = {int(code) for row in re.findall(r"^\| ([0-9, ]+) \|", table, re.M) for code in row.split(",")}
    assert documented == {int(code) for code in ExitCode}


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.M):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        numbered = (f"{slug}-{number}" for number in itertools.count(1))
        found.add(slug if slug not in found else next(other for other in numbered if other not in found))
    return found


@pytest.mark.check
def test_links_between_the_documents_lead_somewhere() -> None:
    """mkdocs asks for the anchors of the site; this also for files beside docs/, as GitHub shows them all."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    broken = []
    for page in pages:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")):
            there = page.parent / target if target else page
            if "://" in target or (there.exists() and (not anchor or anchor in _anchors(there))):
                continue
            broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert not broken


def test_the_tree_of_the_architecture_is_the_house_as_built() -> None:
    tree = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Files of the rooms")[2]
    words = set(re.findall(r"[a-z_]+", tree))
    package = ROOT / "gpubench"
    built = {
        path.stem for folder in (package, package / "measure", package / "analysis", package / "report")
        for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }  # fmt: skip
    assert not built - words, "docs/architecture.md does not name them in its tree"
    named = set(re.findall(r"^    ((?:[a-z_]+ )+) {2,}", tree.partition("  measure/")[2], re.M))
    reported = {word for names in named for word in names.split()}
    files = {path.stem for path in package.rglob("*")}
    assert not reported - files - {"other"}, "docs/architecture.md names what is not there"
