"""The few words that a script acts upon, from a comparison or from reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from gpubench.errors import ExitCode
from gpubench.report.analysis.types import Analysis
from gpubench.report.formats._gates import gate_text
from gpubench.report.listing import first_few

if TYPE_CHECKING:
    from gpubench.report.compare.types import Comparison

VerdictWord = Literal["ok", "slower", "failed", "unsure"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """`errors` are failed gates and broken cases, `warnings` what else needs a look: one sentence each.

    Of a comparison the counts are verdicts; of reports they are headline speedups whose whole interval lies below 1,
    above 1, or neither. `verdict` is the gravest of failed, slower and unsure that holds, else ok.
    """

    verdict: VerdictWord
    slower: int
    faster: int
    unsure: int
    exit_code: int
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def of_comparison(found: Comparison) -> Outcome:
    """A comparison in a few words."""
    from gpubench.report.compare.text import gate_text as compare_gate_text  # reports have no part in comparing

    counts = found.counts
    broken = [gate for gate in found.gates if not gate.passed and not gate.impossible]
    failed = any(gate.name not in ("slower", "unsure") for gate in broken)
    unsure = [row for row in found.cases if row.verdict == "UNSURE" and not row.muted]
    near = [gate for gate in found.gates if gate.passed and gate.near]
    unjudged = unsure or near or found.exit_code == ExitCode.INPUT
    return Outcome(
        verdict="failed" if failed else "slower" if counts.slower else "unsure" if unjudged else "ok",
        slower=counts.slower, faster=counts.faster, unsure=counts.unsure, exit_code=found.exit_code,
        errors=tuple(compare_gate_text(gate) for gate in broken),
        warnings=(
            *map(compare_gate_text, near),
            *(f"{notice.message}; {notice.hint}" for notice in found.warnings if notice.severity != "info"),
            *(f"{row.id}: UNSURE ({row.reason})" for row in unsure),
        ),
    )  # fmt: skip


def of_reports(analyses: Sequence[Analysis], exit_code: int) -> Outcome:
    """Reports in a few words; `exit_code` is how the command ends."""
    gates = [gate for analysis in analyses for gate in analysis.gates]
    headlines = [row.ratio for analysis in analyses for row in analysis.speedups if row.headline]
    slower = sum(1 for ratio in headlines if ratio.high < 1)
    faster = sum(1 for ratio in headlines if ratio.low > 1)
    broken = [row for analysis in analyses for row in analysis.cases if row.outcome == "failure"]
    near = [gate for gate in gates if gate.passed and gate.near]
    return Outcome(
        verdict="failed" if exit_code != ExitCode.OK or broken else "unsure" if near else "ok",
        slower=slower, faster=faster, unsure=len(headlines) - slower - faster, exit_code=exit_code,
        errors=(
            *(gate_text(gate) for gate in gates if not gate.passed),
            *(f"{row.id}: {row.reason}: {row.detail}" for row in broken),
        ),
        warnings=(
            *(gate_text(gate) for gate in near),
            *(
                f"{finding.code}: {finding.message}{_where(finding.ids)}; {finding.hint}"
                for analysis in analyses
                for finding in analysis.findings
                if finding.severity != "info"
            ),
        ),
    )  # fmt: skip


def _where(ids: Sequence[str]) -> str:
    """` (matmul/n=64/... and 3 more)`."""
    return f" ({first_few(ids, 1)})" if ids else ""
