"""Runs of one machine, measured alike -> one run with all their sessions, numbered by their start; and the
`gpubench-fleet` document, version 2: one node per machine."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from gpubench.analysis.machine import RunOutline, node_key, node_name, same_machines
from gpubench.analysis.samples import seconds_between, seconds_of
from gpubench.base.errors import InputError, WrongResult
from gpubench.compare.pairing import PROTOCOL
from gpubench.result.run import (
    Check,
    Device,
    Environment,
    Failure,
    Fingerprints,
    Measurement,
    Outcome,
    Run,
    RunWarning,
    Selection,
    SessionRecord,
    Skip,
    TogetherTimes,
    failures_of,
    fingerprint,
)

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
    check(runs)
    if len(runs) == 1:
        return runs[0]
    runs = sorted(runs, key=lambda run: (run.started_at, run.id))
    first, ids = runs[0], sorted(name for run in runs for name in run.origins)
    sessions, numbering = _numbered(runs)
    worst = max(runs, key=lambda run: _gravity(run.exit_reason))
    finished_at = max((run.finished_at for run in runs if run.finished_at), default=None)
    return Run(
        id=str(uuid.uuid5(uuid.NAMESPACE_OID, "\n".join(ids))), merged=ids, label=_common([run.label for run in runs]),
        tags=sorted({tag for run in runs for tag in run.tags}), tool=_union([run.tool for run in runs]),
        argv=_common([run.argv for run in runs]) or [], started_at=first.started_at,
        finished_at=finished_at, paused_s=_paused_s(first.started_at, finished_at, runs),
        complete=all(run.complete for run in runs), exit_code=worst.exit_code, exit_reason=worst.exit_reason,
        selection=_selection([run.selection for run in runs]),
        settings=msgspec.structs.replace(first.settings, sessions=sum(not session.superseded for session in sessions)),
        machine=first.machine, environment=_environment([run.environment for run in runs]),
        fingerprint=_fingerprints(runs), devices=_devices(runs), sessions=sessions,
        outcomes=joined(runs, numbering), warnings=_warnings(runs, numbering),
        twins=next((run.twins for run in reversed(runs) if run.twins), UNSET),
        together=_together(runs, numbering) or UNSET,
    )  # fmt: skip


def _paused_s(started_at: str, finished_at: str | None, runs: Sequence[Run]) -> float | UnsetType:
    """Return the seconds in which none of the runs ran, if it is known how long all of them took."""
    spans = [seconds_between(started_at, finished_at), *map(seconds_of, runs)]
    known = [span_s for span_s in spans if span_s is not None]
    return max(0.0, known[0] - sum(known[1:])) if len(known) == len(spans) else UNSET


def _together(runs: Sequence[Run], numbering: Numbering) -> list[TogetherTimes]:
    return [
        msgspec.structs.replace(times, session=numbering[i, times.session])
        for i, run in enumerate(runs)
        for times in run.together or ()
    ]


def refuse_twice(runs: Iterable[Run | RunOutline]) -> None:
    """Raises InputError if a run is there twice, by itself or inside another."""
    seen: set[str] = set()
    for run in runs:
        for name in run.origins:
            if name in seen:
                raise InputError(
                    "same-run-twice", f"the run {name} is there twice",
                    why="its sessions would count twice, and every interval would become too narrow",
                )  # fmt: skip
            seen.add(name)


def _numbered(runs: Sequence[Run]) -> tuple[list[SessionRecord], Numbering]:
    """The sessions by their start, and the new number of each session of each run."""
    listed = [
        (session.started_at, _unnumbered(session), i, session)
        for i, run in enumerate(runs)
        for session in _sessions(run)
    ]
    listed.sort(key=lambda row: row[:3])
    numbering = {(i, session.index): number for number, (_, _, i, session) in enumerate(listed)}
    return [_renumbered(session, i, numbering) for _, _, i, session in listed], numbering


def _unnumbered(session: SessionRecord) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(session, index=0, repeats=None))


def _renumbered(session: SessionRecord, i: int, numbering: Numbering) -> SessionRecord:
    repeats = None if session.repeats is None else numbering.get((i, session.repeats))
    return msgspec.structs.replace(session, index=numbering[i, session.index], repeats=repeats)


def _sessions(run: Run) -> list[SessionRecord]:
    """The sessions that a run lists, and those that its samples tell of and it does not list."""
    listed = {session.index for session in run.sessions}
    named = set()
    for outcome in run.outcomes:
        named |= {failure.session for failure in failures_of(outcome)}
        if isinstance(outcome, Measurement):
            named |= {block.session for block in outcome.blocks} | {part.session for part in outcome.parts}
            named |= {stop.session for stop in outcome.stops}
    rest = [SessionRecord(index=index, started_at=run.started_at) for index in sorted(named - listed)]
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


Numbering = Mapping[tuple[int, int], int]  # run and session there -> session in the merged run
_KERNELS = " or "


def joined(runs: Sequence[Run], numbering: Numbering) -> list[Outcome]:
    """Each case once, in the order in which the runs name them, its sessions numbered anew.

    A case that was wrong in one run is wrong: a later session does not make up for that. What else broke in a run
    costs that run's sessions alone. A case that one run skipped or did not reach is measured if another run has
    measured it.
    """
    by_id: dict[str, list[tuple[int, Outcome]]] = {}
    for i, run in enumerate(runs):
        for outcome in run.outcomes:
            by_id.setdefault(outcome.id, []).append((i, outcome))
    return [_joined(group, numbering) for group in by_id.values()]


def _joined(group: Sequence[tuple[int, Outcome]], numbering: Numbering) -> Outcome:
    outcomes = [outcome for _, outcome in group]
    failures = [
        msgspec.structs.replace(failure, session=numbering[i, failure.session])
        for i, outcome in group
        for failure in failures_of(outcome)
    ]
    failures.sort(key=lambda failure: failure.session)
    for outcome in outcomes:
        if isinstance(outcome, Failure) and outcome.reason == WrongResult.reason:
            return outcome
    for kind in (Measurement, Failure, Skip):
        found = [(i, outcome) for i, outcome in group if isinstance(outcome, kind)]
        if found and kind is Measurement:
            measured = _measurement([(i, one) for i, one in found if isinstance(one, Measurement)], numbering)
            return msgspec.structs.replace(measured, failures=failures or UNSET)
        if found and kind is Failure:
            return msgspec.structs.replace(found[0][1], failures=failures or UNSET)
        if found:
            return found[0][1]
    return outcomes[0]


def _measurement(group: Sequence[tuple[int, Measurement]], numbering: Numbering) -> Measurement:
    parts = [part for _, part in group]
    check_case(parts)

    def rows(name: str, *order: str) -> list[Any]:
        """Return the rows of that name of all parts, each with the number that its session has in the whole."""
        renumbered = [
            msgspec.structs.replace(row, session=numbering[i, row.session])
            for i, part in group
            for row in getattr(part, name)
        ]
        return sorted(renumbered, key=attrgetter("session", *order))

    return msgspec.structs.replace(
        parts[0], kernel=_kernels(parts), check=max((part.check for part in parts), key=_error),
        blocks=rows("blocks", "round", "position"), parts=rows("parts"), stages=rows("stages"),
        placings=rows("placings"), stops=rows("stops"),
    )  # fmt: skip


def _kernels(parts: Sequence[Measurement]) -> str | None:
    """What the device took; where it chose differently, all of it."""
    names = {name for part in parts if part.kernel for name in part.kernel.split(_KERNELS)}
    return _KERNELS.join(sorted(names)) or None


def _error(check: Check) -> float:
    return check.max_error or 0.0


# A comparison asks the workers of each case for their threads; one result has one setting.
_SETTINGS = (*PROTOCOL, "threads")
_OF_A_CASE = ("case", "op_hash", "kernel_hash", "staging", "flops", "bytes")


def check(runs: Sequence[Run]) -> None:
    """Raises InputError naming the first field in which two of `runs` differ. A field that one lacks is none."""
    for scope in ("machine", "device", "software"):
        fields = [(run.id, getattr(run.fingerprint, scope).fields) for run in runs]
        _agree(scope, [(run_id, name, value) for run_id, found in fields for name, value in found.items()])
    _agree("protocol", [(run.id, name, getattr(run.settings, name)) for run in runs for name in _SETTINGS])


def check_case(measured: Sequence[Measurement]) -> None:
    """The same for one case: its op, its kernel's text and how its data moves."""
    for name in _OF_A_CASE:
        values = [getattr(one, name) for one in measured]
        if any(value != values[0] for value in values):
            other = next(value for value in values if value != values[0])
            raise _different(f"the case {measured[0].id}", name, values[0], other)
    shares = sorted({share for one in measured for share in _shares(one)}, key=str)
    if len(shares) > 1:
        raise _different(f"the case {measured[0].id}", "what each side does", shares[0], shares[-1])


def _shares(one: Measurement) -> set[float | str]:
    """What each side did of a case of two, beside what was tried."""
    return {block.cut for block in one.blocks if block.phase == "main" and block.cut is not None}


def _agree(scope: str, values: Iterable[tuple[str, str, object]]) -> None:
    first: dict[str, tuple[str, object]] = {}
    for run_id, name, value in values:
        known_id, known = first.setdefault(name, (run_id, value))
        if known != value:
            raise _different(f"the runs {known_id[:8]} and {run_id[:8]}", f"{scope} {name}", known, value)


def _different(who: str, field: str, one: object, other: object) -> InputError:
    return InputError(
        "not-mergeable", f"{who} cannot be merged: {field} differs",
        why=f"{one} in one, {other} in another, and sessions of one result are measured alike",
    )  # fmt: skip


NAME, VERSION = "gpubench-fleet", 3
EMBEDDED_NODES = 64  # a larger fleet keeps the results of its nodes in files beside it
# Why a node is not whole. Of its file: some cases failed or were not reached; it cannot be used; it is not there.
# Of a node that `run --cluster` asked: its process ended before its time; it fell silent; others held it; the cluster
# does not know it; it runs other code; it has too few GPUs; its run left no result.
NodeReason = Literal[
    "partial",
    "unusable",
    "missing",
    "died",
    "hung",
    "busy",
    "unreachable",
    "version-skew",
    "too-few-gpus",
    "failed",
]


class NodeAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that `--retry-failed` repeated: how it ended."""

    reason: NodeReason
    error: str
    last_event: str | None = None


class NodeFile(msgspec.Struct, frozen=True, kw_only=True):
    """A result beside the fleet: its path from the fleet's folder, and the digest of its bytes."""

    path: str
    sha256: str


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One machine: its result, or why there is none. `key` names it by its fingerprint and the uuids of its GPUs,
    `label` is what `--context node=` called it.

    `others` are results of the same machine whose device ids mean other GPUs than in `result`, the newest: a GPU that
    is lost moves those behind it, and two runs that see one GPU each both call it cupy:0. In a large fleet `files`
    stand for all of them, the newest last. Of a node that `run --cluster` asked, `engine` names what started it,
    `last_event` is the last that it reported, and `attempts` are those before this one.
    """

    key: str
    status: Literal["ok", "failed"]
    label: str | None = None
    reason: NodeReason | None = None
    error: str | None = None
    result: Run | None = None
    others: list[Run] = []
    files: list[NodeFile] = []
    engine: dict[str, str] = {}
    last_event: str | None = None
    attempts: list[NodeAttempt] = []

    @property
    def runs(self) -> list[Run]:
        """Its results, the oldest first."""
        return [*self.others, *([self.result] if self.result else [])]

    @property
    def name(self) -> str:
        """For people: what it was called, else the beginning of its key."""
        return self.label or self.key[:24]


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a fleet. `complete`: as many as were expected have brought a result."""

    name: Literal["gpubench-fleet"] = "gpubench-fleet"
    schema_version: int = VERSION
    nodes_expected: int
    nodes_collected: int
    complete: bool
    nodes: list[Node]

    def runs_beside(self, path: str) -> list[Run]:
        """Return the runs of all nodes; say on stderr which node brought none. The fleet is the file at `path`."""
        from gpubench.fleet.report_command import opened

        nodes = [opened(node, path) for node in self.nodes]
        for node in nodes:
            if not node.runs:
                print(f"{path}: the node {node.key} brought no result: {node.error}", file=sys.stderr)
        return [run for node in nodes for run in node.runs]


def load_fleet(data: bytes, source: str) -> Fleet:
    """Return the fleet that these bytes are. Raises InputError."""
    from gpubench.result import store
    from gpubench.result.store import limits

    fleet = store.loads_as(Fleet, data, source, name=NAME, newest=VERSION)
    runs = [run for node in fleet.nodes for run in node.runs]
    limits.require_runs(runs, source)
    for run in runs:
        store.checked(run, source)
    return fleet


def fleet_of(
    runs: Sequence[Run], failed: Iterable[Node] = (), *, expected: int | None = None, names: Sequence[str] = ()
) -> Fleet:
    """The fleet of `runs`, those of one machine merged; `failed` are nodes without a result.

    `expected` nodes are needed to be complete (None: all that are named here), `names` among them. Raises InputError
    for a run that comes twice and for runs of one machine that cannot be merged.
    """
    refuse_twice(runs)
    return gathered(map(node_of, same_machines(runs)), failed, expected=expected, names=names)


def gathered(
    nodes: Iterable[Node],
    failed: Iterable[Node] = (),
    *,
    expected: int | None = None,
    names: Sequence[str] = (),
) -> Fleet:
    """The fleet of nodes that brought a result and of those that `failed`; see `fleet_of`."""
    brought = sorted(nodes, key=lambda node: node.key)
    known = {node.label for node in brought if node.label is not None}
    absent = [
        Node(key=name, label=name, status="failed", reason="missing", error="no file of it was named")
        for name in names
    ]
    rest = sorted([*absent, *failed], key=lambda node: (node.key, node.error or ""))
    missing = {node.key: node for node in rest if node.label not in known}
    wanted = len(brought) + len(missing) if expected is None else expected
    complete = len(brought) >= wanted and not any(node.label for node in missing.values())
    # A file that could not be read does not tell whose it was; once all are there, so is that node.
    return Fleet(
        nodes_expected=wanted, nodes_collected=len(brought), complete=complete,
        nodes=brought if complete else [*brought, *missing.values()],
    )  # fmt: skip


def node_of(runs: Sequence[Run]) -> Node:
    """The node of the runs of one machine. Raises InputError for runs that cannot be merged."""
    *others, newest = [merged(found) for found in alike(runs)]
    broken = sum(isinstance(outcome, Failure) for outcome in newest.outcomes)
    reason: NodeReason | None = "partial" if broken or not newest.complete else None
    error = None
    if reason is not None:
        ended = [] if newest.complete else [f"its run ended early ({newest.exit_reason}){_last(newest)}"]
        failed = [f"{broken} case{'s' if broken != 1 else ''} failed"] if broken else []
        error = "; ".join([*ended, *failed])
    return Node(
        key=node_key(*runs), label=node_name(newest), status="ok", reason=reason, error=error, result=newest,
        others=others,
    )  # fmt: skip


def _last(run: Run) -> str:
    reached = [outcome for outcome in run.outcomes if isinstance(outcome, Measurement | Failure)]
    return f", last: {reached[-1].id}" if reached else ""


def alike(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs of one machine whose device ids mean the same GPUs, each with its like; the newest come last."""
    groups: list[list[Run]] = []
    for run in sorted(runs, key=lambda run: (run.started_at, run.id), reverse=True):
        place = next((group for group in groups if all(_agree_on_gpus(run, other) for other in group)), None)
        if place is None:
            groups.append([run])
        else:
            place.append(run)
    return [group[::-1] for group in groups[::-1]]


def _agree_on_gpus(one: Run, other: Run) -> bool:
    known = _gpu_of_device(one)
    same_looks = one.fingerprint.machine.hash == other.fingerprint.machine.hash
    return same_looks and all(known.get(device, gpu) == gpu for device, gpu in _gpu_of_device(other).items())


def _gpu_of_device(run: Run) -> dict[str, str]:
    return {device.id: device.gpu_id for device in run.devices if device.gpu_id}
