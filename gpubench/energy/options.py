"""The options that energy adds to `run` and `advise`."""

import os
from typing import Any

from gpubench.base.errors import UsageError
from gpubench.cli.declaration import WHAT, option
from gpubench.cli.options import AdviseOptions, SelectionOptions

# fmt: off


class EnergyOptions(SelectionOptions):
    """The option `--energy`, which measures the energy of calls."""

    energy: bool = option("", WHAT, "Joules of a call at the sizes named: about seven seconds for each case "
        "(docs/energy.md).", plan_field="energy")
    # fmt: on

    def more_settings(self) -> dict[str, Any]:
        """Return the settings that wings add, with `energy` set to True if it was requested. Raises UsageError if it
        was requested without sizes, unless `--append` or `--like` names a file that exists."""
        if not self.energy:
            return super().more_settings()
        plans = [getattr(self, name, None) for name in ("append", "like")]  # such a file has the sizes
        if not self.sizes and not any(path and os.path.exists(path) for path in plans):
            raise UsageError(
                "bad-value", "--energy without --sizes", why="a window of energy takes seconds a case",
                hint="name the sizes that matter: --sizes 1M,64M",
            )  # fmt: skip
        return {**super().more_settings(), "energy": True}


class EnergyGoal(AdviseOptions):
    """The option `--goal`: what should be least, the time or the energy of a call."""

    goal: str = option("time|energy", WHAT, "What should be least: the time of a call, or its joules, as --energy has "
        "counted them.", default="time", brief="What should be least. Default: time.")

    def amend(self, advice: Any) -> Any:
        """Return the advice. With the goal `energy`, it names the device with the least energy. Raises UsageError for
        an unknown goal."""
        from gpubench.base.errors import require_choice

        if require_choice(self.goal, ("time", "energy"), "--goal") == "energy":
            from gpubench.analysis.machine import runs
            from gpubench.energy.section import by_energy

            advice = by_energy(advice, runs(self.source, self.results_dir))
        return super().amend(advice)
