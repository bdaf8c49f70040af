"""What a run says before it measures: what it measures, how long that takes, and whether others use the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpubench import units
from gpubench.cli.options import RunOptions
from gpubench.cli.progress import Display
from gpubench.cli.request import Tell
from gpubench.measure import load
from gpubench.measure.plan import estimate_seconds
from gpubench.measure.schedule import RunSpec, planned
from gpubench.model.result import BUSY_SHARE, Selection, Settings

_MOST_NAMES = 3


def plan_text(ops: Sequence[str], seconds: float | None, *, check_only: bool, at_most: bool = False) -> str:
    """`Measuring 14 ops, about a minute`."""
    what = units.listed(ops) if len(ops) <= _MOST_NAMES else f"{len(ops)} ops"
    if check_only or seconds is None:
        return f"{'Checking' if check_only else 'Measuring'} {what}"
    return f"Measuring {what}, {'at most ' if at_most else ''}{about(seconds)}"


def early_plan(selection: Selection, settings: Settings, *, check_only: bool) -> str | None:
    """The plan before any device was looked at; None where only the devices tell how long it takes."""
    if settings.budget_s is None and not check_only:
        return None
    return plan_text(selection.ops, settings.budget_s, check_only=check_only)


def late_plan(spec: RunSpec) -> str:
    """The same of a run without a limit."""
    seconds = estimate_seconds(planned(spec), spec.settings)
    return plan_text(list(spec.ops), seconds, check_only=spec.check_only, at_most=True)


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


def tell(display: Display, options: RunOptions, find: Callable[[Tell], RunSpec]) -> RunSpec:
    """What `find` finds, while `display` is told the plan as soon as it is known, and what disturbs it."""
    before, said = load.read(), []

    def early(selection: Selection, settings: Settings) -> None:
        text = early_plan(selection, settings, check_only=options.check_only)
        if text is not None:
            said.append(text)
            display.say(text)

    spec = find(early)
    if not said:
        display.say(late_plan(spec))
    disturbed = busy(before, spec.load())
    if disturbed is not None:
        display.say(disturbed)
    if spec.searches:
        display.searches()
    return spec


def busy(before: load.CpuTimes | None, now: load.CpuTimes | None) -> str | None:
    """What to expect where others have used the CPUs since `before`; None on a quiet machine, or an unknown one."""
    share = max((one or 0.0) for one in load.between(before, now))
    if share <= BUSY_SHARE:
        return None
    return (
        f"Other programs use {share:.0%} of the CPUs: times will be noisy. Sessions that they disturb are measured "
        "again while there is time."
    ).replace("%", " %")
