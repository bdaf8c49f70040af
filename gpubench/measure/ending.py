"""How a run ends: the exit code of what was learnt (interface.md section 6)."""

from __future__ import annotations

from collections.abc import Iterable

from gpubench.errors import ExitCode
from gpubench.model.result import Failure, Measurement, Planned, Run


def verdict(run: Run, *, unavailable: Iterable[str] = (), check_only: bool = False) -> tuple[ExitCode, str]:
    """The code and its reason; `unavailable` are required devices that could not be opened."""
    failures = [o for o in run.outcomes if isinstance(o, Failure)]
    if any(f.reason == "wrong-result" for f in failures):
        return ExitCode.FAILED, "wrong-result"
    if failures:
        return ExitCode.FAILED, "failed"
    measured = [o for o in run.outcomes if isinstance(o, Measurement)]
    if any(unavailable):
        return ExitCode.UNAVAILABLE, "unavailable"
    if not measured:
        return ExitCode.FAILED, "nothing-measured"
    short = not check_only and any(_too_few(o, run.settings.min_samples) for o in measured)
    if short or any(isinstance(o, Planned) for o in run.outcomes):
        return ExitCode.BUDGET, "budget"
    return ExitCode.OK, "ok"


def _too_few(outcome: Measurement, least: int) -> bool:
    """Sizes at which a search only looked were never to have so many. What was throttled counts: it is used where
    too little else is left, so lack of time is not what ended the case."""
    main = [block for block in outcome.blocks if block.phase == "main"]
    if outcome.blocks and not main:
        return False
    return sum(len(block.wall_s) - block.warmup for block in main) < least
