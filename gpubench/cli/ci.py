"""Gates of `run`, `report` and `compare`, and their outputs for continuous integration (CI).

The outputs are a verdict, counts, a summary, messages, variables, and text of limited length for a comment.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from gpubench.base import disk, streams, units
from gpubench.base.errors import ExitCode, GpubenchError, UsageError, require_choice
from gpubench.base.streams import inert, visible
from gpubench.base.units import truncate
from gpubench.cli.options import CiOptions

if TYPE_CHECKING:
    from gpubench.analysis.analyse import Analysis
    from gpubench.analysis.findings import Gates, MinSpeedup
    from gpubench.compare.comparison import Comparison
    from gpubench.measure.schedule import RunSpec
    from gpubench.result.case import Case


OutcomeWord = Literal["ok", "slower", "failed", "unsure"]


class CiOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a command for continuous integration."""

    verdict: OutcomeWord  # failed, slower, unsure or ok: the first that applies
    exit_code: int  # exit code of the command
    slower: int | None = None  # number of slower cases of a comparison; None for reports
    faster: int | None = None  # number of faster cases of a comparison; None for reports
    unsure: int | None = None  # the number of unsure cases of a comparison; None for reports
    # the number of ops in reports that a GPU wins at their largest size, with data on the GPU if that was
    # measured; None for comparisons
    gpu_wins: int | None = None
    errors: tuple[str, ...] = ()  # a sentence for each failed gate and each broken case
    warnings: tuple[str, ...] = ()  # a sentence for each other problem


def of_comparison(comparison: Comparison) -> CiOutcome:
    """Return the outcome of a comparison. Gates that nearly failed and unsure cases are among the
    `warnings`."""
    from gpubench.report.comparison import gate_text

    counts = comparison.counts
    broken = [gate for gate in comparison.gates if not gate.passed and not gate.impossible]
    failed = any(gate.name not in ("slower", "unsure") for gate in broken)
    unsure = [entry for entry in comparison.cases if entry.verdict == "UNSURE" and not entry.muted]
    near = [gate for gate in comparison.gates if gate.passed and gate.near]
    unjudged = unsure or near or comparison.exit_code == ExitCode.INPUT
    return CiOutcome(
        verdict="failed" if failed else "slower" if counts.slower else "unsure" if unjudged else "ok",
        slower=counts.slower, faster=counts.faster, unsure=counts.unsure, exit_code=comparison.exit_code,
        errors=tuple(gate_text(gate) for gate in broken),
        warnings=(
            *map(gate_text, near),
            *(f"{notice.message}; {notice.hint}" for notice in comparison.warnings if notice.severity != "info"),
            *(f"{entry.id}: UNSURE ({entry.reason})" for entry in unsure),
        ),
    )  # fmt: skip


def of_reports(analyses: Sequence[Analysis], exit_code: int) -> CiOutcome:
    """Return the outcome of a command that reports `analyses` and ends with `exit_code`."""
    from gpubench.analysis.answer import answer
    from gpubench.analysis.findings import findings, gates
    from gpubench.report.sections.answer_text import count_wins
    from gpubench.report.sections.cases import gate_text

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
                f"{finding.code}: {finding.message}{f' ({truncate(finding.ids, 1)})' if finding.ids else ''}"
                f"; {finding.hint}"
                for analysis in analyses
                for finding in findings(analysis)
                if finding.severity != "info"
            ),
        ),
    )  # fmt: skip


# Folded sections in our Markdown. The text inside cannot contain these tags, because it is escaped.
_FOLDED = re.compile(r"^<details>\n.*?^</details>\n\n?", re.MULTILINE | re.DOTALL)
_NOTICE = "\n**truncated**: {what} left out to stay below {limit} bytes; `gpubench report` shows all.\n"


def add_marker(text: str, marker: str) -> str:
    """Return `text` after an invisible line with `marker`, by which a later run finds its own comment."""
    return f"<!-- gpubench:{marker} -->\n{text}"


def fit_text(text: str, limit: int) -> str:
    """Return `text` shortened to at most `limit` bytes of UTF-8, with a notice if something was left out.

    The last folded sections are dropped first, then the end of the text. Returns an empty text if not even the
    notice fits.
    """
    if _size(text) <= limit:
        return text
    folds = list(_FOLDED.finditer(text))
    notice = _NOTICE.format(what="folded sections", limit=limit)
    for fold in reversed(folds):
        text = text[: fold.start()] + text[fold.end() :]
        shortened = text.rstrip("\n") + "\n" + notice
        if _size(shortened) <= limit:
            return shortened
    what = "folded sections and the end of the report" if folds else "the end of the report"
    notice = _NOTICE.format(what=what, limit=limit)
    room = limit - _size(notice)
    if room < 0:
        return ""
    start = text.encode()[:room].decode("utf-8", "ignore")
    return start[: start.rfind("\n") + 1] + notice


def _size(text: str) -> int:
    return len(text.encode())


# GitHub shows ten messages of each kind in a step. The tenth says how many more there are.
MOST = 9
TITLE = "gpubench"


def messages(outcome: CiOutcome) -> Iterator[str]:
    """Yield the errors, then the warnings, as lines (without newlines) for the log of a CI runner. Each kind
    has at most MOST lines, then one that counts the rest."""
    for kind, texts in (("error", outcome.errors), ("warning", outcome.warnings)):
        for text in texts[:MOST]:
            yield f"::{kind} title={TITLE}::{escape_command(text)}"
        if len(texts) > MOST:
            yield f"::{kind} title={TITLE}::and {len(texts) - MOST} more: see the report"


def escape_command(text: str) -> str:
    """Return `text` escaped for a command of a CI runner."""
    for character, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        text = text.replace(character, code)
    return inert(visible(text))


def outputs(outcome: CiOutcome, result_file: str | None) -> str:
    """Return the lines `name=value` for the output file. `result_file` is the judged result, or None if it was
    not kept."""
    pairs = {
        "verdict": outcome.verdict,
        **{
            name: "" if (count := getattr(outcome, name)) is None else str(count)
            for name in ("slower", "faster", "unsure", "gpu_wins")
        },
        "exit-code": str(outcome.exit_code),
        "result-file": result_file or "",
    }
    # A line's end in the name of a file would set another output.
    return "".join(f"{name}={visible(value)}\n" for name, value in pairs.items())


# GitHub ignores a summary of more than 1024 KiB for one step.
SUMMARY_BYTES = 999_999
COMMENT_BYTES = 65_000
Name = TypeVar("Name", bound=str)
_MARKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}")


class CiChannels(msgspec.Struct, frozen=True, kw_only=True):
    """The places to which the outcome is written for continuous integration, checked before anything is
    measured."""

    summary: str | None  # file to which the summary is appended; None: no summary
    outputs: str | None  # file to which the outputs are appended; None: no outputs
    annotated: bool  # whether messages are written to the log
    marker: str | None  # marker by which a comment is found again; None: no marker
    max_bytes: int | None  # largest size of a comment; None: COMMENT_BYTES with a marker, else no limit

    def comment(self, text: str, format: str) -> str:
        """Return Markdown with its marker and within its limit. Text in any other format does not change."""
        if format != "markdown" or not (self.marker or self.max_bytes):
            return text
        text = add_marker(text, self.marker) if self.marker else text
        return fit_text(text, self.max_bytes or COMMENT_BYTES)

    def tell(
        self, outcome: Callable[[], CiOutcome], markdown: Callable[[], str], result_file: str | None
    ) -> None:
        """Write summary, outputs and messages of a command after its report, as far as the user asked for them.
        `result_file` is the judged result, or None. Raises GpubenchError if a file cannot be written."""
        if self.summary is not None:
            _append(self.summary, _below_limit(self.summary, markdown()))
        if self.outputs is not None:
            _append(self.outputs, outputs(outcome(), result_file))
        if self.annotated:
            for line in messages(outcome()):
                streams.command(line)


def channels(options: CiOptions, environ: Mapping[str, str]) -> CiChannels:
    """Return the places to write to, from the options and the variables of a CI runner. Raises UsageError if an
    option is wrong, and GpubenchError if the file of the summary cannot be written."""
    annotations, marker = options.annotations, options.marker
    if marker is not None and not _MARKER.fullmatch(marker):
        raise UsageError(
            "bad-marker", f"--marker: {marker[:40]!r} is not usable",
            why="a marker stands inside a comment: letters, digits and . _ / -, at most 100",
        )  # fmt: skip
    return CiChannels(
        summary=_summary_file(environ) if options.summary else None,
        outputs=environ.get("GITHUB_OUTPUT") or None,
        annotated=annotations == "always"
        or (annotations == "auto" and environ.get("GITHUB_ACTIONS") == "true"),
        marker=marker,
        max_bytes=options.max_bytes,
    )


def _summary_file(environ: Mapping[str, str]) -> str:
    path = environ.get("GITHUB_STEP_SUMMARY", "")
    if not path:
        raise UsageError(
            "no-summary", why="GITHUB_STEP_SUMMARY is not set, as it is in a step of GitHub Actions"
        )
    _append(path, "")  # found out before measuring, not after
    return path


def _below_limit(path: str, text: str) -> str:
    """Return `text` shortened to the room that is left in the summary of this step."""
    size = os.path.getsize(path) if os.path.isfile(path) else 0  # what is no regular file holds nothing
    gap = "\n" if size else ""  # earlier text may lack its line's end
    addition = fit_text(text, SUMMARY_BYTES - size - len(gap))
    if not addition:
        print("warning: the summary of this step is full; the report was left out of it", file=sys.stderr)
        return ""
    return gap + addition


def _append(path: str, text: str) -> None:
    try:
        disk.append(path, text.encode())
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: str, error: OSError) -> GpubenchError:
    return GpubenchError(
        "cannot-write", f"cannot write {path}", why=disk.reason(error),
        hint="GITHUB_STEP_SUMMARY and GITHUB_OUTPUT have to name files that can be written",
    )  # fmt: skip


# ---------------------------------------------------------------- gates


def parse_gates(min_speedups: Sequence[str] | None, fail_on: str | None) -> Gates:
    """Parse the texts of --min-speedup and --fail-on; None means no gate. Raises UsageError if a text is wrong."""
    from gpubench.analysis.findings import FAIL_ON, Gates

    return Gates(
        min_speedups=tuple(map(_min_speedup, min_speedups or ())), fail_on=parse_fail_on(fail_on, FAIL_ON)
    )


def parse_fail_on(text: str | None, names: Sequence[Name]) -> tuple[Name, ...]:
    """Return the names that --fail-on lists, in the order of `names`. None means none. Raises UsageError for a
    word that is not among `names`."""
    words = [require_choice(word, names, "--fail-on") for word in units.split_words(text)]
    return tuple(name for name in names if name in words)


def require_in_files(gates: Gates, analyses: Sequence[Analysis]) -> None:
    """Raise UsageError for a gate that selects no case of the files, CPU cases aside."""
    rows = (case for analysis in analyses for case in analysis.cases)
    contenders = [case.case for case in rows if case.device_kind != "cpu"]
    require_matches(gates, contenders, "gpubench report --sections raw lists the cases with their ids")


def require_in_plan(gates: Gates, request: RunSpec) -> None:
    """Raise UsageError for a gate that selects no planned case, CPU cases aside. The plan lacks cases whose
    sizes are not known yet."""
    if gates.min_speedups:
        cases, on_cpu = _plan_cases(request)
        contenders = [case for case in cases if not on_cpu[case.device_id]]
        require_matches(gates, contenders, "give the sizes with --sizes; --dry-run lists the case ids")


def _plan_cases(request: RunSpec) -> tuple[list[Case], dict[str, bool]]:
    """Return the planned cases, and for each device whether it is a CPU."""
    from gpubench.measure.schedule import plan_workloads

    on_cpu = {target.device.id: target.device.kind == "cpu" for target in request.constraints.targets}
    return [case for workload in plan_workloads(request) for case in workload.cases], on_cpu


def require_baseline(name: str | None, request: RunSpec) -> None:
    """Raise UsageError if no planned case matches the baseline."""
    if name is None:
        return
    from gpubench.analysis.speedup import parse_baseline

    chosen = parse_baseline(name)
    cases, on_cpu = _plan_cases(request)
    matches = {
        f"{case.implementation}@{case.device_id}": chosen(case, on_cpu[case.device_id]) for case in cases
    }
    if matches and not any(matches.values()):
        raise UsageError(
            "no-such-baseline", f"--baseline {name}: nothing that is going to be measured matches",
            why="a speedup needs a baseline that is measured too", hint=f"choose one of: {', '.join(sorted(matches))}",
        )  # fmt: skip


def require_matches(gates: Gates, contenders: Sequence[Case], hint: str) -> None:
    """Raise UsageError for a gate that selects none of `contenders`, the cases that are not on a CPU. `hint` is
    the remedy in the error."""
    for demand in gates.min_speedups:
        if not any(demand.selects(case) for case in contenders):
            raise UsageError(
                "no-such-case", f"--min-speedup: {demand.text[:60]!r} selects no case that has a speedup",
                why="no case beside the CPU's own matches it", hint=hint,
            )  # fmt: skip


def _min_speedup(text: str) -> MinSpeedup:
    from gpubench.analysis.findings import MinSpeedup
    from gpubench.result.case import selector

    path, equals, number = text.rpartition("=")
    try:
        least = float(number.strip().removesuffix("x"))
    except ValueError:
        least = math.nan
    if not equals or not 0 < least < math.inf:
        raise UsageError(
            "bad-speedup", f"--min-speedup: {text[:60]!r} is not SEL=X",
            why="after the last = stands a speedup above 0",
        )  # fmt: skip
    return MinSpeedup(text=text, selects=selector(path, option="--min-speedup"), least=least)
