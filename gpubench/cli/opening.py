"""What a run says before it measures: what it measures, how long that takes, and whether others use the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpubench import units
from gpubench.cli.options import RunOptions
from gpubench.cli.progress import Display
from gpubench.cli.request import Tell
from gpubench.measure import load
from gpubench.measure.schedule import RunSpec, planned
from gpubench.model.result import BUSY_SHARE, Selection, Settings

_MOST_NAMES = 3


def plan_text(ops: Sequence[str], seconds: float) -> str:
    """`Measuring 14 ops, about a minute`; few ops are decided sooner: `Measuring add, at most a minute`."""
    long = about(seconds)
    return f"Measuring {_ops_text(ops)}, " + (
        long.replace("about", "at most") if len(ops) <= _MOST_NAMES else long
    )


def counted_plan(spec: RunSpec) -> str:
    """`Measuring matmul: 12 cases in 3 sessions`, of a run without a limit: its first cases tell how long it takes."""
    cases = sum(len(item.cases) for item in planned(spec))
    sessions = f" in {spec.sessions} sessions" if spec.sessions > 1 else ""
    verb = "Checking" if spec.check_only else "Measuring"
    return f"{verb} {_ops_text(list(spec.ops))}: {cases} case{'s' if cases != 1 else ''}{sessions}"


def _ops_text(ops: Sequence[str]) -> str:
    return units.listed(ops) if len(ops) <= _MOST_NAMES else f"{len(ops)} ops"


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
    before = load.read()
    said: list[str] = []

    def early(selection: Selection, settings: Settings) -> None:
        if settings.budget_s is not None and not options.check_only:
            said.append(plan_text(selection.ops, settings.budget_s))
            display.say(said[0])

    spec = find(early)
    if not said:
        display.say(counted_plan(spec))
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
