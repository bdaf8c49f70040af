"""The pairing of the cases of two runs, and the reasons why some cases cannot be compared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec import UNSET

from gpubench.analysis.estimate import CaseResult, case_results
from gpubench.analysis.samples import main_blocks, observations, workers
from gpubench.base import units
from gpubench.base.errors import InputError
from gpubench.base.units import truncate
from gpubench.compare.comparison import AbsentCase, CompareOptions, Difference, DifferenceScope, JudgedCase
from gpubench.compare.judge import CasePair, CaseValues, fewest_samples, labels
from gpubench.curves import stats
from gpubench.result.case import FUNCTIONS
from gpubench.result.identity import foreign_fields, foreign_gpus
from gpubench.result.run import PROTOCOL, Fingerprints, Measurement, Run

NOT_COMPARABLE = ("op", "protocol")
BILLION = 1e9  # a case that became this many times faster or slower has a false number


class PairedCases(msgspec.Struct, frozen=True, kw_only=True):
    """The cases of two runs, sorted into comparable pairs and cases without a comparison."""

    pairs: tuple[CasePair, ...]  # the pairs that can be compared
    # cases of both files that cannot be compared, because their numbers mean different things or are
    # implausible
    refused: tuple[JudgedCase, ...]
    missing: tuple[AbsentCase, ...]  # the cases that have a number only in the base
    failed: tuple[AbsentCase, ...]  # the cases that have a number only in the base and failed in the new file
    added: tuple[AbsentCase, ...]  # the cases that have a number only in the new file
    differences: tuple[Difference, ...]  # the differences of single cases
    own_sizes: int  # the number of cases at sizes that one run chose by itself and only that run has


class CompareSide(msgspec.Struct, frozen=True):
    """One run of a comparison: the base or a new file."""

    run: Run  # the document of the run
    rows: dict[str, CaseResult]  # its cases with their estimates, by case id
    measurements: dict[str, Measurement]  # its measurements, by case id


def side(run: Run) -> CompareSide:
    """Return one side of a comparison: the cases and measurements of `run`. Only the least disturbed one of a
    session and its repeats is used."""
    measurements = {outcome.id: outcome for outcome in run.measurements}
    rows = [_by_turn(run, case) for case in case_results(run)]
    return CompareSide(run, {case.id: case for case in rows}, measurements)


def _by_turn(run: Run, case: CaseResult) -> CaseResult:
    return within(case, observations(run, case.sessions))


def within(case: CaseResult, chosen: Sequence[int]) -> CaseResult:
    """Return the case as if only the `chosen` sessions had been measured."""
    sessions, blocks = ({index: values[index] for index in chosen} for values in (case.sessions, case.blocks))
    time = case.time
    if time is not None:
        interval = stats.run_interval(list(blocks.values()), case.prior)
        time = msgspec.structs.replace(time, **interval._asdict(), k=len(chosen))
    return msgspec.structs.replace(case, sessions=sessions, blocks=blocks, time=time)


def pair_cases(
    base: CompareSide, new: CompareSide, index: int, options: CompareOptions, *, alike: bool, takes_turns: bool
) -> PairedCases:
    """Pair the cases of `new`, the new file number `index`, with those of `base`, and collect the other cases.
    Left out are cases without samples, and cases at sizes that only one run chose. `alike` tells whether both
    runs have the same protocol, and `takes_turns` whether their sessions alternate."""
    pairs, refused = [], []
    differences: list[Difference] = []
    absent: dict[str, list[AbsentCase]] = {"missing": [], "failed": [], "added": []}
    own = _own_sizes(base, new) | _own_sizes(new, base)
    for case_id in dict.fromkeys((*base.rows, *new.rows)):
        case, other = base.rows.get(case_id), new.rows.get(case_id)
        sampled_base = case if case is not None and case.sessions else None
        sampled = sampled_base or (other if other is not None and other.sessions else None)
        if sampled is None or case_id in own:
            continue
        muted = options.ignores(sampled.case)
        if sampled_base is None:
            absent["added"].append(_absent(case_id, case, index, muted))
        elif other is not None and other.sessions:
            both = base.measurements[case_id], new.measurements[case_id]
            apart = case_differences(base.run, new.run, *both, index)
            differences += apart
            reason = _refusal(sampled_base, other, apart) if alike else "protocol"
            if reason is not None:
                refused.append(_refuse(sampled_base, other, index, reason, muted))
            else:
                first = fewest_samples(sampled_base, other)
                pairs.append(
                    CasePair(
                        base=values_of(base, sampled_base, first), new=values_of(new, other, first), muted=muted,
                        threshold=options.threshold(sampled_base.case, takes_turns),
                    )
                )  # fmt: skip
        elif sampled_base.time is None:  # without a true number in the base, a case cannot go missing
            refused.append(_refuse(sampled_base, other, index, "implausible", muted))
        else:
            failed = other is not None and other.outcome == "failure"
            absent["failed" if failed else "missing"].append(_absent(case_id, other, index, muted))
    return PairedCases(
        pairs=tuple(pairs), refused=tuple(refused), differences=tuple(differences), own_sizes=len(own),
        **{kind: tuple(cases) for kind, cases in absent.items()},
    )  # fmt: skip


def _own_sizes(side: CompareSide, other: CompareSide) -> set[str]:
    """Return the ids of the cases of `side` at sizes that only its run chose or reached."""
    common = {(case.case.cell, case.case.implementation_id) for case in other.rows.values() if case.sessions}
    # Such a case is not missing, because `other` has measured its op on its device at another size.
    return {
        case_id
        for case_id, case in side.rows.items()
        if case.sessions and case.case.op not in side.run.selection.sizes
        and ((twin := other.rows.get(case_id)) is None or (not twin.sessions and twin.reason == "budget"))
        and (case.case.cell, case.case.implementation_id) in common
    }  # fmt: skip


def _absent(case_id: str, case: CaseResult | None, index: int, muted: bool) -> AbsentCase:
    """Return the entry of a case for which one file has no number. `case` is the case in that file, or None."""
    reason, detail = "absent", "the case is not in the file"
    if case is not None:
        reason, detail = case.reason or "unknown", case.detail or ""
    return AbsentCase(new=index, id=case_id, reason=reason, detail=detail, muted=muted)


def _refusal(case: CaseResult, other: CaseResult, differences: Iterable[Difference]) -> str | None:
    """Return the first scope of NOT_COMPARABLE in which the cases differ, or `implausible` if one is labelled so or
    the times differ too much. Returns None if the cases can be compared."""
    for difference in differences:
        if difference.scope in NOT_COMPARABLE:
            return difference.scope
    seconds = [value for side in (case, other) for samples in side.sessions.values() for value in samples]
    false = "implausible" in (case.label, other.label) or min(seconds) * BILLION < max(seconds)
    return "implausible" if false else None


def _refuse(case: CaseResult, other: CaseResult | None, index: int, reason: str, muted: bool) -> JudgedCase:
    """Return the result for a case that cannot be compared, with the `reason`."""
    sides = [case] if other is None else [case, other]
    base_s, new_s, *_ = (*(side.time.estimate if side.time else None for side in sides), None)
    return JudgedCase(
        new=index, id=case.id, verdict="not-comparable", reason=reason, base_s=base_s, new_s=new_s,
        k_base=len(case.sessions), k_new=len(other.sessions) if other else 0, labels=labels(*sides), muted=muted,
    )  # fmt: skip


def values_of(side: CompareSide, case: CaseResult, first: int) -> CaseValues:
    """Return the statistics of a case for the tests. The low and slow ends use the first `first` samples of
    each session."""
    clocks: dict[int, Sequence[float]] = {
        session: [hertz for block in blocks for hertz in block.clock_hz or () if 0 < hertz < math.inf]
        for session, blocks in main_blocks(side.run, side.measurements[case.id]).items()
    }
    return CaseValues.of(case, first, clocks)


# If a difference has one of these scopes, the files are from two machines.
IDENTITY: tuple[DifferenceScope, ...] = ("machine", "device")
LONGEST_STRETCH = 2  # the most sessions of one side in a row if the runs are interleaved


def run_differences(base: Run, new: Run, index: int) -> tuple[Difference, ...]:
    """Return the differences between two runs as a whole: machine, devices, cards, software and protocol. A
    fact about the machine or the devices that only one run knows is left out. Another card of the same model
    has the scope `card`. `index` is the index of the new file."""
    protocols = [
        {
            **{name: str(getattr(run.settings, name)) for name in PROTOCOL},
            "page_locked": "yes" if run.settings.page_locked else "no",
        }
        for run in (base, new)
    ]
    cards = (
        Difference(new=index, scope="card", field=field, base=old, value=value)
        for _, field, old, value in foreign_gpus(base, new)
    )
    prints = print_differences(base.fingerprint, new.fingerprint, index)
    return (*prints, *cards, *_fields(index, "protocol", *protocols))


def print_differences(base: Fingerprints, new: Fingerprints, index: int) -> tuple[Difference, ...]:
    """Return the differences between two fingerprints: machine, devices and software. A fact about the machine
    or the devices that only one side knows is left out. `index` is the index of the new file."""
    foreign = [
        Difference(new=index, scope=scope, field=field, base=old, value=value)
        for scope, field, old, value in foreign_fields(base, new)
    ]
    packages = _fields(index, "software", base.software.known, new.software.known)
    devices = {*base.device.known, *new.device.known}
    return (*foreign, *(package for package in packages if not _is_idle(package, devices)))


def _is_idle(package: Difference, devices: Collection[str]) -> bool:
    """Return whether a package exists on one side only and drives no device on either side."""
    # A run with `--like` need not have such a package.
    driven = any(package.field in device.split(":") for device in devices)
    return None in (package.base, package.value) and ":" not in package.field and not driven


def case_differences(
    base: Run, new: Run, before: Measurement, after: Measurement, index: int
) -> tuple[Difference, ...]:
    """Return the differences of one case in its op's definition, its threads, its kernel and its results.
    `before` and `after` are the case in the base and in the new file. `index` is the index of the new file."""
    device = before.case.device_id
    text = f"text of {before.case.op}" if before.case.group == FUNCTIONS else "kernel_hash"
    pairs: tuple[tuple[DifferenceScope, str, str | None, str | None], ...] = (
        ("op", "op_hash", before.op_hash, after.op_hash),
        ("protocol", "threads", _threads(base, device), _threads(new, device)),
        ("kernel", text, before.kernel_hash, after.kernel_hash),
        ("kernel", "kernel", before.kernel, after.kernel),
        ("kernel", "staging", before.staging, after.staging),
    )
    fields = [
        Difference(new=index, scope=scope, field=field, base=old, value=value, id=before.id)
        for scope, field, old, value in pairs
        # If one side does not tell its threads, they do not differ. If it does not name its kernel, that differs.
        if old != value and (field != "threads" or None not in (old, value))
    ]
    return (*fields, *_result_difference(before, after, index))


# Other versions of NumPy round a function's results by less than this share of their size.
ROUNDING = 1e-9
RESULTS_OF = "results of "  # the beginning of `Difference.field` if the results of a function differ


def _result_difference(before: Measurement, after: Measurement, index: int) -> Iterable[Difference]:
    """Yield a difference if the results of a user's function differ by more than rounding."""
    old, new = before.answer, after.answer
    if old is UNSET or new is UNSET or not (old or new):
        return
    # the root mean square of all results
    size = math.hypot(*old, *new) / math.sqrt(len(old) + len(new))
    off = max((abs(a - b) for a, b in zip(old, new, strict=False)), default=0.0) / (size or 1.0)
    if off > ROUNDING or len(old) != len(new):
        value = f"{off:.3g}" if len(old) == len(new) else "inf"  # of another shape
        field = f"{RESULTS_OF}{before.case.op}"
        yield Difference(new=index, scope="kernel", field=field, base="0", value=value, id=before.id)


def take_turns(base: Run, new: Run) -> bool:
    """Return whether the sessions of the two runs took turns: at most LONGEST_STRETCH of one run follow each
    other. A session and its repeats count as one. Returns False if a start time is unreadable, or if there are
    at most LONGEST_STRETCH sessions in all."""
    starts = [
        (units.parse_time(session.started_at), side)
        for side, run in enumerate((base, new))
        for counting in [observations(run)]
        for session in run.sessions
        if session.index in counting
    ]
    order = sorted((time, side) for time, side in starts if time is not None)
    if len(order) < len(starts):
        return False
    turns = [len(list(same)) for _, same in itertools.groupby(side for _, side in order)]
    return len(order) > LONGEST_STRETCH and max(turns) <= LONGEST_STRETCH


def _fields(
    index: int, scope: DifferenceScope, base: Mapping[str, str], new: Mapping[str, str]
) -> Iterable[Difference]:
    return [
        Difference(new=index, scope=scope, field=name, base=base.get(name), value=new.get(name))
        for name in sorted(base.keys() | new.keys())
        if base.get(name) != new.get(name)
    ]


def _threads(run: Run, device_id: str) -> str | None:
    """Return the numbers of threads of a device's workers, such as `1, 2`, or None if they are unknown."""
    counts = {worker.threads for worker in workers(run, device_id) if worker.threads is not None}
    return ", ".join(str(count) for count in sorted(counts)) or None


Named = tuple[str, Run]  # a file's name, as the user gave it, and its run


def require_same_machine(
    differences: Sequence[Difference], base: str, new: str, options: CompareOptions,
    hint: str = "measure both on one machine, or compare all the same with --allow-different-machine",
) -> None:  # fmt: skip
    """Raise InputError if `differences` show that the files named `base` and `new` are from different machines,
    unless the options allow this. The error names the properties that differ, and `hint` is its remedy."""
    foreign = [difference for difference in differences if difference.scope in IDENTITY]
    if foreign and not options.allow_different_machine:
        raise _not_comparable(f"{base} and {new} stem from different machines", _list(foreign), hint)


def require_fitting(options: CompareOptions, base: Named) -> None:
    """Raise InputError if the options have measured thresholds which are from another machine or have no case
    in common with the base."""
    (name, run), noise = base, options.noise
    if noise is None:
        return
    differences = print_differences(run.fingerprint, noise.fingerprint, 0)
    measure = "measure the thresholds {} with `gpubench noise -o`"
    require_same_machine(differences, name, noise.source, options, measure.format("on the same machine"))
    if not any(outcome.id in noise.shares for outcome in run.outcomes):
        raise _not_comparable(
            f"{name} and {noise.source} have no case in common", "the thresholds are those of other cases",
            measure.format("of the same ops and sizes"),
        )  # fmt: skip


def require_common(
    part: PairedCases, cases: Sequence[JudgedCase], differences: Sequence[Difference], base: str, new: str
) -> None:
    """Raise InputError if the file named `new` has no case that can be compared with the file named `base`. If
    cases of the base failed in it, it is accepted. `cases` are the judged and the refused cases of `part`."""
    if any(case.verdict != "not-comparable" for case in cases) or part.failed:
        return
    if any(case.k_new for case in cases):
        reasons = [difference for difference in differences if difference.scope in NOT_COMPARABLE]
        hint = "measure both with the same options and the same definition of the ops"
        for change in reasons:
            if change.field == "protocol":
                older = base if int(change.base or 0) < int(change.value or 0) else new
                hint = (
                    f"measure {older} again: `gpubench run --like {older} -o FILE`, by the version of the other"
                )
        raise _not_comparable(
            f"{base} and {new} have no case that can be compared",
            _list(reasons) or "the numbers of every common case are implausible", hint,
        )  # fmt: skip
    alone = f"{len(part.missing)} in {base} alone, {len(part.added)} in {new} alone"
    own = f"{part.own_sizes} of sizes that only one of them chose or reached, " if part.own_sizes else ""
    raise _not_comparable(
        f"{base} and {new} have no case in common", f"cases with a number: {alone}, {own}none in both",
        "measure what BASE did: `gpubench run --like BASE -o FILE`",
    )  # fmt: skip


def _not_comparable(message: str, why: str, hint: str) -> InputError:
    return InputError("not-comparable", message, why=why, hint=hint)


def _list(differences: Sequence[Difference]) -> str:
    """Return the first four differences as text, such as `cpu: A against B; usable cpus: 2 against 4`."""
    texts = [
        f"{item.field.removesuffix('_s').replace('_', ' ')}: {item.base or 'none'} against {item.value or 'none'}"
        for item in differences
    ]
    return truncate(list(dict.fromkeys(texts)), 4, between="; ")
