"""What a file says in words: a sentence per op and dtype, the earliest break-even of all GPUs in each regime; and
should this machine use its CPU, its GPU or both? For the report and for `detect`.

The mode is decided in one place (gpubench/detect/recommend.py); here the evidence is made of what the report shows: its
speedups, its break-evens, and its splits with the report's own word on each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubench import stats
from gpubench.analysis.break_even import (
    BreakEven,
    SizeRatio,
    State,
    bracketed,
    earliest,
    interval_text,
    size_text,
)
from gpubench.analysis.estimate import CHECK_ONLY, NO_SAMPLES, CaseResult
from gpubench.analysis.hybrid import Hybrid
from gpubench.analysis.overheads import GROUP
from gpubench.analysis.speedup import Speedup
from gpubench.model.case import QUEUED, WAITED, Case, SeriesKey
from gpubench.model.machine import Measured, MeasuredBreakEven, MeasuredSplit, Recommendation
from gpubench.model.result import Run
from gpubench.units import listed, truncate

_WHERE: dict[str, str] = {
    WAITED: "with data on the GPU", QUEUED: "with calls queued on the GPU",
    "transfer-always": "when every call copies both ways",
}  # fmt: skip
_WHERE_SHORT = {**_WHERE, QUEUED: "queued on the GPU", "transfer-always": "when each call copies"}
REASONS = {
    "noise": "too noisy",
    "few-sizes": "too few sizes",
    "throttled": "the device was throttled",
    "failed-cases": "cases failed",
    "budget": "the time budget ended first",
    "loses-again": "it wins and loses by turns",
}
NAMED_DEVICES = 2
NAMED_CROSSINGS = 4
# Of so few sizes each has its own answer in the sentence.
ASKED_SIZES = 2
NO_SIZE = "pays at no size"


def verdicts(run: Run, cases: Sequence[CaseResult], rows: Sequence[BreakEven]) -> tuple[str, ...]:
    """The sentences of `rows`; if no GPU was measured, one sentence that says so and why."""
    return sentences(rows) or (no_gpu(run, cases),)


def sentences(rows: Sequence[BreakEven], *, short: bool = False) -> tuple[str, ...]:
    """One sentence per op, dtype and other params; ops with the same verdict share one.

    `short` leaves out the intervals, which stand in the break-even table.
    """
    named = len({row.device_id for row in rows}) > 1
    families: dict[tuple[object, ...], list[BreakEven]] = {}
    for row in _asked(rows):
        families.setdefault((row.op, row.dtype, tuple(row.params.items())), []).append(row)
    shared: dict[tuple[str, str], list[str]] = {}
    for family in families.values():
        first = family[0]
        kind = first.dtype + "".join(f" {name}={value}" for name, value in first.params.items())
        shared.setdefault((kind, _predicate(family, named=named, short=short)), []).append(first.op)
    return tuple(f"{', '.join(ops)} {kind}: {said}." for (kind, said), ops in shared.items())


def _asked(rows: Sequence[BreakEven]) -> list[BreakEven]:
    """Without queued calls where waited ones were measured: one call is what is asked about."""
    waited = {row.case.series for row in rows if row.regime == WAITED}
    return [row for row in rows if row.regime != QUEUED or row.case.series not in waited]


def _predicate(family: Sequence[BreakEven], *, named: bool, short: bool) -> str:
    """What is said of one op: where it pays, where it does not, what is undecided, and up to which size."""
    regimes: dict[str, list[BreakEven]] = {}
    for row in family:
        regimes.setdefault(row.regime, []).append(row)
    asked = max(len(row.points) for row in family) <= ASKED_SIZES
    clauses: dict[str, list[str]] = {}
    undecided: list[BreakEven] = []
    thresholds = False
    for rows in regimes.values():
        best = _best(rows)
        by_size = asked and best[0].verdict != "at"
        thresholds = thresholds or not by_size
        clause = _sizes_clause(best[0]) if by_size else _clause(best[0], short=short)
        if not clause:
            undecided += best
            continue
        names = _names(best, rows) if named else ""
        where = _where(best[0], short) + (f" ({names})" if names else "")
        clauses.setdefault(clause, []).append(where)
    nowhere = len(regimes) > 1 and list(clauses) == [NO_SIZE] and not undecided
    found = [
        f"{clause} in any regime" if nowhere else f"{clause} {listed(where)}"
        for clause, where in clauses.items()
    ]
    parts = [f"the GPU {', '.join(found)}"] if found else []
    if undecided:
        parts.append(_undecided(undecided, short=short, whole=not parts))
    if thresholds:
        ends = sorted({min(row.last for row in family), max(row.last for row in family)})
        said = "up to n = {}" if short else "measured up to n = {},"
        parts[0] = f"{said.format('..'.join(map(str, ends)))} {parts[0]}"
    return "; ".join(parts)


def _best(rows: Sequence[BreakEven]) -> list[BreakEven]:
    """The rows of the devices that decide a regime: the earliest break-even, several where they are equal."""

    def rank(row: BreakEven) -> tuple[int, int]:
        if row.verdict == "all-sizes":
            return (0, row.first)
        if row.verdict == "at":
            return (1, row.n or 0)
        if bracketed(row):
            return (2, row.hi or 0)
        # As long as one device is undecided, that the others never pay is no answer.
        return (3 if row.verdict == "undecided" else 4 if row.reason == "rising" else 5, -row.last)

    first = min(map(rank, rows))
    return [row for row in rows if rank(row) == first]


def _names(best: Sequence[BreakEven], rows: Sequence[BreakEven]) -> str:
    """The devices that a clause is true of; none for what is true of all devices because none pays."""
    if best[0].verdict == "no-size":
        return ""
    devices = [row.device_id for row in best]
    if len(rows) > 1 and len(devices) == len(rows):
        return "every device"
    return truncate(devices, NAMED_DEVICES)


def _clause(row: BreakEven, *, short: bool) -> str:
    """What the GPU does, without where the data is; empty where that is undecided."""
    if row.verdict == "at":
        crossings = [str(n) for n in row.crossings[:-1]]
        mixed = (
            f", mixed below (also crosses at n = {truncate(crossings, NAMED_CROSSINGS)})" if row.mixed else ""
        )
        return f"pays from n = {size_text(row)}{'' if short else interval_text(row)}{mixed}"
    if row.verdict == "all-sizes":
        return f"pays at every measured size (from n = {row.first})"
    if row.verdict == "no-size":
        return "does not pay yet but comes closer with size" if row.reason == "rising" else NO_SIZE
    return f"pays from somewhere between n = {row.lo} and {row.hi}" if bracketed(row) else ""


def _sizes_clause(row: BreakEven) -> str:
    """What the GPU does at each of a few sizes that were asked for: a size always has an answer, only a threshold may
    have none."""
    sizes: dict[State, list[SizeRatio]] = {}
    for point in row.points:
        sizes.setdefault(point.state, []).append(point)
    ties = [f"n = {point.n} ({ratio_text(point.row)})" for point in sizes.get("tie", [])]
    found = [
        f"{word} at n = {listed([str(point.n) for point in sizes[state]])}"
        for state, word in _STATES.items()
        if state in sizes
    ]
    return " and ".join([*found, *([f"neither wins nor loses for sure at {listed(ties)}"] if ties else [])])


_STATES: dict[State, str] = {"win": "wins", "loss": "loses"}


def ratio_text(row: Speedup) -> str:
    """`0.981x [0.9, 1.07]`, three digits."""
    return f"{row.ratio:.3g}x [{row.lo:.3g}, {row.hi:.3g}]"


def _undecided(rows: Sequence[BreakEven], *, short: bool, whole: bool) -> str:
    """One clause for all undecided regimes; the regimes are not listed when they are all there is."""
    told = {row.reason or "noise" for row in rows}
    reasons = " or ".join(words for name, words in REASONS.items() if name in told)
    where = "" if whole else " " + listed(_unique(_where(row, short) for row in rows))
    return f"undecided{where} ({reasons})"


def _where(row: BreakEven, short: bool) -> str:
    if row.case.calls:
        return f"with {row.case.calls} calls a copy" if short else f"when {row.case.calls} calls share one copy"
    return (_WHERE_SHORT if short else _WHERE)[row.case.regime]


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


_BUDGET = "the time budget was used up first"
# Skips that are part of every plan. They explain an absence only where nothing else does.
_USUAL = frozenset({"no-implementation", "no-dtype", "no-transfer"})


def no_gpu(run: Run, cases: Sequence[CaseResult]) -> str:
    """Why there is no verdict at all."""
    everything, cases = cases, [row for row in cases if row.case.group != GROUP]
    if not cases and any(row.time is not None for row in everything):
        return "Overheads were measured, and nothing that a CPU could do instead: there is no verdict."
    software = sorted({d.name for d in run.devices if d.kind == "software" and not d.composed})
    if any(row.device_kind == "software" and row.time is not None for row in cases):
        return (
            f"No GPU was measured: {', '.join(software) or 'the adapter'} is a software adapter, which runs on "
            "the CPU; its times stand in a table of their own and give no verdict."
        )
    if not any(row.time is not None for row in cases):
        only = any(row.time is not None for row in everything)
        return _nothing(run, cases, "Only overheads were measured") if only else _nothing(run, everything)
    if any(row.device_kind == "gpu" and row.time is not None for row in cases):
        return "A GPU was measured, but no CPU case of the same work: there is nothing to compare it with."
    rows = [row for row in cases if row.device_kind != "cpu"]
    if not rows and _left_out(run, cases):
        return "CPU: no case of a GPU is among those shown."
    causes = _reasons(run, rows) or _absent(run) or [_unplanned(run)]
    return f"CPU: no GPU was measured ({'; '.join(causes).rstrip('.')})."


def _nothing(run: Run, cases: Sequence[CaseResult], words: str = "Nothing was measured") -> str:
    checked = sum(row.reason == CHECK_ONLY for row in cases)
    if checked:
        right = "1 case is right" if checked == 1 else f"{checked} cases are right"
        return f"{right}; nothing was timed (--check-only)."
    causes = _reasons(run, cases) or _absent(run) or ["no case was planned"]
    return f"{words} ({'; '.join(causes).rstrip('.')})."


def _reasons(run: Run, rows: Sequence[CaseResult]) -> list[str]:
    """Why these rows have no time, gravest first: the budget, failures, an early end, then skips."""
    budget = [row for row in rows if _out_of_budget(run, row)]
    failed = [row for row in rows if row.outcome == "failure"]
    planned = [row for row in rows if row.outcome == "planned"]
    explained = {row.case.device_id for row in (*budget, *failed, *planned)}
    others = [row for row in rows if row.case.device_id not in explained and row.time is None]
    others.sort(key=lambda row: (row.outcome == "skip", row.reason in _USUAL))
    early = "the run was interrupted" if run.exit_reason == "interrupted" else "the run ended early"
    return [
        *([_BUDGET] if budget else []), *_of_each_device(failed), *([early] if planned else []),
        *_of_each_device(others),
    ]  # fmt: skip


def _out_of_budget(run: Run, row: CaseResult) -> bool:
    return row.reason == "budget" or (row.reason == NO_SAMPLES and run.exit_reason == "budget")


def _of_each_device(rows: Sequence[CaseResult]) -> list[str]:
    """The first reason of each device."""
    found: dict[str, str] = {}
    for row in rows:
        found.setdefault(row.case.device_id, " ".join((row.detail or "").split()) or row.reason or "")
    return _named(found)


def _absent(run: Run) -> list[str]:
    """What the run said of backends that it did not find."""
    found: dict[str, str] = {}
    for warning in run.warnings:
        if warning.code in ("unavailable", "software-device") and warning.id is None:
            text = " ".join(warning.message.split())
            found.setdefault(text.partition(":")[0], text)
    return _named(found)


def _named(texts: dict[str, str]) -> list[str]:
    return [text if text.startswith(f"{name}:") else f"{name}: {text}" for name, text in texts.items()]


def _left_out(run: Run, cases: Sequence[CaseResult]) -> bool:
    """Whether the run knows cases of other devices than the CPU that are not in the selection."""
    shown = {row.id for row in cases}
    others = _others(run)
    return any(outcome.id not in shown and outcome.case.device_id in others for outcome in run.outcomes)


def _unplanned(run: Run) -> str:
    """The run has no word on why: which devices it knew still tells whether there was a GPU."""
    others = _others(run)
    if others:
        return f"no case was planned for {', '.join(sorted(others))}"
    return "no GPU backend was asked for, or none was found"


def _others(run: Run) -> set[str]:
    return {device.id for device in run.devices if device.kind != "cpu"}


def evidence(
    run: Run, ratios: Sequence[Speedup], curves: Sequence[BreakEven], splits: Sequence[Hybrid]
) -> Measured | None:
    """What a mode can be chosen by; None where neither a CPU and a GPU were compared with resident data nor a split is
    recommended. `ratios` are over the fastest CPU form."""
    rows = [row for row in ratios if row.kind == "headline" and row.case.device_kind == "gpu"]
    s = _rate_ratio(rows)
    if s is None and not any(split.recommended for split in splits):
        return None
    return Measured(
        date=run.started_at, s=None if s is None else round(s, 6), break_even=[*_break_evens(curves, rows)],
        splits=[_split(row) for row in splits],
    )  # fmt: skip


def recommended(run: Run, found: Measured | None) -> Recommendation | None:
    """The mode for the machine of the run: by the evidence, else what detection said at the run's start; None if
    neither says anything."""
    # Here, as `advise` loads this package too, and needs no detection.
    from gpubench.detect.recommend import decide, gpus_of

    advice = run.machine.recommendation
    if found is None:
        return advice if advice.reasons else None
    return decide(run.machine, advice, found, gpus_of(run))


def _rate_ratio(rows: Iterable[Speedup]) -> float | None:
    """CPU rate / GPU rate: geometric mean over the ops, other params and dtypes at their largest common size, each
    call waited for on data that is there (version 1 of a file has queued ones alone). What takes no headline takes no
    part."""
    rows = list(rows)
    regime = WAITED if any(row.case.case.regime == WAITED for row in rows) else QUEUED
    largest: dict[SeriesKey, tuple[int, float]] = {}
    for row in rows:
        if row.headline and row.case.case.regime == regime:
            key, found = row.case.case.series, (row.case.case.params["n"], row.ratio)
            largest[key] = max(largest.get(key, found), found)
    return stats.geometric_mean([1 / ratio for _, ratio in largest.values()]) if largest else None


def _break_evens(curves: Sequence[BreakEven], rows: Sequence[Speedup]) -> Iterable[MeasuredBreakEven]:
    """Of each op, other params, dtype and regime the earliest break-even of all GPUs."""
    families: dict[tuple[object, ...], list[BreakEven]] = {}
    for curve in curves:
        key = (curve.op, tuple(curve.params.items()), curve.dtype, curve.regime)
        families.setdefault(key, []).append(curve)
    on_series: dict[SeriesKey, list[Speedup]] = {}
    for row in rows:
        on_series.setdefault(row.case.case.series, []).append(row)
    for family in families.values():
        best = earliest(family)
        if best is not None:
            series = (best.op, best.dtype, tuple(sorted(best.params.items())))
            yield _break_even(best, on_series.get(series, ()))


def _break_even(curve: BreakEven, rows: Sequence[Speedup]) -> MeasuredBreakEven:
    size = curve.first if curve.verdict == "all-sizes" else curve.n
    at = _shown_at(curve, size, rows)
    return MeasuredBreakEven(
        op=curve.op, params=_words(curve.params), dtype=curve.dtype, regime=curve.regime,
        backend=curve.device_id.partition(":")[0], size=size, note=_note(curve),
        gpu_s=at.case.time.estimate if at and at.case.time else None,
        cpu_s=at.baseline.time.estimate if at and at.baseline.time else None,
    )  # fmt: skip


def _shown_at(curve: BreakEven, size: int | None, rows: Sequence[Speedup]) -> Speedup | None:
    """The measured size that shows it, among the rows of its series: the first at or above it, else the largest."""
    ours = sorted(
        (row for row in rows if _on_curve(row.case.case, curve)),
        key=lambda row: row.case.case.params["n"],
    )
    above = (row for row in ours if size is not None and row.case.case.params["n"] >= size)
    return next(above, ours[-1] if ours else None)


def _on_curve(case: Case, curve: BreakEven) -> bool:
    return (case.device_id, case.regime_id) == (curve.device_id, curve.regime)


def _note(curve: BreakEven) -> str:
    """Why there is no size, and what else to know of one."""
    if curve.verdict == "at":
        return f"measured up to n = {curve.last}{', mixed below' if curve.mixed else ''}"
    if curve.verdict == "all-sizes":
        return f"the smallest size measured, up to n = {curve.last}"
    if curve.verdict == "no-size" and curve.reason is None:
        return f"no size up to n = {curve.last}"
    return curve.text


def _split(row: Hybrid) -> MeasuredSplit:
    return MeasuredSplit(
        op=row.op, params=_words(row.params), dtype=row.dtype, regime=row.regime, n=row.n, device_id=row.device_id,
        fraction=round(row.fraction, 6), gain=round(row.gain, 6), lo=round(row.lo, 6), hi=round(row.hi, 6),
        reason=row.reason,
    )  # fmt: skip


def _words(params: dict[str, int]) -> str:
    return ",".join(f"{name}={value}" for name, value in params.items())
