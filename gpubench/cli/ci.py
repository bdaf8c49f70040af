"""Gates of `run`, `report` and `compare` for continuous integration, and what it is told: summary,
messages, outputs, comment."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gpubench.base import disk, streams, units
from gpubench.base.errors import ExitCode, GpubenchError, UsageError, require_choice
from gpubench.cli.options import CiOptions

if TYPE_CHECKING:
    from gpubench.analysis.analyse import Analysis
    from gpubench.analysis.findings import Gates, MinSpeedup
    from gpubench.measure.schedule import RunSpec
    from gpubench.report.ci import CiOutcome
    from gpubench.result.case import Case


# GitHub throws away what exceeds 1024 KiB of one step.
SUMMARY_BYTES = 999_999
COMMENT_BYTES = 65_000
Name = TypeVar("Name", bound=str)
_MARKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}")


class CiChannels(msgspec.Struct, frozen=True, kw_only=True):
    """The channels to tell, checked before anything is measured."""

    summary: str | None  # a file to append to
    outputs: str | None  # a file to append to
    annotated: bool  # messages stand in the log
    marker: str | None  # by which a comment is found again
    max_bytes: int | None  # of a comment

    def comment(self, text: str, format: str) -> str:
        """Markdown with its marker and within its limit; any other format as it is."""
        if format != "markdown" or not (self.marker or self.max_bytes):
            return text
        from gpubench.report import ci as fitting  # takes as long to be imported as a comparison

        text = fitting.add_marker(text, self.marker) if self.marker else text
        limit = self.max_bytes or (COMMENT_BYTES if self.marker else None)
        return text if limit is None else fitting.fit_text(text, limit)

    def tell(
        self, outcome: Callable[[], CiOutcome], markdown: Callable[[], str], result_file: str | None
    ) -> None:
        """After the report: summary, outputs, messages. Whatever nobody asked for is not computed."""
        if self.summary is not None:
            _append(self.summary, _below_limit(self.summary, markdown()))
        if self.outputs is not None:
            from gpubench.report.ci import outputs

            _append(self.outputs, outputs(outcome(), result_file))
        if self.annotated:
            from gpubench.report.ci import messages

            for line in messages(outcome()):
                streams.command(line)


def channels(options: CiOptions, environ: Mapping[str, str]) -> CiChannels:
    """Return the options as checked values. Raises UsageError."""
    annotations, marker, max_bytes = options.annotations, options.marker, options.max_bytes
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
        max_bytes=max_bytes,
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
    """Return what of `text` may be added to the summary of this step; what it has already stays."""
    from gpubench.report import ci as fitting

    size, ended = _summary_state(path)
    gap = "" if ended else "\n"
    addition = fitting.fit_text(text, SUMMARY_BYTES - size - len(gap))
    if not addition:
        print("warning: the summary of this step is full; the report was left out of it", file=sys.stderr)
        return ""
    return gap + addition


def _summary_state(path: str) -> tuple[int, bool]:
    """How many bytes a summary holds, and whether they end a line. What is no regular file holds none."""
    try:
        if not os.path.isfile(path) or not (size := os.path.getsize(path)):
            return 0, True
        with disk.open_regular(path) as file:
            file.seek(-1, os.SEEK_END)
            return size, file.read() == b"\n"
    except OSError as error:
        raise _cannot_write(path, error) from error


def _append(path: str, text: str) -> None:
    try:
        disk.write_regular(path, text.encode(), append=True)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: str, error: OSError) -> GpubenchError:
    return GpubenchError(
        "cannot-write", f"cannot write {path}", why=disk.reason(error),
        hint="GITHUB_STEP_SUMMARY and GITHUB_OUTPUT have to name files that can be written",
    )  # fmt: skip


# ---------------------------------------------------------------- gates


def gates(min_speedups: Sequence[str], fail_on: str | None) -> Gates:
    """Return the gates asked for, as checked values. Raises UsageError."""
    from gpubench.analysis.findings import FAIL_ON, Gates

    return Gates(
        min_speedups=tuple(_min_speedup(text) for text in min_speedups),
        fail_on=failing(fail_on, FAIL_ON),
    )


def failing(text: str | None, names: Sequence[Name]) -> tuple[Name, ...]:
    """Return the names that --fail-on lists, in their order. Raises UsageError for a word that is none of them."""
    words = [require_choice(word, names, "--fail-on") for word in units.split_words(text)]
    return tuple(name for name in names if name in words)


def exit_code(analyses: Sequence[Analysis]) -> ExitCode:
    """How a report ends: a failed gate or nothing wrong."""
    from gpubench.analysis.findings import has_failures

    return ExitCode.GATE if has_failures(analyses) else ExitCode.OK


def require_in_files(gates: Gates, analyses: Sequence[Analysis]) -> None:
    """`require_matches` in what the files hold. Raises UsageError."""
    rows = [case for analysis in analyses for case in analysis.cases]
    on_cpu = {case.case.device_id: case.device_kind == "cpu" for case in rows}
    hint = "gpubench report --sections raw lists the cases with their ids"
    require_matches(gates, (case.case for case in rows), on_cpu.__getitem__, hint)


def require_in_plan(gates: Gates, request: RunSpec) -> None:
    """`require_matches` in what is going to be measured, as far as sizes are known. Raises UsageError."""
    if not gates.min_speedups:
        return
    from gpubench.measure.schedule import plan_workloads

    on_cpu = {target.device.id: target.device.kind == "cpu" for target in request.constraints.targets}
    cases = (case for workload in plan_workloads(request) for case in workload.cases)
    hint = "give the sizes with --sizes; --dry-run lists the case ids"
    require_matches(gates, cases, on_cpu.__getitem__, hint)


def require_baseline(name: str | None, request: RunSpec) -> None:
    """The baseline is among what is going to be measured. Raises UsageError."""
    if name is None:
        return
    from gpubench.analysis.speedup import parse_baseline
    from gpubench.measure.schedule import plan_workloads

    chosen = parse_baseline(name)
    on_cpu = {target.device.id: target.device.kind == "cpu" for target in request.constraints.targets}
    matches = {
        f"{case.implementation}@{case.device_id}": chosen(case, on_cpu.get(case.device_id, False))
        for workload in plan_workloads(request)
        for case in workload.cases
    }
    if matches and not any(matches.values()):
        raise UsageError(
            "no-such-baseline", f"--baseline {name}: nothing that is going to be measured matches",
            why="a speedup needs a baseline that is measured too", hint=f"choose one of: {', '.join(sorted(matches))}",
        )  # fmt: skip


def require_matches(gates: Gates, cases: Iterable[Case], on_cpu: Callable[[str], bool], hint: str) -> None:
    """A gate that looks at nothing never fails: renaming an op must not switch it off. Raises UsageError.

    `cases` are those that are or will be there, `on_cpu` tells of a device id whether it is the baseline's.
    """
    contenders = [case for case in cases if not on_cpu(case.device_id)]
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
