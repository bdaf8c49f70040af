"""Write docs/images/report*.png, which are screenshots of the HTML report of a result file.

python scripts/picture_report.py [RESULT.json]    needs Chromium and the development tools

Without RESULT.json the script takes the default run that README shows.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from gpubench.report import render
from gpubench.result import store

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "images"
# For each picture: the file name, the width in pixels, the colour scheme, and the element at its lower end.
SHOTS = (
    ("report.png", 1200, "light", ".legend:visible"), ("report-dark.png", 1200, "dark", ".legend:visible"),
    ("report-narrow.png", 400, "light", ".lanes:visible"),
)  # fmt: skip


def main(file: Path) -> None:
    """Write screenshots of the page in light colours, in dark colours and for a small screen."""
    sys.path.insert(0, str(ROOT))
    from tests.browser import chromium

    run = store.load(file)
    with tempfile.TemporaryDirectory() as folder, chromium.started() as browser:
        page_file = Path(folder) / "report.html"
        page_file.write_text(render([run], "html"), encoding="utf-8")
        for name, width, scheme, last in SHOTS:
            context = browser.new_context(
                offline=True, viewport={"width": width, "height": 1000}, color_scheme=scheme
            )
            page = context.new_page()
            page.goto(page_file.as_uri())
            page.locator("[data-ready]").wait_for()
            page.locator("[data-lanes]:not([data-drawn]):visible").first.wait_for(state="detached")
            end = page.locator(last).first.bounding_box()
            clip = {"x": 0, "y": 0, "width": width, "height": end["y"] + end["height"] + 4}
            page.screenshot(path=FOLDER / name, full_page=True, clip=clip)
            context.close()
            print(f"{name}: {(FOLDER / name).stat().st_size} bytes")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from scripts.write_readme import default_result

    main(Path(sys.argv[1]) if len(sys.argv) > 1 else default_result())
