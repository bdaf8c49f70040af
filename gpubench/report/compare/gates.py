"""Gates, notices and counts: what follows from the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpubench.model.case import Case
from gpubench.report.compare.judge import MIN_SESSIONS
from gpubench.report.compare.min_speedup import min_speedup_gates
from gpubench.report.compare.options import CompareOptions
from gpubench.report.compare.types import (
    AbsentCase,
    Counts,
    Difference,
    FailOn,
    Gate,
    JudgedCase,
    Notice,
    Pair,
)


def gates(
    options: CompareOptions,
    cases: Sequence[JudgedCase],
    missing: Sequence[AbsentCase],
    failed: Sequence[AbsentCase],
    *,
    asked: Mapping[str, Case],
    files: int,
    idle: bool,
) -> tuple[Gate, ...]:
    """The gates asked for, each with the cases that breach it.

    `asked` are the cases of base and of the new `files` that are not muted, by id; `idle`: in one of these files no
    case could have been SLOWER.
    """
    heard = [row for row in cases if not row.muted]
    breaches: dict[FailOn, Callable[[], list[str]]] = {
        "slower": lambda: [row.id for row in heard if row.verdict == "SLOWER"],
        "unsure": lambda: [row.id for row in heard if row.verdict == "UNSURE"],
        "failed": lambda: [row.id for row in failed if not row.muted],
        # Whatever cannot be compared any more is missing; what base has no true number for never was there.
        "missing": lambda: (
            [row.id for row in missing if not row.muted]
            + [row.id for row in heard if row.verdict == "not-comparable" and row.base_s is not None]
        ),
        "noisy": lambda: [row.id for row in heard if {"noisy", "unstable"} & set(row.labels)],
    }
    found = []
    for name in options.gates:
        ids = tuple(dict.fromkeys(breaches[name]()))
        # What one file breached is breached; what no file breached is not passed by one that never could.
        impossible = not ids and (idle if name == "slower" else not asked)
        found.append(Gate(name=name, passed=not ids and not impossible, impossible=impossible, ids=ids))
    return (*found, *min_speedup_gates(options.min_speedups, cases, asked, files))


def ending(options: CompareOptions, found: Sequence[Gate]) -> int:
    """The exit code: 4 for a gate that could not have failed and had to count, 3 for one that failed, else 0."""
    if any(gate.impossible and options.must_count(gate.name) for gate in found):
        return 4
    failed = any(not gate.passed and not gate.impossible for gate in found)
    return 3 if failed and not options.advisory else 0


def notices(
    options: CompareOptions,
    found: Sequence[Gate],
    cases: Sequence[JudgedCase],
    pairs: Sequence[Pair],
    differences: Sequence[Difference],
    same_run: bool,
    *,
    idle: Sequence[int],
    names: Sequence[str],
) -> tuple[Notice, ...]:
    """What a reader has to know before trusting the verdicts. `idle` are the new files in which no case could have
    been SLOWER, `names` those of all new files."""
    rows = [row for row in cases if row.verdict != "not-comparable"]
    few = [row for row in rows if min(row.k_base, row.k_new) < MIN_SESSIONS]
    told = []
    if few:
        told.append(_few_sessions(len(few), len(rows)))
    if any(gate.impossible and gate.name == "slower" for gate in found):
        told.append(_no_gate([row for row in rows if row.new in idle], _named(idle, names)))
    apart = [index for index, pair in enumerate(pairs) if not pair.interleaved]
    if apart:
        told.append(
            Notice(
                code="not-interleaved", severity="warning",
                message=f"base and {_named(apart, names) or 'new'} were measured one after the other, so drift of the "
                "machine looks like a change; the threshold is 10 % where --threshold does not say otherwise",
                hint="before trusting a small change, measure both again in the other order",
            )
        )  # fmt: skip
    if any(row.scope in ("machine", "device") for row in differences):
        told.append(
            Notice(
                code="different-machine", severity="warning",
                message="the files stem from different machines: what differs may be the machine, not the code",
                hint="measure both on one machine",
            )
        )  # fmt: skip
    unknown = [row for row in rows if options.noise is not None and row.id not in options.noise.shares]
    if unknown:
        told.append(
            Notice(
                code="no-threshold", severity="info",
                message=f"{len(unknown)} of {len(rows)} cases have no threshold in the file of --thresholds; "
                "the usual one is theirs",
                hint="measure them with `gpubench noise -o` too",
            )
        )  # fmt: skip
    if same_run:
        told.append(
            Notice(
                code="same-run", severity="info", message="both files hold sessions of the same run",
                hint="give the result of another run as NEW",
            )
        )  # fmt: skip
    return tuple(told)


def counts(
    cases: Sequence[JudgedCase],
    missing: Sequence[AbsentCase],
    failed: Sequence[AbsentCase],
    added: Sequence[AbsentCase],
) -> Counts:
    """Cases by verdict; muted ones apart."""
    heard = [row.verdict for row in cases if not row.muted]
    muted = [row.muted for row in cases]
    for rows in (missing, failed, added):
        muted += [row.muted for row in rows]
    return Counts(
        faster=heard.count("FASTER"), slower=heard.count("SLOWER"), same=heard.count("SAME"),
        unsure=heard.count("UNSURE"), not_comparable=heard.count("not-comparable"),
        missing=_heard(missing), failed=_heard(failed), added=_heard(added), muted=muted.count(True),
    )  # fmt: skip


def _heard(rows: Sequence[AbsentCase]) -> int:
    return sum(1 for row in rows if not row.muted)


def _few_sessions(few: int, all_cases: int) -> Notice:
    which = "every case has" if few == all_cases else f"{few} of {all_cases} cases have"
    return Notice(
        code="few-sessions", severity="warning",
        message=f"{which} fewer than {MIN_SESSIONS} sessions on a side, too few to tell a change from chance",
        hint=f"measure both with --sessions {MIN_SESSIONS} or more",
    )  # fmt: skip


def _named(concerned: Sequence[int], names: Sequence[str]) -> str:
    """The new files that are concerned, where others are not."""
    return ", ".join(names[index] for index in concerned) if len(concerned) < len(names) else ""


def _no_gate(unjudged: Sequence[JudgedCase], idle: str) -> Notice:
    where, what = (f" to {idle}", "it") if idle else ("", "these files")
    reasons = {row.reason for row in unjudged}
    hint = "compare cases that no --ignore mutes, with more sessions or a larger --alpha"
    if reasons == {"few-sessions"}:
        hint = f"measure both with --sessions {MIN_SESSIONS} or more"
    elif reasons == {"throttled"}:
        hint = "measure again with better cooling, more power or a lower --max-time"
    return Notice(
        code="no-gate", severity="warning", hint=hint,
        message=f"no regression gate was applied{where}: nothing in {what} could have made it fail",
    )  # fmt: skip
