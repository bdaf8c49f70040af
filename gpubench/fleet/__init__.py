"""The wing for fleets: it runs gpubench on many nodes, joins their results, and compares their GPUs.

The rest of gpubench uses this package only through `WING` and also works without it.
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
