"""The places of a run's result: result files while it is measured, reports once it is over."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.findings import has_failures
from gpubench.base import disk, streams, units
from gpubench.base.errors import ExitCode, GpubenchError, UsageError
from gpubench.base.installation import quote
from gpubench.cli import rendering
from gpubench.cli.ci import CiChannels
from gpubench.cli.exit import tell
from gpubench.cli.options import RunOptions, SavingOptions
from gpubench.cli.rendering import ReportStyle
from gpubench.result import store
from gpubench.result.run import Measurement, Run

RETRY_S = 1.0  # a place that failed is tried again after so long
EVENTS = "jsonl"  # the format that is written while the run goes on (`progress.EventLog`)


def require_text(options: RunOptions) -> None:
    """Raises UsageError for bytes that are no text: they could not be stored."""
    stored = {
        "--label": [options.label or ""], "--tag": options.tag, "--context": options.context,
        "--output": options.output,
    }  # fmt: skip
    for option, texts in stored.items():
        if any(0xD800 <= ord(letter) <= 0xDFFF for text in texts or [] for letter in text):
            raise UsageError(
                "not-text", f"{option}: the value is not valid UTF-8", why="a result file holds text",
                hint="write it in UTF-8",
            )  # fmt: skip


def check_outputs(output: list[str], style: ReportStyle, options: SavingOptions) -> list[str]:
    """Every output path can be written: found out before measuring, not after. Raises UsageError.

    `-` is standard output, which carries the report in any case.
    """
    output = [path for path in output if path != "-"]
    for path in output:
        if not store.is_result_name(path):
            # Refuses a suffix that no format has.
            rendering.check_picture(rendering.format_of(path, "--output: "), to_terminal=False)
        store.check_writable(path)
        if store.is_result_name(path):
            store.check_part(path)
    check_folder(output, options)
    return output


def check_folder(output: Sequence[str], options: SavingOptions) -> None:
    """The results folder can be written, if the result goes there. Raises UsageError."""
    if not options.no_save and not any(store.is_result_name(path) for path in output):
        store.check_folder(options.results_dir or store.default_results_dir())


@contextlib.contextmanager
def lock(output: Sequence[str], options: RunOptions) -> Iterator[None]:
    """Keep other runs from writing the result files: from before they are read until the command ends.

    Raises InputError where another run keeps one of them for longer than --lock-timeout.
    """
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
    """Before measuring: keep what a killed run left beside the result, where this run does not go on with it, and say
    so. Raises GpubenchError where it can be neither kept nor replaced."""
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
    """Keeps the result on the disk: beside the first result file while the run goes on, and whole at its end in every
    result file asked for, else in the results folder. A place that fails loses nothing."""

    def __init__(self, output: list[str], options: SavingOptions) -> None:
        self._wished: list[str | Path] = [path for path in output if store.is_result_name(path)]
        self._folder = options.results_dir
        self._anywhere = not (self._wished or options.no_save)
        self._journal: store.Journal | None = None
        self._made: list[Path] = []  # folders that were not there before, the inner one first
        self._failed_at: float | None = None
        self.saved: list[str | Path] = []
        self.error: GpubenchError | None = None
        self.empty = False  # nothing was measured, and nobody named a file

    def check(self, run: Run) -> None:
        """Find out before measuring that the result of `run` cannot go into its folder. Raises UsageError."""
        if self._anywhere:
            store.check_result_path(self._folder or store.default_results_dir(), run)

    def __call__(self, run: Run) -> None:
        """Keep what is new. Raises GpubenchError the first time that a place fails; it is tried again every second."""
        failed_at = self._failed_at
        if failed_at is not None and time.monotonic() - failed_at < RETRY_S:
            return
        try:
            if self._journal is None and (places := self._places(run)):
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
        """Save the whole result. Where no wished place takes it, it goes to the user's data folder or the temporary
        folder, and `error` tells so. A run that measured nothing is saved only where somebody named a file."""
        self.saved = []
        if self._anywhere and not any(
            isinstance(outcome, Measurement) and outcome.blocks for outcome in run.outcomes
        ):
            self.empty = True
            self._discard_journal()
            for folder in self._made:
                with contextlib.suppress(OSError):  # another run may have saved something there
                    folder.rmdir()
            return
        self.error = self._save_result(run)
        if self.error is not None and not self.saved:
            rescued = self._rescue(run, self.error)
            if rescued is None:
                return
            self._discard_journal()
            # What the run kept there may have been what filled it.
            if self._save_result(run) is None:
                self.error = None
                rescued.unlink(missing_ok=True)
            else:
                self.saved = [rescued]
        self._discard_journal()

    def _save_result(self, run: Run) -> GpubenchError | None:
        """Save the result in every wished place. Returns the error of the last one that failed."""
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
        """The result files. Raises OSError where the results folder cannot be made."""
        if self._anywhere and not self._wished:
            folder = Path(self._folder or store.default_results_dir())
            there = folder.exists()
            path = store.result_path(folder, run)
            self._made = [path.parent] if there else [path.parent, folder]
            self._wished.append(path)
        return self._wished

    def _rescue(self, run: Run, because: GpubenchError) -> Path | None:
        """Save the result where there is room, and name both places in `error`. None if it fits nowhere."""
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


def read_back(run: Run) -> Run:
    """The run with the digits of its file: whatever is derived from it is what `report` derives."""
    return store.loads(store.dumps(run), "the result")


def judge_gates(stored: Run, analyses: Sequence[Analysis], saver: Saver) -> tuple[Run, list[Analysis]]:
    """The run with the exit code of its gates, saved once more where one failed; what broke before outweighs them."""
    if stored.exit_code != ExitCode.OK or not has_failures(analyses):
        return stored, list(analyses)
    ended = msgspec.structs.replace(stored, exit_code=int(ExitCode.GATE), exit_reason="gate")
    saver.finish(ended)
    return ended, [analysis.replace(run=ended) for analysis in analyses]


def deliver(
    stored: Run, analyses: Sequence[Analysis], output: list[str], saved: Sequence[str], style: ReportStyle,
    channels: CiChannels,
) -> list[GpubenchError]:  # fmt: skip
    """Reports to files, and to stdout the answer or the report: `report` prints the same bytes from the file. Events
    were written already.

    Returns the errors of files that could not be written: one costs neither the others nor what is printed.
    """
    errors = []
    for path in output:
        if not store.is_result_name(path) and (format := rendering.format_of(path)) != EVENTS:
            try:
                rendering.write_report(analyses, style, format, path, channels)
            except GpubenchError as error:
                errors.append(error)
    if style.screen:
        command = rendering.report_command(next(iter(saved), None), store.default_results_dir())
        rendering.write(style.final_screen(analyses, command, saved=saved), None)
    elif style.format == "json":
        streams.put(store.dumps(stored).decode())
    elif style.format != EVENTS:
        try:
            rendering.write_report(analyses, style, style.format, None, channels)
        except UsageError as error:
            # A column that no table turns out to have: what was measured is shown all the same.
            if not style.options.columns:
                raise
            print(f"warning: {error.message}; all columns are shown", file=sys.stderr)
            options = msgspec.structs.replace(style.options, columns=())
            all_columns = msgspec.structs.replace(style, options=options)
            rendering.write_report(analyses, all_columns, style.format, None, channels)
    return errors


def exit_code(stored: Run, errors: Sequence[GpubenchError]) -> int:
    """Report `errors`, the files that could not be written, and return the exit code."""
    for error in errors:
        sys.stdout.flush()
        tell(error)
    return int(ExitCode.FAILED) if errors else stored.exit_code
