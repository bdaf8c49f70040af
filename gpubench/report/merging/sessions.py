"""Runs of one machine, measured alike -> one run with all their sessions, numbered by their start."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from gpubench.errors import InputError
from gpubench.model.fingerprint import fingerprint
from gpubench.model.result import (
    Device,
    Environment,
    Fingerprints,
    Measurement,
    Run,
    RunWarning,
    Selection,
)
from gpubench.model.session import SessionRecord
from gpubench.report.merging import agreement
from gpubench.report.merging.outcomes import Numbering, joined

_NAMESPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")  # RFC 4122: names that are object identifiers
# What a merged run ended with: the worst of its parts (interface: exit codes).
_GRAVITY = (
    "ok", "gate", "budget", "input", "unavailable", "nothing-measured", "failed", "wrong-result", "interrupted",
)  # fmt: skip
T = TypeVar("T")


def merged(runs: Sequence[Run]) -> Run:
    """One run with the sessions of all, renumbered in the order in which they started; one run stays as it is.

    Raises InputError for a run that comes twice, and for runs that differ in machine, devices, software, protocol or
    the definition of an op.
    """
    refuse_twice(runs)
    agreement.check(runs)
    if len(runs) == 1:
        return runs[0]
    runs = sorted(runs, key=lambda run: (run.started_at, run.id))
    first, ids = runs[0], sorted(name for run in runs for name in run.origins)
    sessions, numbering = _numbered(runs)
    worst = max(runs, key=lambda run: _gravity(run.exit_reason))
    return Run(
        id=str(uuid.uuid5(_NAMESPACE, "\n".join(ids))), merged=ids, label=_common([run.label for run in runs]),
        tags=sorted({tag for run in runs for tag in run.tags}), tool=_union([run.tool for run in runs]),
        argv=_common([run.argv for run in runs]) or [], started_at=first.started_at,
        finished_at=max((run.finished_at for run in runs if run.finished_at), default=None),
        complete=all(run.complete for run in runs), exit_code=worst.exit_code, exit_reason=worst.exit_reason,
        selection=_selection([run.selection for run in runs]),
        settings=msgspec.structs.replace(first.settings, sessions=sum(not session.superseded for session in sessions)),
        machine=first.machine, environment=_environment([run.environment for run in runs]),
        fingerprint=_fingerprints(runs), devices=_devices(runs), sessions=sessions,
        outcomes=joined(runs, numbering), warnings=_warnings(runs, numbering),
    )  # fmt: skip


def refuse_twice(runs: Sequence[Run]) -> None:
    """Raises InputError if a run is there twice, by itself or inside another."""
    seen: set[str] = set()
    for run in runs:
        for name in run.origins:
            if name in seen:
                raise InputError(
                    "same-run-twice", f"the run {name} is there twice",
                    why="its sessions would count twice, and every interval would become too narrow",
                    hint="name each file once; a merged file already holds the runs that are listed in its `merged`",
                )  # fmt: skip
            seen.add(name)


def _numbered(runs: Sequence[Run]) -> tuple[list[SessionRecord], Numbering]:
    """The sessions by their start, and the new number of each session of each run."""
    told = [
        (session.started_at, _unnumbered(session), i, session)
        for i, run in enumerate(runs)
        for session in _sessions(run)
    ]
    told.sort(key=lambda row: row[:3])
    numbering = {(i, session.index): number for number, (_, _, i, session) in enumerate(told)}
    return [_renumbered(session, i, numbering) for _, _, i, session in told], numbering


def _unnumbered(session: SessionRecord) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(session, index=0, repeats=None))


def _renumbered(session: SessionRecord, i: int, numbering: Numbering) -> SessionRecord:
    repeats = None if session.repeats is None else numbering.get((i, session.repeats))
    return msgspec.structs.replace(session, index=numbering[i, session.index], repeats=repeats)


def _sessions(run: Run) -> list[SessionRecord]:
    """The sessions that a run lists, and those that its samples tell of and it does not list."""
    listed = {session.index for session in run.sessions}
    told = set()
    for outcome in run.outcomes:
        if isinstance(outcome, Measurement):
            told |= {block.session for block in outcome.blocks} | {part.session for part in outcome.parts}
            told |= {stop.session for stop in outcome.stops}
    rest = [SessionRecord(index=index, started_at=run.started_at) for index in sorted(told - listed)]
    return [*run.sessions, *rest]


def _selection(parts: Sequence[Selection]) -> Selection:
    first = parts[0]
    return msgspec.structs.replace(
        first,
        ops=_each_once([op for part in parts for op in part.ops]),
        sizes={
            op: sorted({n for part in parts for n in part.sizes.get(op, [])})
            for op in _each_once([op for part in parts for op in part.sizes])
        },
        dtypes=_each_once([dtype for part in parts for dtype in part.dtypes]),
        devices=_each_once([device for part in parts for device in part.devices]),
        forms=_each_once([form for part in parts for form in part.forms]),
        regimes=_each_once([regime for part in parts for regime in part.regimes]),
        params={
            op: _each_once([shape for part in parts for shape in part.params.get(op, [])])
            for op in _each_once([op for part in parts for op in part.params])
        },
        variants=_each_once([variant for part in parts for variant in part.variants]),
        filter=_each_once([text for part in parts for text in part.filter])
        if all(p.filter for p in parts)
        else [],
        skip=[text for text in first.skip if all(text in part.skip for part in parts)],
    )


def _environment(parts: Sequence[Environment]) -> Environment:
    """What holds for all of them."""
    return Environment(
        variables=_shared([part.variables for part in parts]), context=_shared([part.context for part in parts]),
        git=_common([part.git for part in parts]), ci=_common([part.ci for part in parts]),
    )  # fmt: skip


def _fingerprints(runs: Sequence[Run]) -> Fingerprints:
    found = [run.fingerprint for run in runs]
    if all(one == found[0] for one in found):
        return found[0]
    return Fingerprints(
        machine=fingerprint(_union([one.machine.fields for one in found])),
        device=fingerprint(_union([one.device.fields for one in found])),
        software=fingerprint(_union([one.software.fields for one in found])),
    )


def _devices(runs: Sequence[Run]) -> list[Device]:
    by_id: dict[str, Device] = {}
    for run in runs:
        for device in run.devices:
            by_id.setdefault(device.id, device)
    return list(by_id.values())


def _warnings(runs: Sequence[Run], numbering: Numbering) -> list[RunWarning]:
    found = [
        msgspec.structs.replace(
            warning,
            session=None if warning.session is None else numbering.get((i, warning.session), warning.session),
        )
        for i, run in enumerate(runs)
        for warning in run.warnings
    ]
    return _each_once(found)


def _gravity(reason: str) -> int:
    return _GRAVITY.index(reason) if reason in _GRAVITY else len(_GRAVITY)


def _union(parts: Sequence[Mapping[str, T]]) -> dict[str, T]:
    """All of them; agreement was checked where it matters, else the first to name a thing is taken."""
    return {name: value for part in reversed(parts) for name, value in part.items()}


def _shared(parts: Sequence[Mapping[str, T]]) -> dict[str, T]:
    return {
        name: value for name, value in parts[0].items() if all(part.get(name) == value for part in parts[1:])
    }


def _common(values: Sequence[T]) -> T | None:
    return values[0] if all(value == values[0] for value in values) else None


def _each_once(values: Sequence[T]) -> list[T]:
    found: list[T] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found
