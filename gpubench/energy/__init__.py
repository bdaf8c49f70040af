"""The wing for the energy of calls, which counters of GPU boards and CPU packages measure.

The rest of gpubench never imports this package. It finds the parts of the wing through `WING`, and works without
this folder.
"""

from gpubench.base.plugins.wings import Wing

WING = Wing(
    commands={"run": "gpubench.energy.options:EnergyOptions", "advise": "gpubench.energy.options:EnergyGoal"},
    companions={"energy": "gpubench.energy.windows:EnergyCompanion"},
    sections=("gpubench.energy.section",),
)
