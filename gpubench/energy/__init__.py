"""A wing for the energy of a call, measured by the counters of the GPU's board and of the CPU's packages.

No other package imports this wing. `WING` lists its parts, and gpubench works without this folder.
"""

from gpubench.base.plugins.wings import Wing

WING = Wing(
    commands={"run": "gpubench.energy.options:EnergyOptions", "advise": "gpubench.energy.options:EnergyGoal"},
    companions={"energy": "gpubench.energy.windows:EnergyCompanion"},
    sections=("gpubench.energy.section",),
)
