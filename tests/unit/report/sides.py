"""Two sides of a comparison: runs whose sessions have the time that a test gives them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import msgspec

from gpubench.result.case import Case
from gpubench.result.run import Block, Fingerprint, Measurement, Outcome, Run
from tests.unit.report.builders import QUIET, case, measured, run_of

CASES = tuple(case(n=n) for n in (64, 128, 256, 512))


def timed(what: Case, session_s: Sequence[float], **changes: object) -> Measurement:
    """A case that took `session_s[i]` in session i, give or take half a percent within it."""
    blocks = [
        Block(session=i, round=0, position=0, repeat=10_000, wall_s=[seconds * factor for factor in QUIET])
        for i, seconds in enumerate(session_s)
    ]
    return msgspec.structs.replace(measured(what, 1.0), blocks=blocks, **changes)


def a_run(outcomes: Sequence[Outcome], sessions: int = 5, *, second: int = 0, **changes: object) -> Run:
    """A run whose sessions start every two seconds from `second` on: 0 and 1 take turns."""
    run = run_of(outcomes, sessions=sessions)
    sizes: dict[str, list[int]] = {}
    for outcome in outcomes:
        sizes.setdefault(outcome.case.op, []).append(outcome.case.params["n"])
    run = msgspec.structs.replace(run, selection=msgspec.structs.replace(run.selection, sizes=sizes))
    records = [
        msgspec.structs.replace(
            record, started_at=f"2026-01-02T03:{2 * i // 60:02}:{(2 * i + second) % 60:02}Z"
        )
        for i, record in enumerate(run.sessions)
    ]
    name = f"00000000-0000-4000-8000-{second:012}"
    return msgspec.structs.replace(run, sessions=records, **{"id": name, **changes})


def pair(
    slow: Mapping[str, float] | None = None, *, k: int = 5, sigma: float = 0.01, seed: int = 1,
    cases: Sequence[Case] = CASES,
) -> tuple[Run, Run]:  # fmt: skip
    """Base and new in turns; `slow` maps case ids to new / base, sessions vary by `sigma`."""
    chance = random.Random(seed)
    sides = []
    for second in (0, 1):
        outcomes = []
        for what in cases:
            factor = (slow or {}).get(what.id, 1.0) if second else 1.0
            outcomes.append(timed(what, [1e-3 * factor * (1 + chance.gauss(0, sigma)) for _ in range(k)]))
        sides.append(a_run(outcomes, k, second=second))
    return sides[0], sides[1]


def on_machine(run: Run, **fields: str) -> Run:
    """The run with these fields in the fingerprint of its machine."""
    prints = msgspec.structs.replace(run.fingerprint, machine=Fingerprint(hash="1" * 12, fields=fields))
    return msgspec.structs.replace(run, fingerprint=prints)


def busy_turns(what: Case, turns: Sequence[Sequence[float]], *, second: int = 0, load: float = 0.5) -> Run:
    """A run of one case in which every session was measured again at once, never quietly: `turns[i]` are the times of
    session i and of its repeats; each of these was a bit less disturbed than the one before."""
    times = [seconds for turn in turns for seconds in turn]
    run = a_run([timed(what, times)], len(times), second=second)
    records, number = [], 0
    for i, turn in enumerate(turns):
        for again in range(len(turn)):
            records.append(
                msgspec.structs.replace(
                    run.sessions[number], repeats=number - again if again else None,
                    foreign_cpu_share=load - 0.1 * again, started_at=f"2026-01-02T03:{2 * i + second:02}:{again:02}Z",
                )
            )  # fmt: skip
            number += 1
    return msgspec.structs.replace(run, sessions=records)
