"""The browser of these tests: the system's Chromium, driven by playwright, with nothing left of a network."""

import shutil
from contextlib import contextmanager

ARGUMENTS = [
    "--no-sandbox",  # for root in a container; the pages are ours
    *"--disable-gpu --disable-quic --disable-sync --no-first-run".split(),
    *"--disable-background-networking --disable-component-update".split(),
    "--process-per-site",  # the tests' pages are one site, and their process has compiled the script of the charts
]
NAMES = ("chromium", "google-chrome")


@contextmanager
def started():
    """A headless browser with a profile of its own; playwright's Chromium where the system has none."""
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def probe():
    """Ends the program with the reason, in one line, if no browser starts here."""
    try:
        with started():
            pass
    except Exception as error:
        raise SystemExit(f"no Chromium starts: {str(error).splitlines()[0]}") from None
