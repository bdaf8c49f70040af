"""A wing: many nodes, their runs joined, their GPUs held against each other.

Nothing imports it: `WING` says what it brings, and the rest works without its folder.
"""

from gpubench.base.plugins.wings import Wing

WING = Wing(
    commands={
        "detect": "gpubench.fleet.options:ClusterDetectOptions",
        "run": "gpubench.fleet.options:ClusterRunOptions",
        "report": "gpubench.fleet.options:FleetReportOptions",
        "merge": "gpubench.fleet.options:MergeOptions",
    },
    readers={"gpubench-fleet": "gpubench.fleet.nodes:load_fleet"},
    schemas={
        "gpubench-fleet": "gpubench.fleet.nodes:Fleet",
        "gpubench-fleet-report": "gpubench.fleet.survey:FleetReport",
        "gpubench-inventory": "gpubench.fleet.survey:Inventory",
    },
)
