"""What a run says before it measures: what it measures, how long that takes, and whether others use the machine."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench import kernels, units
from gpubench.cli import roofline
from gpubench.cli import selection as words
from gpubench.cli.options import RunOptions
from gpubench.measure import load
from gpubench.measure.plan import estimate_seconds
from gpubench.measure.schedule import RunSpec, planned
from gpubench.model.result import BUSY_SHARE

_MOST_NAMES = 3


def early_plan(options: RunOptions) -> str | None:
    """The plan as far as the options tell it, before any device was looked at; None where a file holds it, or where
    more than they tell decides how long it takes. Raises UsageError for an unknown op."""
    if options.append or options.like or options.check_only:
        return None
    ops = words.parse_ops(options.ops or words.DEFAULT_SUITE)
    if options.budget:
        return plan_text(ops, units.parse_duration(options.budget, option="--budget"))
    devices = f"{options.mode},{options.backends},{options.devices}"
    usual = (
        not options.sizes
        and options.refine != "off"
        and "hybrid" not in devices
        and not roofline.asked(options.ops)
    )
    return plan_text(ops, words.DEFAULT_BUDGET_S) if usual and set(ops) <= set(kernels.computed()) else None


def plan(spec: RunSpec) -> str:
    """The same of a run whose devices are known."""
    ops, settings = list(spec.ops), spec.settings
    if spec.check_only:
        return plan_text(ops, None, verb="Checking")
    if settings.budget_s is not None:
        return plan_text(ops, settings.budget_s)
    return plan_text(ops, estimate_seconds(planned(spec), settings), least="at most ")


def plan_text(ops: Sequence[str], seconds: float | None, *, verb: str = "Measuring", least: str = "") -> str:
    """`Measuring 14 ops, about a minute`."""
    what = units.listed(ops) if len(ops) <= _MOST_NAMES else f"{len(ops)} ops"
    return f"{verb} {what}" + ("" if seconds is None else f", {least}{about(seconds)}")


def about(seconds: float) -> str:
    """A duration as people say it: `about 20 seconds`, `about a minute`, `about 3 minutes`."""
    if seconds < 7.5:
        return "a few seconds"
    if seconds < 50:
        return f"about {5 * round(seconds / 5)} seconds"
    if seconds < 90:
        return "about a minute"
    if seconds < 90 * 60:
        return f"about {round(seconds / 60)} minutes"
    return f"about {round(seconds / 3600)} hours"


def busy(before: load.CpuTimes | None, now: load.CpuTimes | None) -> str | None:
    """What to expect where others have used the CPUs since `before`; None on a quiet machine, or an unknown one."""
    share = max((one or 0.0) for one in load.between(before, now))
    if share <= BUSY_SHARE:
        return None
    return (
        f"Other programs use {share:.0%} of the CPUs: times will be noisy. Sessions that they disturb are measured "
        "again while there is time."
    ).replace("%", " %")
