"""Where a run's result goes: result files while it is measured, reports once it is over."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpubench import store
from gpubench.errors import UsageError
from gpubench.model.result import Run

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
            look.format_of(path)  # refuses a suffix that no format has
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


def deliver(stored: Run, output: list[str], look: Any) -> None:
    """Reports to files and to stdout: `report` prints the same bytes from the file. Events were told already."""
    for path in output:
        if not path.endswith(RESULT_SUFFIXES) and (format := look.format_of(path)) != EVENTS:
            Path(path).write_text(look.render([stored], format), encoding="utf-8", newline="\n")
    if look.format == "json":
        sys.stdout.write(store.dumps(stored).decode())
    elif look.format != EVENTS:
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        sys.stdout.write(look.render([stored], look.format))
