"""Nothing tells anybody to install `gpubench`: on the package index that name belongs to another package."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpubench.base.installation import DISTRIBUTION, EXTRAS, install_command

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


@pytest.mark.parametrize(
    "text",
    [
        "pip install gpubench", "pip install --upgrade gpubench", "`pip install 'gpubench[cuda13]'`", "gpubench[plots]",
        "pipx install gpubench", "uv pip install gpubench==1.0", "uvx gpubench run", "uv tool install gpubench",
        "python -m pip install gpubench", "uv add gpubench", "pipx run gpubench", 'metadata.version("gpubench")',
    ],
)  # fmt: skip
def test_what_counts_as_a_hint(text: str) -> None:
    assert foreign_hints(text)
    assert not foreign_hints(text.replace("gpubench", "gpubench-cli"))


def test_no_text_tells_to_install_the_other_package() -> None:
    read = dict(pages())
    assert {Path("README.md"), Path("action.yml"), Path("Makefile"), Path("scripts/setup.sh")} <= set(read)
    assert not {str(place): found for place, text in read.items() if (found := foreign_hints(text))}


def test_the_program_takes_its_hints_from_one_place() -> None:
    telling = {
        str(place)
        for place, text in pages()
        if place.parts[0] == "gpubench" and re.search(r"\b(pipx?|uv)\b.*\binstall\b", text)
    }
    assert telling == {"gpubench/base/installation.py"}


def test_the_extras_of_the_hints_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    assert set(project["optional-dependencies"]) - {"dev"} == set(EXTRAS)
    for place, text in pages():
        named = re.findall(r"(?:gpubench-cli|'\.|\"\.)\[([a-z0-9,]+)\]", text)
        unknown = {extra for words in named for extra in words.split(",")} - {*EXTRAS, "dev"}
        assert not unknown, place


def test_the_examples_need_our_distribution() -> None:
    for path in (ROOT / "examples").rglob("pyproject.toml"):
        assert DISTRIBUTION in tomllib.loads(path.read_text(encoding="utf-8"))["project"]["dependencies"]


def test_the_pages_show_the_command_of_a_checkout_and_of_the_package() -> None:
    """Here the program runs from a checkout, which it names without a path in what may end in a file."""
    assert install_command("cuda13") == "pip install '.[cuda13]' (in the checkout of gpubench)"
    for name in ("README.md", "docs/index.md", "docs/troubleshooting.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert re.search(r"gpubench-cli\[[a-z0-9,]*cuda13\]", text), name
        assert re.search(r"\.\[[a-z0-9,]*cuda13\]", text), name
