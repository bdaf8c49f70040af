"""Which sessions are one observation each: a session and its repeats share a moment, and count as one turn."""

from __future__ import annotations

from collections.abc import Iterable

from gpubench.model.result import Run
from gpubench.report.analysis.samples import used_sessions


def observations(run: Run, sessions: Iterable[int] | None = None) -> list[int]:
    """Of `sessions` (None: all that count) one for each turn, in order: the one that others disturbed least.

    Repeats that no session was quiet enough to end follow one another while the machine is busy: taken as independent
    they would let one busy moment speak three times. They are chosen by the load beside them, never by their times, so
    that unchanged work stays exchangeable. Sessions that the run does not list are turns of their own.
    """
    allowed = used_sessions(run)
    known = {session.index: session for session in run.sessions}
    counting = allowed or () if sessions is None else sessions
    least: dict[int, tuple[float, int]] = {}
    for index in counting:
        record = known.get(index)
        turn, load = (index, 0.0) if record is None else (record.turn, record.disturbance)
        least[turn] = min(least.get(turn, (load, index)), (load, index))
    return sorted(index for _, index in least.values())
