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
from gpubench.base.table import FEW, MANY
from gpubench.cli.options import ColorOptions, PlotOptions, ReportOptions, RunOptions

if TYPE_CHECKING:
    from gpubench.analysis.analyse import Analysis
    from gpubench.analysis.claims import Claim
    from gpubench.cli.ci import CiChannels
    from gpubench.report.layout import RenderOptions

_SUFFIXES = {
    ".md": "markdown", ".json": "json", ".jsonl": "jsonl", ".csv": "csv", ".html": "html",
    ".txt": "plain", ".svg": "svg", ".png": "png",
}  # fmt: skip
_PLAIN_WIDTH = 80  # where no terminal says otherwise: the same bytes for the same file
_NARROWEST, _WIDEST = 60, 120


class ReportStyle(msgspec.Struct, frozen=True):
    """The options of a report, checked before anything is measured."""

    format: str  # of the report
    options: RenderOptions  # how it is to look
    brief: bool = False  # Markdown is a summary: the reader has neither chosen sections nor asked for all
    screen: bool = False  # nobody asked for more than the answer
    quiet: bool = False  # say nothing of files that are written

    def final_screen(
        self, analyses: Sequence[Analysis], command: str, *, files: Sequence[str] = (), saved: Sequence[str] = ()
    ) -> str:  # fmt: skip
        """Return the answer. `command` reports the same again; `files` are those of the runs, `saved` those just
        written."""
        import shutil

        from gpubench import report
        from gpubench.report.sections.answer import HEIGHT

        height = shutil.get_terminal_size((_PLAIN_WIDTH, HEIGHT)).lines if sys.stdout.isatty() else HEIGHT
        options = msgspec.structs.replace(self.options, command=command)
        return report.screen(analyses, self.format, options, files=files, saved=saved, height=height)

    def render(self, analyses: Sequence[Analysis], format: str) -> str:
        """Return the report as text; files get neither colour nor the terminal's width, and all columns: CSV has
        others."""
        from gpubench import report

        options = self.options if format == self.format else for_a_page(self.options)
        if format != "markdown" or not self.brief:
            return report.draw_report(analyses, format, options)
        options = msgspec.structs.replace(options, sections=report.SUMMARY)
        rest = "The rest: `gpubench report FILE --full`, with `-o report.html` as a page."
        return f"{report.draw_report(analyses, format, options)}\n{rest}\n"


def report_style(options: RunOptions | ReportOptions, output: str | None = None) -> ReportStyle:
    """Return how the report is to look that goes to `output`, or to standard output. Raises UsageError for an unknown
    format, section, unit or key, and for columns that the format has not."""
    from gpubench import report

    terminal = output in (None, "-") and sys.stdout.isatty()
    format = options.format
    name = require_choice(
        chosen_format(format, output, terminal), [*report.FORMATS, *report.PICTURES], "--format"
    )
    check_picture(name, to_terminal=terminal)
    style = render_options(options, to_terminal=terminal)
    report.require_look(name, style)
    # Whoever names a format, sections, columns, an order or a place of the report means all of it.
    whole = options.full or any((format, options.sections, options.columns, options.sort, output))
    whole = whole or "-" in (options.output or [])
    brief = options.sections is None and not options.full
    return ReportStyle(format=name, options=style, brief=brief, screen=not whole, quiet=options.quiet)


def report_command(path: str | Path | None, results_dir: str | Path | None = None) -> str:
    """Return the command that reports a result again: without its name if it is the newest in `results_dir`; empty
    without a file."""
    from gpubench.base.installation import quote
    from gpubench.base.streams import printable

    if path is None:
        return ""
    if results_dir is not None and Path(path).resolve().is_relative_to(Path(results_dir).resolve()):
        return "gpubench report"
    return f"gpubench report {'FILE' if str(path) == '-' else printable(quote(str(path)))}"


def render_options(options: RunOptions | ReportOptions, *, to_terminal: bool) -> RenderOptions:
    """How a report is to look, not yet checked."""
    from gpubench.base.plugins.sections import current_name, usual

    sections = (
        usual() if options.sections is None else tuple(map(current_name, units.split_words(options.sections)))
    )
    return look(
        options, to_terminal=to_terminal, time_unit=options.time_unit, sort=options.sort, sections=sections,
        columns=tuple(map(current_name, units.split_words(options.columns))), by_device=options.by_device,
    )  # fmt: skip


def look(options: ColorOptions, *, to_terminal: bool, **more: Any) -> RenderOptions:
    """How any document is to look: its width and colour, and `more` fields."""
    from gpubench.report.layout import RenderOptions

    color = count_colors(options.color, os.environ, terminal=to_terminal)
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


# Terminals that have 16 colours unless COLORTERM says more; others with few are called dumb or -16color.
_FEW_COLORS = {"ansi", "cygwin", "linux", "rxvt", "screen", "tmux", "vt100", "vt220", "xterm"}


def count_colors(choice: str, environ: Mapping[str, str], *, terminal: bool) -> int:
    """Return how many colours to use, 0 for none: by --color, then NO_COLOR (set and not empty), then FORCE_COLOR,
    then on a terminal that is not dumb."""
    term = environ.get("TERM", "")
    colored = terminal and term != "dumb"
    if choice != "auto":
        colored = choice == "always"
    elif environ.get("NO_COLOR") or environ.get("FORCE_COLOR"):
        colored = not environ.get("NO_COLOR")
    few = not environ.get("COLORTERM") and (term in _FEW_COLORS or term.endswith("-16color"))
    return (FEW if few else MANY) if colored else 0


def table_width(to_terminal: bool) -> int:
    """The terminal's width within reason; 80 elsewhere."""
    if not to_terminal:
        return _PLAIN_WIDTH
    import shutil

    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns))


def write(report: str | bytes, output: str | None, *, quiet: bool = True) -> None:
    """Write to the file `output` and say so unless `quiet`, or to standard output. Text is UTF-8 whatever the locale
    says, and as it ends. Raises GpubenchError."""
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
    if not quiet:
        print(f"wrote {output}", file=sys.stderr)


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


def write_report(
    analyses: Sequence[Analysis], style: ReportStyle, format: str, output: str | None,
    channels: CiChannels | None = None,
) -> None:  # fmt: skip
    """Write a picture or text to the file `output`, or to standard output. Raises GpubenchError."""
    from gpubench.report import PICTURES, plots

    if format in PICTURES:
        sections, unit = style.options.sections, style.options.time_unit
        write(plots.picture(analyses, format, sections=sections, time_unit=unit), output, quiet=style.quiet)
        return
    text = style.render(analyses, format)
    write(channels.comment(text, format) if channels else text, output, quiet=style.quiet)


# ---------------------------------------------------------------- `--open`


def open_page(analyses: Sequence[Analysis], style: ReportStyle, outputs: Sequence[str]) -> None:
    """Show the page among `outputs` in the browser, else one in the temporary folder, and say so on stderr. Raises
    GpubenchError."""
    why = _no_browser(os.environ)
    page = next((path for path in outputs if path.lower().endswith(".html")), None)
    if page is None and not why:
        import tempfile

        page = os.path.join(tempfile.mkdtemp(prefix="gpubench-"), "report.html")
        write(style.render(analyses, "html"), page, quiet=False)
    if page is not None and not why:
        import webbrowser

        if webbrowser.open(Path(page).resolve().as_uri()):
            return
        why = "no browser could be started"
    how = f"open {page} yourself" if page else "write the page to a file: -o report.html"
    print(f"warning: --open shows no page: {why}; {how}", file=sys.stderr)


def _no_browser(environ: Mapping[str, str]) -> str:
    """Return why there is no browser to open; empty if there may be one. A text browser would take the terminal."""
    if environ.get("CI", "").lower() not in ("", "0", "false"):
        return "this is a continuous integration (CI is set)"
    if sys.platform.startswith(("win", "darwin")):
        return ""
    graphical = any(environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    return "" if graphical else "there is no display here"
