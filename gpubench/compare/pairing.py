"""Which cases of two runs belong together, and why the others do not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpubench.analysis.estimate import CaseResult, case_results
from gpubench.analysis.labels import workers
from gpubench.analysis.samples import main_blocks, observations
from gpubench.base import units
from gpubench.base.errors import InputError
from gpubench.base.units import truncate
from gpubench.compare.comparison import AbsentCase, CompareOptions, Difference, DifferenceScope, JudgedCase
from gpubench.compare.judge import SessionValues, Twin, fewest_samples, labels, low_ends, medians, slow_ends
from gpubench.curves import stats
from gpubench.result.case import FUNCTIONS, Case
from gpubench.result.run import Fingerprint, Fingerprints, Measurement, Run

NOT_COMPARABLE = ("op", "protocol")
BILLION = 1e9  # a case that became so many times faster or slower is a broken number, and no change


class PairedCases(msgspec.Struct, frozen=True, kw_only=True):
    """`twins` can be compared; `refused` have numbers that mean different things, or one in base that cannot be true;
    the rest has one number."""

    twins: tuple[Twin, ...]
    refused: tuple[JudgedCase, ...]
    missing: tuple[AbsentCase, ...]
    failed: tuple[AbsentCase, ...]
    added: tuple[AbsentCase, ...]
    differences: tuple[Difference, ...]
    own_sizes: int  # cases of sizes that one of the runs chose by itself, and only it has


class CompareSide(msgspec.Struct, frozen=True):
    """One run with the rows of its cases and its measurements, by case id."""

    run: Run
    rows: dict[str, CaseResult]
    measurements: dict[str, Measurement]


def side(run: Run) -> CompareSide:
    """Return what a comparison needs of one run: its cases, and for each session of the plan the one that stands for
    it."""
    measurements = {outcome.id: outcome for outcome in run.outcomes if isinstance(outcome, Measurement)}
    rows = [_by_turn(run, row) for row in case_results(run)]
    return CompareSide(run, {row.id: row for row in rows}, measurements)


def _by_turn(run: Run, row: CaseResult) -> CaseResult:
    chosen = observations(run, row.sessions)
    return row if len(chosen) == len(row.sessions) else within(row, chosen)


def within(case: CaseResult, chosen: Sequence[int]) -> CaseResult:
    """Return the case as these of its sessions alone would give it."""
    sessions, blocks = ({index: values[index] for index in chosen} for values in (case.sessions, case.blocks))
    time = case.time
    if time is not None:
        interval = stats.run_interval(list(blocks.values()), case.prior)
        time = msgspec.structs.replace(time, **interval._asdict(), k=len(chosen))
    return msgspec.structs.replace(case, sessions=sessions, blocks=blocks, time=time)


def paired(
    base: CompareSide, new: CompareSide, index: int, options: CompareOptions, *, alike: bool, takes_turns: bool
) -> PairedCases:
    """The cases of `new`, number `index`, against `base`. `alike`: the protocol of the runs is the same."""
    ours, theirs = base.rows, new.rows
    twins, refused = [], []
    differences: list[Difference] = []
    missing: list[AbsentCase] = []
    failed: list[AbsentCase] = []
    own = _own_sizes(base, new) | _own_sizes(new, base)
    for case_id, row in ours.items():
        if not row.sessions or case_id in own:
            continue
        other = theirs.get(case_id)
        muted = options.muted(row.case)
        if other is None or not other.sessions:
            if row.time is None:  # what base has no true number for cannot go missing
                refused.append(_refused(row, other, index, "implausible", muted))
                continue
            place = failed if other is not None and other.outcome == "failure" else missing
            place.append(_absent(case_id, other, index, muted))
            continue
        both = base.measurements[case_id], new.measurements[case_id]
        found = case_differences(base.run, new.run, *both, index)
        differences += found
        reasons = ["protocol"] if not alike else [row.scope for row in found if row.scope in NOT_COMPARABLE]
        reasons += ["implausible"] if _implausible(row, other) else []
        if reasons:
            refused.append(_refused(row, other, index, reasons[0], muted))
        else:
            twins.append(_twin(base, new, row, other, options.threshold(row.case, takes_turns), muted))
    added = [
        _absent(case_id, ours.get(case_id), index, options.muted(row.case))
        for case_id, row in theirs.items()
        if row.sessions and case_id not in own and (case_id not in ours or not ours[case_id].sessions)
    ]
    return PairedCases(
        twins=tuple(twins), refused=tuple(refused), missing=tuple(missing), failed=tuple(failed),
        added=tuple(added), differences=tuple(differences), own_sizes=len(own),
    )  # fmt: skip


def _own_sizes(side: CompareSide, other: CompareSide) -> set[str]:
    """Return the cases of sizes that the run of `side` chose by itself and `other` did not choose, or had no time for.

    The other run has the same op on the same device at other sizes: then nothing is missing.
    """
    common = {_apart_from_size(result.case) for result in other.rows.values() if result.sessions}
    named = side.run.selection.sizes
    return {
        case_id
        for case_id, result in side.rows.items()
        if result.sessions
        and result.case.op not in named
        and _is_unchosen(other.rows.get(case_id))
        and _apart_from_size(result.case) in common
    }


def _is_unchosen(result: CaseResult | None) -> bool:
    return result is None or (not result.sessions and result.reason == "budget")


def _apart_from_size(case: Case) -> tuple[object, ...]:
    return (*case.series, case.device_id, case.form_id, case.regime_id)


def _absent(case_id: str, row: CaseResult | None, index: int, muted: bool) -> AbsentCase:
    """Why the side whose row this is has no number."""
    if row is None:
        return AbsentCase(
            new=index, id=case_id, reason="absent", detail="the case is not in the file", muted=muted
        )
    return AbsentCase(
        new=index, id=case_id, reason=row.reason or "unknown", detail=row.detail or "", muted=muted
    )


def _implausible(row: CaseResult, other: CaseResult) -> bool:
    """Whether one of the two numbers cannot be true."""
    seconds = [value for side in (row, other) for samples in side.sessions.values() for value in samples]
    return "implausible" in (row.label, other.label) or min(seconds) * BILLION < max(seconds)


def _refused(row: CaseResult, other: CaseResult | None, index: int, reason: str, muted: bool) -> JudgedCase:
    return JudgedCase(
        new=index, id=row.id, verdict="not-comparable", reason=reason, base_s=_seconds(row),
        new_s=_seconds(other) if other else None, k_base=len(row.sessions), k_new=len(other.sessions) if other else 0,
        labels=labels(row, other) if other else labels(row), muted=muted,
    )  # fmt: skip


def _seconds(row: CaseResult) -> float | None:
    """Its time; None where that cannot be true."""
    return None if row.time is None else row.time.estimate


def _twin(
    base: CompareSide, new: CompareSide, row: CaseResult, other: CaseResult, threshold: float, muted: bool
) -> Twin:
    first = fewest_samples(row, other)
    ours, theirs = low_ends(row, first), low_ends(other, first)
    our_cycles, their_cycles = low_cycles(base, row, ours), low_cycles(new, other, theirs)
    known = bool(our_cycles and their_cycles)
    return Twin(
        base=row, new=other, base_low=ours, new_low=theirs, threshold=threshold, muted=muted,
        medians=SessionValues(medians(row), medians(other)),
        slow_ends=SessionValues(slow_ends(row, first), slow_ends(other, first)),
        base_cycles=tuple(our_cycles.values()) if known else (),
        new_cycles=tuple(their_cycles.values()) if known else (),
    )  # fmt: skip


def low_cycles(side: CompareSide, row: CaseResult, low: dict[int, float]) -> dict[int, float]:
    """The low ends in cycles of the device's clock, by session; empty where one session does not know it."""
    clocks: dict[int, Sequence[float]] = {
        session: [hertz for block in blocks for hertz in block.clock_hz or () if 0 < hertz < math.inf]
        for session, blocks in main_blocks(side.run, side.measurements[row.id]).items()
    }
    if not all(clocks.get(session) for session in low):
        return {}
    return {session: seconds * stats.median(clocks[session]) for session, seconds in low.items()}


# What changes the meaning of a sample. How many are taken, and until when, does not.
PROTOCOL = ("protocol", "inputs", "seed", "cache", "warmup_s", "order")
# Where one of these differs, the files stem from two machines.
IDENTITY: tuple[DifferenceScope, ...] = ("machine", "device")
LONGEST_STRETCH = 2  # sessions of one side in a row, in an order that counts as interleaved


def run_differences(base: Run, new: Run, index: int) -> tuple[Difference, ...]:
    """Differences of the whole runs: machine, devices, software, protocol."""
    found = print_differences(base.fingerprint, new.fingerprint, index)
    ours_protocol = {name: str(getattr(base.settings, name)) for name in PROTOCOL}
    theirs_protocol = {name: str(getattr(new.settings, name)) for name in PROTOCOL}
    return (*found, *_fields(index, "protocol", ours_protocol, theirs_protocol, common=True))


def print_differences(base: Fingerprints, new: Fingerprints, index: int) -> tuple[Difference, ...]:
    """Differences of two fingerprints: machine, devices, software."""
    found: list[Difference] = []
    pairs: tuple[tuple[DifferenceScope, Fingerprint, Fingerprint], ...] = (
        ("machine", base.machine, new.machine),
        ("device", base.device, new.device),
        ("software", base.software, new.software),
    )
    for scope, ours, theirs in pairs:
        # A fact, device or package that one side lacks is no difference of the other's.
        found += _fields(index, scope, ours.known, theirs.known, common=scope != "software")
    return tuple(found)


def case_differences(
    base: Run, new: Run, ours: Measurement, theirs: Measurement, index: int
) -> tuple[Difference, ...]:
    """Differences of one case: the meaning of its op, the threads of its device, its kernel."""
    device = ours.case.device_id
    text = f"text of {ours.case.op}" if ours.case.group == FUNCTIONS else "kernel_hash"
    rows: tuple[tuple[DifferenceScope, str, str | None, str | None], ...] = (
        ("op", "op_hash", ours.op_hash, theirs.op_hash),
        ("protocol", "threads", _threads(base, device), _threads(new, device)),
        ("kernel", text, ours.kernel_hash, theirs.kernel_hash),
        ("kernel", "kernel", ours.kernel, theirs.kernel),
        ("kernel", "staging", ours.staging, theirs.staging),
    )
    return tuple(
        Difference(new=index, scope=scope, field=field, base=one, value=other, id=ours.id)
        for scope, field, one, other in rows
        # Threads that one side does not tell are no difference; a kernel that it does not name is one.
        if one != other and (field != "threads" or None not in (one, other))
    )


def interleaved(base: Run, new: Run) -> bool:
    """Whether the sides took turns: never more than two of one side in a row, a session and its repeats being one."""
    starts = [(units.parse_time(start), side) for side, start in _starts(base, new)]
    order = sorted((time, side) for time, side in starts if time is not None)
    if len(order) < len(starts):  # times that cannot be read prove nothing
        return False
    sides = [side for _, side in order]
    longest = LONGEST_STRETCH + 1
    return len(sides) >= longest and not any(
        len(set(sides[i : i + longest])) == 1 for i in range(len(sides) - longest + 1)
    )


def _starts(base: Run, new: Run) -> list[tuple[int, str]]:
    sides = [(side, run, frozenset(observations(run))) for side, run in enumerate((base, new))]
    return [
        (side, session.started_at)
        for side, run, counting in sides
        for session in run.sessions
        if session.index in counting
    ]


def _fields(
    index: int, scope: DifferenceScope, base: Mapping[str, str], new: Mapping[str, str], *, common: bool
) -> Iterable[Difference]:
    names = base.keys() & new.keys() if common else base.keys() | new.keys()
    return [
        Difference(new=index, scope=scope, field=name, base=base.get(name), value=new.get(name))
        for name in sorted(names)
        if base.get(name) != new.get(name)
    ]


def _threads(run: Run, device_id: str) -> str | None:
    """The threads of a device's workers over all sessions, such as `2` or `1, 2`; None where none tells."""
    counts = {worker.threads for worker in workers(run, device_id) if worker.threads is not None}
    return ", ".join(str(count) for count in sorted(counts)) or None


Named = tuple[str, Run]  # the name under which the user gave a file, and what it holds


def require_same_machine(found: Sequence[Difference], base: str, new: str, options: CompareOptions) -> None:
    """`found` are the differences of the whole runs. Raises InputError naming the fields of another machine."""
    if foreign := _foreign(found, options):
        raise InputError(
            "not-comparable", f"{base} and {new} stem from different machines", why=_listed(foreign),
            hint="measure both on one machine, or compare all the same with --allow-different-machine",
        )  # fmt: skip


def require_fitting(options: CompareOptions, base: Named) -> None:
    """Thresholds of another machine, or of other cases, are none. Raises InputError."""
    found = options.noise
    if found is None:
        return
    differences = print_differences(base[1].fingerprint, found.fingerprint, 0)
    if foreign := _foreign(differences, options):
        raise InputError(
            "not-comparable", f"{base[0]} and {found.source} stem from different machines", why=_listed(foreign),
            hint="measure the thresholds on the same machine with `gpubench noise -o`",
        )  # fmt: skip
    if not any(outcome.id in found.shares for outcome in base[1].outcomes):
        raise InputError(
            "not-comparable", f"{base[0]} and {found.source} have no case in common",
            why="the thresholds are those of other cases",
            hint="measure the thresholds of the same ops and sizes with `gpubench noise -o`",
        )  # fmt: skip


def _foreign(found: Sequence[Difference], options: CompareOptions) -> list[Difference]:
    """The fields of another machine, unless those are allowed to differ."""
    return [] if options.allow_different_machine else [row for row in found if row.scope in IDENTITY]


def require_common(
    part: PairedCases, rows: Sequence[JudgedCase], found: Sequence[Difference], base: str, new: str
) -> None:
    """A file whose every case failed is a result; one that shares nothing with the base is not. Raises InputError."""
    if any(row.verdict != "not-comparable" for row in rows) or part.failed:
        return
    if any(row.k_new for row in rows):
        reasons = [row for row in found if row.scope in ("protocol", "op")]
        raise InputError(
            "not-comparable", f"{base} and {new} have no case that can be compared",
            why=_listed(reasons) or "the numbers of every common case are implausible",
            hint="measure both with the same options and the same definition of the ops",
        )  # fmt: skip
    raise InputError(
        "not-comparable", f"{base} and {new} have no case in common",
        why=f"cases with a number: {len(part.missing)} in {base} alone, {len(part.added)} in {new} alone, none in both",
        hint="measure the same ops, sizes and devices on both sides",
    )  # fmt: skip


def _listed(rows: Sequence[Difference], most: int = 4) -> str:
    """`cpu: 'A' against 'B'; usable_cpus: '2' against '4'`."""
    texts = list(dict.fromkeys(f"{row.field}: {row.base!r} against {row.value!r}" for row in rows))
    return truncate(texts, most, between="; ")
