"""A comparison as sections and tables for people, as JSON, and as CSV with one row for each case and new file; and
noise: the suite first, then every case, the noisiest first."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

import msgspec

from gpubench.analysis.labels import gravest
from gpubench.base.escaping import printable
from gpubench.base.table import Cell, Column, Table, Tone, cells, heads, number
from gpubench.compare.comparison import (
    INTERLEAVED,
    AbsentCase,
    Comparison,
    DeviceChange,
    Gate,
    JudgedCase,
    SideRow,
    VerdictWord,
)
from gpubench.compare.noise import Noise, NoisyCase
from gpubench.compare.pairing import RESULTS_OF
from gpubench.curves.stats import Interval
from gpubench.report import renderers as drawing
from gpubench.report.layout import RenderOptions, Section, TextDocument, csv_text
from gpubench.report.sections import problems
from gpubench.report.wording import interval_text, mark, seconds_text, share_text, short_ratio_text
from gpubench.report.wording import legend as marks_legend

# What asks for a reader's attention first. SAME is folded where that is possible.
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
_WIDER = "SAME: the 90 % interval of new/base of the sessions' low ends lies within the threshold"
_SHAPE = (
    "low, slow ends: new/base of the sessions' smallest samples and of their 90 % quantiles. A share of the blocks or"
    " samples moved"
)


def documents(comparison: Comparison, unit: str) -> list[TextDocument]:
    """One for each new file; the last one has the gates. `unit`: auto, s, ms, us or ns."""
    last = len(comparison.new) - 1
    return [
        TextDocument(
            headings=_headings(comparison, i),
            sections=tuple(
                section
                for section in (
                    _verdict_section(comparison, i),
                    _gates_section(comparison) if i == last else None,
                    *_case_sections(comparison, i, unit),
                    _absent_section(comparison, i),
                    _differences_section(comparison, i),
                    _notices_section(comparison) if i == last else None,
                )
                if section is not None
            ),
        )
        for i in range(last + 1)
    ]


def _headings(comparison: Comparison, index: int) -> tuple[str, ...]:
    base, new = comparison.base, comparison.new[index]
    machines = [f"Machine: {printable(base.machine)}"]
    if base.machine != new.machine:
        machines = [f"Machine of base: {printable(base.machine)}", f"Machine of new: {printable(new.machine)}"]
    return (_side_text("Base", base), _side_text("New", new), *machines)


def _side_text(title: str, side: SideRow) -> str:
    label = f" ({printable(side.label)})" if side.label else ""
    sessions = f"{side.sessions} session{'s' if side.sessions != 1 else ''}"
    return f"{title}: {printable(side.source)}{label}, {side.started_at}, {sessions}"


def _verdict_section(comparison: Comparison, index: int) -> Section:
    heard = [row for row in comparison.cases if row.new == index and not row.muted]
    words = [row.verdict for row in heard]
    parts = [f"{words.count(word)} {title.lower()}" for word, title, _ in ORDER if word in words]
    for name, rows in (
        ("missing", comparison.missing),
        ("failed", comparison.failed),
        ("added", comparison.added),
    ):
        count = sum(1 for row in rows if row.new == index and not row.muted)
        parts += [f"{count} {name}"] if count else []
    muted = sum(1 for row in comparison.cases if row.new == index and row.muted)
    parts += [f"{muted} ignored"] if muted else []
    total = f"{len(heard)} case{'s' if len(heard) != 1 else ''} compared"
    lines = [
        f"{total}: {', '.join(parts)}" if parts else total,
        _test_text(comparison, index),
        *_device_lines(comparison, index),
        *_power_lines(comparison, index),
    ]
    return Section(key="verdict", title="Verdict", lines=tuple(lines))


def _test_text(comparison: Comparison, index: int) -> str:
    pair, ours = comparison.pairs[index], [row for row in comparison.cases if row.new == index]
    shares = sorted({row.threshold for row in ours if row.threshold is not None})
    if not shares:
        return "No case was tested."
    apart = _percent(shares[0]) + (f" to {_percent(shares[-1])}" if len(shares) > 1 else "")
    if pair.correction is None:
        return (
            f"Too few sessions for a test of each case: slower or faster is said where the interval, widened for "
            f"{len(ours)} case{'s' if len(ours) != 1 else ''}, lies beyond the threshold of {apart}."
        )
    turns = "in turns" if pair.interleaved else "one side after the other"
    return (
        f"Threshold {apart}, sessions {turns}, alpha {_percent(comparison.alpha)} over {pair.family} "
        f"case{'s' if pair.family != 1 else ''} tested together (max-T permutations)."
    )


def _device_lines(comparison: Comparison, index: int) -> list[str]:
    """Write how all cases of a device changed together, and how many sizes were left out."""
    pair = comparison.pairs[index]
    lines = [
        f"All of {change.device_id} together: new/base {interval_of(change)} (geometric mean of "
        f"{change.cases} case{'s' if change.cases != 1 else ''})."
        for change in pair.devices
    ]
    if pair.own_sizes:
        cases = f"{pair.own_sizes} case{'s' if pair.own_sizes != 1 else ''}"
        lines.append(f"Left out: {cases} of sizes that only one of the runs chose or reached.")
    return lines


def interval_of(change: DeviceChange) -> str:
    """Write the ratio with its interval: `1.02x [0.95, 1.10]`."""
    ratio = Interval(change.lo, change.ratio, change.hi, "prior")
    return f"{short_ratio_text(ratio)} {interval_text(ratio)}"


def _power_lines(comparison: Comparison, index: int) -> list[str]:
    """How much sessions of one side differed, and what a comparison like this one can find."""
    pair = comparison.pairs[index]
    if pair.spread is None or pair.correction is None:
        return []
    ours = [row for row in comparison.cases if row.new == index and not row.muted]
    spreads = sorted(row.spread for row in ours if row.spread is not None)
    effects = sorted(row.smallest_effect for row in ours if row.smallest_effect is not None)
    seen = f"Sessions of one side differed by {_middle(pair.spread, spreads)} (standard deviation)."
    if pair.smallest_effect is None:
        return [f"{seen} No change of any size could have been found."]
    drift = "" if pair.interleaved else " Slow drift from one side to the other is not part of these figures."
    return [
        f"{seen} Four of five comparisons like this find a slowdown of {_middle(pair.smallest_effect, effects)}.{drift}"
    ]


def _middle(value: float, ordered: Sequence[float]) -> str:
    """The middle case, and all of them where they differ."""
    low, middle, high = (f"{100 * share:.2g}" for share in (ordered[0], value, ordered[-1]))
    return f"{middle} %" if low == high else f"{middle} % in the middle case, {low} to {high} % in all"


def _gates_section(comparison: Comparison) -> Section | None:
    if not comparison.gates:
        return None
    return Section(key="gates", title="Gates", lines=tuple(gate_text(gate) for gate in comparison.gates))


def gate_text(gate: Gate) -> str:
    """As in a report; or that it was not applied."""
    if gate.impossible:
        return f"{problems.gate_name(gate)}: not applied, as it could not have failed"
    return problems.gate_text(gate)


def _case_sections(comparison: Comparison, index: int, unit: str) -> list[Section]:
    found = []
    for word, title, tone in ORDER:
        rows = [row for row in comparison.cases if row.new == index and row.verdict == word]
        tables = tuple(
            _table([row for row in rows if row.reason == reason], reason, unit, tone)
            for reason in dict.fromkeys(row.reason for row in rows)
        )
        if tables:
            found.append(Section(key=word.lower(), title=title, tables=tables, folded=word == "SAME"))
    return found


def _table(rows: Sequence[JudgedCase], reason: str | None, unit: str, tone: Tone) -> Table:
    """The case ids are the keys that --ignore and --threshold take, so they stand in full."""
    needed = reason not in ("few-sessions", "contended") and any(
        row.sessions_needed is not None for row in rows
    )
    tested = any(row.p_adjusted is not None for row in rows)
    shape = reason == "shape"
    columns = heads(
        "case", number("new/base"),
        *((number("low ends"), number("slow ends")) if shape else ()),
        needed and number("sessions"),
        number("base -> new", 1),
        tested and number("adjusted p", 3),
        number("threshold", 2),
    )  # fmt: skip
    body = [
        cells(
            printable(row.id) + (" (ignored)" if row.muted else ""), Cell(_ratio_text(row), tone),
            *((_factor_text(row.low_end_ratio), _factor_text(row.slow_end_ratio)) if shape else ()),
            needed and f"{row.sessions_needed or '-'}",
            f"{seconds_text(row.base_s, unit)} -> {seconds_text(row.new_s, unit)}",
            tested and _p_text(row.p_adjusted),
            "-" if row.threshold is None else _percent(row.threshold),
        )
        for row in rows
    ]  # fmt: skip
    legends = [
        "sessions: how many on each side should settle it; -: more than 100" if needed else "",
        _SHAPE if shape else "",
        _WIDER if any(_wider_than_its_verdict(row) for row in rows) else "",
        marks_legend({gravest(row.labels) for row in rows}),
    ]
    return Table(
        columns, tuple(body), title=REASONS.get(reason or "", reason or ""), legend="; ".join(filter(None, legends))
    )  # fmt: skip


def _wider_than_its_verdict(row: JudgedCase) -> bool:
    """A SAME whose printed interval reaches past the threshold: one slow session a side is enough."""
    if row.verdict != "SAME" or row.threshold is None or row.lo is None or row.hi is None:
        return False
    return row.hi > 1 + row.threshold or row.lo < 1 / (1 + row.threshold)


def _ratio_text(row: JudgedCase) -> str:
    if row.ratio is None or row.lo is None or row.hi is None:
        return "-"
    ratio = Interval(row.lo, row.ratio, row.hi, "sessions")
    return f"{short_ratio_text(ratio)} {interval_text(ratio)}{mark(gravest(row.labels))}"


def _factor_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def _absent_section(comparison: Comparison, index: int) -> Section | None:
    found: list[tuple[str, Sequence[AbsentCase]]] = [
        ("failed in new", comparison.failed), ("missing in new", comparison.missing),
        ("added in new", comparison.added),
    ]  # fmt: skip
    body = [
        cells(what, printable(row.id) + (" (ignored)" if row.muted else ""), _reason_text(what, row))
        for what, rows in found
        for row in rows
        if row.new == index
    ]
    if not body:
        return None
    table = Table((Column("what"), Column("case"), Column("reason")), tuple(body))
    return Section(key="absent", title="On one side only", tables=(table,))


def _reason_text(what: str, row: AbsentCase) -> str:
    where = "in base: " if what == "added in new" else ""
    return printable(f"{where}{row.reason}" + (f": {row.detail}" if row.detail else ""))


def _differences_section(comparison: Comparison, index: int) -> Section | None:
    rows = [row for row in comparison.differences if row.new == index]
    whole = [row for row in rows if row.id is None]
    lines = [printable(f"{row.scope} {row.field}: {row.base or '-'} -> {row.value or '-'}") for row in whole]
    for scope, field in dict.fromkeys((row.scope, row.field) for row in rows if row.id is not None):
        same = [row for row in rows if (row.scope, row.field) == (scope, field) and row.id is not None]
        count = len({row.id for row in same})
        where = f"in {count} case{'s' if count != 1 else ''}"
        if field.startswith(RESULTS_OF):  # of a user's function
            most = max(float(row.value or 0.0) for row in same)
            much = f"by up to {share_text(most)} of their size" if most < math.inf else "in shape"
            lines.append(f"{scope} {field}: differ {much} {where}")
        else:
            lines.append(f"{scope} {field}: differs {where}")
    return Section(key="differences", title="Differences", lines=tuple(lines)) if lines else None


def _notices_section(comparison: Comparison) -> Section | None:
    lines = tuple(f"{row.code}: {row.message}; {row.hint}" for row in comparison.warnings)
    return Section(key="warnings", title="Warnings", lines=lines) if lines else None


def _p_text(p: float | None) -> str:
    return "-" if p is None else f"{p:.2g}"


def _percent(share: float) -> str:
    return f"{share * 100:g} %"


FORMATS = (*drawing.DOCUMENT_FORMATS, "csv")


def render(comparison: Comparison, format: str, options: RenderOptions) -> str:
    """Text with one trailing newline, the same bytes for the same files. `format` is one of FORMATS."""
    if format == "csv":
        return _csv_text(comparison)

    return drawing.render_documents(
        comparison, lambda: documents(comparison, options.time_unit), format, options, "gpubench compare"
    )


CSV_COLUMNS = (
    "new_file", "new_run_id", "case_id", "verdict", "reason", "base_s", "new_s", "ratio", "lo", "hi", "p", "p_adjusted",
    "threshold", "k_base", "k_new", "sessions_needed", "labels", "muted", "spread", "smallest_effect", "median_ratio",
    "slow_end_ratio", "low_end_ratio",
)  # fmt: skip


def _csv_text(comparison: Comparison) -> str:
    """A heading and the cases; those with a number on one side alone are `missing`, `failed` or `added`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n", restval="")
    writer.writeheader()
    rows = [msgspec.structs.asdict(row) for row in comparison.cases]
    absent = {"missing": comparison.missing, "failed": comparison.failed, "added": comparison.added}
    rows += [msgspec.structs.asdict(row) | {"verdict": word} for word, found in absent.items() for row in found]
    for row in rows:
        new = comparison.new[row["new"]]
        known = row | {"case_id": row["id"], "new_file": new.source, "new_run_id": new.run_id}
        writer.writerow({name: csv_text(known[name]) for name in CSV_COLUMNS if name in known})
    return text.getvalue()


def render_noise(found: Noise, format: str, options: RenderOptions, *, allowed_share: float) -> str:
    """Text with one trailing newline, the same bytes for the same document. `format` is one of FORMATS."""
    return drawing.render_documents(
        found, lambda: [noise_document(found, allowed_share)], format, options, "gpubench noise"
    )


def noise_document(found: Noise, allowed_share: float) -> TextDocument:
    """What is said; `allowed_share` is the share of false alarms that a suite may have."""
    left_out = len(found.left_out)
    sections = [
        Section(key="verdict", title="Verdict", lines=_noise_verdict(found, allowed_share)),
        Section(key="noise", title="Noise of each case", tables=(_noise_table(found),)),
    ]
    if left_out:
        lines = tuple(printable(name) for name in found.left_out)
        sections.append(
            Section(
                key="left-out",
                title="Left out: too few sessions, or no number that can be true",
                lines=lines,
                folded=True,
            )
        )
    return TextDocument(headings=(f"Machine: {printable(found.machine)}",), sections=tuple(sections))


def _noise_verdict(found: Noise, allowed_share: float) -> tuple[str, ...]:
    state = "more than" if found.false_alarm_share > allowed_share else "at most"
    cases = f"{len(found.cases)} case{'s' if len(found.cases) != 1 else ''}"
    text = (
        f"Unchanged work was called SLOWER in {_rounded(found.false_alarm_share)} of {found.permutations} comparisons "
        f"of {cases}, {found.sessions} sessions a side: {state} the {_rounded(allowed_share)} that a suite may have."
    )
    lines = [text]
    if any(row.threshold > INTERLEAVED for row in found.cases):
        lines.append(
            f"With the thresholds below it is {_rounded(found.raised_alarm_share)}; compare takes them by --thresholds."
        )
    return tuple(lines)


def _noise_table(found: Noise) -> Table:
    columns = heads(
        "case", number("spread"), number("threshold"),
        number("alarms", 1),
    )  # fmt: skip
    rows = sorted(found.cases, key=lambda row: (-row.threshold, row.id))
    legend = (
        "spread: 95 % of all comparisons of unchanged work differ by less; threshold: what a change has to exceed;"
        " alarms: comparisons in which the case was called SLOWER at 5 %"
    )
    return Table(columns, tuple(_noise_row(row) for row in rows), legend=legend)


def _noise_row(row: NoisyCase) -> tuple[Cell, ...]:
    return cells(
        printable(row.id),
        _rounded(row.spread),
        _rounded(row.threshold),
        Cell(_rounded(row.alarm_share), "bad" if row.alarm_share else "plain"),
    )


def _rounded(share: float) -> str:
    return f"{100 * share:.3g} %"
