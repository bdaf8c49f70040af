"""Progress on stderr: a live line on a terminal, plain lines elsewhere. Drawn between blocks only."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any

from gpubench import units
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
    return Live(stream) if live else _Lines(stream)


@contextlib.contextmanager
def shown(*, quiet: bool, no_progress: bool, environ: Mapping[str, str]) -> Iterator[Sink]:
    """`sink` for as long as something is measured; then, also after an error, the terminal is given back."""
    events = sink(quiet=quiet, no_progress=no_progress, environ=environ)
    try:
        yield events
    finally:
        if isinstance(events, Live):
            events.close()


def describe(event: BlockDone | CaseDone) -> str:
    """`53.1 us ± 0.4 %`, or what happened instead of a number."""
    if isinstance(event, CaseDone) and isinstance(event.outcome, (Skip, Failure)):
        kind = "skipped" if isinstance(event.outcome, Skip) else "FAILED"
        first_line = visible(event.outcome.detail.partition("\n")[0])
        return f"{kind} ({event.outcome.reason}): {first_line}"
    if event.estimate_s is None:
        return "checked"
    margin = f" ± {event.precision:.1%}".replace("%", " %") if event.precision is not None else ""
    return units.format_seconds(event.estimate_s) + margin


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
                    whole=isinstance(event.outcome, (Skip, Failure)),
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
        match event:
            case RunStarted():
                self._live.start()
            case CaseStarted():
                self._draw(event, "preparing")
            case BlockDone():
                self._draw(event, describe(event))
            case CaseDone() if isinstance(event.outcome, Failure):
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
