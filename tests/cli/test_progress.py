"""Progress: what a narrow terminal shows, and lines that are never cut."""

from __future__ import annotations

import io
import re

import pytest

from gpubench.cli import progress
from gpubench.measure.events import (
    BlockDone,
    CaseDone,
    CaseStarted,
    Event,
    RunDone,
    RunStarted,
    SessionAgain,
    Warned,
)
from gpubench.model.case import parse_case_id
from gpubench.model.result import Failure, Outcome, RunWarning, Skip

ID = "matmul/n=16384/float32/library/transfer-once-10@cupy:0"
REASON = "the adapter says no " + "because " * 20 + "its driver is too old"
CASE = parse_case_id(ID)
BLOCK = BlockDone(ID, 4, 12, 1, 3, 53.1e-6, 0.004, 20, 42.0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, *events: Event) -> str:
    sink = progress.sink(quiet=False, no_progress=False, environ={}, stream=stream)
    for event in events:
        sink(event)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("CI", raising=False)


def test_a_narrow_terminal_keeps_estimate_precision_and_time_left() -> None:
    text = shown(Terminal(), RunStarted(12, 3, None), BLOCK, RunDone(0, "ok"))
    line = next(part for part in re.split(r"[\r\n]|\x1b\[[0-9;?]*[A-Za-z]", text) if part.startswith("case"))
    assert line.startswith("case 4 of 12, session 2 of 3  53.1 us ± 0.4 %  0:42 left  matmul/n=")
    assert line.endswith("…")
    assert len(line) <= 80


@pytest.mark.parametrize("variable", ["NO_COLOR", "FORCE_COLOR"])
def test_the_live_line_has_no_style(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    failure = Failure(id=ID, case=CASE, reason="error", detail="[red]it broke[/red] at 3.5")
    done = CaseDone(failure, 4, 12, 1, None, None, None)
    started = CaseStarted(ID, 4, 12, 1, 1, None)
    text = shown(
        Terminal(), RunStarted(12, 1, None), started, done, Warned(RunWarning(code="noisy", message="7 things"))
    )
    assert "[red]it broke[/red] at 3.5" in " ".join(text.split())
    assert not re.search(r"\x1b\[[0-9;]*m", text)


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_repeated_session_is_told_with_its_reason(stream: type[io.StringIO]) -> None:
    told = shown(stream(), RunStarted(12, 1, None), SessionAgain(0.234), RunDone(0, "ok"))
    assert "others took 23 % of the CPUs: the session is measured again" in told


@pytest.mark.parametrize("kind", [Skip, Failure])
def test_a_plain_line_with_a_reason_is_whole(kind: type[Skip] | type[Failure]) -> None:
    outcome: Outcome = kind(id=ID, case=CASE, reason="unavailable", detail=REASON)
    text = shown(io.StringIO(), CaseDone(outcome, 4, 12, 0, None, None, None))
    assert text.endswith(f"{REASON}\n")
    assert shown(io.StringIO(), Warned(RunWarning(code="noisy", message=REASON))) == f"warning: {REASON}\n"
