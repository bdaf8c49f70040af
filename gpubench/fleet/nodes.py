"""The merging of runs, and the `gpubench-fleet` document, version 4, which has one node for each machine.

Runs of one machine that were measured in the same way are joined into one run with all their sessions, numbered
by their start.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from gpubench.analysis.machine import RunOutline, node_key, node_name
from gpubench.analysis.samples import seconds_between, seconds_of
from gpubench.base import disk, group_by, hash_text
from gpubench.base.errors import InputError, WrongResult
from gpubench.base.units import count_noun
from gpubench.result import store
from gpubench.result.identity import foreign_fields, foreign_gpus, same_text
from gpubench.result.run import (
    PROTOCOL,
    Environment,
    Failure,
    Fingerprint,
    Fingerprints,
    Measurement,
    Outcome,
    Run,
    Selection,
    SessionRecord,
    Skip,
    failures_of,
    fingerprint,
)
from gpubench.result.store.document import require_runs

# Exit reasons from the least to the most severe. A merged run has the most severe one of its parts.
_GRAVITY = (
    "ok", "gate", "budget", "input", "unavailable", "nothing-measured", "failed", "wrong-result", "interrupted"
)  # fmt: skip
_KERNELS = " or "
# The settings that runs must have in common. The number of threads is one of them, because a result has one setting
# of it for all of its cases.
_SETTINGS = (*PROTOCOL, "threads")
_OF_A_CASE = ("case", "op_hash", "kernel_hash", "staging", "flops", "bytes")
# The lists of a measurement whose rows have a session, with the other fields that order them.
_ROWS = {
    "blocks": ("round", "position"),
    "parts": (),
    "stages": (),
    "assignment_times": (),
    "stops": (),
    "energy": (),
}
_BY_SESSION = (*_ROWS, "failures")
T = TypeVar("T")
Numbers = Mapping[int, int]  # maps a run's session to the merged run's


def merge_runs(runs: Sequence[Run]) -> Run:
    """Return one run with the sessions of all `runs` (at least one), numbered by their start. Raises InputError
    if a run is given twice, or if the runs differ in machine, devices, software, protocol or the definition of
    an op."""
    refuse_twice(runs)
    _require_alike(runs)
    if len(runs) == 1:
        return runs[0]
    runs = _renumber(sorted(runs, key=lambda run: (run.started_at, run.id)))
    ids = sorted(name for run in runs for name in run.origins)
    sessions = sorted((session for run in runs for session in run.sessions), key=lambda session: session.index)
    # A reason that is not in the list is the most severe one.
    worst = max(runs, key=lambda run: (*_GRAVITY, run.exit_reason).index(run.exit_reason))
    started_at = runs[0].started_at
    finished_at = max((run.finished_at for run in runs if run.finished_at), default=None)
    return replace(
        runs[0], id=str(uuid.uuid5(uuid.NAMESPACE_OID, "\n".join(ids))), merged=ids,
        label=_common([run.label for run in runs]), tags=sorted({tag for run in runs for tag in run.tags}),
        tool=_unite([run.tool for run in runs]), argv=_common([run.argv for run in runs]) or [],
        finished_at=finished_at, paused_s=_paused_s(started_at, finished_at, runs),
        complete=all(run.complete for run in runs), exit_code=worst.exit_code, exit_reason=worst.exit_reason,
        selection=_selection([run.selection for run in runs]),
        settings=replace(
            runs[0].settings, sessions=sum(not session.superseded for session in sessions)
        ),
        environment=Environment(**_by_field([run.environment for run in runs], _common)),
        fingerprint=Fingerprints(**_by_field([run.fingerprint for run in runs], _fingerprint)),
        devices=[*_unite([{device.id: device for device in run.devices} for run in runs]).values()],
        sessions=sessions, outcomes=_outcomes(runs), warnings=_unite([run.warnings for run in runs]),
        identical_gpus=next((run.identical_gpus for run in reversed(runs) if run.identical_gpus), UNSET),
        together=[times for run in runs for times in run.together or ()] or UNSET
    )  # fmt: skip


def refuse_twice(runs: Iterable[Run | RunOutline]) -> None:
    """Raise InputError if a run is given twice: on its own, or as a part of a merged run."""
    seen: set[str] = set()
    for run in runs:
        for name in run.origins:
            if name in seen:
                raise InputError(
                    "same-run-twice", f"the run {name} is there twice",
                    why="its sessions would count twice, and every interval would become too narrow"
                )  # fmt: skip
            seen.add(name)


# ---------------------------------------------------------------- sessions, numbered by their start


def _renumber(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with the session numbers of the merged run."""
    listed = [(i, session) for i, run in enumerate(runs) for session in _sessions(run)]
    # Sessions of one start are sorted by their content.
    listed.sort(
        key=lambda pair: (
            pair[1].started_at,
            msgspec.json.encode(replace(pair[1], index=0, repeats=None)),
            pair[0],
        )
    )
    numbers: list[dict[int, int]] = [{} for _ in runs]
    for number, (i, session) in enumerate(listed):
        numbers[i][session.index] = number
    return [
        _with_numbers(run, [session for j, session in listed if j == i], numbers[i])
        for i, run in enumerate(runs)
    ]


def _sessions(run: Run) -> list[SessionRecord]:
    """Return the sessions that a run lists, then a new entry for each session that only its samples name."""
    named = {sample.session for outcome in run.outcomes for sample in _rows(outcome)}
    rest = sorted(named - {session.index for session in run.sessions})
    return [*run.sessions, *(SessionRecord(index=index, started_at=run.started_at) for index in rest)]


def _rows(outcome: Outcome) -> Iterable[Any]:
    return itertools.chain(*(getattr(outcome, name, ()) or () for name in _BY_SESSION))


def _with_numbers(run: Run, sessions: Sequence[SessionRecord], numbers: Numbers) -> Run:
    def renumber(rows: Iterable[T]) -> list[T]:
        return [replace(sample, session=numbers[sample.session]) for sample in rows]  # type: ignore

    outcomes = []
    for outcome in run.outcomes:
        lists: dict[str, Any] = {
            name: renumber(rows) for name in _BY_SESSION if (rows := getattr(outcome, name, UNSET))
        }
        outcomes.append(replace(outcome, **lists))
    return replace(
        run, outcomes=outcomes, together=renumber(run.together or ()) or UNSET,
        sessions=[
            replace(
                session, index=numbers[session.index],
                repeats=None if session.repeats is None else numbers.get(session.repeats),
            )
            for session in sessions
        ],
        warnings=[
            warning if warning.session is None
            else replace(warning, session=numbers.get(warning.session, warning.session))
            for warning in run.warnings
        ]
    )  # fmt: skip


# ---------------------------------------------------------------- one value out of several


def _unite(values: Sequence[Any]) -> Any:
    """Return the union of `values`: lists without duplicates, mappings key by key, else the first value."""
    first = values[0]
    if isinstance(first, list):
        entries: list[Any] = []
        for entry in itertools.chain(*values):
            if entry not in entries:
                entries.append(entry)
        return entries
    if isinstance(first, dict):
        names = dict.fromkeys(itertools.chain(*values))
        return {name: _unite([value[name] for value in values if name in value]) for name in names}
    return first


def _common(values: Sequence[Any]) -> Any:
    """Return the value if all `values` are equal, else None. For mappings, return the entries that all share."""
    first = values[0]
    if isinstance(first, dict):
        return {
            name: value for name, value in first.items() if all(other.get(name) == value for other in values)
        }
    return first if all(value == first for value in values) else None


def _by_field(parts: Sequence[msgspec.Struct], join: Callable[[Sequence[Any]], Any]) -> dict[str, Any]:
    """Return each field of `parts`, which are of one type, with its values joined."""
    return {name: join([getattr(part, name) for part in parts]) for name in parts[0].__struct_fields__}


def _selection(parts: Sequence[Selection]) -> Selection:
    fields = _by_field(parts, _unite)
    fields["sizes"] = {op: sorted(sizes) for op, sizes in fields["sizes"].items()}
    # Without a filter a run selects all; what one run does not skip, it measures.
    fields["filter"] = fields["filter"] if all(part.filter for part in parts) else []
    fields["skip"] = [text for text in parts[0].skip if all(text in part.skip for part in parts)]
    return Selection(**fields)


def _fingerprint(prints: Sequence[Fingerprint]) -> Fingerprint:
    return fingerprint(_unite([print.fields for print in prints]))


def _paused_s(started_at: str, finished_at: str | None, runs: Sequence[Run]) -> float | UnsetType:
    """Return the seconds between the first start and the last end in which no run was running. Return UNSET if a
    duration is unknown."""
    spans = [seconds_between(started_at, finished_at), *map(seconds_of, runs)]
    whole_s, *parts_s = [span_s or 0.0 for span_s in spans]
    return UNSET if None in spans else max(0.0, whole_s - sum(parts_s))


# ---------------------------------------------------------------- cases


def _outcomes(runs: Sequence[Run]) -> list[Outcome]:
    """Return the outcome of each case once, in the order in which the runs list the cases."""
    by_id = group_by((outcome for run in runs for outcome in run.outcomes), lambda outcome: outcome.id)
    return [_outcome(outcomes) for outcomes in by_id.values()]


def _outcome(outcomes: Sequence[Outcome]) -> Outcome:
    for outcome in outcomes:
        if isinstance(outcome, Failure) and outcome.reason == WrongResult.reason:
            # A case that was wrong in one run is wrong, whatever later sessions say. Other failures affect
            # their own sessions, and a case that any run measured counts as measured.
            return outcome
    measured = [outcome for outcome in outcomes if isinstance(outcome, Measurement)]
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    skipped = [outcome for outcome in outcomes if isinstance(outcome, Skip)]
    best = _measurement(measured) if measured else (*failed, *skipped, *outcomes)[0]
    if isinstance(best, Measurement | Failure):
        failures = [failure for outcome in outcomes for failure in failures_of(outcome)]
        failures.sort(key=lambda failure: failure.session)
        return replace(best, failures=failures or UNSET)
    return best


def _measurement(parts: Sequence[Measurement]) -> Measurement:
    """Return one measurement with the rows of all `parts`, all their kernels, and the worst check."""
    _require_same_case(parts)
    kernels = {name for part in parts if part.kernel for name in part.kernel.split(_KERNELS)}
    rows: dict[str, Any] = {
        name: sorted(
            (sample for part in parts for sample in getattr(part, name) or ()),
            key=attrgetter("session", *order),
        )
        for name, order in _ROWS.items()
    }
    rows["energy"] = rows["energy"] or UNSET  # a run without `--energy` has UNSET, too
    check = max((part.check for part in parts), key=lambda check: check.max_error or 0.0)
    return replace(parts[0], kernel=_KERNELS.join(sorted(kernels)) or None, check=check, **rows)


# what runs must have in common to be merged


def _require_alike(runs: Sequence[Run]) -> None:
    """Raise InputError if two runs differ in a fact of the machine, devices or software, or in a setting of the
    protocol. Unknown facts are not compared."""
    fields = [
        (scope, name, run, value)
        for scope in ("machine", "device", "software")
        for run in runs
        for name, value in getattr(run.fingerprint, scope).known.items()
    ]
    fields += [("protocol", name, run, getattr(run.settings, name)) for run in runs for name in _SETTINGS]
    first: dict[tuple[str, str], tuple[str, Any]] = {}
    for scope, name, run, value in fields:
        id, first_value = first.setdefault((scope, name), (run.id, value))
        if value != first_value and not same_text(name, str(first_value), str(value)):
            raise _different(f"the runs {id[:8]} and {run.id[:8]}", f"{scope} {name}", first_value, value)


def _require_same_case(parts: Sequence[Measurement]) -> None:
    """Raise InputError unless all parts measured the same case: the same op, kernel, kind of transfers and shares
    of a split."""
    fields = {name: [getattr(part, name) for part in parts] for name in _OF_A_CASE}
    fields["what each side does"] = sorted(
        {b.split for part in parts for b in part.blocks if b.phase == "main" and b.split is not None}, key=str
    )
    for name, values in fields.items():
        if other := [value for value in values if value != values[0]]:
            raise _different(f"the case {parts[0].id}", name, values[0], other[0])


def _different(who: str, field: str, value: object, other: object) -> InputError:
    return InputError(
        "not-mergeable", f"{who} cannot be merged: {field} differs",
        why=f"{value!r} in one, {other!r} in another, and sessions of one result are measured alike"
    )  # fmt: skip


# ---------------------------------------------------------------- the document

NAME, VERSION = "gpubench-fleet", 4
EMBEDDED_NODES = 64  # the results of larger fleets are files beside it
# Why a node has no complete result. `partial`: some cases failed or were not reached; `unusable`: its file
# cannot be used; `missing`: it has no file. The others are reasons of `run --cluster`. `died`: its process
# ended too early; `hung`: it stopped sending messages; `busy`: it did not begin in time; `unreachable`: the
# cluster does not know it; `version-skew`: it runs other code; `too-few-gpus`: it has too few GPUs; `failed`:
# its run left no result.
NodeReason = Literal[
    "partial", "unusable", "missing", "died", "hung", "busy", "unreachable", "version-skew", "too-few-gpus", "failed",
]  # fmt: skip


class NodeAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt of a node that `--retry-failed` repeated."""

    reason: NodeReason  # how the attempt ended
    error: str  # the reason in words
    last_event: str | None = None  # the last event that the node reported; null if there was none


class NodeFile(msgspec.Struct, frozen=True, kw_only=True):
    """A reference to a result in a file beside the fleet."""

    path: str  # the path relative to the fleet's folder
    sha256: str  # the SHA-256 digest of the file


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One machine of a fleet with its result, or the reason why there is none."""

    key: str  # made of its fingerprint, its GPUs' digests and its names; without a result, its name
    status: Literal["ok", "failed"]  # `ok` if there is a result, else `failed`
    label: str | None = None  # the name given by `--context node=`
    reason: NodeReason | None = None  # why the node has no complete result; null if it has one
    error: str | None = None  # the reason in words; null without a reason
    result: Run | None = None  # the newest result; null if there is none, or if it is in `files`
    others: list[Run] = []  # older results in which device ids mean other GPUs than in `result`
    files: list[NodeFile] = []  # in a large fleet: files with the results, the newest last
    engine: dict[str, str] = {}  # the engine of `run --cluster` and its version
    last_event: str | None = None  # the last event that the node reported; null if there was none
    attempts: list[NodeAttempt] = []  # earlier attempts, which were repeated

    @property
    def runs(self) -> list[Run]:
        """The results of the machine, from the oldest to the newest."""
        return [*self.others, *([self.result] if self.result else [])]

    @property
    def name(self) -> str:
        """The shown name: the label or, without one, the beginning of the key."""
        return self.label or self.key[:24]


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The document with the nodes of a fleet."""

    name: Literal["gpubench-fleet"] = "gpubench-fleet"  # the name of the document's format
    schema_version: int = VERSION  # the version of the document's format
    nodes_expected: int  # how many nodes are needed for a complete fleet
    nodes_collected: int  # how many nodes brought a result
    # whether at least `nodes_expected` nodes brought a result; `merge` also needs every node that has a name, and
    # `run --cluster` must not have ended a node's run early
    complete: bool
    nodes: list[Node]  # the nodes

    def runs_beside(self, path: str) -> list[Run]:
        """Return the runs of all nodes. `path` is the fleet's file, beside which results in other files are read.
        Print a line on standard error for each node without a usable result."""
        nodes = [open_node(node, path) for node in self.nodes]
        for node in nodes:
            if not node.runs:
                print(f"{path}: the node {node.key} brought no result: {node.error}", file=sys.stderr)
        return [run for node in nodes for run in node.runs]


def open_node(node: Node, fleet_path: str) -> Node:
    """Return `node` with the results of its files, which are beside the fleet's file `fleet_path`. If a file cannot
    be used, return the node as failed, with the reason."""
    if not node.files:
        return node
    folder = Path(fleet_path).parent
    try:
        runs = [store.load(_inside(folder, file)) for file in node.files]
    except InputError as error:
        return replace(
            node, status="failed", reason="unusable", error=f"{error.message}: {error.why}", files=[]
        )
    return replace(node, result=runs[-1], others=runs[:-1], files=[])


def beside(output: str | Path, suffix: str) -> Path:
    """Return the path of `output` with another suffix: with `.d`, `fleet.json` and `fleet.json.gz` give
    `fleet.d`."""
    target = Path(output)
    return target.with_name(re.sub(r"(\.json)?(\.gz)?$", "", target.name, flags=re.IGNORECASE) + suffix)


def file_stem(label: str | None, key: str) -> str:
    """Return the file name of a node's result without its suffix. `key` makes the name unique, and `label`
    makes it readable. The name never refers to another folder."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", label or "node").strip(".-")[:60]
    return f"{word}-{hash_text(key, 8)}"


def digest_file(path: Path) -> NodeFile:
    """Return the reference to a node's result in the file `path`, whose folder is beside the fleet. Raises OSError
    if the file cannot be read."""
    return NodeFile(
        path=f"{path.parent.name}/{path.name}", sha256=hashlib.sha256(disk.read_regular(path)).hexdigest()
    )


def _inside(folder: Path, file: NodeFile) -> Path:
    """Return the path of the file, or raise InputError if it is outside `folder` or has changed."""
    path, inner = folder / file.path, PurePosixPath(file.path)
    code, why = "bad-document", "it changed since the fleet was merged"
    try:
        if inner.is_absolute() or ".." in inner.parts or not path.resolve().is_relative_to(folder.resolve()):
            why = "it lies outside of the fleet's folder"
        elif digest_file(path).sha256 == file.sha256:
            return path
    # ValueError: a null character. RuntimeError: a circle of links, before Python 3.13.
    except (OSError, ValueError, RuntimeError) as error:
        code, why = "unreadable", disk.reason(error)
    raise InputError(code, f"{file.path} cannot be used", why=why)


def load_fleet(data: bytes, source: str) -> Fleet:
    """Return the fleet that the bytes in `data` encode. Results in other files are not read. `source` names the
    file in errors. Raises InputError if the bytes are no valid fleet."""
    fleet = store.loads_as(Fleet, data, source, name=NAME, newest=VERSION)
    runs = [run for node in fleet.nodes for run in node.runs]
    require_runs(runs, source)
    for run in runs:
        store.check_run(run, source)
    return fleet


def gather(
    nodes: Iterable[Node], failed: Iterable[Node] = (), *, expected: int | None = None, names: Sequence[str] = ()
) -> Fleet:  # fmt: skip
    """Return the fleet of `nodes`, which have a result, and of nodes without one: those in `failed`, and those of
    `names` that are in neither. The fleet is complete if at least `expected` nodes have a result (None: all), and no
    node whose name is known lacks one. A complete fleet omits the nodes without one."""
    brought, failed = sorted(nodes, key=lambda node: node.key), list(failed)
    labels = {node.label for node in brought if node.label is not None}
    absent = [
        Node(key=name, label=name, status="failed", reason="missing", error="no file of it was named")
        for name in names
        if all(name != node.label for node in failed)
    ]
    rest = sorted([*absent, *failed], key=lambda node: (node.key, node.error or ""))
    missing = {node.key: node for node in rest if node.label not in labels}
    needed = len(brought) + len(missing) if expected is None else expected
    complete = len(brought) >= needed and not any(node.label for node in missing.values())
    # A file that cannot be read has no label. If enough nodes are there without it, it is not needed.
    return Fleet(
        nodes_expected=needed, nodes_collected=len(brought), complete=complete,
        nodes=brought if complete else [*brought, *missing.values()]
    )  # fmt: skip


def node_of(runs: Sequence[Run]) -> Node:
    """Return the node for the runs of one machine. Runs whose device ids mean the same GPUs are merged. The newest
    merged run becomes `result`, older ones become `others`. Raises InputError if runs cannot be merged."""
    *others, newest = [merge_runs(group) for group in alike(runs)]
    broken = sum(isinstance(outcome, Failure) for outcome in newest.outcomes)
    lacks = []
    if not newest.complete:
        reached = [outcome.id for outcome in newest.outcomes if isinstance(outcome, Measurement | Failure)]
        last = f", last: {reached[-1]}" if reached else ""
        lacks.append(f"its run ended early ({newest.exit_reason}){last}")
    if broken:
        lacks.append(f"{count_noun(broken, 'case')} failed")
    return Node(
        key=node_key(*runs), label=node_name(newest), status="ok", reason="partial" if lacks else None,
        error="; ".join(lacks) or None, result=newest, others=others
    )  # fmt: skip


def alike(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs of one machine in groups. Within a group a device id means the same GPU in all runs. The
    newest group is last, and within a group the oldest run is first."""
    groups: list[list[Run]] = []
    for run in sorted(runs, key=lambda run: (run.started_at, run.id), reverse=True):
        group = next((group for group in groups if all(_are_alike(run, other) for other in group)), None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    return [group[::-1] for group in groups[::-1]]


def _are_alike(run: Run, other: Run) -> bool:
    return not any((*foreign_fields(run.fingerprint, other.fingerprint), *foreign_gpus(run, other)))
