"""What a run shows while it measures: a live line or plain lines on stderr, or events as JSON lines."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import IO, Any

import msgspec

from gpubench import units
from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import case_result, device_kind
from gpubench.analysis.findings import stored_finding
from gpubench.analysis.samples import only_estimates
from gpubench.cli.options import NoiseOptions, RunOptions
from gpubench.cli.rendering import cannot_write
from gpubench.errors import GpubenchError
from gpubench.foreign_text import visible
from gpubench.measure.events import (
    BlockDone,
    CaseDone,
    CaseStarted,
    Event,
    RunDone,
    RunStarted,
    SessionAgain,
    Sink,
    Warned,
)
from gpubench.measure.recorder import Save
from gpubench.model.result import Failure, Measurement, Outcome, Run, SessionFailure, Skip
from gpubench.report import events as lines
from gpubench.report.encoding import json_line, narrowed, rounded

REDRAW_S = 0.25
HEARTBEAT_S = 30.0
WIDTH = 100


def sink(*, quiet: bool, no_progress: bool, environ: Mapping[str, str], stream: IO[str] | None = None) -> Sink:
    """Whatever fits: nothing, a live line, or plain lines."""
    stream = stream or sys.stderr
    if quiet or no_progress:
        return lambda event: None
    live = stream.isatty() and not environ.get("CI") and environ.get("TERM") != "dumb"
    return Live(stream) if live else _Lines(stream)


@contextlib.contextmanager
def shown(options: RunOptions | NoiseOptions, environ: Mapping[str, str]) -> Iterator[Sink]:
    """`sink` for as long as something is measured; then, also after an error, the terminal is given back."""
    events = sink(quiet=options.quiet, no_progress=options.no_progress, environ=environ)
    try:
        yield events
    finally:
        if isinstance(events, Live):
            events.close()


def describe(event: BlockDone | CaseDone) -> str:
    """`53.1 us ± 0.4 %`, or what happened instead of a number."""
    broken = _without_number(event)
    if broken is not None:
        kind = "skipped" if isinstance(broken, Skip) else "FAILED"
        first_line = visible(broken.detail.partition("\n")[0])
        return f"{kind} ({broken.reason}): {first_line}"
    if event.estimate_s is None:
        return "checked"
    margin = f" ± {event.precision:.1%}".replace("%", " %") if event.precision is not None else ""
    return units.format_seconds(event.estimate_s) + margin


def _without_number(event: BlockDone | CaseDone) -> Skip | Failure | SessionFailure | None:
    """Why the case has no number of this session."""
    if isinstance(event, BlockDone):
        return None
    return event.outcome if isinstance(event.outcome, Skip) else event.failure


def again(event: SessionAgain) -> str:
    """Why a run takes longer than its sessions."""
    return f"others took {event.share:.0%} of the CPUs: the session is measured again".replace("%", " %")


def remaining(seconds: float | None) -> str:
    """`1:05 left`, or nothing when unknown."""
    if seconds is None:
        return ""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d} left"


class _Lines:
    """One line per finished case; a heartbeat when nothing has been said for a while."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._done = 0
        self._spoke = time.monotonic()

    def __call__(self, event: Event) -> None:
        match event:
            case CaseDone():
                self._done += 1
                self._say(
                    f"[{self._done:>3}/{max(event.cases, self._done)}] {event.outcome.id}  {describe(event)}",
                    whole=_without_number(event) is not None,
                )
            case Warned():
                self._say(f"warning: {visible(event.warning.message)}", whole=True)
            case SessionAgain():
                self._say(again(event), whole=True)
            case BlockDone() if time.monotonic() - self._spoke > HEARTBEAT_S:
                parts = [f"{describe(event)}, {event.samples} samples", remaining(event.remaining_s)]
                self._say("  ".join(part for part in (f"... {event.id}", *parts) if part))

    def _say(self, text: str, *, whole: bool = False) -> None:
        """Print one line; `whole` for a reason, whose end often is what helps."""
        self._spoke = time.monotonic()
        line = text if whole or len(text) <= WIDTH else text[: WIDTH - 3] + "..."
        print(line, file=self._stream, flush=True)


class Live:
    """One live line without any style, cleared before the result."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        # Without a colour system there is nothing for NO_COLOR to switch off.
        console = Console(file=stream, color_system=None, highlight=False, markup=False, emoji=False)
        self._live: Any = Live(
            "", console=console, auto_refresh=False, transient=True, redirect_stdout=False,
            redirect_stderr=stream is sys.stderr,
        )  # fmt: skip
        self._drawn = 0.0

    def __call__(self, event: Event) -> None:
        """Draw what the event says; a Sink."""
        match event:
            case RunStarted():
                self._live.start()
            case CaseStarted():
                self._draw(event, "preparing")
            case BlockDone():
                self._draw(event, describe(event))
            case CaseDone() if event.failure is not None:
                self._live.console.print(f"{event.outcome.id}  {describe(event)}")
            case Warned():
                self._live.console.print(f"warning: {visible(event.warning.message)}")
            case SessionAgain():
                self._live.console.print(again(event))
            case RunDone():
                self._live.stop()

    def close(self) -> None:
        """Give the terminal back, also after an error."""
        self._live.stop()

    def _draw(self, event: CaseStarted | BlockDone, state: str) -> None:
        """What changes comes first: a narrow terminal cuts the end of the case's id."""
        now = time.monotonic()
        if now - self._drawn < REDRAW_S:
            return
        self._drawn = now
        from rich.text import Text

        where = f"case {min(event.number, event.cases)} of {event.cases}"
        if event.sessions > 1:
            where += f", session {event.session + 1} of {event.sessions}"
        parts = [where, state, remaining(event.remaining_s), event.id]
        line = "  ".join(part for part in parts if part)
        self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)


SUFFIX = ".jsonl"


class EventLog:
    """Takes the runner's events and each saved state of the run; `paths` that end in .jsonl and stdout get the lines.

    A case is reported when its last session is over, and once more at the end if more is known of it by then. So the
    last `case-complete` of each id, and what follows them, are the same as `report --format jsonl` prints. `errors`
    are those of streams that failed: the run goes on without them.
    """

    def __init__(self, run: Run, paths: Sequence[str], *, to_stdout: bool) -> None:
        self._run = run
        self._sessions = run.settings.sessions
        self._reported: dict[str, lines.CaseComplete] = {}
        self._warned: set[lines.WarningFound] = set()
        self.errors: list[GpubenchError] = []
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
                self._warn(narrowed(stored_finding(event.warning), lines.WarningFound))

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
        """Write what is not reported yet, the conclusions and the end, from the run as its file has it; then close."""
        if self._streams:
            for row in analysis.cases:
                self._tell(lines.case_complete(row))
            for line in lines.conclusions(analysis):
                if isinstance(line, lines.WarningFound):
                    self._warn(line)
                else:
                    self._write(line)
        with contextlib.suppress(OSError):  # of a stream that has failed already
            self._open.close()

    def _case(self, outcome: Outcome) -> lines.CaseComplete:
        """The case by the digits that the file will have."""
        outcome = msgspec.convert(rounded(msgspec.to_builtins(outcome)), Outcome)
        kinds = {device.id: device.kind for device in self._run.devices}
        kind = device_kind(outcome.case.device_id, kinds)
        return lines.case_complete(case_result(self._run, outcome, kind, {}))

    def _tell(self, line: lines.CaseComplete) -> None:
        if self._reported.get(line.id) != line:
            self._reported[line.id] = line
            self._write(line)

    def _warn(self, line: lines.WarningFound) -> None:
        if line not in self._warned:
            self._warned.add(line)
            self._write(line)

    def _write(self, line: lines.EventLine) -> None:
        text = json_line(line)
        for stream in list(self._streams):
            try:
                stream.write(text)
                stream.flush()
            except BrokenPipeError:  # whoever read standard output has gone
                raise
            except OSError as error:  # the run goes on without this stream
                self._streams.remove(stream)
                self.errors.append(cannot_write(stream.name, error))

    def _opened(self, path: str) -> IO[str]:
        try:
            return self._open.enter_context(open(path, "w", encoding="ascii", newline="\n"))
        except OSError as error:
            raise cannot_write(path, error) from error
