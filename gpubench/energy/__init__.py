"""A wing: the energy of a call, from the counters of the GPU's board and of the CPU's package.

Nothing imports it: `WING` says what it brings, and the rest works without its folder.
"""

from gpubench.base.plugins.wings import Wing

WING = Wing(
    commands={"run": "gpubench.energy.options:EnergyOptions", "advise": "gpubench.energy.options:EnergyGoal"},
    companions={"energy": "gpubench.energy.windows:EnergyCompanion"},
    sections=("gpubench.energy.section",),
)
