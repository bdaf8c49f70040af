"""Write docs/images/report.png and report-dark.png: the HTML report of a result file as a reader sees it.

python scripts/picture_report.py [RESULT.json]    needs Chromium and the development tools
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from gpubench import store
from gpubench.report import render

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "images"
# What README shows as text, too: one op on two backends of an H200, three sessions.
RESULT = ROOT / "results" / "intel-r-xeon-r-processor-nvidia-h200-d0f62e" / "20261120T203851Z-0fdc27ac.json"
WIDTH = 1200
LAST = "#r0-chart-speedup"  # the picture ends below the first two charts


def main(file: Path) -> None:
    """Draw the page in light and in dark."""
    sys.path.insert(0, str(ROOT))
    from tests.browser import chromium

    with tempfile.TemporaryDirectory() as folder, chromium.started() as browser:
        page_file = Path(folder) / "report.html"
        page_file.write_text(render([store.load(file)], "html"), encoding="utf-8")
        for name, scheme in (("report.png", "light"), ("report-dark.png", "dark")):
            context = browser.new_context(
                offline=True, viewport={"width": WIDTH, "height": 1000}, color_scheme=scheme
            )
            page = context.new_page()
            page.goto(page_file.as_uri())
            page.locator("[data-ready]").wait_for()
            end = page.locator(LAST).bounding_box()
            height = end["y"] + end["height"] + 4
            page.screenshot(
                path=FOLDER / name, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": height}
            )
            context.close()
            print(f"{name}: {(FOLDER / name).stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULT)
