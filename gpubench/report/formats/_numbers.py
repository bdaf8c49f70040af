"""Numbers of a report as text: no digit beyond the second one that the interval leaves uncertain."""

from __future__ import annotations

import math

from gpubench.report.analysis.types import Label, Rates
from gpubench.stats import Interval
from gpubench.units import earned_digits, format_rate, format_seconds

_MARKS: dict[Label, str] = {"noisy": "~", "unstable": "~~"}


def time_text(time: Interval | None, unit: str = "auto") -> str:
    """`1.52 ms`, two or three digits as its interval has them; `-` for no estimate."""
    return "-" if time is None else format_seconds(time.estimate, digits=_digits(time), unit=unit)


def seconds_text(seconds: float | None, unit: str = "auto") -> str:
    """As `time_text`, for a number without an interval."""
    return "-" if seconds is None else format_seconds(seconds, digits=3, unit=unit)


def interval_text(interval: Interval) -> str:
    """`[33.2, 34.1]`: both ends with the decimals of the estimate."""
    decimals = _decimals(interval)
    return f"[{_fixed(interval.low, decimals)}, {_fixed(interval.high, decimals)}]"


def ratio_text(ratio: Interval) -> str:
    """`33.7x [33.2, 34.1]`."""
    return f"{short_ratio_text(ratio)} {interval_text(ratio)}"


def percent_ratio_text(ratio: Interval) -> str:
    """`33.7x +-2%`: the farther end of the interval, rounded up."""
    ends = (ratio.high / ratio.estimate - 1, 1 - ratio.low / ratio.estimate)
    percent = math.ceil(max(ends) * 100 - 1e-9)
    return f"{short_ratio_text(ratio)} +-{max(percent, 0)}%"


def short_ratio_text(ratio: Interval) -> str:
    """`33.7x`."""
    return f"{_fixed(ratio.estimate, _decimals(ratio))}x"


def time_interval_text(time: Interval, unit: str = "auto") -> str:
    """`[1.50, 1.54] ms`: in the unit of the estimate."""
    name = time_text(time, unit).rpartition(" ")[2]
    scale = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[name]
    scaled = Interval(time.low * scale, time.estimate * scale, time.high * scale, time.kind)
    return f"{interval_text(scaled)} {name}"


def rate_text(rates: Rates | None, *, flops: bool) -> str:
    """`1.35 TFLOP/s` or `4.1 GB/s`; `-` where the op declares none."""
    value = None if rates is None else rates.flops_per_s if flops else rates.bytes_per_s
    return "-" if value is None else format_rate(value, "FLOP/s" if flops else "B/s")


def share_text(share: float) -> str:
    """`12%`, signed when negative, one decimal below 10 %; what rounds to nothing is `0%`."""
    percent = share * 100 if abs(share) >= 5e-4 else 0.0
    return f"{percent:.0f}%" if abs(percent) >= 9.95 or not percent else f"{percent:.1f}%"


def mark(label: Label) -> str:
    """`~` noisy, `~~` unstable, `!` any other label that is not ok."""
    return "" if label == "ok" else _MARKS.get(label, "!")


def legend(labels: set[Label]) -> str:
    """What the marks of a table mean; empty when none is used."""
    parts = [f"{sign} {label}" for label, sign in _MARKS.items() if label in labels]
    others = sorted(label for label in labels if label != "ok" and label not in _MARKS)
    return "; ".join([*parts, *([f"! {', '.join(others)}"] if others else [])])


def _digits(interval: Interval) -> int:
    return min(3, max(2, earned_digits(interval.estimate, interval.low, interval.high)))


def _decimals(interval: Interval) -> int:
    """Of the estimate as it is printed: 99.96 with three digits is 100, without decimals."""
    digits = _digits(interval)
    printed = float(f"{interval.estimate:.{digits - 1}e}") if math.isfinite(interval.estimate) else 0.0
    return digits - 1 - (math.floor(math.log10(abs(printed))) if printed else 0)


def _fixed(value: float, decimals: int) -> str:
    return f"{round(value, decimals):.{max(0, decimals)}f}"
