"""Nothing tells anybody to install `gpubench`: on the package index that name belongs to another package."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from gpubench.base.installation import DISTRIBUTION, EXTRAS

ROOT = Path(__file__).parents[2]
SUFFIXES = {".py", ".md", ".toml", ".yml", ".yaml", ".sh", ".txt", ".cfg", ".js", ".css", ".html"}
FOLDERS = ("gpubench", "docs", "examples", "scripts", "benchmarks", "tests", ".ci", ".github")
# They speak of the other package, by its name.
OTHERS = {
    Path(__file__).relative_to(ROOT), Path("docs/decisions/0010-the-distribution-is-gpubench-cli.md"),
    Path("tests/faults/test_package_clash.py"),
}  # fmt: skip

INSTALLER = re.compile(r"\b(?:pipx?|uvx?|conda|mamba|poetry|pdm)\b[^\n`;|&,()]*")
VERB = re.compile(r"\b(?:install|add|inject|run|download|upgrade)\b|\buvx\b")
LOOKUP = re.compile(r"\b(?:version|distribution|metadata|requires|files)\(\s*[\"']gpubench[\"']")


def pages() -> Iterator[tuple[Path, str]]:
    """Every text of the project, by its path from the root."""
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in sorted(found):
        place = path.relative_to(ROOT)
        if (path.suffix in SUFFIXES or not path.suffix) and place not in OTHERS and path.name != ".git":
            yield place, path.read_text(encoding="utf-8")


def foreign_hints(text: str) -> list[str]:
    """What in `text` would install the other package, or ask for an extra of it."""
    found = re.findall(r"(?<![\w-])gpubench\[[\w,]+\].{0,20}", text) + LOOKUP.findall(text)
    for command in INSTALLER.findall(text):
        words = [re.split(r"[\[<>=~!@]", word.strip("'\".:"))[0] for word in command.split()]
        if VERB.search(command) and "gpubench" in words:
            found.append(command)
    return found


def test_no_text_tells_to_install_the_other_package() -> None:
    read = dict(pages())
    assert {Path("README.md"), Path("action.yml"), Path("Makefile"), Path("scripts/setup.sh")} <= set(read)
    assert not {str(place): found for place, text in read.items() if (found := foreign_hints(text))}


def test_the_extras_of_the_hints_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    assert set(project["optional-dependencies"]) - {"dev"} == set(EXTRAS)
    for place, text in pages():
        named = re.findall(r"(?:gpubench-cli|'\.|\"\.)\[([a-z0-9,]+)\]", text)
        unknown = {extra for words in named for extra in words.split(",")} - {*EXTRAS, "dev"}
        assert not unknown, place
