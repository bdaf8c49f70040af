"""How reports look and where they go: format, width, colour, text and pictures. Shared by `run`, `report`, `compare`
and `noise`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gpubench.base import disk, streams, units
from gpubench.base.errors import GpubenchError, UsageError, require_choice
from gpubench.cli.options import ColorOptions, PlotOptions, ReportOptions, RunOptions

if TYPE_CHECKING:
    from gpubench.analysis.analyse import Analysis
    from gpubench.analysis.claims import Claim
    from gpubench.report.layout import RenderOptions

_SUFFIXES = {
    ".md": "markdown", ".json": "json", ".jsonl": "jsonl", ".csv": "csv", ".html": "html",
    ".txt": "plain", ".svg": "svg", ".png": "png",
}  # fmt: skip
_PLAIN_WIDTH = 80  # where no terminal says otherwise: the same bytes for the same file
_NARROWEST, _WIDEST = 60, 120


class ReportStyle(msgspec.Struct, frozen=True):
    """The options of a report, checked before anything is measured. `screen`: nobody asked for more than the answer."""

    format: str
    options: RenderOptions
    screen: bool = False

    def final_screen(self, analysis: Analysis, saved: Sequence[str]) -> str:
        """Return the text with which a run ends on standard output."""
        import shutil

        from gpubench import report
        from gpubench.report.sections.answer import HEIGHT

        height = shutil.get_terminal_size((_PLAIN_WIDTH, HEIGHT)).lines if sys.stdout.isatty() else HEIGHT
        return report.screen(analysis, self.format, self.options, saved=saved, height=height)

    def render(self, analyses: Sequence[Analysis], format: str) -> str:
        """The report as text; files get neither colour nor the terminal's width, and all columns: CSV has others.

        A column that no table turns out to have is reported on stderr: what was measured is shown all the same.
        """
        from gpubench import report

        every_column = msgspec.structs.replace(self.options, columns=())
        if format != self.format:
            return report.drawn(analyses, format, for_a_page(self.options))
        try:
            return report.drawn(analyses, format, self.options)
        except UsageError as error:
            if not self.options.columns:
                raise
            print(f"warning: {error.message}; all columns are shown", file=sys.stderr)
            return report.drawn(analyses, format, every_column)


def report_style(options: RunOptions) -> ReportStyle:
    """Raises UsageError for an unknown format, section, unit or key, and for columns that the format has not."""
    from gpubench import report

    terminal = sys.stdout.isatty()
    name = require_choice(
        chosen_format(options.format, None, terminal), [*report.FORMATS, *report.PICTURES], "--format"
    )
    check_picture(name, to_terminal=terminal)
    style = render_options(options, to_terminal=terminal)
    report.require_look(name, style)
    # Whoever names a format, sections, columns, an order or standard output means the report that has them.
    whole = options.full or any((options.format, options.sections, options.columns, options.sort))
    whole = whole or "-" in (options.output or [])
    return ReportStyle(format=name, options=style, screen=not whole)


def render_options(options: RunOptions | ReportOptions, *, to_terminal: bool) -> RenderOptions:
    """How a report is to look, not yet checked."""
    from gpubench.base.plugins.sections import usual

    sections = usual() if options.sections is None else tuple(units.split_words(options.sections))
    return look(
        options, to_terminal=to_terminal, time_unit=options.time_unit, sort=options.sort, sections=sections,
        columns=tuple(units.split_words(options.columns)), by_device=options.by_device,
    )  # fmt: skip


def look(options: ColorOptions, *, to_terminal: bool, **more: Any) -> RenderOptions:
    """How any document is to look: its width and colour, and `more` fields."""
    from gpubench.report.layout import RenderOptions

    color = wants_color(options.color, os.environ, terminal=to_terminal)
    return RenderOptions(width=table_width(to_terminal), color=color, ascii_only=options.ascii, **more)


def for_a_page(options: RenderOptions) -> RenderOptions:
    """Return these options without what a terminal brings, and with all columns."""
    return msgspec.structs.replace(options, width=_PLAIN_WIDTH, color=False, columns=())


def loaded_claims(name: str | None) -> tuple[Claim, ...]:
    """The claims of the file `name`; none without one. Raises InputError."""
    if name is None:
        return ()
    from gpubench.analysis.claims import load

    return load(name)


def chosen_format(format: str | None, output: str | None, to_terminal: bool) -> str:
    """The format asked for; else by the suffix of `output`; else by where the text goes."""
    if format is not None:
        return format
    if output is None or output == "-":
        return "table" if to_terminal else "plain"
    return format_of(output, "--output: ", hint="name the format with --format")


def format_of(path: str, option: str = "", *, hint: str = "give the file one of these suffixes") -> str:
    """Return the format of a report file, by its suffix. Raises UsageError for a suffix that no format has."""
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise UsageError(
            "unknown-suffix", f"{option}no format belongs to the suffix of {path!r}",
            why=f"known: {', '.join(_SUFFIXES)}; and .json.gz for a result", hint=hint,
        )  # fmt: skip
    return _SUFFIXES[suffix]


def wants_color(choice: str, environ: Mapping[str, str], *, terminal: bool) -> bool:
    """--color, then NO_COLOR (set and not empty), then FORCE_COLOR, then: a terminal that is not dumb."""
    if choice != "auto":
        return choice == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return terminal and environ.get("TERM") != "dumb"


def table_width(to_terminal: bool) -> int:
    """The terminal's width within reason; 80 elsewhere."""
    if not to_terminal:
        return _PLAIN_WIDTH
    import shutil

    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns))


def write(report: str | bytes, output: str | None) -> None:
    """To the file `output`, or to standard output. Text is UTF-8 whatever the locale says, and as it ends. Raises
    GpubenchError."""
    if output in (None, "-"):
        if isinstance(report, bytes):
            sys.stdout.flush()
            sys.stdout.buffer.write(report)
            return
        streams.put(report)
        return
    content = report.encode() if isinstance(report, str) else report
    try:
        disk.write_regular(str(output), content)
    except OSError as error:
        raise cannot_write(str(output), error) from error


def cannot_write(what: str, error: OSError) -> GpubenchError:
    """The error for a file, or files, that the system refused."""
    return GpubenchError(
        "cannot-write", f"cannot write {what}", why=disk.reason(error), hint=disk.remedy(error)
    )


# ---------------------------------------------------------------- pictures: `--plots DIR`, `--format svg|png`


def check_plots(options: PlotOptions) -> None:
    """Before anything is measured or read. Raises UsageError without the libraries that draw, and for an unknown
    format."""
    if options.plots is None:
        return
    from gpubench.report import PICTURES, plots
    from gpubench.result import store

    require_choice(options.plot_format, PICTURES, "--plot-format")
    plots.require_library("--plots")
    store.check_folder(options.plots, option="--plots")


def write_plots(
    analyses: Sequence[Analysis], options: PlotOptions, sections: Sequence[str] | None, time_unit: str
) -> None:
    """Write the charts and say how many on stderr; nothing without a folder. Raises GpubenchError."""
    if options.plots is None:
        return
    from gpubench.report import plots

    try:
        count = plots.write(
            analyses, options.plots, options.plot_format, sections=sections, time_unit=time_unit
        )
    except OSError as error:
        raise cannot_write(f"the charts into {options.plots}", error) from error
    print(f"wrote {count} chart{'s' if count != 1 else ''} to {options.plots}", file=sys.stderr)


def check_picture(format: str, *, to_terminal: bool) -> None:
    """Before anything is measured or read. Raises UsageError for a picture that cannot be drawn or shown here."""
    from gpubench.report import PICTURES, plots

    if format not in PICTURES:
        return
    plots.require_library(f"--format {format}")
    if to_terminal and format == "png":
        raise UsageError(
            "not-text", "--format png: a terminal does not show it", why="a PNG is no text",
            hint="name a file: -o report.png",
        )  # fmt: skip


def write_picture(
    analyses: Sequence[Analysis],
    format: str,
    output: str | None,
    sections: Sequence[str] | None,
    time_unit: str,
) -> None:
    """To the file `output`, or to standard output. Raises GpubenchError."""
    from gpubench.report import plots

    write(plots.picture(analyses, format, sections=sections, time_unit=time_unit), output)
