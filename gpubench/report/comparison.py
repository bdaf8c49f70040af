"""A comparison of runs, and the noise of a run, for people and for other programs.

A comparison has three forms: sections and tables, JSON, and CSV with one row for each case and new file. Noise
is shown for all cases together, then for each case, the noisiest first.
"""

from __future__ import annotations

import io
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gpubench.analysis.samples import gravest
from gpubench.base import group_by
from gpubench.base.streams import printable
from gpubench.base.table import Cell, Column, Table, Tone, cells, heads, number
from gpubench.base.units import count_noun
from gpubench.compare.comparison import (
    ALLOWED_SHARE,
    INTERLEAVED,
    AbsentCase,
    Comparison,
    Gate,
    JudgedCase,
    SideRow,
    VerdictWord,
)
from gpubench.compare.pairing import RESULTS_OF
from gpubench.curves.stats import Interval
from gpubench.report import renderers as drawing
from gpubench.report.layout import RenderOptions, Section, TextDocument, csv_text
from gpubench.report.sections import cases
from gpubench.report.wording import join_texts, mark, ratio_text, seconds_text, share_text
from gpubench.report.wording import legend as marks_legend

if TYPE_CHECKING:
    from gpubench.compare.two_runs import Noise

# The verdicts, the most important first, with titles and tones.
ORDER: tuple[tuple[VerdictWord, str, Tone], ...] = (
    ("SLOWER", "Slower", "bad"), ("FASTER", "Faster", "good"), ("UNSURE", "Unsure", "plain"),
    ("not-comparable", "Not comparable", "plain"), ("SAME", "Same", "muted"),
)  # fmt: skip
REASONS = {
    "few-sessions": "few-sessions: fewer than 5 sessions on a side",
    "noise": "noise: neither a change nor its absence is proven",
    "shape": "shape: the low ends say one thing, the medians or the slow ends another",
    "throttled": "throttled: the device was slowed down while it was measured",
    "contended": "contended: other programs used the CPUs meanwhile; measure again on a quiet machine",
    "clock-limited": "clock-limited: slower or faster by the clock of the device, not by its work",
    "protocol": "protocol: measured in another way",
    "op": "op: the op's definition is another one",
    "implausible": "implausible: a number that cannot be true",
}
_LOW_ENDS = "low ends: new/base of the sessions' smallest samples, by which cases are judged"
_SLOW_ENDS = "slow ends: new/base of their 90 % quantiles. A share of the blocks or samples moved"


SHOWN = 20  # the most cases that a comparison lists all, and above that, the most cases of a table
_LIST = "--full lists these cases; --format csv has a row for each."
_ABSENT = {
    "failed": "BASE has a number; NEW tried the case, and it broke",
    "missing": "BASE has a number and NEW has none",
    "added": "NEW has a number and BASE has none",
}


def documents(comparison: Comparison, options: RenderOptions) -> list[TextDocument]:
    """Return one document for each new file. The last document also has the gates and the warnings. A
    comparison of at most SHOWN cases, or a full report, lists all cases. Otherwise the slower and the faster
    cases are listed, at most SHOWN of each, and the others are counted."""
    gates = Section(key="gates", title="Gates", lines=tuple(map(gate_text, comparison.gates)))
    texts = tuple(f"{notice.code}: {notice.message}; {notice.hint}" for notice in comparison.warnings)
    notices = Section(key="warnings", title="Warnings", lines=texts)
    reports = []
    for i in range(len(comparison.new)):
        outcome = _Outcome(comparison, i, options)
        is_last = i == len(comparison.new) - 1
        sections = [
            _verdict_section(outcome), *([gates] if is_last else []),
            *_case_sections(outcome), _absent_section(outcome) if outcome.lists_all else _rest_section(outcome),
            _differences_section(comparison, i), *([notices] if is_last else []),
        ]  # fmt: skip
        filled = tuple(part for part in sections if part.lines or part.tables)
        reports.append(TextDocument(headings=_headings(comparison, i), sections=filled))
    return reports


class _Outcome:
    """The comparison of one new file with the base, and whether all of its cases are listed."""

    def __init__(self, comparison: Comparison, index: int, options: RenderOptions) -> None:
        self.comparison, self.index, self.options = comparison, index, options
        self.pair = comparison.pairs[index]
        self.cases = [case for case in comparison.cases if case.new == index]
        sides = {"failed": comparison.failed, "missing": comparison.missing, "added": comparison.added}
        self.absent = {kind: [case for case in cases if case.new == index] for kind, cases in sides.items()}
        count = len(self.cases) + sum(map(len, self.absent.values()))
        self.lists_all = options.full or count <= SHOWN

    @property
    def counting(self) -> list[JudgedCase]:
        """The cases that the gates check: all except those that the user muted."""
        return [case for case in self.cases if not case.muted]

    def with_verdict(self, word: VerdictWord) -> list[JudgedCase]:
        """Return the unmuted cases with this verdict, the largest change first."""
        cases = [case for case in self.counting if case.verdict == word]
        return sorted(cases, key=lambda case: (-abs(math.log(case.ratio or 1.0)), case.id))


def _headings(comparison: Comparison, index: int) -> tuple[str, ...]:
    base, new = comparison.base, comparison.new[index]
    machines = [f"Machine: {printable(base.machine)}"]
    if base.machine != new.machine:
        machines = [f"Machine of base: {printable(base.machine)}", f"Machine of new: {printable(new.machine)}"]
    return (_side_text("Base", base), _side_text("New", new), *machines)


def _side_text(title: str, side: SideRow) -> str:
    label = f" ({printable(side.label)})" if side.label else ""
    return (
        f"{title}: {printable(side.source)}{label}, {side.started_at}, {count_noun(side.sessions, 'session')}"
    )


def _verdict_section(outcome: _Outcome) -> Section:
    """Return the section with a sentence on the outcome, the number of cases with each verdict, and the test."""
    cases = outcome.counting
    words = Counter(case.verdict for case in cases)
    parts = [f"{words[word]} {title.lower()}" for word, title, _ in ORDER if words[word]]
    counts = {kind: sum(not case.muted for case in rows) for kind, rows in outcome.absent.items()}
    counts["ignored"] = len(outcome.cases) - len(cases)
    beside = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    total = f"{count_noun(len(cases), 'case')} compared" + (f": {', '.join(parts)}" if parts else "")
    lines = [
        _sentence(outcome), f"{total}; beside them {beside}" if beside else total, _test_text(outcome),
        *_device_lines(outcome), *_power_lines(outcome),
    ]  # fmt: skip
    return Section(key="verdict", title="Verdict", lines=tuple(lines))


def _sentence(outcome: _Outcome) -> str:
    parts = []
    for word in ("SLOWER", "FASTER"):
        if changed := outcome.with_verdict(word):
            most, count = changed[0], len(changed)
            low = f", low ends {_factor_text(most.low_end_ratio)}" if _is_wider_than_its_verdict(most) else ""
            parts.append(
                f"{count} {word.lower()}, most of all {printable(most.id)} ({_ratio_text(most)} the time{low})"
            )
    if parts:
        return f"Of {count_noun(len(outcome.counting), 'case')} {'; '.join(parts)}."
    if outcome.with_verdict("SAME"):
        return "No case is slower or faster, as far as this comparison can tell."
    return "Nothing is decided: no case is surely slower, faster or the same."


def _test_text(outcome: _Outcome) -> str:
    pair, count = outcome.pair, len(outcome.cases)
    shares = sorted({case.threshold for case in outcome.cases if case.threshold is not None})
    if not shares:
        return "No case was tested."
    apart = _percent(shares[0]) + (f" to {_percent(shares[-1])}" if len(shares) > 1 else "")
    if pair.correction is None:
        return (
            f"Too few sessions for a test of each case: slower or faster is said where the interval, widened for "
            f"{count_noun(count, 'case')}, lies beyond the threshold of {apart}."
        )
    turns = "in turns" if pair.interleaved else "one side after the other"
    return (
        f"Threshold {apart}, sessions {turns}, alpha {_percent(outcome.comparison.alpha)} over "
        f"{count_noun(pair.family, 'case')} tested together (max-T permutations)."
    )


def _device_lines(outcome: _Outcome) -> list[str]:
    """Return sentences: the mean change of each device, and how many cases were left out."""
    pair = outcome.pair
    lines = [
        f"All of {change.device_id} together: new/base "
        f"{ratio_text(Interval(change.lo, change.ratio, change.hi, 'prior'))} (geometric mean of "
        f"{count_noun(change.cases, 'case')})."
        for change in pair.devices
    ]
    if pair.own_sizes:
        cases = count_noun(pair.own_sizes, "case")
        lines.append(f"Left out: {cases} of sizes that only one of the runs chose or reached.")
    return lines


def _power_lines(outcome: _Outcome) -> list[str]:
    """Return sentences on how much sessions differed and which slowdown the test finds. The list is empty if
    no case was tested."""
    pair = outcome.pair
    if pair.spread is None or pair.correction is None:
        return []
    spreads = sorted(case.spread for case in outcome.counting if case.spread is not None)
    effects = sorted(case.smallest_effect for case in outcome.counting if case.smallest_effect is not None)
    differed = f"Sessions of one side differed by {_middle(pair.spread, spreads)} (standard deviation)."
    if pair.smallest_effect is None:
        return [f"{differed} No change of any size could have been found."]
    drift = "" if pair.interleaved else " Slow drift from one side to the other is not part of these figures."
    slowdown = _middle(pair.smallest_effect, effects)
    return [f"{differed} Four of five comparisons like this find a slowdown of {slowdown}.{drift}"]


def _middle(middle: float, ordered: Sequence[float]) -> str:
    """Return the value `middle` as text, with the range of `ordered` (ascending) if its values differ."""
    low, usual, high = map(_share, (ordered[0], middle, ordered[-1]))
    if low == high:
        return usual
    span = f"{low.removesuffix(' %') if high.endswith('%') else low} to {high}"
    return f"{usual} in the middle case, {span} in all"


def _share(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 1 else f"{1 + share:.3g}x"


def gate_text(gate: Gate) -> str:
    """Return the text of a gate as in a report, or `not applied` for a gate that could not have failed."""
    if gate.impossible:
        return f"{cases.gate_name(gate)}: not applied, as it could not have failed"
    return cases.gate_text(gate)


def _case_sections(outcome: _Outcome) -> list[Section]:
    """Return a section for each verdict whose cases are listed."""
    parts = []
    for word, title, tone in ORDER:
        is_change = word in ("SLOWER", "FASTER")
        if not (outcome.lists_all or is_change):
            continue  # counted in the rest
        cases = [case for case in outcome.cases if case.verdict == word]
        more: tuple[str, ...] = ()
        if not outcome.lists_all:
            cases = outcome.with_verdict(word)
            rest = len(cases) - SHOWN
            more = (f"The {SHOWN} largest changes; {rest} more: {_LIST}",) if rest > 0 else ()
            cases = cases[:SHOWN]
        tables = tuple(
            _table(rows, reason, outcome.options.time_unit, tone)
            for reason, rows in group_by(cases, lambda case: case.reason).items()
        )
        if tables:
            folded = word == "SAME" or (not is_change and len(cases) > SHOWN)
            parts.append(Section(key=word.lower(), title=title, lines=more, tables=tables, folded=folded))
    return parts


def _rest_section(outcome: _Outcome) -> Section:
    """Return a section that counts the cases which are neither slower nor faster, by verdict and reason."""
    rows = [
        (len(cases), title.lower(), REASONS.get(reason, reason))
        for word, title, _ in ORDER[2:]
        for reason, cases in group_by(outcome.with_verdict(word), lambda case: case.reason or "").items()
    ]
    for kind, absent in outcome.absent.items():
        groups = group_by((case for case in absent if not case.muted), _reason_text)
        rows += [(len(group), kind, f"{_ABSENT[kind]}: {reason}") for reason, group in groups.items()]
    ignored = sum(case.muted for case in outcome.cases)
    ignored += sum(case.muted for case in itertools.chain(*outcome.absent.values()))
    rows += [(ignored, "ignored", "--ignore keeps the gates from them")] if ignored else []
    body = [cells(f"{count}", word, why) for count, word, why in rows]
    table = Table(heads(number("cases"), "verdict", Column("why", least=30)), tuple(body))
    return Section(key="rest", title="The rest", lines=(_LIST,), tables=(table,)) if body else Section(title="")


def _table(rows: Sequence[JudgedCase], reason: str | None, unit: str, tone: Tone) -> Table:
    """Return a table of cases whose verdicts have the same `reason`."""
    needed = reason not in ("few-sessions", "contended") and any(
        case.sessions_needed is not None for case in rows
    )
    tested = any(case.p_adjusted is not None for case in rows)
    shape = reason == "shape"
    low_ends = shape or any(map(_is_wider_than_its_verdict, rows))
    columns = heads(
        "case", number("new/base"), low_ends and number("low ends"), shape and number("slow ends"),
        needed and number("sessions"),
        number("base -> new", 1),
        tested and number("adjusted p", 3),
        number("threshold", 2),
    )  # fmt: skip
    body = [
        cells(
            # Case ids are never shortened, because users pass them to --ignore and --threshold.
            printable(case.id) + (" (ignored)" if case.muted else ""), Cell(_ratio_text(case), tone),
            low_ends and _factor_text(case.low_end_ratio), shape and _factor_text(case.slow_end_ratio),
            needed and f"{case.sessions_needed or '-'}",
            f"{seconds_text(case.base_s, unit)} -> {seconds_text(case.new_s, unit)}",
            tested and ("-" if case.p_adjusted is None else f"{case.p_adjusted:.2g}"),
            "-" if case.threshold is None else _percent(case.threshold),
        )
        for case in rows
    ]  # fmt: skip
    legends = [
        "sessions: how many on each side should settle it; -: more than 100" if needed else "",
        _LOW_ENDS if low_ends else "",
        _SLOW_ENDS if shape else "",
        marks_legend({gravest(case.labels) for case in rows}),
    ]
    return Table(
        columns, tuple(body), title=REASONS.get(reason or "", reason or ""), legend=join_texts(*legends)
    )  # fmt: skip


def _is_wider_than_its_verdict(case: JudgedCase) -> bool:
    """Return whether the printed interval does not show the verdict, for example because of one slow session."""
    if case.threshold is None or case.lo is None or case.hi is None:
        return False
    if case.verdict == "SAME":
        return case.hi > 1 + case.threshold or case.lo < 1 / (1 + case.threshold)
    return case.verdict in ("SLOWER", "FASTER") and case.lo <= 1 <= case.hi


def _ratio_text(case: JudgedCase) -> str:
    if case.ratio is None or case.lo is None or case.hi is None:
        return "-"
    return ratio_text(Interval(case.lo, case.ratio, case.hi, "sessions")) + mark(gravest(case.labels))


def _factor_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def _absent_section(outcome: _Outcome) -> Section:
    body = [
        cells(kind, printable(case.id) + (" (ignored)" if case.muted else ""), _reason_text(case))
        for kind, cases in outcome.absent.items()
        for case in cases
    ]
    if not body:
        return Section(title="")
    legend = "; ".join(f"{kind}: {meaning}" for kind, meaning in _ABSENT.items() if outcome.absent[kind])
    table = Table(heads("what", "case", "reason"), tuple(body), legend=legend)
    return Section(key="absent", title="On one side only", tables=(table,), folded=len(body) > SHOWN)


def _reason_text(case: AbsentCase) -> str:
    return printable(case.reason + (f": {case.detail}" if case.detail else ""))


def _differences_section(comparison: Comparison, index: int) -> Section:
    changes = [change for change in comparison.differences if change.new == index]
    lines = [
        printable(f"{change.scope} {change.field}: {change.base or '-'} -> {change.value or '-'}")
        for change in changes
        if change.id is None
    ]
    of_cases = group_by(
        (change for change in changes if change.id is not None), lambda change: (change.scope, change.field)
    )
    for (scope, field), same in of_cases.items():
        where = f"in {count_noun(len({change.id for change in same}), 'case')}"
        if field.startswith(RESULTS_OF):  # of a user's function
            most = max(float(change.value or 0.0) for change in same)
            much = f"by up to {share_text(most)} of their size" if most < math.inf else "in shape"
            lines.append(f"{scope} {field}: differ {much} {where}")
        else:
            lines.append(f"{scope if scope == field else f'{scope} {field}'}: differs {where}")
    return Section(key="differences", title="Differences", lines=tuple(lines))


def _percent(share: float) -> str:
    """Return a share in percent, such as `8.35 %`, or as a factor, such as `12.3x`, from ten on."""
    return f"{100 * share:.3g} %" if share < 9.995 else share_text(share)


FORMATS = (*drawing.DOCUMENT_FORMATS, "csv")


def render(comparison: Comparison, format: str, options: RenderOptions) -> str:
    """Return the comparison as text with one trailing newline. `format` is one of FORMATS. The same files give
    the same bytes."""
    if format == "csv":
        return _csv_text(comparison)

    if format == "html":  # a page has room for all cases
        options = msgspec.structs.replace(options, full=True)
    return drawing.render_documents(
        comparison, lambda: documents(comparison, options), format, options, "gpubench compare"
    )


CSV_COLUMNS = (
    "new_file", "new_run_id", "case_id", "verdict", "reason", "base_s", "new_s", "ratio", "lo", "hi", "p", "p_adjusted",
    "threshold", "k_base", "k_new", "sessions_needed", "labels", "muted", "spread", "smallest_effect", "median_ratio",
    "slow_end_ratio", "low_end_ratio",
)  # fmt: skip


def _csv_text(comparison: Comparison) -> str:
    """Return the comparison as CSV: a heading and one row for each case and new file."""
    import csv

    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n", restval="")
    writer.writeheader()
    rows = [msgspec.structs.asdict(case) for case in comparison.cases]
    # The verdict of a case with a number in only one file is one of these words.
    absent = {"missing": comparison.missing, "failed": comparison.failed, "added": comparison.added}
    rows += [
        msgspec.structs.asdict(case) | {"verdict": word} for word, cases in absent.items() for case in cases
    ]
    for case in rows:
        new = comparison.new[case["new"]]
        fields = case | {"case_id": case["id"], "new_file": new.source, "new_run_id": new.run_id}
        writer.writerow({name: csv_text(fields[name]) for name in CSV_COLUMNS if name in fields})
    return text.getvalue()


def render_noise(noise: Noise, format: str, options: RenderOptions) -> str:
    """Return the noise as text with one trailing newline. `format` is one of DOCUMENT_FORMATS. The same
    document gives the same bytes."""
    return drawing.render_documents(noise, lambda: [_noise_document(noise)], format, options, "gpubench noise")


def _noise_document(noise: Noise) -> TextDocument:
    left_out = tuple(map(printable, noise.left_out))
    title = "Left out: too few sessions, or no number that can be true"
    sections = [
        Section(key="verdict", title="Verdict", lines=_noise_verdict(noise)),
        Section(key="noise", title="Noise of each case", tables=(_noise_table(noise),)),
        *([Section(key="left-out", title=title, lines=left_out, folded=True)] if left_out else []),
    ]
    return TextDocument(headings=(f"Machine: {printable(noise.machine)}",), sections=tuple(sections))


def _noise_verdict(noise: Noise) -> tuple[str, ...]:
    state = "more than" if noise.false_alarm_share > ALLOWED_SHARE else "at most"
    cases = count_noun(len(noise.cases), "case")
    text = (
        f"Unchanged work was called SLOWER in {_percent(noise.false_alarm_share)} of {noise.permutations} comparisons "
        f"of {cases}, {noise.sessions} sessions a side: {state} the {_percent(ALLOWED_SHARE)} that a suite may have."
    )
    lines = [text]
    if any(case.threshold > INTERLEAVED for case in noise.cases):
        lines.append(
            f"With these thresholds it is {_percent(noise.raised_alarm_share)}; compare takes them by --thresholds."
        )
    return tuple(lines)


def _noise_table(noise: Noise) -> Table:
    columns = heads(
        "case", number("spread"), number("threshold"),
        number("alarms", 1),
    )  # fmt: skip
    body = tuple(
        cells(
            printable(case.id), _percent(case.spread), _percent(case.threshold),
            Cell(_percent(case.alarm_share), "bad" if case.alarm_share else "plain"),
        )
        for case in sorted(noise.cases, key=lambda case: (-case.threshold, case.id))
    )  # fmt: skip
    legend = (
        "spread: 95 % of all comparisons of unchanged work differ by less; threshold: what a change has to exceed;"
        " alarms: comparisons in which the case was called SLOWER at 5 %"
    )
    return Table(columns, body, legend=legend)
