"""Advice as text, as JSON and as shell variables."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from gpubench.report.analysis.advise import Advice, Candidate
from gpubench.report.analysis.cost_curves import Expected, regime_of
from gpubench.report.analysis.machine import machine_line
from gpubench.report.formats import _advice_types as types
from gpubench.report.formats._display import NARROWEST_WRAP, columns, cut, filled, padded
from gpubench.report.formats._document import printable, shortened, wrapped
from gpubench.report.formats._json import json_text
from gpubench.report.formats._numbers import ratio_text, share_text, time_interval_text, time_text
from gpubench.report.formats._options import RenderOptions
from gpubench.stats import Interval

_WIDTH = 80  # the same text for the same file, on a terminal or not
_GAP = "  "
_HEADER = ("device", "form", "one call", "interval", "basis")
_RIGHT = (False, False, True, False, False)
_APART = ", each on its own part of the data"
_MEANING = {
    "clear": "the interval of the gain lies above 1",
    "close": "the interval of the gain holds 1: it may be the other way round",
    "noisy": "a case behind it is unstable or throttled: measure again",
    "alone": "nothing else was measured, or could run it",
}


def text(advice: Advice) -> str:
    """A line with the answer, the candidates, the gain and where it comes from."""
    parts = [
        wrapped(f"{_question(advice)}: {_answer(advice)}", _WIDTH),
        _table(advice),
        "\n".join(_evidence(advice)),
    ]
    return "\n\n".join(parts) + "\n"


def _answer(advice: Advice) -> str:
    if advice.split is not None:
        gpu = advice.split.case.case.shared_with
        return f"{advice.split.device_id} ({share_text(advice.split.fraction)} on {gpu}, the rest on the CPU)"
    return f"{advice.best.device_id} ({advice.best.form})" if advice.best else "unknown"


def json(advice: Advice) -> str:
    """The `gpubench-advise` document, indented, six significant digits."""
    return json_text(document(advice), RenderOptions())


def env(advice: Advice) -> str:
    """Variables for a shell; empty where there is no value. No option of gpubench reads them."""
    found = document(advice)
    values = {
        "DEVICE": found.device_id, "BACKEND": found.backend, "FORM": found.form, "BASIS": found.basis,
        "EXPECTED_S": _digits(found.time.estimate_s) if found.time else None,
        "GAIN": _digits(found.gain.ratio) if found.gain else None, "CONFIDENCE": found.confidence,
        "FRACTION": _digits(found.split.fraction) if found.split else None,
    }  # fmt: skip
    return "".join(f"GPUBENCH_ADVICE_{name}={shlex.quote(value or '')}\n" for name, value in values.items())


def document(advice: Advice) -> types.AdviceDocument:
    """The document, not yet rounded."""
    best, against = advice.best, advice.against
    gain = None
    if advice.gain is not None and against is not None:
        gain = types.AdviceGain(
            device_id=against.device_id, ratio=advice.gain.estimate, lo=advice.gain.low, hi=advice.gain.high
        )
    return types.AdviceDocument(
        op=advice.key.op, n=advice.n, params=dict(advice.key.params), dtype=advice.key.dtype,
        data="device" if advice.calls is None else "host", calls=advice.calls or 1, regime=regime_of(advice.calls),
        basis=advice.basis, device_id=best.device_id if best else None,
        backend=best.device_id.partition(":")[0] if best else None, form=best.form if best else None,
        time=_time(best.expected) if best else None, gain=gain, confidence=advice.confidence,
        reason=advice.reason or None, split=_split(advice),
        candidates=tuple(_candidate(advice, one) for one in advice.candidates),
        source=types.AdviceSource(
            run_id=advice.run.id, label=advice.run.label, started_at=advice.run.started_at,
            complete=advice.run.complete, machine=machine_line(advice.run), tool=dict(sorted(advice.run.tool.items())),
        ),
    )  # fmt: skip


def _question(advice: Advice) -> str:
    key = advice.key
    more = "".join(f", {name} = {value}" for name, value in key.params)
    where = "data on the device" if advice.calls is None else "data on the host"
    copies = "" if advice.calls is None else ", copied each call"
    if advice.calls is not None and advice.calls > 1:
        copies = f", one copy for {advice.calls} calls"
    return f"{key.op} {key.dtype}, n = {advice.n}{more}, {where}{copies}"


def _table(advice: Advice) -> str:
    rows = [_HEADER, *(_row(advice, one) for one in advice.candidates)]
    widths = [max(columns(row[i]) for row in rows) for i in range(len(_HEADER))]
    over = sum(widths[:-1]) + len(_GAP) * (len(widths) - 1) + min(widths[-1], NARROWEST_WRAP) - _WIDTH
    if over > 0:  # a device's name gives way
        widths[0] = max(widths[0] - over, columns(_HEADER[0]))
        rows = [(cut(row[0], widths[0]), *row[1:]) for row in rows]
    left = sum(widths[:-1]) + len(_GAP) * (len(widths) - 1)
    widths[-1] = min(widths[-1], _WIDTH - left)
    rows.insert(1, tuple("-" * width for width in widths))
    return "\n".join(line for row in rows for line in _lines(row, widths, " " * left))


def _lines(row: Sequence[str], widths: Sequence[int], indent: str) -> list[str]:
    """One row; what the last column has no room for stands below it."""
    cells = [
        padded(cell, width, right=right) for cell, width, right in zip(row[:-1], widths, _RIGHT, strict=False)
    ]
    first, *rest = filled(row[-1], widths[-1], indent="")
    return [_GAP.join([*cells, first]).rstrip(), *(indent + line for line in rest)]


def _row(advice: Advice, one: Candidate) -> tuple[str, ...]:
    device = f"{one.device_id} ({_name(advice, one.device_id)})"
    if one.expected is None:
        return (device, "-", "-", "-", one.reason)
    time = one.expected.time
    labels = "".join(f", {label}" for label in sorted(one.expected.labels))
    return (device, one.form or "-", time_text(time), time_interval_text(time), _basis(one.expected) + labels)


def _basis(expected: Expected) -> str:
    if expected.basis == "measured":
        return "measured"
    low, high = expected.between
    ways = [f"between n = {low} and {high}"] if low != high else []
    regimes = {row.case.regime_id: None for row in expected.rows}
    ways += [f"between {' and '.join(regimes)}"] if len(regimes) > 1 else []
    return "interpolated " + ", ".join(ways)


def _evidence(advice: Advice) -> list[str]:
    lines = []
    if advice.best is None:
        lines += [f"Unknown: {advice.reason}.", "Nothing is extrapolated: measure this size to know."]
    elif advice.gain is not None and advice.against is not None:
        against = f"{advice.against.device_id} ({advice.against.form})"
        lines.append(
            f"Gain: {ratio_text(advice.gain)} over {against}; {advice.confidence}: {_MEANING[advice.confidence]}."
        )
    else:
        lines.append(f"Gain: none to tell; {advice.confidence}: {_MEANING[advice.confidence]}.")
    if advice.split is not None:
        lines.append(
            f"It takes both sides at work at once{_APART if advice.calls is None else ''}. A program that cannot split "
            f"the work takes {_fastest_alone(advice)}."
        )
    run = advice.run
    label = f", {printable(run.label)}" if run.label else ""
    ending = "" if run.complete else ", not complete"
    found = f"{run.started_at}, run {run.id[:8]}{label}{ending}; {printable(machine_line(run))}"
    lines.append("; ".join(part for part in (f"From: {found}", _software(advice)) if part))
    return [wrapped(line, _WIDTH) for line in lines]


def _software(advice: Advice) -> str:
    """The libraries that were measured, with their versions: newer ones may be faster."""
    backends = dict.fromkeys(one.device_id.partition(":")[0] for one in advice.candidates)
    versions = {name: advice.run.tool.get(name) for name in sorted(backends)}
    return ", ".join(f"{name} {printable(version)}" for name, version in versions.items() if version)


def _fastest_alone(advice: Advice) -> str:
    alone = next(one for one in advice.candidates if one.kind != "hybrid" and one.expected)
    return f"{alone.device_id} ({alone.form})"


def _split(advice: Advice) -> types.AdviceSplit | None:
    if advice.split is None:
        return None
    row = advice.split
    return types.AdviceSplit(
        device_id=row.device_id, fraction=row.fraction, ratio=row.gain.estimate, lo=row.gain.low, hi=row.gain.high,
        case_id=row.case.id,
    )  # fmt: skip


def _candidate(advice: Advice, one: Candidate) -> types.AdviceCandidate:
    expected = one.expected
    return types.AdviceCandidate(
        device_id=one.device_id, name=_name(advice, one.device_id), kind=one.kind, form=one.form,
        time=_time(expected), basis=expected.basis if expected else "unknown",
        between=expected.between if expected else None,
        labels=tuple(sorted(expected.labels)) if expected else (),
        case_ids=tuple(row.id for row in expected.rows) if expected else (), reason=one.reason or None,
    )  # fmt: skip


def _time(expected: Expected | None) -> types.AdviceTime | None:
    if expected is None:
        return None
    time: Interval = expected.time
    return types.AdviceTime(estimate_s=time.estimate, lo_s=time.low, hi_s=time.high, ci_kind=time.kind)


def _name(advice: Advice, device_id: str) -> str:
    names = {device.id: shortened(device.name) for device in advice.run.devices}
    return names.get(device_id, "an unknown device")


def _digits(value: float) -> str:
    return f"{value:.6g}"
