"""Tables for a terminal: bold titles, ruled headings, colour by direction. Rich is imported on use alone."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpubench.analysis.analyse import Analysis
from gpubench.escaping import wrapped
from gpubench.report.layout import (
    Line,
    Picture,
    RenderOptions,
    Section,
    Table,
    TextDocument,
    Tone,
    fitted,
    leading,
    visible,
)

if TYPE_CHECKING:
    from rich.console import Console

GAP = 2  # one blank and the box's blank
# Rich's SIMPLE_HEAD with hyphens: eight rows of four characters, only the rule below the heading drawn.
_ASCII_RULE = "    \n" * 2 + " -- \n" + "    \n" * 5
_STYLES: dict[Tone, str] = {
    "plain": "",
    "good": "green",
    "bad": "red",
    "muted": "dim",
    "gpu": "cyan",
    "cpu": "yellow",
}


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The reports of all runs as the characters for a terminal of `options.width` columns."""
    from gpubench.report.contents import documents  # a comparison draws without it

    return draw(documents(analyses, options), options)


def draw(documents: Sequence[TextDocument], options: RenderOptions) -> str:
    """Any documents as the characters for a terminal, one after the other."""
    console = _console(options)
    for i, report in enumerate(visible(documents)):
        if i:
            console.rule(characters="=" if options.ascii_only else "═")
        lead = leading(report)
        for section in report.sections[:lead]:
            _print_section(console, section, options)
        console.print()
        for line in report.headings:
            _print(console, line)
        for section in report.sections[lead:]:
            _print_section(console, section, options)
    return _output(console, options)


def _console(options: RenderOptions) -> Console:
    from rich.console import Console

    return Console(
        file=io.StringIO(), width=options.width, force_terminal=options.color, no_color=not options.color,
        color_system="standard" if options.color else None, highlight=False, markup=False, emoji=False,
        legacy_windows=False, _environ={},
    )  # fmt: skip


def _output(console: Console, options: RenderOptions) -> str:
    assert isinstance(console.file, io.StringIO)
    # Rich pads lines to the width; trailing blanks only disturb who copies from the terminal.
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    text = "\n".join(lines).strip("\n") + "\n"
    return text.encode("ascii", "replace").decode() if options.ascii_only else text


def _print(console: Console, text: str, style: str = "") -> None:
    from rich.text import Text

    console.print(Text(wrapped(text, console.width), style=style))


def _print_section(console: Console, section: Section, options: RenderOptions) -> None:
    console.print()
    if section.screen:
        for cells in section.screen:
            _print_cells(console, cells)
        return
    _print(console, section.title, "bold")
    for line in section.lines:
        _print(console, line)
    for whole in section.tables:
        table = fitted(whole, options.width, gap=GAP)
        if table.title:
            console.print()
            _print(console, table.title, "bold")
        if table.note:
            _print(console, table.note, "dim")
        console.print(_rich_table(table, options))
        if table.legend:
            _print(console, table.legend, "dim")
    for picture in section.pictures:
        _print_picture(console, picture)


def _print_picture(console: Console, picture: Picture) -> None:
    console.print()
    if picture.title:
        _print(console, picture.title, "bold")
    for row in picture.rows:
        _print_cells(console, (row,))


def _print_cells(console: Console, line: Line) -> None:
    from rich.text import Text

    text = Text.assemble(*((cell.text, _STYLES[cell.tone]) for cell in line))
    # What is drawn fits; the name of a file may not, and is of no use without its end.
    console.print(text, no_wrap=True, overflow="ignore", crop=False)


def _rich_table(table: Table, options: RenderOptions) -> Any:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    ruled = box.Box(_ASCII_RULE, ascii=True) if options.ascii_only else box.SIMPLE_HEAD
    drawn = RichTable(box=ruled, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    last = len(table.columns) - 1
    for i, column in enumerate(table.columns):
        drawn.add_column(
            Text(column.name), justify="right" if column.right else "left", no_wrap=i < last, overflow="fold"
        )
    for row in table.rows:
        drawn.add_row(*(Text(cell.text, style=_STYLES[cell.tone]) for cell in row))
    return drawn
