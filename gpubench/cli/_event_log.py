"""The events of a run as JSON lines, written while they happen: what `--format jsonl` and `-o x.jsonl` hold."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import IO

import msgspec

from gpubench.cli._writing import cannot_write
from gpubench.measure.events import CaseDone, CaseStarted, Event, RunStarted, Sink, Warned
from gpubench.measure.recorder import Save
from gpubench.model.result import Measurement, Outcome, Run
from gpubench.report.analysis import Analysis
from gpubench.report.analysis.estimate import case_result, device_kind
from gpubench.report.analysis.findings import stored_finding
from gpubench.report.analysis.samples import only_estimates
from gpubench.report.formats import _events as lines
from gpubench.report.formats._json import json_line, rounded

SUFFIX = ".jsonl"


class EventLog:
    """Takes the runner's events and each saved state of the run; `paths` that end in .jsonl and stdout get the lines.

    A case is told when its last session is over, and once more at the end if more is known of it by then. So the
    last `case-complete` of each id, and what follows them, are the same as `report --format jsonl` prints.
    """

    def __init__(self, run: Run, paths: Sequence[str], *, to_stdout: bool) -> None:
        self._run = run
        self._sessions = run.settings.sessions
        self._told: dict[str, lines.CaseComplete] = {}
        self._warned: set[lines.Warned] = set()
        self._open = ExitStack()
        self._streams: list[IO[str]] = [sys.stdout] if to_stdout else []
        self._streams += [self._opened(path) for path in paths if path.lower().endswith(SUFFIX)]

    def __call__(self, event: Event) -> None:
        """Write what the event says; a Sink."""
        match event:
            case RunStarted():
                self._sessions = event.sessions
                self._write(lines.run_start(self._run))
            case CaseStarted():
                self._write(lines.CaseStart(id=event.id, session=event.session))
            case CaseDone() if self._streams and not only_estimates(self._run, event.outcome):
                if event.session >= self._sessions - 1 or not isinstance(event.outcome, Measurement):
                    self._tell(self._case(event.outcome))
            case Warned():
                self._warn(lines.warned(stored_finding(event.warning)))

    def beside(self, sink: Sink) -> Sink:
        """A sink that tells both."""

        def both(event: Event) -> None:
            sink(event)
            self(event)

        return both

    def watching(self, save: Save) -> Save:
        """`save`, after a look at the run as it stands: its devices and sessions are behind an estimate."""

        def seen(run: Run) -> None:
            self._run = run
            save(run)

        return seen

    def finish(self, analysis: Analysis) -> None:
        """Write what is not told yet, the conclusions and the end, from the run as its file has it; then close."""
        if self._streams:
            for row in analysis.cases:
                self._tell(lines.case_complete(row))
            for line in lines.conclusions(analysis):
                if isinstance(line, lines.Warned):
                    self._warn(line)
                else:
                    self._write(line)
        self._open.close()

    def _case(self, outcome: Outcome) -> lines.CaseComplete:
        """The case by the digits that the file will have."""
        outcome = msgspec.convert(rounded(msgspec.to_builtins(outcome)), Outcome)
        kinds = {device.id: device.kind for device in self._run.devices}
        kind = device_kind(outcome.case.device_id, kinds)
        return lines.case_complete(case_result(self._run, outcome, kind, {}))

    def _tell(self, line: lines.CaseComplete) -> None:
        if self._told.get(line.id) != line:
            self._told[line.id] = line
            self._write(line)

    def _warn(self, line: lines.Warned) -> None:
        if line not in self._warned:
            self._warned.add(line)
            self._write(line)

    def _write(self, line: lines.EventLine) -> None:
        text = json_line(line)
        for stream in self._streams:
            try:
                stream.write(text)
                stream.flush()
            except BrokenPipeError:  # whoever read standard output has gone
                raise
            except OSError as error:
                raise cannot_write(stream.name, error) from error

    def _opened(self, path: str) -> IO[str]:
        try:
            return self._open.enter_context(open(path, "w", encoding="ascii", newline="\n"))
        except OSError as error:
            raise cannot_write(path, error) from error
