"""`run --dry-run`: the plan as text, without measuring."""

from __future__ import annotations

from collections import Counter

from gpubench import units
from gpubench.measure.plan import estimate_seconds
from gpubench.measure.request import Request, planned


def render(request: Request) -> str:
    """Every case and skip of the plan, one a line, and how long it may take."""
    workloads = planned(request)
    cases = [case for w in workloads for case in w.cases]
    skips = [skip for w in workloads for skip in w.skips]
    settings = request.settings
    lines = [f"{case.id}" for case in cases]
    reasons = Counter((s.reason, s.detail) for s in skips)
    lines += [f"skip {count} x {reason}: {detail}" for (reason, detail), count in sorted(reasons.items())]
    count = request.sessions
    lines.append(f"{len(cases)} cases, {len(skips)} skipped, {count} session{'s' if count != 1 else ''}")
    if settings.budget_s is not None:
        grows = "; a search adds sizes while time is left" if request.searches else ""
        lines.append(f"budget {units.format_seconds(settings.budget_s)}{grows}")
    else:
        lines.append(f"at most about {units.format_seconds(estimate_seconds(workloads, settings))} of sampling")
    return "\n".join(lines) + "\n"
