"""The formats of advice: text, JSON and shell variables."""

from __future__ import annotations

import shlex

from gpubench.analysis.advice import Advice, AdviceCandidate
from gpubench.analysis.speedup import CpuCode
from gpubench.base.streams import printable, wrap
from gpubench.base.table import Cell, Column, Table, cells, heads, line_text, number, table_lines
from gpubench.base.units import count_noun, format_joules
from gpubench.curves.stats import Interval
from gpubench.report.layout import RenderOptions, json_text
from gpubench.report.wording import (
    ALWAYS,
    cpu_names,
    join_texts,
    ratio_text,
    share_text,
    situation_text,
    time_interval_text,
    time_text,
)
from gpubench.result.case import IN_PLACE, QUEUED, parse_case_id

WIDTH = 80  # the most columns, so that a file gives the same text on every terminal that is not narrower
_APART = ", each on its own part of the data"
_MEANING = {
    "clear": "the others are slower, or at most 5 % faster",
    "close": "another device or implementation may be faster, but hardly by much",
    "noisy": "the times tell too little, and a wrong choice may cost much: measure this size",
}


FORMATS = ("table", "json", "env")


def render(advice: Advice, format: str, width: int = WIDTH) -> str:
    """Return the advice as text with one trailing newline. `format` is one of FORMATS. `width` is the width of
    a table in columns, at most WIDTH of which are used. JSON has six significant digits."""
    if format == "json":
        return json_text(advice, RenderOptions())
    return env(advice) if format == "env" else text(advice, min(width, WIDTH))


def text(advice: Advice, width: int) -> str:
    """Return the advice as text: first a sentence, then a table of the candidates, then the gain with its
    evidence."""
    parts = [
        wrap(f"{_question(advice)}: {_answer(advice)}", width),
        _table(advice, width),
        "\n".join(wrap(line, width) for line in _evidence(advice)),
    ]
    return "\n\n".join(parts) + "\n"


def _answer(advice: Advice) -> str:
    if advice.split is not None:
        gpu = parse_case_id(advice.split.case_id).shared_with
        part = ", ".join(advice.split.on_gpu) or "some stages"
        if advice.split.gpu_share is not None:
            part = share_text(advice.split.gpu_share)
        return f"{advice.split.device_id} ({part} on {gpu}, the rest on the CPU)"
    return f"{advice.device_id} ({advice.implementation})" if advice.device_id else "unknown"


def env(advice: Advice) -> str:
    """Return the advice as assignments of shell variables. A missing value is an empty text."""
    values = {
        "DEVICE": advice.device_id, "BACKEND": advice.backend, "IMPLEMENTATION": advice.implementation,
        "BASIS": advice.basis,
        "EXPECTED_S": _digits(advice.time.estimate) if advice.time else None,
        "GAIN": _digits(advice.gain.ratio) if advice.gain else None, "CONFIDENCE": advice.confidence,
        "GPU_SHARE": _digits(advice.split.gpu_share) if advice.split and advice.split.gpu_share else None,
        "ASSIGNMENT": advice.split.assignment if advice.split else None,
    }  # fmt: skip
    return "".join(f"GPUBENCH_ADVICE_{name}={shlex.quote(value or '')}\n" for name, value in values.items())


def _question(advice: Advice) -> str:
    more = "".join(f", {name} = {value}" for name, value in advice.params.items())
    situation = situation_text(ALWAYS if advice.calls <= 1 else f"transfer-once-{advice.calls}")
    if advice.data == "device":
        situation = f"data on the device, {'queued' if advice.regime == QUEUED else 'waited'}"
    if advice.regime.startswith(IN_PLACE):
        situation = situation_text(advice.regime)
    return f"{advice.op} {advice.dtype}, n = {advice.n}{more}, {situation}"


def _table(advice: Advice, width: int) -> str:
    """Return the candidates as a table. Device names are left out if they do not fit."""
    columns = heads(
        "device", "implementation", number("one call"), "interval",
        Column("basis", least=20),
    )  # fmt: skip
    rows = (
        cells(Cell(f"{option.device_id} ({option.name})", brief=option.device_id), *_row(option))
        for option in advice.candidates
    )
    return "\n".join(map(line_text, table_lines(Table(columns, tuple(rows)), width)))


def _row(option: AdviceCandidate) -> tuple[str, ...]:
    if option.time is None:
        return ("-", "-", "-", option.reason or "")
    labels = "".join(f", {label}" for label in option.labels)
    return (
        option.implementation or "-", time_text(option.time), time_interval_text(option.time),
        _basis(option) + labels,
    )  # fmt: skip


def _basis(option: AdviceCandidate) -> str:
    if option.basis == "measured" or option.between is None:
        return "measured"
    low, high = option.between
    ways = [f"between n = {low} and {high}"] if low != high else []
    regimes = {parse_case_id(name).regime_id: None for name in option.case_ids}
    ways += [f"between {' and '.join(regimes)}"] if len(regimes) > 1 else []
    return f"interpolated {', '.join(ways)}"


def _evidence(advice: Advice) -> list[str]:
    lines = []
    against = advice.candidate(advice.gain.device_id) if advice.gain else None
    if advice.device_id is None:
        to_know = f" To know: {advice.command}" if advice.command else ""
        lines += [f"Unknown: {advice.reason}.", f"Nothing is extrapolated.{to_know}"]
    elif advice.goal == "energy":
        texts = [
            f"{name} {format_joules(value)}"
            for name, value in advice.joules.items()
            if not isinstance(value, str)
        ]
        lines.append(f"Energy of a call: {', '.join(texts)}; {advice.confidence}.")
    elif advice.gain is not None and against is not None:
        gain = Interval(advice.gain.lo, advice.gain.ratio, advice.gain.hi, "prior")
        lines.append(
            f"Gain: {ratio_text(gain)} over {against.device_id} ({against.implementation}); {advice.confidence}: "
            f"{_MEANING[advice.confidence]}."
        )
    else:
        lines.append(f"Gain: not known: {advice.alone}.")
    if advice.split is not None and advice.split.assignment is not None:
        lines.append(
            "Each stage runs where it is assigned, one after the other. A program that stays on one device takes "
            f"{_fastest_alone(advice)}."
        )
    elif advice.split is not None:
        lines.append(
            f"It takes both sides at work at once{_APART if advice.data == 'device' else ''}. A program that cannot "
            f"split the work takes {_fastest_alone(advice)}."
        )
    lines += _cpu_lines(advice)
    source = advice.source
    label = f", {printable(source.label)}" if source.label else ""
    ending = "" if source.complete else ", not complete"
    origin = f"{source.started_at}, run {source.run_id[:8]}{label}{ending}; {printable(source.machine)}"
    lines.append(join_texts(f"From: {origin}", _software(advice)))
    return lines


def _cpu_lines(advice: Advice) -> list[str]:
    """Return at most one line: the code behind the CPU times, such as `CPU: numba (numpy:0, 16 threads).`"""
    texts = []
    for option in advice.candidates:
        if option.kind == "cpu" and option.implementation is not None:
            backend = option.device_id.partition(":")[0]
            names = cpu_names(
                [CpuCode(backend, library, option.weaker) for library in option.libraries or ("",)]
            )
            threads = f", {count_noun(option.threads, 'thread')}" if option.threads else ""
            texts.append(f"{', '.join(names)} ({option.device_id}{threads})")
    return [f"CPU: {', '.join(texts)}."] if texts else []


def _software(advice: Advice) -> str:
    """Return the names and versions of the backends that were measured, because other versions may have
    other times."""
    backends = dict.fromkeys(option.device_id.partition(":")[0] for option in advice.candidates)
    versions = {name: advice.source.tool.get(name) for name in sorted(backends)}
    return ", ".join(f"{name} {printable(version)}" for name, version in versions.items() if version)


def _fastest_alone(advice: Advice) -> str:
    alone = next(option for option in advice.candidates if option.kind != "hybrid" and option.time)
    return f"{alone.device_id} ({alone.implementation})"


def _digits(value: float) -> str:
    return f"{value:.6g}"
