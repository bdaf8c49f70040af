"""`gpubench run --cluster`: the same run on every node of a cluster, one fleet file, and its report; and what it shares
with `gpubench detect --cluster`.

`gpubench detect --cluster`: what the nodes of a cluster are made of, and which software differs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubench.base.errors import (
    ExitCode,
    GpubenchError,
    InputError,
    RequiredUnavailable,
    UsageError,
    require_choice,
)
from gpubench.cli import health
from gpubench.cli.options import DetectedOptions
from gpubench.fleet.options import ClusterDetectOptions, ClusterOptions, ClusterRunOptions, FleetReportOptions
from gpubench.report.renderers import DOCUMENT_FORMATS

if TYPE_CHECKING:
    from gpubench.fleet.driver import Absent, Engine, FleetLimits, NodeEnd
    from gpubench.fleet.inventory import Inventory
    from gpubench.fleet.nodes import Fleet, Node


_RUN_REFUSES = (
    "like", "dry_run", "no_save", "plots", "min_speedup", "claims", "baseline", "sort", "columns", "sections", "full",
    "by_device",
)  # fmt: skip
_UNAVAILABLE = ("busy", "unreachable", "too-few-gpus")


def run_cluster(options: ClusterRunOptions) -> int:
    """Measure every node, save what each brought as it comes, and print the fleet's report."""
    from gpubench.cli import saving
    from gpubench.cli.exit import tell

    _refuse(options)
    limits = fleet_limits(options)
    output = _output(options)
    with saving.locked([output], options):
        saved = _saved(options.append)
        with closing(engine_at(options.cluster or "")) as engine:
            ends, absent, interrupted = _measured(options, engine, limits, output, saved)
            fleet = _written(options, engine, output, saved, ends, absent)
        codes = [fleet_code(fleet, ends, options.expect)]
        if interrupted is not None:
            raise interrupted
        try:
            codes.append(_reported(options, output, fleet))
        except GpubenchError as error:
            codes.append(tell(error))
        return int(worst(codes))


def engine_at(address: str) -> Engine:
    """The engine behind `--cluster`. Raises UsageError or RequiredUnavailable."""
    if address.startswith("ray://"):
        raise UsageError(
            "bad-value", "--cluster: a client's address is not taken",
            why="it sends all that nodes tell through one proxy",
            hint="run on a node of the cluster, with --cluster auto",
        )  # fmt: skip
    if address not in ("local", "auto") and ":" not in address:
        raise UsageError(
            "bad-value", f"--cluster: {address!r} is no cluster", why="it is local, auto or HOST:PORT"
        )
    from gpubench.fleet._ray import RayEngine

    return RayEngine(address)


def node_arguments(options: ClusterRunOptions, name: str) -> list[str]:
    """What the run of a node is given: the options of this one that say what to measure and how."""
    # What else was given is of the driver.
    values = {key: getattr(options, key) for key in options.measuring()}
    values["ops"] = options.ops or health.WORD
    if values["ops"] == health.WORD and options.confirm and not (options.sessions or options.rigorous):
        values["sessions"] = 2
    if not any(text.startswith("node=") for text in options.context or []):
        values["context"] = [*(options.context or []), f"node={name}"]
    found = ["--no-config", "--no-progress"]
    for key, value in values.items():
        declared = options.declared[key]
        if value == declared.default or value is None:
            continue
        if declared.switch:
            found.append(f"--{declared.key}")
            continue
        for word in value if isinstance(value, list) else [value]:
            found.append(f"--{declared.key}={word}")
    return found


def worst(codes: Sequence[ExitCode | int]) -> ExitCode:
    """The code that a command ends with to which several apply (docs/cli.md)."""
    order = (ExitCode.FAILED, ExitCode.UNAVAILABLE, ExitCode.INPUT, ExitCode.BUDGET, ExitCode.GATE)
    return next((code for code in order if code in codes), ExitCode.OK)


def refuse_options(
    options: ClusterRunOptions | ClusterDetectOptions,
    refused: Sequence[str],
    hint: str | None = None,
) -> None:
    """Of the options that a command was given with --cluster. Raises UsageError for one of `refused`."""
    for name in sorted(options.given):
        if name in refused:
            raise UsageError(
                "not-with-cluster", f"--{options.declared[name].key} is about one machine",
                why="--cluster asks many", hint=hint,
            )  # fmt: skip


def _refuse(options: ClusterRunOptions) -> None:
    refuse_options(options, _RUN_REFUSES)
    if options.format is not None:
        require_choice(options.format, DOCUMENT_FORMATS, "--format, with --cluster")
    for word in (options.fail_on or "").split(","):
        if word.strip():
            require_choice(word.strip(), ("slow-gpu", "incomplete"), "--fail-on, with --cluster")
    if options.append and options.output:
        raise UsageError("bad-value", "--output beside --append", why="the fleet of --append is written anew")


def fleet_limits(options: ClusterOptions) -> FleetLimits:
    """Raises UsageError."""
    from gpubench.base.units import parse_duration
    from gpubench.fleet.driver import FleetLimits

    return FleetLimits(
        queue_s=parse_duration(options.queue_timeout, option="--queue-timeout"),
        silence_s=parse_duration(options.silence_timeout, option="--silence-timeout"),
        deadline_s=parse_duration(options.deadline, option="--deadline"),
    )


def _output(options: ClusterRunOptions) -> str:
    """The fleet's file. Raises UsageError."""
    from gpubench.result import store

    if options.append or options.output:
        paths = [options.append] if options.append else options.output or []
        if len(paths) != 1 or not store.is_result_name(paths[0]):
            raise UsageError(
                "unknown-suffix", "--output: a fleet is one file", why="it ends in .json or .json.gz"
            )
        store.check_writable(str(paths[0]))
        return str(paths[0])
    folder = options.results_dir or store.default_results_dir()
    store.check_folder(folder)
    Path(folder).mkdir(parents=True, exist_ok=True)
    return str(Path(folder) / f"fleet-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json")


def _saved(path: str | None) -> Fleet | None:
    """The fleet of --append; None without one, or where it is not there yet."""
    from gpubench.cli.report import document
    from gpubench.fleet.nodes import Fleet

    if path is None or not Path(path).exists():
        return None
    found = document(path)
    if not isinstance(found, Fleet):
        raise InputError(
            "wrong-document", f"{path} is no fleet", why="with --cluster, --append goes on with a fleet",
            hint="name a file that `run --cluster` or `merge` wrote",
        )  # fmt: skip
    return found


def _again(saved: Fleet | None) -> tuple[list[Node], list[str]]:
    """The nodes of a saved fleet that are whole, and the names of the others."""
    if saved is None:
        return [], []
    whole = [node for node in saved.nodes if node.status == "ok" and node.reason is None]
    return whole, [node.name for node in saved.nodes if node not in whole]


def _measured(
    options: ClusterRunOptions, engine: Engine, limits: FleetLimits, output: str, saved: Fleet | None
) -> tuple[list[NodeEnd], list[Absent], KeyboardInterrupt | None]:
    from gpubench.fleet.driver import FleetDriver, PlacedNode, chosen, named
    from gpubench.fleet.journal import FleetJournal
    from gpubench.fleet.merge import named_nodes
    from gpubench.fleet.node import RUN

    whole, again = _again(saved)
    found = named(engine.nodes(), hostnames=not options.no_hostnames)
    asked, absent = chosen(found, named_nodes(options.nodes) or again, options.min_gpus)
    done = {node.name for node in whole}
    asked = {name: node for name, node in asked.items() if name not in done}
    if saved is not None and not again and options.nodes is None:
        asked = {}
    require_nodes(len(asked) + len(whole), absent, options.expect)
    journal = FleetJournal(output)
    with closing(journal):
        driver = FleetDriver(
            engine, journal, limits, retries=options.retry_failed, tell=teller(options, len(asked))
        )
        placed = [PlacedNode(node, name, [RUN, *node_arguments(options, name)]) for name, node in asked.items()]
        return driver.run(placed), absent, driver.interrupted


def require_nodes(there: int, absent: Sequence[Absent], expect: int | None) -> None:
    """Raises RequiredUnavailable where fewer nodes can be asked than the fleet needs."""
    if (absent and expect is None) or there < (expect or 1):
        missing = "; ".join(f"{one.name}: {one.why}" for one in absent[:5])
        raise RequiredUnavailable(
            "few-nodes", f"{there} of {expect or there + len(absent)} nodes can be asked",
            why=missing or f"the cluster has {there}",
        )  # fmt: skip


def teller(options: ClusterRunOptions | ClusterDetectOptions, count: int) -> Any:
    """Tells each end on stderr, unless that is unwanted."""
    if not (options.quiet or options.no_progress):
        print(f"{count} node{'s are' if count != 1 else ' is'} asked", file=sys.stderr)

    def report(end: NodeEnd) -> None:
        if not (options.quiet or options.no_progress):
            words = f"{end.reason}: {end.error}" if end.reason else "done"
            print(f"{end.name}: {' '.join(words.split())[:300]}", file=sys.stderr, flush=True)

    return report


def _written(
    options: ClusterRunOptions, engine: Engine, output: str, saved: Fleet | None, ends: Sequence[NodeEnd],
    absent: Sequence[Absent],
) -> Fleet:  # fmt: skip
    from gpubench.fleet.driver import fleet_of_ends
    from gpubench.fleet.journal import FleetJournal
    from gpubench.result import store

    whole, _ = _again(saved)
    journal = FleetJournal(output)
    with closing(journal):
        fleet = fleet_of_ends(
            ends, absent, whole, journal, expected=options.expect, engine={engine.name: engine.version}
        )
    store.replace(output, store.dumps(fleet))
    if not options.quiet:
        print(f"saved {output}", file=sys.stderr)
    return fleet


def fleet_code(found: Fleet | Inventory, ends: Sequence[NodeEnd], expect: int | None) -> ExitCode:
    """How the nodes ended. Nodes that were not to be had are no matter once as many as were expected are there."""
    cut = {end.name for end in ends if end.cut == "deadline"}
    reasons = [node.reason for node in found.nodes if node.reason is not None and node.name not in cut]
    codes = [ExitCode.BUDGET] if cut else []
    codes += [ExitCode.FAILED for reason in reasons if reason not in _UNAVAILABLE]
    if expect is None or not found.complete:
        codes += [ExitCode.UNAVAILABLE for reason in reasons if reason in _UNAVAILABLE]
        codes += [ExitCode.UNAVAILABLE] if not found.complete and not reasons and not cut else []
    return worst(codes)


def _reported(options: ClusterRunOptions, output: str, fleet: Fleet) -> ExitCode:
    from gpubench.fleet.report_command import report_fleet

    to_terminal = sys.stdout.isatty()
    shared: Mapping[str, Any] = {
        name: getattr(options, name) for name in FleetReportOptions.declared
        if name in ClusterRunOptions.declared and name not in ("output", *_RUN_REFUSES)
    }  # fmt: skip
    format = options.format or ("table" if to_terminal else "plain")
    return report_fleet(output, fleet, format, FleetReportOptions(**shared), to_terminal=to_terminal)


# They describe one machine, or do more than look at it.
_DETECT_REFUSES = [name for name in DetectedOptions.declared if name not in ("as_json", "format")]
NODE_ARGUMENTS = ("detect", "--no-config", "--quiet")


def detect_cluster(options: ClusterDetectOptions) -> int:
    """Ask every node what it is made of, and print what they add up to."""
    refuse_options(options, _DETECT_REFUSES, hint="leave it out, and ask the node itself: gpubench detect")
    format = "json" if options.as_json else options.format or ("table" if sys.stdout.isatty() else "plain")
    require_choice(format, DOCUMENT_FORMATS, "--format, with --cluster")
    limits = fleet_limits(options)
    with closing(engine_at(options.cluster or "")) as engine:
        found, ends, interrupted = detected(options, engine, limits)
    _print(found, format, options)
    if interrupted is not None:
        raise interrupted
    return int(fleet_code(found, ends, options.expect))


def detected(
    options: ClusterDetectOptions, engine: Engine, limits: FleetLimits
) -> tuple[Inventory, list[NodeEnd], KeyboardInterrupt | None]:
    """The inventory of the nodes behind `engine`, and how each ended. Nothing of what they send stays on the disk."""
    from gpubench.fleet.driver import FleetDriver, PlacedNode, chosen, inventory_of_ends, load_machine, named
    from gpubench.fleet.journal import FleetJournal
    from gpubench.fleet.merge import named_nodes

    found = named(engine.nodes(), hostnames=not options.no_hostnames)
    asked, absent = chosen(found, named_nodes(options.nodes), options.min_gpus)
    require_nodes(len(asked), absent, options.expect)
    with (
        tempfile.TemporaryDirectory(prefix="gpubench-") as folder,
        closing(FleetJournal(Path(folder) / "fleet.json", load_machine)) as journal,
    ):
        tell = teller(options, len(asked))
        driver = FleetDriver(engine, journal, limits, retries=options.retry_failed, tell=tell)
        ends = driver.run([PlacedNode(node, name, NODE_ARGUMENTS) for name, node in asked.items()])
        return inventory_of_ends(ends, absent, journal, expected=options.expect), ends, driver.interrupted


def _print(found: Inventory, format: str, options: ClusterDetectOptions) -> None:
    from gpubench.cli import rendering
    from gpubench.fleet.tables import inventory_document
    from gpubench.report.layout import RenderOptions
    from gpubench.report.renderers import render_documents

    to_terminal = sys.stdout.isatty()
    style = RenderOptions(
        color=rendering.wants_color(options.color, os.environ, terminal=to_terminal), ascii_only=options.ascii,
        width=rendering.table_width(to_terminal),
    )  # fmt: skip
    text = render_documents(found, lambda: [inventory_document(found)], format, style, "gpubench inventory")
    rendering.write(text, None)
