"""Registration of the fleet: the command `merge`, options of three commands, and three kinds of files."""

from gpubench.base.plugins.wings import Wing
from gpubench.fleet.options import ClusterDetectOptions, ClusterRunOptions, FleetReportOptions, MergeOptions

WING = Wing(
    commands={
        "detect": ClusterDetectOptions, "run": ClusterRunOptions, "report": FleetReportOptions, "merge": MergeOptions,
    },
    readers={"gpubench-fleet": "gpubench.fleet.nodes:load_fleet"},
    schemas={
        "gpubench-fleet": ("gpubench.fleet.nodes", "Fleet"),
        "gpubench-fleet-report": ("gpubench.fleet.survey", "FleetReport"),
        "gpubench-inventory": ("gpubench.fleet.inventory", "Inventory"),
    },
)  # fmt: skip
