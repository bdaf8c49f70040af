"""The run so far, saved by atomic replace after every case and every round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Literal

import msgspec

from gpubench.model.result import (
    Block,
    DeviceClock,
    Measurement,
    Outcome,
    Parts,
    Planned,
    Run,
    RunWarning,
    Skip,
    Stop,
)
from gpubench.model.session import SessionRecord

Save = Callable[[Run], None]


class Recorder:
    """Collects outcomes by case id; `save` writes the document as it stands."""

    def __init__(self, run: Run, save: Save) -> None:
        self._run = run
        self._save = save
        self._outcomes: dict[str, Outcome] = {outcome.id: outcome for outcome in run.outcomes}

    @property
    def run(self) -> Run:
        """The document as it stands."""
        return msgspec.structs.replace(self._run, outcomes=list(self._outcomes.values()))

    @property
    def outcomes(self) -> Iterable[Outcome]:
        """All that is known of cases."""
        return self._outcomes.values()

    def outcome(self, case_id: str) -> Outcome | None:
        """What is known of a case."""
        return self._outcomes.get(case_id)

    def plan(self, outcomes: list[Outcome]) -> None:
        """Enter planned and skipped cases that are not known yet."""
        for outcome in outcomes:
            self._outcomes.setdefault(outcome.id, outcome)

    def drop_empty(self, case_ids: Iterable[str]) -> None:
        """Forget those cases of which nothing was measured: no plan asked for them, a search only wished to look."""
        for case_id in case_ids:
            known = self._outcomes.get(case_id)
            if isinstance(known, Measurement) and not known.blocks:
                del self._outcomes[case_id]

    def put(self, outcome: Outcome) -> None:
        """Set a case's outcome; `save` is called once a round."""
        self._outcomes[outcome.id] = outcome

    def add_block(self, case_id: str, block: Block) -> None:
        """Append samples; `save` is called once a round."""
        known = self._measurement(case_id)
        self._outcomes[case_id] = msgspec.structs.replace(known, blocks=[*known.blocks, block])

    def add_parts(self, case_id: str, parts: Parts) -> None:
        """Append the parts of one session."""
        known = self._measurement(case_id)
        self._outcomes[case_id] = msgspec.structs.replace(known, parts=[*known.parts, parts])

    def extend_parts(self, case_id: str, session: int, more: Mapping[str, list[float]]) -> None:
        """Append samples to the parts of one session."""
        known = self._measurement(case_id) if more else None
        if known is None:
            return
        ours = next((part for part in known.parts if part.session == session), Parts(session=session))
        longer = {name: [*getattr(ours, name), *values] for name, values in more.items()}
        others = [part for part in known.parts if part.session != session]
        parts = [*others, msgspec.structs.replace(ours, **longer)]
        self._outcomes[case_id] = msgspec.structs.replace(known, parts=parts)

    def stop(self, case_id: str, stop: Stop) -> None:
        """Note why sampling ended in this session."""
        known = self._measurement(case_id)
        self.put(msgspec.structs.replace(known, stops=[*known.stops, stop]))

    def session(self, record: SessionRecord) -> None:
        """Enter or replace the record of a session, in the order of their indexes, and save."""
        sessions = {s.index: s for s in (*self._run.sessions, record)}
        self._run = msgspec.structs.replace(self._run, sessions=[sessions[i] for i in sorted(sessions)])
        self.save()

    def clocks(self, known: Mapping[str, DeviceClock]) -> None:
        """Note the clocks of devices as they tell them once they are open, by device id."""
        devices = [
            msgspec.structs.replace(device, clock=known.get(device.id, device.clock))
            for device in self._run.devices
        ]
        self.replace(devices=devices)

    def replace(self, **fields: object) -> None:
        """Change top-level fields of the document."""
        self._run = msgspec.structs.replace(self._run, **fields)

    def warn(self, warning: RunWarning) -> None:
        """Add a warning."""
        self._run = msgspec.structs.replace(self._run, warnings=[*self._run.warnings, warning])

    def save(self) -> None:
        """Write the document as it stands."""
        self._save(self.run)

    def finish(self, exit_code: int, exit_reason: str, *, complete: bool) -> Run:
        """Close the document and save it. What was planned and never reached stays visible as such."""
        if complete:
            self._skip_planned()
        self.replace(exit_code=exit_code, exit_reason=exit_reason, complete=complete, finished_at=utc_now())
        self.save()
        return self.run

    def _skip_planned(self) -> None:
        for outcome in list(self._outcomes.values()):
            if isinstance(outcome, Planned):
                self._outcomes[outcome.id] = Skip(
                    id=outcome.id, case=outcome.case, reason="budget",
                    detail="the time budget was used up before this case", hint="raise --budget",
                )  # fmt: skip

    def _measurement(self, case_id: str) -> Measurement:
        known = self._outcomes[case_id]
        assert isinstance(known, Measurement)
        return known


def utc_now(timespec: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """ISO 8601 in UTC, to the second; sessions are told apart by milliseconds."""
    return datetime.now(UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"
