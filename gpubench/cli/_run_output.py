"""Where a run's result goes: result files while it is measured, reports once it is over."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpubench import store
from gpubench.cli import _plots
from gpubench.cli._ci import Ci
from gpubench.cli._writing import write
from gpubench.errors import ExitCode, UsageError
from gpubench.model.result import Run
from gpubench.report import PICTURES
from gpubench.report.analysis import Analysis
from gpubench.report.analysis.gates import failed

RESULT_SUFFIXES = (".json", ".json.gz")
EVENTS = "jsonl"  # the format that is written while the run goes on (_event_log.py)


def require_text(option: str, texts: Iterable[str | None]) -> None:
    """Raises UsageError for bytes that are no text: they could not be stored."""
    for text in texts:
        if text is not None and any(0xD800 <= ord(letter) <= 0xDFFF for letter in text):
            raise UsageError(
                "not-text", f"{option}: the value is not valid UTF-8", why="a result file holds text",
                hint="write it in UTF-8",
            )  # fmt: skip


def checked(output: list[str], look: Any, results_dir: Path | None, no_save: bool) -> list[str]:
    """Every output path can be written: found out before measuring, not after. Raises UsageError.

    `-` is standard output, which carries the report in any case.
    """
    output = [path for path in output if path != "-"]
    for path in output:
        if not path.endswith(RESULT_SUFFIXES):
            _plots.check_format(look.format_of(path), to_terminal=False)  # refuses a suffix that no format has
        store.check_writable(path)
    if not no_save and not any(path.endswith(RESULT_SUFFIXES) for path in output):
        store.check_folder(results_dir or store.default_results_dir())
    return output


class Saver:
    """Saves the result to every result file asked for, else to the results folder."""

    def __init__(self, output: list[str], results_dir: Path | None, no_save: bool) -> None:
        self.paths: list[str | Path] = [path for path in output if path.endswith(RESULT_SUFFIXES)]
        self._folder = results_dir
        self._anywhere = not (self.paths or no_save)
        self._encoder = store.Encoder()

    def __call__(self, run: Run) -> None:
        if self._anywhere and not self.paths:
            self.paths.append(store.result_path(self._folder or store.default_results_dir(), run))
        for path in self.paths:
            store.save(run, path, self._encoder)


def as_stored(run: Run) -> Run:
    """The run with the digits of its file: whatever is derived from it is what `report` derives."""
    return store.loads(store.dumps(run), "the result")


def formats(output: list[str], look: Any) -> list[str]:
    """The formats of all reports that are written."""
    return [look.format, *(look.format_of(path) for path in output if not path.endswith(RESULT_SUFFIXES))]


def gated(stored: Run, analyses: Sequence[Analysis], saver: Saver) -> tuple[Run, list[Analysis]]:
    """The run with the exit code of its gates, saved once more where one failed; what broke before outweighs them."""
    if stored.exit_code != ExitCode.OK or not failed(analyses):
        return stored, list(analyses)
    ended = msgspec.structs.replace(stored, exit_code=int(ExitCode.GATE), exit_reason="gate")
    saver(ended)
    return ended, [msgspec.structs.replace(analysis, run=ended) for analysis in analyses]


def deliver(stored: Run, analyses: Sequence[Analysis], output: list[str], look: Any, told: Ci) -> None:
    """Reports to files and to stdout: `report` prints the same bytes from the file. Events were told already."""
    for path in output:
        if not path.endswith(RESULT_SUFFIXES) and (format := look.format_of(path)) != EVENTS:
            _report(analyses, format, path, look, told)
    if look.format == "json":
        sys.stdout.write(store.dumps(stored).decode())
    elif look.format != EVENTS:
        _report(analyses, look.format, None, look, told)


def _report(analyses: Sequence[Analysis], format: str, output: str | None, look: Any, told: Ci) -> None:
    if format in PICTURES:
        _plots.write_picture(analyses, format, output, look.sections, look.time_unit)
    else:
        write(told.comment(look.render(analyses, format), format), output)
