"""The options for several GPUs that this package adds to the commands `run` and `noise`."""

from typing import Any

from gpubench.base.errors import UsageError
from gpubench.cli.declaration import RARE, WHAT, option
from gpubench.cli.options import SelectionOptions

# fmt: off


class ScalingOptions(SelectionOptions):
    """Options that control how the gain of several GPUs over one is measured."""

    scaling: str | None = option("off|weak|strong|both", WHAT, "What several GPUs gain: weak runs each op on all at "
        "once, strong shares it out among device groups of them. "
        "Default: off; weak for --ops health.", plan_field="scaling")
    ranks: str | None = option("LIST", RARE, "GPUs at once for --scaling. Default: 2, 4, 8, ... and all; weak: all.",
        plan_field="ranks")
    # fmt: on

    def more_settings(self) -> dict[str, Any]:
        """Return the settings. Unless scaling is off, they include `scaling` (weak, strong or both) and `ranks`
        (the numbers of GPUs). Raises UsageError for a number of GPUs below 2."""
        from gpubench.base import units
        from gpubench.cli import selection

        scaling = self.scaling or ("weak" if selection.HEALTH in selection.find_presets(self.ops) else "off")
        if scaling == "off":
            return super().more_settings()
        ranks = units.parse_sizes(self.ranks, option="--ranks") if self.ranks is not None else []
        if any(count < 2 for count in ranks):
            raise UsageError("bad-value", f"--ranks {self.ranks}", why="a device group has two GPUs or more")
        return {**super().more_settings(), "scaling": scaling, "ranks": ranks}

    def wish(self, request: Any, settings: Any) -> Any:
        """Return the request for devices. Strong scaling and `--ops health` add device groups of the GPUs that are
        found, and `--ops health` also adds every ordered pair of GPUs. In the mode cpu `--ops health` adds
        none."""
        from gpubench.cli import selection

        strong = settings.scales("strong")
        pairs = selection.HEALTH in selection.find_presets(self.ops) and request.mode != "cpu"
        if strong or pairs:
            from functools import partial

            import msgspec

            from gpubench.multi.identical_gpus import join
            from gpubench.result.case import DEVICE_GROUP

            more = partial(join, ranks=settings.ranks or (), pairs=pairs, required=strong)
            request = msgspec.structs.replace(request, beside=(DEVICE_GROUP,), more=more)
        return super().wish(request, settings)

    def fit(self, spec: Any) -> Any:
        """Return the specification, without scaling if weak scaling has no identical GPUs. In this case raise
        RequiredUnavailable if `--scaling` was given."""
        if spec.settings.scales("weak"):
            from gpubench.multi.identical_gpus import identical_groups, too_few, without_scaling

            if not identical_groups(spec):
                if self.scaling is not None:
                    raise too_few(spec.constraints.targets)
                spec = without_scaling(spec)
        return super().fit(spec)
