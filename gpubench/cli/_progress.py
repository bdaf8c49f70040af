"""Progress on stderr: a live line on a terminal, plain lines elsewhere. Drawn between blocks only."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import IO, Any

from gpubench import units
from gpubench.measure.events import BlockDone, CaseDone, CaseStarted, Event, RunDone, RunStarted, Sink, Warned
from gpubench.model.result import Failure, Skip

REDRAW_S = 0.25
HEARTBEAT_S = 30.0
WIDTH = 100


def sink(*, quiet: bool, no_progress: bool, environ: Mapping[str, str], stream: IO[str] | None = None) -> Sink:
    """Whatever fits: nothing, a live line, or plain lines."""
    stream = stream or sys.stderr
    if quiet or no_progress:
        return lambda event: None
    live = stream.isatty() and not environ.get("CI") and environ.get("TERM") != "dumb"
    return Live() if live else _Lines(stream)


def describe(event: BlockDone | CaseDone) -> str:
    """`53.1 us ± 0.4 %`, or what happened instead of a number."""
    if isinstance(event, CaseDone) and isinstance(event.outcome, (Skip, Failure)):
        kind = "skipped" if isinstance(event.outcome, Skip) else "FAILED"
        first_line = event.outcome.detail.partition("\n")[0]
        return f"{kind} ({event.outcome.reason}): {first_line}"
    if event.estimate_s is None:
        return "checked"
    margin = f" ± {event.precision:.1%}".replace("%", " %") if event.precision is not None else ""
    return units.format_seconds(event.estimate_s) + margin


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
                    f"[{self._done:>3}/{max(event.cases, self._done)}] {event.outcome.id}  {describe(event)}"
                )
            case Warned():
                self._say(f"warning: {event.warning.message}")
            case BlockDone() if time.monotonic() - self._spoke > HEARTBEAT_S:
                self._say(
                    f"... {event.id}  {describe(event)}, {event.samples} samples  {remaining(event.remaining_s)}"
                )

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        line = text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."
        print(line, file=self._stream, flush=True)


class Live:
    """One live line, cleared before the result."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live: Any = Live(
            "", console=Console(stderr=True), auto_refresh=False, transient=True, redirect_stdout=False
        )
        self._drawn = 0.0
        self._done = 0

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._live.start()
            case CaseStarted():
                self._draw(
                    f"{event.id}  preparing",
                    event.number,
                    event.cases,
                    event.session,
                    event.sessions,
                    event.remaining_s,
                )
            case BlockDone():
                self._draw(
                    f"{event.id}  {describe(event)}", event.number, event.cases, event.session, event.sessions,
                    event.remaining_s,
                )  # fmt: skip
            case CaseDone() if isinstance(event.outcome, Failure):
                self._live.console.print(
                    f"{event.outcome.id}  {describe(event)}", markup=False, highlight=False
                )
            case Warned():
                self._live.console.print(f"warning: {event.warning.message}", markup=False, highlight=False)
            case RunDone():
                self._live.stop()

    def close(self) -> None:
        """Give the terminal back, also after an error."""
        self._live.stop()

    def _draw(
        self, text: str, number: int, cases: int, session: int, sessions: int, left_s: float | None
    ) -> None:
        now = time.monotonic()
        if now - self._drawn < REDRAW_S:
            return
        self._drawn = now
        from rich.text import Text

        where = f"case {min(number, cases)} of {cases}"
        if sessions > 1:
            where += f", session {session + 1} of {sessions}"
        self._live.update(
            Text(f"{where}  {text}  {remaining(left_s)}", no_wrap=True, overflow="ellipsis"), refresh=True
        )
