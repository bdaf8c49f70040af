"""The options that a fleet adds to the commands `detect`, `run` and `report`, and the options of `merge`."""

from collections.abc import Sequence
from typing import Any

from gpubench.base.errors import UsageError
from gpubench.base.units import split_words
from gpubench.cli.declaration import GATES, LONG, OUTPUT, WHERE, CommandOptions, argument, option
from gpubench.cli.options import CommonOptions, DetectOptions, ReportOptions, RunOptions

SLOW_GPU, INCOMPLETE = "slow-gpu", "incomplete"  # the gates of a fleet


# fmt: off


class ClusterOptions(CommandOptions):
    """The options for a command that runs on many nodes."""

    cluster: str | None = option("local|auto|HOST:PORT", WHERE, "Do it on every node of a Ray cluster: a private one "
        "on this host, the one that RAY_ADDRESS names or this host is of, or the one at HOST:PORT.")
    nodes: str | None = option("LIST|@FILE", WHERE, "With --cluster: these nodes, by host name. Default: all.")
    expect: int | None = option("N", GATES, "With --cluster: so many nodes have to be whole; fewer is exit 5. "
        "Default: all.", least=1)
    min_gpus: int | None = option("K", GATES, "With --cluster: leave out nodes with fewer GPUs, exit 5.", least=1)
    queue_timeout: str = option("TIME", LONG, "With --cluster: a node that does not begin in time is busy.",
        default="60s")
    silence_timeout: str = option("TIME", LONG, "With --cluster: a node that tells nothing for so long hangs.",
        default="30s")
    deadline: str = option("TIME", LONG, "With --cluster: limit of the whole fleet, exit 124.", default="30m")
    retry_failed: int = option("0|1", LONG, "With --cluster: ask a node that died, hung or was busy once more.",
        least=0, most=1, default=0)
    no_hostnames: bool = option(None, OUTPUT, "With --cluster: digests in place of the nodes' names.")


class ClusterDetectOptions(DetectOptions, ClusterOptions):
    """The options of `detect`, on one machine or on many nodes."""

    def instead(self) -> int | None:
        """Run `detect` on the nodes of the cluster and return the exit code, or return None if no cluster is
        named."""
        if self.cluster is None:
            return None
        from gpubench.fleet import cluster

        return cluster.detect_cluster(self)


class ClusterRunOptions(RunOptions, ClusterOptions):
    """The options of `run`, on one machine or on many nodes."""

    confirm: int = option("0|1", LONG, "With --cluster and --ops health: measure in two sessions, so that a slow GPU "
        "is confirmed.", least=0, most=1, default=1)

    def instead(self) -> int | None:
        """Run the measurement on the nodes of the cluster and return the exit code, or return None if no
        cluster is named."""
        if self.cluster is None:
            return None
        from gpubench.cli import selection
        from gpubench.fleet import cluster

        selection.with_functions(self)  # refuses functions, which other machines do not have
        return cluster.run_cluster(self)


class FleetReportOptions(ReportOptions):
    """The options of `report`, for results or a fleet."""

    fail_on: str | None = option("LIST", GATES, "Exit 3 for any of noisy,skipped,incomplete; of a fleet also "
        "slow-gpu.")
    node: str | None = option("NAME", OUTPUT, "Of a fleet the report of this node.")
    tolerance: str = option("PCT", GATES, "Of a fleet: a GPU that falls short of its peers by less is not slow.",
        default="5")
    known_good: str | None = option("FILE", GATES, "Of a fleet: compare each GPU with itself in this fleet too.")
    ok_nodes: str | None = option("FILE", OUTPUT, "Of a fleet: write the names of the nodes that are complete and "
        "have no slow GPU, one a line.")
    bad_nodes: str | None = option("FILE", OUTPUT, "Of a fleet: write the names of the nodes that brought no result "
        "or have a slow GPU, one a line.")

    def whole(self, files: Sequence[tuple[str, Any]], format: str, *, to_terminal: bool) -> int | None:
        """Print the report of a single fleet and return the exit code. `files` has pairs of a path and a document.
        Return None without printing if `files` is no single fleet, if an option asks for single nodes or cases, or
        if the report of a fleet does not have the format."""
        from gpubench.report.renderers import DOCUMENT_FORMATS

        of_nodes = (
            self.sections, self.filter, self.skip, self.baseline, self.by_device, self.plots, self.claims,
            self.min_speedup, self.sort, self.columns, self.node, {*split_words(self.fail_on)} - {SLOW_GPU, INCOMPLETE},
        )
        # The test uses `hasattr` so that the types of a fleet need not be loaded for a result.
        if len(files) != 1 or not hasattr(files[0][1], "nodes") or format not in DOCUMENT_FORMATS or any(of_nodes):
            return None
        from gpubench.fleet import merge

        return merge.report_fleet(*files[0], format, self, to_terminal=to_terminal)

    def runs(self, files: Sequence[tuple[str, Any]]) -> list[Any] | None:
        """Return the runs of the node that `--node` names, or None without that option. `files` has pairs of a path
        and a document. Raises UsageError for an unknown node and for an option that needs a whole fleet, and
        InputError for a node without a result."""
        fleet_only = {
            "--known-good": self.known_good, "--ok-nodes": self.ok_nodes, "--bad-nodes": self.bad_nodes,
            "--fail-on slow-gpu": SLOW_GPU in split_words(self.fail_on),
        }
        for name, value in fleet_only.items():
            if value:
                raise UsageError("not-a-fleet", f"{name} is about a fleet", why="this is no report of one whole fleet",
                    hint="give one file that `gpubench merge` wrote, and no option that shows single nodes or cases")
        if self.node is None:
            return None
        from gpubench.fleet import merge

        return merge.runs_of([file for file in files if hasattr(file[1], "nodes")], self.node)


class MergeOptions(CommonOptions):
    """The options of `merge`."""

    module = "gpubench.fleet.options"
    files: list[str] = argument("FILE...", "Results or fleets, - for stdin.")
    output: str = option("FILE", OUTPUT, "Write here (.json, .json.gz).", letter="-o", brief=True)
    expect: int | None = option("N", GATES, "Nodes that there should be: writes a fleet; fewer is exit 4.",
        least=1, brief="Nodes that there should be; fewer is exit 4.")
    nodes: str | None = option("LIST|@FILE", GATES, "Names of the nodes that there should be, as `run --context "
        "node=` gave them; one that is absent is named, and exit 4.",
        brief="Names of the nodes that there should be.")
    embed: bool = option(None, OUTPUT, "Keep the results of more than 64 nodes in the one file too, not in a folder "
        "beside it.")
    purpose = "Join result files into one result or a fleet."
    examples = (
        "gpubench merge monday.json tuesday.json -o week.json",
        "gpubench merge nodes/*.json -o fleet.json",
        "gpubench merge nodes/*.json -o fleet.json --expect 8",
    )


# fmt: on


def merge(options: MergeOptions) -> None:
    """Join result files of one machine into one result with all sessions, and others into a fleet."""
    from gpubench.fleet.merge import join_files

    join_files(options)
