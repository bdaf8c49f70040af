"""The document of a run, which grows and is saved after every block, and the events that a run reports."""

from __future__ import annotations

import os
import platform
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import replace

from gpubench import __version__
from gpubench.base import processes
from gpubench.base.errors import DeviceLost, ExitCode, WrongResult
from gpubench.base.messages import REASONS
from gpubench.base.streams import encode_json, in_ci
from gpubench.measure.budget import LEAST_BLOCKS
from gpubench.result.case import DEVICE_GROUP, Case
from gpubench.result.identity import uuid_digest
from gpubench.result.machine import Machine
from gpubench.result.run import (
    Block,
    Ci,
    Device,
    DeviceClock,
    Environment,
    Failure,
    Fingerprints,
    Git,
    Measurement,
    Outcome,
    Parts,
    Planned,
    Run,
    RunWarning,
    Selection,
    SessionFailure,
    SessionRecord,
    Settings,
    Skip,
    failures_of,
    fingerprint,
)

# Saves the run. Parts that did not change since the last call are the same objects. Raises GpubenchError.
Save = Callable[[Run], None]
Document = TypeVar("Document", bound=msgspec.Struct)


class Progress(msgspec.Struct):
    """How far a run has come."""

    cases: int  # the number of planned cases
    sessions: int  # the number of planned sessions
    remaining: Callable[[], float | None]  # returns the seconds left; None: unknown
    number: int = 0  # the number of cases begun
    finished: int = 0  # the number of cases finished


class Recorder:
    """The document of a run, with its outcomes by case id. `save` is called with the document to write it."""

    def __init__(self, run: Run, save: Save) -> None:
        self._run = run
        self._save = save
        self._outcomes: dict[str, Outcome] = {outcome.id: outcome for outcome in run.outcomes}

    @property
    def run(self) -> Run:
        return replace(self._run, outcomes=list(self._outcomes.values()))

    @property
    def outcomes(self) -> Iterable[Outcome]:
        return self._outcomes.values()

    def outcome(self, case_id: str) -> Outcome | None:
        return self._outcomes.get(case_id)

    def plan(self, outcomes: list[Outcome]) -> None:
        """Add outcomes of cases that are not in the document yet."""
        for outcome in outcomes:
            self._outcomes.setdefault(outcome.id, outcome)

    def put(self, outcome: Outcome) -> None:
        """Set the outcome of a case."""
        self._outcomes[outcome.id] = outcome

    def add(self, case_id: str, **records: msgspec.Struct) -> None:
        """Append records to a measurement. Each keyword is the name of a list field, its value the record to
        append."""
        measurement = self._measurement(case_id)
        longer = {name: [*(getattr(measurement, name) or ()), record] for name, record in records.items()}
        self._outcomes[case_id] = replace(measurement, **longer)

    def extend_parts(self, case_id: str, session: int, more: Mapping[str, list[float]]) -> None:
        """Append times to the case's `Parts` of this session. `more` maps the name of a list in `Parts` to the
        seconds to append."""
        if not more:
            return
        measurement = self._measurement(case_id)
        parts_here = next(
            (part for part in measurement.parts if part.session == session), Parts(session=session)
        )
        longer = {name: [*getattr(parts_here, name), *values] for name, values in more.items()}
        others = [part for part in measurement.parts if part.session != session]
        parts = [*others, replace(parts_here, **longer)]
        self._outcomes[case_id] = replace(measurement, parts=parts)

    def session(self, record: SessionRecord) -> None:
        """Add or replace the record of a session, keep the records sorted by index, and save."""
        sessions = {s.index: s for s in (*self._run.sessions, record)}
        self.replace(sessions=[sessions[i] for i in sorted(sessions)])
        self.save()

    def clocks(self, clock_of: Mapping[str, DeviceClock]) -> None:
        """Store the clocks that devices report once they are open. `clock_of` maps device ids to clocks."""
        devices = [replace(device, clock=clock_of.get(device.id, device.clock)) for device in self._run.devices]
        self.replace(devices=devices)

    def replace(self, **fields: object) -> None:
        """Change top-level fields of the document."""
        self._run = replace(self._run, **fields)

    def warn(self, warning: RunWarning) -> None:
        self.replace(warnings=[*self._run.warnings, warning])

    def withdraw(self, warning: RunWarning) -> None:
        """Remove a warning that is no longer true. It must be the same object that was added."""
        self.replace(warnings=[other for other in self._run.warnings if other is not warning])

    def save(self) -> None:
        """Write the document as it is now."""
        self._save(self.run)

    def finish(self, exit_code: int, exit_reason: str, *, complete: bool) -> Run:
        """Set how the run ended, save the document and return it. If the run is complete, cases that were never
        reached become skips with the reason `budget`."""
        if complete:
            self._skip_the_rest()
        self.replace(exit_code=exit_code, exit_reason=exit_reason, complete=complete, finished_at=utc_now())
        self.save()
        return self.run

    def _skip_the_rest(self) -> None:
        for outcome in list(self._outcomes.values()):
            if isinstance(outcome, Planned):
                self._outcomes[outcome.id] = Skip(
                    id=outcome.id, case=outcome.case, reason="budget",
                    detail="the time budget was used up before this case", hint=REASONS["budget"].remedy,
                )  # fmt: skip

    def _measurement(self, case_id: str) -> Measurement:
        outcome = self._outcomes[case_id]
        assert isinstance(outcome, Measurement)
        return outcome


def utc_now(timespec: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """Return the current time in UTC as ISO 8601, to the precision `timespec`."""
    return datetime.now(UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"


_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F][0-9a-fA-F/-]{14,80}")

GIT_LIMIT_S = 5.0
# Environment variables that the file records, because they change what the libraries do.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "WGPU_BACKEND_TYPE",
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a run: its command, its environment and the user's notes."""

    argv: Sequence[str] = ()  # the command line
    versions: Mapping[str, str] = {}  # the versions of the libraries that the run uses, by name
    label: str | None = None  # the user's name for the run; None: it has none
    tags: Sequence[str] = ()  # the user's tags
    context: Mapping[str, str] = {}  # names and values that the user gave
    environ: Mapping[str, str] = {}  # the environment variables


def new_run(
    selection: Selection, settings: Settings, machine: Machine, devices: Sequence[Device], origin: Origin
) -> Run:
    """Return a run without outcomes, marked as interrupted until `finish`. It contains no name of a host or
    user and no path, except in notes of the user."""
    environ = origin.environ
    tool = {
        "gpubench": __version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        **origin.versions,
    }
    run = Run(
        id=str(uuid.uuid4()), label=origin.label, tags=list(origin.tags), tool=tool,
        argv=[_base_name(a) for a in origin.argv], started_at=utc_now(),
        exit_code=int(ExitCode.INTERRUPTED), exit_reason="interrupted", selection=selection, settings=settings,
        machine=machine,
        environment=Environment(
            variables={name: environ[name] for name in VARIABLES if name in environ},
            context=dict(origin.context), git=_git(), ci=_ci(environ),
        ),
        fingerprint=Fingerprints(
            machine=fingerprint(_machine_fields(machine)),
            device=fingerprint({d.id: f"{d.name}, {d.memory_bytes} bytes" for d in devices}),
            software=fingerprint({**tool, **{d.id: d.driver or "" for d in devices}}),
        ),
        devices=[_device_of_file(device) for device in devices],
    )  # fmt: skip
    return without_uuids(run)


def without_uuids(document: Document) -> Document:
    """Return the document with each UUID of a GPU replaced by a digest of it."""
    text = encode_json(document).decode()
    for uuid_text in sorted(set(_UUID.findall(text)), key=len, reverse=True):
        text = text.replace(uuid_text, uuid_digest(uuid_text))
    return msgspec.json.decode(text, type=type(document))


def _machine_fields(machine: Machine) -> dict[str, str]:
    total = machine.memory.total_bytes.value
    facts = {
        "cpu": machine.cpu.model.value,
        "usable_cpus": machine.cpu.available.value,
        # In whole GiB, because the kernel's own share of RAM changes from boot to boot.
        "memory_gib": None if total is None else round(total / 2**30),
    }
    return {name: str(value) for name, value in facts.items()}


def _base_name(argument: str) -> str:
    """Return the argument, reduced to its last part if it is a path."""
    # A path may name a user or a host.
    has_value = argument.startswith("-") and "=" in argument
    option, equals, value = argument.partition("=") if has_value else ("", "", argument)
    is_selector = set("*@") & set(value) and not value.startswith((os.sep, ".", "~", "-"))
    return argument if is_selector else f"{option}{equals}{os.path.basename(value)}"


def _git() -> Git | None:
    """Return commit, branch and state of the git checkout in the working folder, or None."""

    def ask(*arguments: str) -> str:
        ended = processes.run(["git", "--no-optional-locks", *arguments], GIT_LIMIT_S)
        if ended.status != 0:
            raise OSError(ended.errors)
        return ended.output

    try:
        commit, branch = ask("rev-parse", "HEAD", "--abbrev-ref", "HEAD").split()
        return Git(
            commit=commit,
            branch=None if branch == "HEAD" else branch,  # HEAD: no branch is checked out
            dirty=bool(ask("status", "--porcelain", "--untracked-files=no")),
            commit_time=ask("show", "-s", "--format=%cI", "HEAD"),
        )
    except OSError:
        return None


def _ci(environ: Mapping[str, str]) -> Ci | None:
    if environ.get("GITHUB_ACTIONS") == "true":
        server, repository = environ.get("GITHUB_SERVER_URL"), environ.get("GITHUB_REPOSITORY")
        run_id = environ.get("GITHUB_RUN_ID")
        url = f"{server}/{repository}/actions/runs/{run_id}" if server and repository and run_id else None
        return Ci(provider="github", run_url=url, runner_image=environ.get("ImageOS"))
    return Ci(provider="unknown") if in_ci(environ) else None


def _device_of_file(device: Device) -> Device:
    """Return the device as the file stores it, without the identity that detection uses."""
    clock = device.clock  # a GPU without one has the derived clock
    if clock is None and device.kind == "gpu" and device.backend != DEVICE_GROUP:
        clock = DeviceClock(kind="derived", step_s=time.get_clock_info("perf_counter").resolution)
    return replace(device, identity=None, identities=[], clock=clock)


# ---------------------------------------------------------------- outcomes of a case


def settled_block(measurement: Measurement) -> Block | None:
    """Return a block with the split and the repeat count for later sessions, or None without a block. Blocks of
    a sweep, which tries several splits, do not count."""
    blocks = [block for block in measurement.blocks if block.phase != "sweep"]
    return replace(blocks[0], repeat=blocks[-1].repeat) if blocks else None


# After this many failures in a row a case is not tried again: the case itself is the cause, not an accident.
FAILURES_IN_A_ROW = 2
# Reason of a skip for a lost device, which may come back in the next session.
DEVICE_LOST = DeviceLost.reason
# The reason of a skip, of a stop or of the run's end if there was no time left. It is no failure.
OUT_OF_TIME = "budget"
WRONG_RESULT = WrongResult.reason


def is_out_of_time(outcome: Outcome) -> bool:
    """Return whether there was no time left for the case."""
    return isinstance(outcome, Planned) or (isinstance(outcome, Skip) and outcome.reason == OUT_OF_TIME)


def has_samples(outcome: Outcome | None) -> bool:
    """Return whether the outcome is a measurement with at least one block."""
    return isinstance(outcome, Measurement) and bool(outcome.blocks)


def broken(case: Case, before: Outcome | None, failure: SessionFailure) -> Outcome:
    """Return the outcome of a case after `failure` in this session, whose unchecked blocks are dropped.
    `before` is the outcome at the start of the session, or None. If it has samples, it stays and gets the
    failure. Otherwise the outcome is a Failure."""
    failures = [*failures_of(before), failure]
    if isinstance(before, Measurement) and has_samples(before):
        return replace(before, failures=failures)
    return Failure(
        id=case.id, case=case, reason=failure.reason, detail=failure.detail, hint=failure.hint,
        phase=failure.phase, stderr_tail=failure.stderr_tail, failures=failures,
    )  # fmt: skip


def to_be_tried(outcome: Outcome | None, session: int, since: int) -> bool:
    """Return whether the session with index `session` measures the case with this outcome (None: it has none
    yet). A skipped case is tried again only if its device was lost, and a wrong result never. Other failures
    are tried again in later sessions, up to FAILURES_IN_A_ROW times in a row since session `since`."""
    if outcome is None or isinstance(outcome, Planned):
        return True
    if isinstance(outcome, Skip):
        return outcome.reason == DEVICE_LOST
    if isinstance(outcome, Failure) and outcome.reason == WRONG_RESULT:
        return False
    failed = {failure.session for failure in failures_of(outcome)}
    if session in failed:
        return False
    done = {stop.session for stop in outcome.stops} if isinstance(outcome, Measurement) else set()
    latest = sorted(number for number in failed | done if number >= since)[-FAILURES_IN_A_ROW:]
    return len(latest) < FAILURES_IN_A_ROW or not failed.issuperset(latest)


# ---------------------------------------------------------------- the end of a run


def verdict(
    run: Run, *, since: int = 0, unavailable: Iterable[str] = (), check_only: bool = False
) -> tuple[ExitCode, str]:
    """Return the exit code of the run and its reason. `unavailable` contains the required devices that could
    not be opened. A failure before session `since` does not count if the case has a measurement. With
    `check_only`, nothing was to be timed."""
    failures = [o for o in run.outcomes if isinstance(o, Failure)]
    if any(f.reason == WRONG_RESULT for f in failures):
        return ExitCode.FAILED, WRONG_RESULT
    if failures or any(failure.session >= since for o in run.outcomes for failure in failures_of(o)):
        return ExitCode.FAILED, "failed"
    if any(unavailable):
        return ExitCode.UNAVAILABLE, "unavailable"
    if not run.measurements and not (check_only and planned_cases(run)):
        return ExitCode.FAILED, "nothing-measured"
    late: list[Outcome] = [*planned_cases(run)]
    if not check_only:
        late += [o for o in run.measurements if _too_few(o, run.settings.min_samples)]
        # If a search left a case of another size open, that is no failure.
        late = [o for o in late if o.case.n in run.selection.sizes.get(o.case.op, ())]
    return (ExitCode.BUDGET, "budget") if late else (ExitCode.OK, "ok")


def planned_cases(run: Run) -> list[Planned]:
    """Return the cases that are planned but were not reached."""
    return [outcome for outcome in run.outcomes if isinstance(outcome, Planned)]


def _too_few(outcome: Measurement, least: int) -> bool:
    """Return whether the measurement ran out of time, with too few blocks and fewer than `least` samples."""
    # Throttled samples count here: throttling is no lack of time.
    main = [block for block in outcome.blocks if block.phase == "main"]
    return len(main) < LEAST_BLOCKS and sum(len(block.wall_s) - block.warmup for block in main) < least


# ---------------------------------------------------------------- events


class RunStarted(msgspec.Struct, frozen=True):
    """Event: the run begins."""

    cases: int  # the number of planned cases; a search may add more
    sessions: int  # the planned number of sessions; sessions may be added or left out
    budget_s: float | None  # the seconds of the budget; None if there is no budget


class CaseUnderWay(msgspec.Struct, frozen=True):
    """Base of the events about a case that is being measured."""

    id: str  # id of the case
    number: int  # number of the case in this run, from 1
    cases: int  # the number of all cases known so far
    session: int  # the index of the session
    sessions: int  # the number of all sessions
    remaining_s: float | None  # estimated seconds until the end; None if unknown


class CaseStarted(CaseUnderWay, frozen=True):
    """Event: a case is being prepared."""


class BlockDone(CaseUnderWay, frozen=True):
    """Event: a case has one more block."""

    estimate_s: float  # seconds per launch: the geometric mean of the medians of its blocks
    precision: float | None  # relative half-width of its interval; None for a single block
    samples: int  # number of samples of the estimate


class CaseDone(msgspec.Struct, frozen=True):
    """Event: the case is over in this session."""

    outcome: Outcome  # the outcome in the form of the result file
    cases: int  # the number of all cases known so far
    session: int  # the index of the session
    estimate_s: float | None  # as in BlockDone; None if there are no samples
    precision: float | None  # relative half-width of its interval; None for fewer than two blocks
    remaining_s: float | None  # estimated seconds until the end; None if unknown

    @property
    def failure(self) -> Failure | SessionFailure | None:
        here = [failure for failure in failures_of(self.outcome) if failure.session == self.session]
        if here:
            return here[-1]
        return self.outcome if isinstance(self.outcome, Failure) else None


class Warned(msgspec.Struct, frozen=True):
    """Event: a warning that the user should see now."""

    warning: RunWarning  # the warning in the form of the result file


class SessionAgain(msgspec.Struct, frozen=True):
    """Event: a session is measured again, because other programs used the CPUs."""

    share: float  # share of the CPUs' time that other programs took
    session: int  # the index of the session
    cases: int  # the number of all cases


class RunDone(msgspec.Struct, frozen=True):
    """Event: the run is over and saved."""

    exit_code: int  # exit code of the program
    exit_reason: str  # the reason for the end, in the form of the result file


Event = RunStarted | CaseStarted | BlockDone | CaseDone | Warned | SessionAgain | RunDone
Sink = Callable[[Event], None]
