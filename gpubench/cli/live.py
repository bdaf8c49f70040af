"""What a terminal shows while a run goes on: the answer, which fills, and what is measured now.

Everything is drawn from the runner's events, hence between two blocks: nothing is drawn while a sample is timed.
"""

from __future__ import annotations

import sys
import time
from typing import IO, Any

from gpubench.base.escaping import filled, visible
from gpubench.cli.progress import WIDTH, Counter, Display, describe, remaining
from gpubench.measure.recorder import (
    BlockDone,
    CaseDone,
    CaseStarted,
    Event,
    RunDone,
    RunStarted,
    Save,
    SessionAgain,
    Warned,
)
from gpubench.report.layout import RenderOptions
from gpubench.report.sections.answer_so_far import AnswerSoFar
from gpubench.report.wording import situation_text
from gpubench.result.case import RESIDENT, parse_case_id
from gpubench.result.run import Run

REDRAW_S = 0.25
# The table changes this often at most, and takes this share of a run at most.
TABLE_S, TABLE_SHARE = 1.0, 0.02


class Live(Display):
    """Live lines without any style, cleared before the result: the plan, the answer as far as it is known, the last
    thing that went wrong, and what is done now. Nothing of it stays: what it says stands in the final screen, or is
    counted there."""

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
        self._run: Run | None = None
        self._answer: AnswerSoFar | None = None
        self._table: list[str] = []
        self._next_table = 0.0
        self._said: list[str] = []
        self._note = self._now = ""
        self._cases = Counter()

    def say(self, text: str) -> None:
        """Keep it above what changes."""
        self._said.append(text)
        self._draw(at_once=True)

    def searches(self) -> None:
        """Leave out how many cases there are."""
        self._cases.grows = True

    def watching(self, save: Save, look: RenderOptions) -> Save:
        """Show the answer of what is saved, too."""
        self._answer = AnswerSoFar(look)

        def seen(run: Run) -> None:
            self._run = run
            save(run)

        return seen

    def __call__(self, event: Event) -> None:
        """Draw what the event says."""
        match event:
            case RunStarted():
                self._cases.total = event.cases
                self._draw(at_once=True)
            case CaseStarted():
                self._do(event, "preparing")
            case BlockDone():
                self._do(event, describe(event))
            case CaseDone() if event.failure is not None:
                self._notice(f"{describe(event)}  {event.outcome.id}")
            case Warned():
                self._notice(f"warning: {visible(event.warning.message)}")
            case SessionAgain():
                self._notice(self._cases.again(event))
            case RunDone():
                self.close()

    def close(self) -> None:
        """Clear the lines."""
        self._live.stop()

    def _notice(self, text: str) -> None:
        self._note = text
        self._draw(at_once=True)

    def _do(self, event: CaseStarted | BlockDone, state: str) -> None:
        """What changes comes first: a narrow terminal cuts the end."""
        if more := self._cases.more(event.cases):
            self._note = more
        session = (
            f"session {event.session + 1} of {event.sessions}" if event.session < event.sessions > 1 else ""
        )
        count = f"case {event.number}{self._cases.of(event.number, ' of ')}"
        left = remaining(event.remaining_s) if self._cases.tells_time(event.number) else ""
        parts = [left, doing(event.id), state, count, session]
        self._now = "  ".join(part for part in parts if part)
        self._draw()

    def _draw(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if not at_once and now - self._drawn < REDRAW_S:
            return
        self._drawn = now
        from rich.text import Text

        if not self._live.is_started:
            self._live.start()
        self._fill(now)
        said = [line for text in self._said for line in filled(text, self._live.console.width)]
        ending = list(filter(None, [self._note, self._now]))
        room = self._live.console.height - len(said) - len(ending) - 1
        lines = [*said, *self._table[: max(0, room)], *ending]
        self._live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)

    def _fill(self, now: float) -> None:
        """Derive the answer anew, where the last time that this took was long enough ago."""
        if self._answer is None or self._run is None or now < self._next_table:
            return
        self._table = self._answer.lines(self._run, min(self._live.console.width, WIDTH))
        taken = time.monotonic() - now
        self._next_table = now + max(TABLE_S, taken / TABLE_SHARE)


def doing(case_id: str) -> str:
    """`matmul n = 1024 on cupy:0, copied at every call`."""
    case = parse_case_id(case_id)
    where = "" if case.regime == RESIDENT else f", {situation_text(case.regime_id)}"
    return f"{case.op.rpartition('.')[2]} n = {case.params.get('n', 1)} on {case.device_id}{where}"
