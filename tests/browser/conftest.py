"""A page of the report in a browser without a network; whatever it complains about fails the test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpubench.report import render
from tests.browser import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """For these tests alone: the event loop that drives it would be in the way of others."""
    with chromium.started() as found:
        yield found


@pytest.fixture(scope="module")
def contexts(browser: Any) -> dict[bool, Any]:
    """With scripts and without. A page that stays open keeps the process that all of them share."""
    made = {}
    for script in (True, False):
        made[script] = browser.new_context(offline=True, reduced_motion="reduce", java_script_enabled=script)
        made[script].new_page().goto(Path(__file__).as_uri())
    return made


@pytest.fixture(scope="module")
def open_pages(contexts: dict[bool, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Gives `opened` to a fixture whose pages stay open for several tests."""
    return lambda: _opened(contexts, tmp_path_factory.mktemp("pages"))


@pytest.fixture
def opened(contexts: dict[bool, Any], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """opened(run, ..., width=1280, ...) -> the page, once its charts are drawn."""
    with _opened(contexts, tmp_path) as make:
        yield make


@contextmanager
def _opened(contexts: dict[bool, Any], folder: Path) -> Iterator[Callable[..., Any]]:
    pages, complaints = [], []

    def make(*runs: Any, width: int = 1280, script: bool = True, **options: Any) -> Any:
        file = folder / f"report-{len(pages)}.html"
        file.write_text(render(list(runs), "html", **options), encoding="utf-8")
        page = contexts[script].new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme="light")
        page.on("console", lambda said: complaints.append(f"{said.type}: {said.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        page.on(
            "request", lambda asked: asked.url == file.as_uri() or complaints.append(f"asked for {asked.url}")
        )
        page.goto(file.as_uri())
        if script and page.locator("[data-run]:not(:has(details.one))").count():
            page.locator("[data-ready]").last.wait_for()
        return page

    yield make
    for page in pages:
        page.close()
    assert not complaints
