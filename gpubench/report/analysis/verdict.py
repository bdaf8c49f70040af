"""The verdict in words: one sentence per op and dtype, the earliest break-even of all GPU devices in each regime."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubench.model.result import Run
from gpubench.report.analysis.absence import no_gpu
from gpubench.report.analysis.types import BreakEven, CaseResult
from gpubench.report.listing import first_few
from gpubench.units import earned_digits

_WHERE = {"resident": "with data resident", "transfer-always": "when every call copies both ways"}
_WHERE_SHORT = {"resident": "with data resident", "transfer-always": "when each call copies"}
_REASONS = {
    "noise": "too noisy",
    "few-sizes": "too few sizes",
    "throttled": "the device was throttled",
    "failed-cases": "cases failed",
    "budget": "the time budget ended first",
}
NAMED_DEVICES = 2
NAMED_CROSSINGS = 4


def verdicts(run: Run, cases: Sequence[CaseResult], rows: Sequence[BreakEven]) -> tuple[str, ...]:
    """The sentences of `rows`; if no GPU was measured, one sentence that says so and why."""
    return sentences(rows) or (no_gpu(run, cases),)


def sentences(rows: Sequence[BreakEven], *, short: bool = False) -> tuple[str, ...]:
    """One sentence per op, dtype and other params; ops with the same verdict share one.

    `short` leaves out the intervals, which stand in the break-even table.
    """
    named = len({row.device_id for row in rows}) > 1
    families: dict[tuple[object, ...], list[BreakEven]] = {}
    for row in rows:
        families.setdefault((row.op, row.dtype, tuple(row.params.items())), []).append(row)
    shared: dict[tuple[str, str], list[str]] = {}
    for family in families.values():
        first = family[0]
        kind = first.dtype + "".join(f" {name}={value}" for name, value in first.params.items())
        shared.setdefault((kind, _predicate(family, named=named, short=short)), []).append(first.op)
    return tuple(f"{', '.join(ops)} {kind}: {said}." for (kind, said), ops in shared.items())


def verdict_text(row: BreakEven) -> str:
    """A verdict in a few words: `at 212 [204, 221]`, `always (from 256)`, `undecided (noise)`."""
    if row.verdict == "at":
        return f"at {size_text(row)}{interval_text(row)}"
    if row.verdict == "always":
        return f"always (from {row.first})"
    if row.verdict == "beyond-limit":
        return f"beyond limit ({row.last})"
    if row.verdict == "unstable":
        times = "once" if len(row.crossings) == 1 else f"{len(row.crossings)} times"
        return f"unstable: crosses {times} ({', '.join(map(str, row.crossings))})"
    if bracketed(row):
        return f"undecided (between {row.low} and {row.high})"
    return f"undecided ({row.reason})" if row.verdict == "undecided" else row.verdict


def bracketed(row: BreakEven) -> bool:
    """Undecided, but the device is known to lose at `low` and to win at `high`."""
    return row.verdict == "undecided" and row.low is not None and row.high is not None


def seen(row: BreakEven) -> str:
    """What too few sizes still tell: `wins at`, or `loses up to` the largest of them; empty if they disagree."""
    if row.verdict != "undecided" or row.reason != "few-sizes" or bracketed(row):
        return ""
    return "wins at" if row.last_ratio.low > 1 else "loses up to" if row.last_ratio.high < 1 else ""


def size_text(row: BreakEven) -> str:
    """The threshold without digits that its interval does not earn, still inside the interval."""
    if row.n is None or row.low is None or row.high is None:
        return str(row.n)
    digits = earned_digits(row.n, row.low, row.high)
    rounded = int(float(f"{row.n:.{digits - 1}e}"))
    return str(rounded if row.low <= rounded <= row.high else row.n)


def interval_text(row: BreakEven) -> str:
    """` [204, 221]`; an open end is `<=` or `>=`; empty without an interval."""
    if row.low is None and row.high is None:
        return ""
    if row.low is None:
        return f" [<= {row.high}]"
    return f" [>= {row.low}]" if row.high is None else f" [{row.low}, {row.high}]"


def _predicate(family: Sequence[BreakEven], *, named: bool, short: bool) -> str:
    """What is said of one op: where it pays, where it has no threshold, what is undecided."""
    regimes: dict[tuple[str, int], list[BreakEven]] = {}
    for row in family:
        regimes.setdefault((row.regime, row.calls or 0), []).append(row)
    if all(row.verdict == "never" for row in family) and len(regimes) > 1:
        return f"the GPU pays in no regime at any size up to n = {max(row.last for row in family)}"
    pays, unstable, undecided = [], [], []
    for rows in regimes.values():
        best = _best(rows)
        names = _names(best, rows) if named else ""
        if best[0].verdict == "unstable":
            unstable.append(f"no single threshold {_where(best[0], short)}{_crossings(best[0], names)}")
        elif best[0].verdict == "undecided" and not bracketed(best[0]):
            undecided += best
        else:
            pays.append(_clause(best[0], short=short) + (f" ({names})" if names else ""))
    parts = [f"the GPU pays {', '.join(pays)}"] if pays else []
    parts += unstable
    if undecided:
        parts.append(_undecided(undecided, short=short, whole=not parts))
    return "; ".join(parts)


def _best(rows: Sequence[BreakEven]) -> list[BreakEven]:
    """The rows of the devices that decide a regime: the earliest break-even, several where they are equal."""

    def rank(row: BreakEven) -> tuple[int, int]:
        if row.verdict == "always":
            return (0, row.first)
        if row.verdict == "at":
            return (1, row.n or 0)
        if bracketed(row):
            return (2, row.high or 0)
        # As long as one device is undecided, that the others never pay is no answer.
        return ({"unstable": 3, "undecided": 4, "beyond-limit": 5, "never": 6}[row.verdict], -row.last)

    first = min(map(rank, rows))
    return [row for row in rows if rank(row) == first]


def _names(best: Sequence[BreakEven], rows: Sequence[BreakEven]) -> str:
    """The devices that a clause is true of; none for what is true of all devices because none pays."""
    if best[0].verdict in ("never", "beyond-limit"):
        return ""
    devices = [row.device_id for row in best]
    if len(rows) > 1 and len(devices) == len(rows):
        return "every device"
    return first_few(devices, NAMED_DEVICES)


def _clause(row: BreakEven, *, short: bool) -> str:
    where = _where(row, short)
    if row.verdict == "at":
        return f"from n = {size_text(row)}{'' if short else interval_text(row)} {where}"
    if row.verdict == "always":
        return f"at every measured size (from n = {row.first}) {where}"
    if row.verdict == "undecided":
        return f"from somewhere between n = {row.low} and {row.high} {where}"
    if row.verdict == "beyond-limit":
        return f"not up to n = {row.last} {where}, but it comes closer with size"
    return f"at no size up to n = {row.last} {where}"


def _crossings(row: BreakEven, names: str) -> str:
    shown = ", ".join(map(str, row.crossings[:NAMED_CROSSINGS]))
    more = ", ..." if len(row.crossings) > NAMED_CROSSINGS else ""
    return f" ({names + ' ' if names else ''}crosses at n = {shown}{more})"


def _undecided(rows: Sequence[BreakEven], *, short: bool, whole: bool) -> str:
    """One clause for all undecided regimes; the regimes are not listed when they are all there is."""
    told = {row.reason or "noise" for row in rows}
    reasons = " or ".join(words for name, words in _REASONS.items() if name in told)
    where = "" if whole else " " + " and ".join(_unique(_where(row, short) for row in rows))
    known = {(seen(row), row.last) for row in rows}
    word, last = min(known)
    more = f"; the GPU {word} n = {last}" if len(known) == 1 and word else ""
    return f"undecided{where} ({reasons}{more})"


def _where(row: BreakEven, short: bool) -> str:
    if row.regime == "transfer-once":
        return f"with {row.calls} calls a copy" if short else f"when {row.calls} calls share one copy"
    return (_WHERE_SHORT if short else _WHERE)[row.regime]


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
