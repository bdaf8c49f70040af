"""Write what pages show of real results: text blocks, and docs/images/terminal.svg. Run by `make docs`.

A block stands between `<!-- gpubench report ARGUMENTS -->` (or `advise`) and `<!-- end -->` and is what that command
prints. The picture is the report that a terminal of 80 columns shows, with its colours.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
from pathlib import Path

from gpubench import report, store
from gpubench.selectors import selection

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "advice.md")
PICTURE = ROOT / "docs" / "images" / "terminal.svg"
RESULTS = "results/intel-r-xeon-r-processor-nvidia-h200-d0f62e"
PICTURED = f"{RESULTS}/20261120T203851Z-0fdc27ac.json"
DEVICE = "cupy"  # one of them: the picture has to be read in seconds
SECTIONS = ("verdict", "breakeven", "speedup", "chart")
_BLOCK = re.compile(
    r"(<!-- gpubench (?P<command>report|advise) (?P<arguments>[^\n]*) -->\n)```\n.*?```\n<!-- end -->",
    re.DOTALL,
)
# The picture must not ask anybody for a font.
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def page(text: str) -> str:
    """A page with its blocks printed anew."""
    return _BLOCK.sub(
        lambda found: f"{found[1]}```\n{_printed(found['command'], found['arguments'])}```\n<!-- end -->", text
    )


def picture() -> str:
    """The report of one result as a terminal shows it, as SVG."""
    from rich.console import Console
    from rich.text import Text

    runs = [store.load(ROOT / PICTURED)]
    drawn = report.render(
        runs, "table", width=80, color=True, sections=SECTIONS, keep=selection([f"*@{DEVICE}"], [])
    )
    console = Console(record=True, width=82, file=io.StringIO(), legacy_windows=False)
    console.print(Text(f"$ gpubench {' '.join(runs[0].argv)}\n", style="bold"))
    console.print(Text.from_ansi(drawn), no_wrap=True)
    return _FONT.sub("", console.export_svg(title="gpubench", unique_id="gpubench"))


def _printed(command: str, arguments: str) -> str:
    """What the command prints with these arguments; files are named from the root."""
    import contextlib
    import os

    from gpubench.cli import main

    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        with contextlib.redirect_stdout(out):
            plain = ["--format", "plain"] if command == "report" else []
            code = main([command, *shlex.split(arguments), *plain])
    finally:
        os.chdir(before)
    if code:
        raise SystemExit(f"gpubench {command} {arguments}: exit {code}")
    out.flush()
    data = out.buffer
    assert isinstance(data, io.BytesIO)
    return data.getvalue().decode()


if __name__ == "__main__":
    for file in PAGES:
        file.write_text(page(file.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")
    sys.stdout.write(", ".join(str(file.relative_to(ROOT)) for file in (*PAGES, PICTURE)) + "\n")
