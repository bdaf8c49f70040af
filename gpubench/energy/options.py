"""The option that energy adds to `run`."""

from typing import Any

from gpubench.base.errors import UsageError
from gpubench.cli.declaration import WHAT, option
from gpubench.cli.options import SelectionOptions

# fmt: off


class EnergyOptions(SelectionOptions):
    """The option about the energy of calls."""

    energy: bool = option("", WHAT, "Joules of a call at the sizes named: about seven seconds for each case "
        "(docs/energy.md).", answer="settings.energy")
    # fmt: on

    def more_settings(self) -> dict[str, Any]:
        """Return that energy is measured. Raises UsageError where no size is named."""
        if not self.energy:
            return super().more_settings()
        if not self.sizes:
            raise UsageError(
                "bad-value", "--energy without --sizes", why="a window of energy takes seconds a case",
                hint="name the sizes that matter: --sizes 1M,64M",
            )  # fmt: skip
        return {**super().more_settings(), "energy": True}
