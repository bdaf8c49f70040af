"""One result by its three ways in: terminal, page and notebook say the same, in the same colours."""

import re

import pytest

from gpubench import report
from gpubench.api import Result
from gpubench.report.layout import RenderOptions
from gpubench.report.sections.answer import answer_sentences
from tests.unit.report.answer_runs import suite_run

pytestmark = pytest.mark.chromium

TERMINAL = {"38;5;75": "gpu", "38;5;208": "cpu"}  # blue and orange of 256 colours


def side(colour):
    """The side whose colour this is: blue, or orange."""
    red, _, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return "gpu" if blue > red else "cpu"


def words(text):
    return " ".join(text.split())


def shown(page):
    """Sentence, gains, and the side that each gain has the colour of."""
    cells = page.locator(".lanes td.gpu, .lanes td.cpu").all()
    colours = {cell.inner_text(): side(cell.evaluate("e => getComputedStyle(e).color")) for cell in cells}
    return (
        words(page.locator(".sentence:visible").first.inner_text()),
        colours,
        sorted(cell.inner_text() for cell in cells),
    )


def test_terminal_page_and_notebook_say_the_same_in_the_same_colours(opened, contexts, tmp_path):
    run = suite_run()
    (analysis,) = report.analyse_runs([run])
    sentence = words(" ".join(answer_sentences(analysis)))
    terminal = report.screen([analysis], "table", RenderOptions(color=True), saved=(), height=40)
    painted = re.findall(r"\x1b\[([\d;]+)m((?:GPU|CPU) ~?[\d.]+x)", terminal)
    plain = words(re.sub(r"\x1b\[[\d;]*m", "", terminal))
    assert sentence in plain
    colours = {text: TERMINAL[code] for code, text in painted}
    numbers = sorted(text for _, text in painted)
    assert len(numbers) == 28
    assert shown(opened(run)) == (sentence, colours, numbers)

    notebook = tmp_path / "notebook.html"
    notebook.write_text(
        f"<!DOCTYPE html><meta charset=utf-8><body>{Result(run)._repr_html_()}</body>", encoding="utf-8"
    )
    for script in (True, False):
        page = contexts[script].new_page()
        page.goto(notebook.as_uri())
        page.emulate_media(color_scheme="dark")
        label = page.locator(".lane svg text").first
        assert label.evaluate("e => getComputedStyle(e).fill") == "rgb(169, 177, 189)"
        page.emulate_media(color_scheme="light")
        assert shown(page) == (sentence, colours, numbers)
        page.close()
