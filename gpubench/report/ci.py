"""Answers to what a continuous integration asks of a report or a comparison: verdict, counts, messages, short text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.answer import answer
from gpubench.analysis.findings import findings, gates
from gpubench.base.errors import ExitCode
from gpubench.base.streams import inert, visible
from gpubench.base.units import truncate
from gpubench.report.sections.answer_text import count_wins
from gpubench.report.sections.problems import gate_text

if TYPE_CHECKING:
    from gpubench.compare.comparison import Comparison

OutcomeWord = Literal["ok", "slower", "failed", "unsure"]


class CiOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a command, for a continuous integration."""

    verdict: OutcomeWord  # the gravest of failed, slower and unsure that holds, else ok
    exit_code: int  # of the command
    slower: int | None = None  # cases of a comparison
    faster: int | None = None  # cases of a comparison
    unsure: int | None = None  # cases of a comparison
    # ops of reports that a GPU wins at their largest size, with data on it if measured
    gpu_wins: int | None = None
    errors: tuple[str, ...] = ()  # failed gates and broken cases, one sentence each
    warnings: tuple[str, ...] = ()  # what else needs a look, one sentence each


def of_comparison(comparison: Comparison) -> CiOutcome:
    """A comparison in a few words."""
    from gpubench.report.comparison import gate_text as compare_gate_text  # reports have no part in comparing

    counts = comparison.counts
    broken = [gate for gate in comparison.gates if not gate.passed and not gate.impossible]
    failed = any(gate.name not in ("slower", "unsure") for gate in broken)
    unsure = [entry for entry in comparison.cases if entry.verdict == "UNSURE" and not entry.muted]
    near = [gate for gate in comparison.gates if gate.passed and gate.near]
    unjudged = unsure or near or comparison.exit_code == ExitCode.INPUT
    return CiOutcome(
        verdict="failed" if failed else "slower" if counts.slower else "unsure" if unjudged else "ok",
        slower=counts.slower, faster=counts.faster, unsure=counts.unsure, exit_code=comparison.exit_code,
        errors=tuple(compare_gate_text(gate) for gate in broken),
        warnings=(
            *map(compare_gate_text, near),
            *(f"{notice.message}; {notice.hint}" for notice in comparison.warnings if notice.severity != "info"),
            *(f"{entry.id}: UNSURE ({entry.reason})" for entry in unsure),
        ),
    )  # fmt: skip


def of_reports(analyses: Sequence[Analysis], exit_code: int) -> CiOutcome:
    """Reports in a few words; `exit_code` is how the command ends."""
    judged = [gate for analysis in analyses for gate in gates(analysis)]
    answers = [answer(analysis) for analysis in analyses]
    broken = [entry for analysis in analyses for entry in analysis.cases if entry.outcome == "failure"]
    near = [gate for gate in judged if gate.passed and gate.near]
    return CiOutcome(
        verdict="failed" if exit_code != ExitCode.OK or broken else "unsure" if near else "ok",
        gpu_wins=sum(count_wins(each, each.regimes[0])[0] for each in answers if each.rows), exit_code=exit_code,
        errors=(
            *(gate_text(gate) for gate in judged if not gate.passed),
            *(f"{entry.id}: {entry.reason}: {entry.detail or ''}" for entry in broken),
        ),
        warnings=(
            *(gate_text(gate) for gate in near),
            *(
                f"{finding.code}: {finding.message}{_where(finding.ids)}; {finding.hint}"
                for analysis in analyses
                for finding in findings(analysis)
                if finding.severity != "info"
            ),
        ),
    )  # fmt: skip


def _where(ids: Sequence[str]) -> str:
    """` (matmul/n=64/... and 3 more)`."""
    return f" ({truncate(ids, 1)})" if ids else ""


# As the Markdown format writes them; text inside cannot hold these tags, because it is escaped.
_FOLDED = re.compile(r"^<details>\n.*?^</details>\n\n?", re.MULTILINE | re.DOTALL)
_NOTICE = "\n**truncated**: {what} left out to stay below {limit} bytes; `gpubench report` shows all.\n"


def add_marker(text: str, marker: str) -> str:
    """`text` below an invisible line by which a later run finds its own comment."""
    return f"<!-- gpubench:{marker} -->\n{text}"


def fit_text(text: str, limit: int) -> str:
    """`text` in at most `limit` bytes of UTF-8: without folded sections, then without its end; a notice says so.

    Empty where not even the notice fits.
    """
    if _size(text) <= limit:
        return text
    dropped = 0
    for fold in reversed(list(_FOLDED.finditer(text))):
        text = text[: fold.start()] + text[fold.end() :]
        dropped += 1
        shortened = text.rstrip("\n") + "\n" + _notice(dropped, limit, cut=False)
        if _size(shortened) <= limit:
            return shortened
    notice = _notice(dropped, limit, cut=True)
    room = limit - _size(notice)
    if room < 0:
        return ""
    start = text.encode()[:room].decode("utf-8", "ignore")
    return start[: start.rfind("\n") + 1] + notice


def _notice(dropped: int, limit: int, *, cut: bool) -> str:
    sections = f"{dropped} folded section{'s' if dropped != 1 else ''}"
    what = (
        sections if not cut else f"{sections} and the end of the report" if dropped else "the end of the report"
    )
    return _NOTICE.format(what=what, limit=limit)


def _size(text: str) -> int:
    return len(text.encode())


# GitHub shows ten of each kind in a step; the tenth says how many there are.
MOST = 9
TITLE = "gpubench"


def messages(outcome: CiOutcome) -> Iterator[str]:
    """The lines, errors first, without their newlines."""
    yield from _lines("error", outcome.errors)
    yield from _lines("warning", outcome.warnings)


def _lines(kind: str, texts: Sequence[str]) -> Iterator[str]:
    for text in texts[:MOST]:
        yield f"::{kind} title={TITLE}::{escape_command(text)}"
    if len(texts) > MOST:
        yield f"::{kind} title={TITLE}::and {len(texts) - MOST} more: see the report"


def escape_command(text: str) -> str:
    """`text` as the runner reads it back; what it takes for a line's end is a percent code."""
    for character, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        text = text.replace(character, code)
    return inert(visible(text))


def outputs(outcome: CiOutcome, result_file: str | None) -> str:
    """Lines `name=value` for the file; `result_file` is the result that was judged, None where none was kept."""
    pairs = {
        "verdict": outcome.verdict,
        **{name: _count(getattr(outcome, name)) for name in ("slower", "faster", "unsure", "gpu_wins")},
        "exit-code": str(outcome.exit_code),
        "result-file": result_file or "",
    }
    return "".join(_pair(name, value) for name, value in pairs.items())


def _count(count: int | None) -> str:
    return "" if count is None else str(count)


def _pair(name: str, value: str) -> str:
    if "\n" not in value and "\r" not in value:
        return f"{name}={value}\n"
    # No line of the value can be this end mark, so that a file name cannot set another output.
    mark = "gpubench-" + hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{name}<<{mark}\n{value}\n{mark}\n"
