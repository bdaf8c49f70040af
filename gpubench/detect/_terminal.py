"""The picture on a terminal: sections in a frame, memory as a bar. Degrades without colour, when narrow, in ASCII."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpubench.detect.picture import Section

BAR_CELLS = 20
# What is usable, and what is not: by sign first, so that it is told without colour.
_STYLES = {"✓": "green", "✗": "yellow"}
NARROWEST, WIDEST = 40, 100


def draw(sections: Sequence[Section], *, color: str, ascii: bool) -> str:
    """The sections as text; with ANSI colours if `color` says so and it is worth it."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from gpubench.detect.picture import spelled

    colored = color == "always" or (color == "auto" and sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    ascii = ascii or not _unicode()
    width = min(WIDEST, max(NARROWEST, _columns()))
    table = Table(box=box.ASCII if ascii else box.ROUNDED, show_header=False, show_lines=True, width=width)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for section in sections:
        headline = Text()  # a base style would spread over the lines below
        headline.append(section.headline, style="bold" if section.good else "bold yellow")
        if section.used is not None:
            headline.append("\n")
            headline.append(bar(section.used, ascii), style="cyan")
        for line in section.lines:
            headline.append(f"\n{spelled(line) if ascii else line}", style=_STYLES.get(line[:1], ""))
        table.add_row(Text(section.title, style="bold cyan"), headline)
    stream = io.StringIO()
    console: Any = Console(file=stream, width=width, force_terminal=colored, no_color=not colored, highlight=False,
                           color_system="standard" if colored else None, emoji=False, markup=False)  # fmt: skip
    console.print(table)
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    return "\n".join(lines) if not ascii else "\n".join(lines).encode("ascii", "replace").decode()


def bar(used: float, ascii: bool) -> str:
    """How full something is, with the share in words."""
    full = round(max(0.0, min(1.0, used)) * BAR_CELLS)
    on, off = ("#", "-") if ascii else ("█", "░")
    return f"{on * full}{off * (BAR_CELLS - full)} {used:.0%} used"


def _columns() -> int:
    text = os.environ.get("COLUMNS", "")
    if text.isascii() and text.isdigit() and int(text):
        return int(text)
    try:
        return os.get_terminal_size().columns
    except OSError:
        return 80


def _unicode() -> bool:
    try:
        "╭█✓✗".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
