"""Result files during a run, and reports after it: their places, formats, width, colour, text and pictures.

`run`, `report`, `compare` and `noise` use this module.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gpubench.base import disk, streams, units
from gpubench.base.errors import ExitCode, GpubenchError, UsageError, require_choice
from gpubench.base.installation import quote
from gpubench.base.plugins.sections import PICTURES
from gpubench.base.table import FEW, MANY
from gpubench.cli.ci import CiChannels
from gpubench.cli.exit import tell
from gpubench.cli.options import CommonOptions, PlotOptions, ReportOptions, RunOptions, SavingOptions
from gpubench.result import store
from gpubench.result.run import Run

if TYPE_CHECKING:
    from gpubench.analysis.analyse import Analysis
    from gpubench.analysis.claims import Claim
    from gpubench.report.layout import RenderOptions


RETRY_S = 1.0  # seconds after which a file that could not be written is tried again
EVENTS = "jsonl"  # the format that is written while the run goes on (`progress.EventLog`)


def require_text(options: RunOptions) -> None:
    """Raise UsageError for the value of an option that is not valid UTF-8, because a result file could not
    store it."""
    for option, texts in {
        "--label": [options.label or ""], "--tag": options.tag, "--context": options.context,
        "--output": options.output,
    }.items():  # fmt: skip
        try:
            "".join(texts or "").encode()
        except UnicodeEncodeError:
            raise UsageError(
                "not-text", f"{option}: the value is not valid UTF-8", why="a result file holds text",
                hint="write it in UTF-8",
            ) from None  # fmt: skip


def check_outputs(output: list[str], options: RunOptions) -> list[str]:
    """Return the paths in `output` without `-` and duplicates. Raises UsageError for a path that cannot be
    written, and for a file that the run reads."""
    output = [path for path in output if path != "-"]
    places: dict[str, str] = {}
    for path in output:
        store.check_writable(path, options.like or "", options.claims or "")
        if store.is_result_name(path):
            store.check_part(path)
        else:  # refuses a suffix that no format has
            check_picture(format_of(path, "--output: "), to_terminal=False)
        places.setdefault(os.path.realpath(path), path)
    check_folder(output, options)
    return [*places.values()]  # a file named twice would be locked twice, and the run would wait for itself


def check_folder(output: Sequence[str], options: SavingOptions) -> None:
    """Check that the results folder can be written to, if a result goes there. Raises UsageError if it cannot."""
    if not options.no_save and not any(store.is_result_name(path) for path in output):
        store.check_folder(options.results_dir or store.default_results_dir())


@contextlib.contextmanager
def lock(output: Sequence[str], options: RunOptions) -> Iterator[None]:
    """Keep other runs from writing the result files in `output` during the `with` block. A run that has to wait
    for another one says so on stderr. Raises InputError if the other run keeps a file for longer than
    --lock-timeout."""
    timeout_s = units.parse_duration(options.lock_timeout, option="--lock-timeout")

    def waits(holder: str) -> None:
        if not options.quiet:
            print(f"waiting for another run: {holder}", file=sys.stderr)

    def warn(why: str) -> None:
        print(f"warning: {why}", file=sys.stderr)

    with contextlib.ExitStack() as held:
        for path in sorted(path for path in output if store.is_result_name(path)):
            held.callback(store.lock_result(path, " ".join(sys.argv[1:]), timeout_s, waits, warn).release)
        yield


def keep_part(output: Sequence[str], *, resumed: bool) -> None:
    """Rename the `.part` file that an earlier run left beside the first result file in `output`, and print a
    warning. If this run continues the earlier one (`resumed`), the file stays. Raises GpubenchError if the file
    cannot be renamed."""
    for path in [path for path in output if store.is_result_name(path)][:1]:
        try:
            aside = store.set_aside(path, resumed=resumed)
        except OSError as error:
            raise store.cannot_save(store.part_of(path), error) from error
        if aside is not None:
            result = quote(str(aside).removesuffix(store.PART_SUFFIX))
            print(
                f"warning: {store.part_of(path)} holds what a run measured that ended early, and this run does not go"
                f" on with it; it is kept as {aside}: gpubench run --append {result} goes on there",
                file=sys.stderr,
            )


class Saver:
    """Saves the result: to a `.part` file during the run, and to all result files at the end. Without result
    files that the user named, this is a new file in the results folder."""

    def __init__(self, output: list[str], options: SavingOptions) -> None:
        self._wished: list[str | Path] = [path for path in output if store.is_result_name(path)]
        self._folder = options.results_dir
        self._anywhere = not (self._wished or options.no_save)  # whether it goes to the results folder
        self._journal: store.Journal | None = None
        self._failed_at: float | None = None
        self.saved: list[str | Path] = []  # the files that hold the whole result
        self.error: GpubenchError | None = None  # why a requested file was not written
        self.empty = False  # whether nothing was measured and no file was named

    def check(self, run: Run) -> None:
        """Before measuring, check that the results folder can be written to, if the result of `run` goes there.
        Raises UsageError if not."""
        if self._anywhere:
            store.check_result_path(self._folder or store.default_results_dir(), run)

    def __call__(self, run: Run) -> None:
        """Write what is new to the `.part` file.

        Raises GpubenchError for the first of several failures in a row. For RETRY_S after a failure, calls do
        nothing.
        """
        failed_at = self._failed_at
        if failed_at is not None and time.monotonic() - failed_at < RETRY_S:
            return
        try:
            # A run without samples is not kept, nor is its folder made.
            nothing_yet = self._anywhere and not _has_samples(run)
            if self._journal is None and not nothing_yet and (places := self._places(run)):
                self._journal = store.Journal(store.part_of(places[0]))
            if self._journal is not None:
                self._journal.write(run)
            self._failed_at = None
        except OSError as error:
            self._failed_at = time.monotonic()
            if failed_at is None:
                raise store.cannot_save(
                    self._wished[0] if self._wished else "the results folder", error
                ) from error

    def finish(self, run: Run) -> None:
        """Save the whole result. A run that measured nothing is saved only in a named file. If no result file
        can be written, save it in the user's data folder or the temporary one, and say so in `error`. Then the
        journal is removed, and the result files are tried once more."""
        self.saved = []
        if self._anywhere and not _has_samples(run):
            self.empty = True
            return
        self.error = self._save_result(run)
        if self.error is not None and not self.saved:
            rescued = self._rescue(run, self.error)
            if rescued is None:
                return
            self._discard_journal()
            # The journal itself may have filled the disk.
            if self._save_result(run) is None:
                self.error = None
                rescued.unlink(missing_ok=True)
            else:
                self.saved = [rescued]
        self._discard_journal()

    def _save_result(self, run: Run) -> GpubenchError | None:
        """Save the result to every requested file. Returns the last error, or None."""
        failed = None
        try:
            places = self._places(run)
        except OSError as error:
            return store.cannot_save("the results folder", error)
        for path in places:
            try:
                store.save(run, path)
                self.saved.append(path)
            except GpubenchError as error:
                failed = error
        return failed

    def _places(self, run: Run) -> list[str | Path]:
        """Return the result files, or raise OSError if the results folder cannot be created."""
        if self._anywhere and not self._wished:
            self._wished.append(store.result_path(self._folder or store.default_results_dir(), run))
        return self._wished

    def _rescue(self, run: Run, because: GpubenchError) -> Path | None:
        """Save the result in the user's data folder or the temporary one, return its path, and say so in
        `error`. Returns None if neither folder takes it."""
        cause = because.__cause__
        mend = disk.mend(cause) if isinstance(cause, OSError) else ""
        path = store.rescue(run)
        if path is not None:
            then = f"{mend}, then go on there" if mend else "go on there"
            self.error = GpubenchError(
                because.code, because.message, why=f"{because.why}; it is saved in {path}",
                hint=f"{then}: gpubench run --append {quote(str(path))}",
            )  # fmt: skip
            return path
        part = self._journal.path if self._journal is not None and self._journal.path.exists() else None
        rest = f"; what was measured before that is in {part}" if part else ""
        self.error = GpubenchError(
            because.code, because.message,
            why=f"{because.why}, and neither your data folder nor the temporary folder takes it{rest}",
            hint=f"{mend or 'choose another place'} and run it again",
        )  # fmt: skip
        if self._journal is not None:
            self._journal.close()
        return None

    def _discard_journal(self) -> None:
        if self._journal is not None:
            self._journal.remove()


def _has_samples(run: Run) -> bool:
    return any(outcome.blocks for outcome in run.measurements)


def read_back(run: Run) -> Run:
    """Return the run with numbers rounded as in its file, so that conclusions equal those of `report`."""
    return store.loads(store.dumps(run), "the result")


def judge_gates(stored: Run, analyses: Sequence[Analysis], saver: Saver) -> tuple[Run, list[Analysis]]:
    """Return the run and its analyses. If a gate failed, both get the exit code of gates, and the run is saved
    again. A run that did not end with OK stays as it is."""
    from gpubench.analysis.findings import has_failures

    if stored.exit_code != ExitCode.OK or not has_failures(analyses):
        return stored, list(analyses)
    ended = msgspec.structs.replace(stored, exit_code=int(ExitCode.GATE), exit_reason="gate")
    saver.finish(ended)
    return ended, [analysis.replace(run=ended) for analysis in analyses]


def deliver(
    stored: Run, analyses: Sequence[Analysis], output: list[str], saved: Sequence[str], style: ReportStyle,
    channels: CiChannels,
) -> list[GpubenchError]:  # fmt: skip
    """Write the reports to the files in `output`, and the answer or the report to stdout. `saved` are the
    result files of the run. Returns the errors of files that could not be written, after all others were
    written."""
    errors = []
    for path in output:
        # Events were written during the run.
        if not store.is_result_name(path) and (format := format_of(path)) != EVENTS:
            try:
                write_report(analyses, style, format, path, channels)
            except GpubenchError as error:
                errors.append(error)
    if style.screen:
        command = report_command(next(iter(saved), None), store.default_results_dir())
        write(style.final_screen(analyses, command, saved=saved), None)
    elif style.format == "json":
        streams.put(store.dumps(stored).decode())
    elif style.format != EVENTS:
        try:
            write_report(analyses, style, style.format, None, channels)
        except UsageError as error:
            if not style.options.columns:
                raise
            # A column that no table turns out to have: what was measured is shown all the same.
            print(f"warning: {error.message}; all columns are shown", file=sys.stderr)
            options = msgspec.structs.replace(style.options, columns=())
            all_columns = msgspec.structs.replace(style, options=options)
            write_report(analyses, all_columns, style.format, None, channels)
    return errors


def exit_code(stored: Run, errors: Sequence[GpubenchError]) -> int:
    """Print the errors of files that could not be written, and return the exit code: FAILED if there are any,
    else the code of the run."""
    for error in errors:
        sys.stdout.flush()
        tell(error)
    return int(ExitCode.FAILED) if errors else stored.exit_code


_SUFFIXES = {
    ".md": "markdown", ".json": "json", ".jsonl": "jsonl", ".csv": "csv", ".html": "html",
    ".txt": "plain", ".svg": "svg", ".png": "png",
}  # fmt: skip
_PLAIN_WIDTH = 80  # width without a terminal, so that a file always gives the same bytes
_NARROWEST, _WIDEST = 40, 120


class ReportStyle(msgspec.Struct, frozen=True):
    """The options of a report, checked before anything is measured."""

    format: str  # format of the report
    options: RenderOptions  # look of the report
    brief: bool = False  # whether Markdown is a summary: the user chose no sections and did not ask for all
    screen: bool = False  # whether only the answer is shown
    quiet: bool = False  # whether written files are not mentioned

    def final_screen(
        self, analyses: Sequence[Analysis], command: str, *, files: Sequence[str] = (), saved: Sequence[str] = ()
    ) -> str:  # fmt: skip
        """Return the answer as the last screen of a run. `command` shows the report again, `files` are the
        files of the runs, and `saved` are the new files."""
        import shutil

        from gpubench import report
        from gpubench.report.sections.answer import HEIGHT

        height = shutil.get_terminal_size((_PLAIN_WIDTH, HEIGHT)).lines if sys.stdout.isatty() else HEIGHT
        options = msgspec.structs.replace(self.options, command=command)
        return report.screen(analyses, self.format, options, files=files, saved=saved, height=height)

    def render(self, analyses: Sequence[Analysis], format: str) -> str:
        """Return the report as text. A format other than the style's gets no colour, the usual width and all
        columns."""
        from gpubench import report

        options = self.options
        if format != self.format:
            # Formats have different names for columns.
            options = msgspec.structs.replace(options, width=_PLAIN_WIDTH, color=False, columns=())
        if format != "markdown" or not self.brief:
            return report.draw_report(analyses, format, options)
        options = msgspec.structs.replace(options, sections=report.SUMMARY)
        rest = "The rest: `gpubench report FILE --full`, with `-o report.html` as a page."
        return f"{report.draw_report(analyses, format, options)}\n{rest}\n"


def report_style(options: RunOptions | ReportOptions, output: str | None = None) -> ReportStyle:
    """Return the style of the report that is written to `output`, or to standard output for None and `-`.
    Raises UsageError for a wrong option, and for a picture that cannot be drawn or shown here. Columns of
    tables are checked later."""
    from gpubench import report

    terminal = output in (None, "-") and sys.stdout.isatty()
    format = options.format
    name = require_choice(chosen_format(format, output, terminal), [*report.FORMATS, *PICTURES], "--format")
    check_picture(name, to_terminal=terminal)
    style = render_options(options, to_terminal=terminal)
    report.require_look(name, style)
    # Whoever names a format, sections, columns, an order or a place of the report means all of it.
    whole = options.full or any((format, options.sections, options.columns, options.sort, output))
    whole = whole or "-" in (options.output or [])
    brief = options.sections is None and not options.full
    return ReportStyle(format=name, options=style, brief=brief, screen=not whole, quiet=options.quiet)


def report_command(path: str | Path | None, results_dir: str | Path | None = None) -> str:
    """Return the command that shows the report of a result again, or an empty text if `path` is None. A file in
    `results_dir` is not named, because the command finds the newest result there by itself."""
    from gpubench.base.streams import printable

    if path is None:
        return ""
    if results_dir is not None and Path(path).resolve().is_relative_to(Path(results_dir).resolve()):
        return "gpubench report"
    return f"gpubench report {'FILE' if str(path) == '-' else printable(quote(str(path)))}"


def render_options(options: RunOptions | ReportOptions, *, to_terminal: bool) -> RenderOptions:
    """Return the look of a report, without checking it."""
    from gpubench.base.plugins.sections import usual

    sections = tuple(units.split_words(options.sections)) or usual()
    return look(
        options, to_terminal=to_terminal, time_unit=options.time_unit, sort=options.sort, sections=sections,
        columns=tuple(units.split_words(options.columns)), by_device=options.by_device,
    )  # fmt: skip


def look(options: CommonOptions, *, to_terminal: bool, **more: Any) -> RenderOptions:
    """Return the look of any document: its width, its colour and the fields in `more`. `to_terminal` tells
    whether it is shown on a terminal."""
    from gpubench.report.layout import RenderOptions

    color = count_colors(options.color, os.environ, terminal=to_terminal)
    return RenderOptions(width=table_width(to_terminal), color=color, ascii_only=options.ascii, **more)


def loaded_claims(name: str | None) -> tuple[Claim, ...]:
    """Return the claims in the file `name`, or an empty tuple for None. Raises InputError if the file cannot be
    used."""
    if name is None:
        return ()
    from gpubench.analysis.claims import load

    return load(name)


def chosen_format(format: str | None, output: str | None, to_terminal: bool) -> str:
    """Return the requested format, else the format of the suffix of `output`, else the default for standard
    output."""
    if format is not None:
        return format
    if output is None or output == "-":
        return "table" if to_terminal else "plain"
    return format_of(output, "--output: ", hint="name the format with --format")


def format_of(path: str, option: str = "", *, hint: str = "give the file one of these suffixes") -> str:
    """Return the format of a report file by its suffix. Raises UsageError for an unknown suffix; `option` begins
    its message, and `hint` is its remedy."""
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise UsageError(
            "unknown-suffix", f"{option}no format belongs to the suffix of {path!r}",
            why=f"known: {', '.join(_SUFFIXES)}; and .json.gz for a result", hint=hint,
        )  # fmt: skip
    return _SUFFIXES[suffix]


# Terminals with 16 colours unless COLORTERM is set. Names of other terminals with few colours end with
# -16color.
_FEW_COLORS = {"ansi", "cygwin", "linux", "rxvt", "screen", "tmux", "vt100", "vt220", "xterm"}


def count_colors(choice: str, environ: Mapping[str, str], *, terminal: bool) -> int:
    """Return the number of colours to use: FEW, MANY, or 0 for none.

    The order of precedence is --color (`choice`), NO_COLOR (set and not empty), FORCE_COLOR, and then whether
    there is a terminal that is not dumb.
    """
    term = environ.get("TERM", "")
    colored = terminal and term != "dumb"
    if choice != "auto":
        colored = choice == "always"
    elif environ.get("NO_COLOR") or environ.get("FORCE_COLOR"):
        colored = not environ.get("NO_COLOR")
    few = not environ.get("COLORTERM") and (term in _FEW_COLORS or term.endswith("-16color"))
    return (FEW if few else MANY) if colored else 0


def table_width(to_terminal: bool) -> int:
    """Return the width of the terminal, from 40 to 120 columns. Return 80 if the output is no terminal."""
    if not to_terminal:
        return _PLAIN_WIDTH
    import shutil

    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns))


def write(report: str | bytes, output: str | None, *, quiet: bool = True) -> None:
    """Write `report` to the file `output`, or to standard output for None and `-`. Text is written in UTF-8
    with its line ends unchanged. Raises GpubenchError if the file cannot be written."""
    if output in (None, "-"):
        if isinstance(report, str):
            streams.put(report)
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(report)
        return
    try:
        disk.write_whole(str(output), report.encode() if isinstance(report, str) else report)
    except OSError as error:
        raise cannot_write(str(output), error) from error
    if not quiet:
        print(f"wrote {output}", file=sys.stderr)


def cannot_write(what: str, error: OSError) -> GpubenchError:
    """Return the error for a file, or for files, that the system refused to write."""
    return GpubenchError(
        "cannot-write", f"cannot write {what}", why=disk.reason(error), hint=disk.remedy(error)
    )


# ---------------------------------------------------------------- pictures: `--plots DIR`, `--format svg|png`


def check_plots(options: PlotOptions) -> None:
    """Check the options of charts before anything is measured or read.

    Raises UsageError if a drawing library is missing, for an unknown format, and for a folder that cannot be
    written to.
    """
    if options.plots is None:
        return
    from gpubench.report import plots

    require_choice(options.plot_format, PICTURES, "--plot-format")
    plots.require_library("--plots")
    store.check_folder(options.plots, option="--plots")


def write_plots(analyses: Sequence[Analysis], options: RunOptions | ReportOptions, look: RenderOptions) -> None:
    """Write the charts and print their number on stderr. Does nothing if no folder was given. Raises
    GpubenchError if a chart cannot be written."""
    if options.plots is None:
        return
    from gpubench.report import plots

    try:
        count = plots.write(analyses, options.plots, options.plot_format, look)
    except OSError as error:
        raise cannot_write(f"the charts into {options.plots}", error) from error
    if not options.quiet:
        print(f"wrote {units.count_noun(count, 'chart')} to {options.plots}", file=sys.stderr)


def check_picture(format: str, *, to_terminal: bool) -> None:
    """Check the format of a picture before anything is measured or read. Raises UsageError if it cannot be
    drawn or shown here."""
    if format not in PICTURES:
        return
    from gpubench.report import plots

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
    """Write a picture or text to the file `output`, or to standard output for None and `-`. `channels` gives
    Markdown its marker and its limit. Raises GpubenchError if the file cannot be written."""
    if format in PICTURES:
        from gpubench.report import plots

        write(plots.picture(analyses, format, style.options), output, quiet=style.quiet)
        return
    text = style.render(analyses, format)
    write(channels.comment(text, format) if channels else text, output, quiet=style.quiet)


# ---------------------------------------------------------------- `--open`


def open_page(analyses: Sequence[Analysis], style: ReportStyle, outputs: Sequence[str]) -> None:
    """Show the HTML page among `outputs` in the browser, or else a new page in the temporary folder. Prints a
    warning on stderr if no browser can show it. Raises GpubenchError if the page cannot be drawn or written."""
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
    """Return why no browser can be opened, or an empty text if there may be one."""
    if streams.in_ci(environ):
        return "this is a continuous integration (CI is set)"
    if sys.platform.startswith(("win", "darwin")):
        return ""
    # A text browser would take over the terminal.
    graphical = any(environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    return "" if graphical else "there is no display here"
