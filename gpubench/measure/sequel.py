"""What a result file that is already there asks of the sessions to come: its own plan, again (--append, --like)."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import msgspec

from gpubench.measure.plan import Scope, Series, Workload, open_series, series, workload
from gpubench.measure.stopping import settled_block
from gpubench.measure.windows import Window, of_outcomes
from gpubench.model.case import Case
from gpubench.model.op import Op
from gpubench.model.result import Block, Measurement, Outcome, Planned, Run, Skip

# The reason of a skip, a stop or an ending: lack of time, which is no failure.
OUT_OF_TIME = "budget"


class Sequel(msgspec.Struct, frozen=True):
    """`missing` is what an interrupted session did not reach: measured first, in a session of its own, in which the
    search goes on if that was what ended (`search`). Then `sessions` more follow, each with all `workloads` and
    `windows`. `blocks` has a block of each case already measured: its repeat counts are used unchanged."""

    workloads: tuple[Workload, ...]
    windows: tuple[Window, ...]
    blocks: Mapping[str, Block]
    sessions: int
    missing: tuple[Workload, ...] = ()
    search: bool = False

    @property
    def count(self) -> int:
        """All sessions to come."""
        return self.sessions + bool(self.missing or self.search)


def again(run: Run, ops: Mapping[str, Op], scope: Scope, sessions: int) -> Sequel:
    """The plan of a file, for `sessions` more of them. `ops` are those of its selection, `scope` its devices."""
    cpu = {target.device.id for target in scope.targets if target.device.kind == "cpu"}
    return Sequel(
        workloads=_workloads([o for o in run.outcomes if _planned(o)], run, ops, scope),
        windows=of_outcomes(run.outcomes, ops, cpu), sessions=sessions,
        blocks={
            o.id: block for o in run.outcomes if isinstance(o, Measurement) and (block := settled_block(o)) is not None
        },
    )  # fmt: skip


def continued(run: Run, ops: Mapping[str, Op], scope: Scope, sessions: int | None) -> tuple[Run, Sequel]:
    """The file without what an interrupt left unfinished, and what it asks for.

    `sessions` more than it has; None: as many as it was to have, or as one call adds to a file that is complete.
    """
    if run.complete and run.exit_reason != OUT_OF_TIME and not any(_out_of_time(o) for o in run.outcomes):
        return run, again(run, ops, scope, sessions or run.settings.sessions)
    finished = _finished_turns(run)
    most = max((len(turns) for turns in finished.values()), default=0)
    rest = max(0, run.settings.sessions - max(most, 1))
    search = bool(open_series(ops, run.selection, run.settings)) and _searching(run)
    run = _without_unfinished(run)
    sequel = again(run, ops, scope, rest if sessions is None else sessions)
    missing = {workload for workload, turns in finished.items() if len(turns) < max(most, 1)}
    return run, msgspec.structs.replace(
        sequel, missing=tuple(item for item in sequel.workloads if item.key in missing), search=search
    )


def _planned(outcome: Outcome) -> bool:
    """Whether the plan has this case: sizes at which a search looked, or took fresh timings, are not of the plan."""
    if not isinstance(outcome, Measurement) or not outcome.blocks:
        return True
    return any(block.phase == "main" for block in outcome.blocks)


def _out_of_time(outcome: Outcome) -> bool:
    return isinstance(outcome, Planned) or (isinstance(outcome, Skip) and outcome.reason == OUT_OF_TIME)


def _finished_turns(run: Run) -> dict[str, set[int]]:
    """By workload of the plan the turns in which all of its cases were finished; those that failed are never tried
    again."""
    turns = {session.index: session.turn for session in run.sessions}
    unused = {session.index for session in run.sessions if session.superseded}
    found: dict[str, set[int]] = {}
    for outcome in run.outcomes:
        if _out_of_time(outcome):
            found[outcome.case.workload] = set()
        elif isinstance(outcome, Measurement) and _planned(outcome):
            done = {
                turns.get(stop.session, stop.session)
                for stop in outcome.stops
                if stop.session not in unused and _finished(outcome, stop.session, run.settings.min_samples)
            }
            found[outcome.case.workload] = found.get(outcome.case.workload, done) & done
    return found


def _finished(outcome: Measurement, session: int, least: int) -> bool:
    """Whether the session stopped the case with enough samples: a budget may have stopped it before."""
    taken = sum(len(b.wall_s) - b.warmup for b in outcome.blocks if b.session == session and b.phase == "main")
    reasons = [stop.reason for stop in outcome.stops if stop.session == session]
    return bool(reasons) and (OUT_OF_TIME not in reasons or taken >= least)


def _searching(run: Run) -> bool:
    """Whether an interrupt came before the search was over: then each session went on where the one before it ended,
    and none took up a case once more."""
    if run.complete or any(session.repeats is not None for session in run.sessions):
        return False
    begun = [
        {(outcome.id, block.session) for block in outcome.blocks if block.phase == "main"}
        for outcome in run.outcomes
        if isinstance(outcome, Measurement)
    ]
    once = all(len(sessions) <= 1 for sessions in begun)
    busy = {session for sessions in begun for _, session in sessions}
    counting = {session.index for session in run.sessions if not session.superseded}
    return once and (len(counting) <= 1 or counting <= busy)


def _without_unfinished(run: Run) -> Run:
    """What the last session began of a workload and did not finish is measured anew, with all of the workload's cases.
    A session of which nothing is left counts for nothing."""
    last = max((session.index for session in run.sessions if not session.superseded), default=0)
    least = run.settings.min_samples
    unfinished = {
        outcome.case.workload
        for outcome in run.outcomes
        if isinstance(outcome, Measurement) and _planned(outcome) and not _finished(outcome, last, least)
    }
    outcomes = [_without_last(outcome, last, unfinished) for outcome in run.outcomes]
    left = any(
        block.session == last
        for outcome in outcomes
        if isinstance(outcome, Measurement)
        for block in outcome.blocks
    )
    sessions = [
        msgspec.structs.replace(one, superseded=True) if one.index == last and not left else one
        for one in run.sessions
    ]
    return msgspec.structs.replace(run, outcomes=outcomes, sessions=sessions)


def _without_last(outcome: Outcome, last: int, unfinished: Container[str]) -> Outcome:
    if isinstance(outcome, Skip) and _out_of_time(outcome):
        return Planned(id=outcome.id, case=outcome.case)
    if not isinstance(outcome, Measurement) or outcome.case.workload not in unfinished:
        return outcome
    return msgspec.structs.replace(
        outcome,
        blocks=[block for block in outcome.blocks if block.session != last or block.phase != "main"],
        parts=[parts for parts in outcome.parts if parts.session != last],
        stops=[stop for stop in outcome.stops if stop.session != last],
    )  # fmt: skip


def _workloads(
    outcomes: Sequence[Outcome], run: Run, ops: Mapping[str, Op], scope: Scope
) -> tuple[Workload, ...]:
    """The workloads of these outcomes, with these cases alone; a device clock is read where it was before."""
    ids = {outcome.id for outcome in outcomes}
    clocks = {o.case.workload for o in outcomes if isinstance(o, Measurement) and _on_device(o)}
    within = msgspec.structs.replace(scope, keep=lambda case: case.id in ids)
    found = []
    for curve in series(ops, run.selection):
        for n in sorted({o.case.params["n"] for o in outcomes if _on(o.case, curve)}):
            item = workload(curve, n, within)
            found.append(msgspec.structs.replace(item, device_clock=not clocks or item.key in clocks))
    return tuple(found)


def _on(case: Case, curve: Series) -> bool:
    return (case.op, case.dtype) == (curve.op.name, curve.dtype) and case.params == curve.params(
        case.params["n"]
    )


def _on_device(outcome: Measurement) -> bool:
    return any(block.hot_repeat is not None or block.device_cold_s for block in outcome.blocks)
