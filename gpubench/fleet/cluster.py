"""The commands for a cluster. `gpubench run --cluster` makes the same run on every node, saves one fleet file
and prints its report. `gpubench detect --cluster` lists the hardware of the nodes and the software that differs
between them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from gpubench.base.errors import (
    ExitCode,
    GpubenchError,
    InputError,
    RequiredUnavailable,
    UsageError,
    require_choice,
)
from gpubench.base.units import parse_duration, split_words
from gpubench.cli import delivery, selection
from gpubench.cli.exit import tell
from gpubench.cli.options import DetectedOptions
from gpubench.cli.report import document
from gpubench.fleet.driver import (
    FleetDriver,
    FleetJournal,
    FleetLimits,
    NodeEnd,
    PlacedNode,
    choose_nodes,
    fleet_of_ends,
    inventory_of_ends,
    load_machine,
    name_nodes,
)
from gpubench.fleet.merge import parse_nodes, report_fleet
from gpubench.fleet.node import HEARTBEAT_S, RUN, Engine, RayEngine
from gpubench.fleet.nodes import Fleet, Node
from gpubench.fleet.options import (
    INCOMPLETE,
    SLOW_GPU,
    ClusterDetectOptions,
    ClusterRunOptions,
    FleetReportOptions,
)
from gpubench.fleet.survey import Inventory
from gpubench.fleet.tables import inventory_document
from gpubench.report.layout import RenderOptions
from gpubench.report.renderers import DOCUMENT_FORMATS, render_documents
from gpubench.result import store

_RUN_REFUSES = (
    "like", "dry_run", "no_save", "plots", "min_speedup", "claims", "baseline", "sort", "columns", "sections", "full",
    "by_device",
)  # fmt: skip
# The other options of `detect` describe one machine, or do more than look at it.
_DETECT_REFUSES = [name for name in DetectedOptions.declared if name not in ("as_json", "format")]
_UNAVAILABLE = ("busy", "unreachable", "too-few-gpus")
NODE_ARGUMENTS = ("detect", "--no-config", "--quiet")


class Answers(NamedTuple):
    """The answers of the nodes of a cluster."""

    ends: list[NodeEnd]  # how the run of each asked node ended
    absent: list[NodeEnd]  # the nodes that could not be asked
    interrupted: KeyboardInterrupt | None  # the exception that ended the run early; None if none did


def run_cluster(options: ClusterRunOptions) -> int:
    """Measure on every node, save each result as it arrives, print the report of the fleet, and return the exit
    code. Raises UsageError, InputError if the file of `--append` is no fleet, and RequiredUnavailable if too
    few nodes can be asked. A signal's interrupt is raised after the fleet is saved."""
    _refuse(options, _RUN_REFUSES)
    if options.format is not None:
        require_choice(options.format, DOCUMENT_FORMATS, "--format, with --cluster")
    for word in split_words(options.fail_on):
        require_choice(word, (SLOW_GPU, INCOMPLETE), "--fail-on, with --cluster")
    if any(text.startswith("node=") for text in options.context or []):
        raise UsageError(
            "not-with-cluster", "--context node= is about one machine", why="--cluster names each node"
        )
    if options.append and options.output:
        raise UsageError("bad-value", "--output beside --append", why="the fleet of --append is written anew")
    limits, output = fleet_limits(options), _output(options)
    with delivery.lock([output], options):
        saved = _saved_nodes(options.append)
        whole = [node for node in saved or () if node.status == "ok" and node.reason is None]
        with closing(engine_at(options.cluster or "")) as engine, closing(FleetJournal(output)) as journal:
            answers = _ask(
                options, FleetDriver(engine, journal, limits, retries=options.retry_failed),
                lambda name: [RUN, *node_arguments(options, name)], saved, whole,
            )  # fmt: skip
            fleet = fleet_of_ends(
                answers.ends, answers.absent, saved or (), journal, expected=options.expect,
                engine={engine.name: engine.version},
            )  # fmt: skip
        store.replace(output, store.dumps(fleet))
        if not options.quiet:
            print(f"saved {output}", file=sys.stderr)
        if answers.interrupted is not None:
            raise answers.interrupted
        codes = [fleet_code(fleet, answers.ends, options.expect)]
        try:
            codes.append(_report(options, output, fleet))
        except GpubenchError as error:
            codes.append(tell(error))
        return int(worst(codes))


def detect_cluster(options: ClusterDetectOptions) -> int:
    """Ask every node for its hardware and software, print the inventory of the cluster, and return the exit
    code. Raises UsageError, and RequiredUnavailable if too few nodes can be asked. A signal's interrupt is
    raised after the inventory is printed."""
    _refuse(options, _DETECT_REFUSES, hint="leave it out, and ask the node itself: gpubench detect")
    to_terminal = sys.stdout.isatty()
    format = options.format or ("table" if to_terminal else "plain")
    require_choice(format, DOCUMENT_FORMATS, "--format, with --cluster")
    limits = fleet_limits(options)
    with closing(engine_at(options.cluster or "")) as engine:
        inventory, answers = detect_nodes(options, engine, limits)
    style = RenderOptions(
        color=delivery.count_colors(options.color, os.environ, terminal=to_terminal), ascii_only=options.ascii,
        width=delivery.table_width(to_terminal),
    )  # fmt: skip
    text = render_documents(
        inventory, lambda: [inventory_document(inventory)], format, style, "gpubench inventory"
    )
    delivery.write(text, None)
    if answers.interrupted is not None:
        raise answers.interrupted
    return int(fleet_code(inventory, answers.ends, options.expect))


def detect_nodes(
    options: ClusterDetectOptions, engine: Engine, limits: FleetLimits
) -> tuple[Inventory, Answers]:
    """Return the inventory of the engine's nodes, and their answers. If Ctrl-C ends this early, the answers have
    the interrupt. Raises RequiredUnavailable if too few nodes can be asked."""
    with (
        tempfile.TemporaryDirectory(prefix="gpubench-") as folder,
        closing(FleetJournal(Path(folder) / "fleet.json", load_machine)) as journal,
    ):
        driver = FleetDriver(engine, journal, limits, retries=options.retry_failed)
        answers = _ask(options, driver, lambda name: NODE_ARGUMENTS)
        return inventory_of_ends(answers.ends, answers.absent, journal, expected=options.expect), answers


def _ask(
    options: ClusterRunOptions | ClusterDetectOptions, driver: FleetDriver, arguments: Callable[[str], Sequence[str]],
    saved: Sequence[Node] | None = None, whole: Sequence[Node] = (),
) -> Answers:  # fmt: skip
    """Run a command on the chosen nodes, and return their answers. `arguments` makes the command of a node from its
    name. `saved` are the nodes of an earlier fleet, of which `whole` are not asked again. Raises
    RequiredUnavailable if too few nodes can be asked."""
    named = name_nodes(driver.engine.nodes(), hostnames=not options.no_hostnames)
    again = [node.name for node in saved or () if node not in whole]
    # The nodes of `--nodes`, else the nodes of a saved fleet that are not whole, else all nodes.
    nodes, absent = choose_nodes(named, parse_nodes(options.nodes) or again, options.min_gpus)
    done = {node.name for node in whole}
    nodes = {name: node for name, node in nodes.items() if name not in done}
    absent = [end for end in absent if end.name not in done]
    if saved is not None and not again and options.nodes is None:
        nodes = {}
    there, expect = len(nodes) + len(whole), options.expect
    if (absent and expect is None) or there < (expect or 1):
        missing = "; ".join(f"{end.name}: {end.error}" for end in absent[:5])
        raise RequiredUnavailable(
            "few-nodes", f"{there} of {expect or there + len(absent)} nodes can be asked",
            why=missing or f"the cluster has {there}",
        )  # fmt: skip
    if not (options.quiet or options.no_progress):
        print(f"{len(nodes)} node{'s are' if len(nodes) != 1 else ' is'} asked", file=sys.stderr)
        driver.tell = tell_end
    ends = driver.run([PlacedNode(node, name, arguments(name)) for name, node in nodes.items()])
    return Answers(ends, absent, driver.interrupted)


def tell_end(end: NodeEnd) -> None:
    """Print in one line on standard error how the run of a node ended."""
    words = f"{end.reason}: {end.error}" if end.reason else "done"
    print(f"{end.name}: {' '.join(words.split())[:300]}", file=sys.stderr, flush=True)


def engine_at(address: str) -> Engine:
    """Return the engine for `address`, the value of `--cluster`. Raises UsageError unless it is `local`, `auto`
    or HOST:PORT, and RequiredUnavailable if the cluster cannot be reached."""
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
    return RayEngine(address)


def node_arguments(options: ClusterRunOptions, name: str) -> list[str]:
    """Return the command-line arguments of `run` for the node `name`: the options that say what to measure and
    how. Without `--ops` the node measures the ops of `health`. With `--confirm` it measures `health` in two
    sessions, unless other options say how many."""
    values = {key: getattr(options, key) for key in options.measuring()}
    values["ops"] = options.ops or selection.HEALTH
    if values["ops"] == selection.HEALTH and options.confirm and not (options.sessions or options.rigorous):
        values["sessions"] = 2
    values["context"] = [*(options.context or []), f"node={name}"]
    words = ["--no-config", "--no-progress"]
    for key, value in values.items():
        declared = options.declared[key]
        if value == declared.default or value is None:
            continue
        if declared.switch:
            words.append(f"--{declared.key}")
        else:
            words += [f"--{declared.key}={word}" for word in (value if isinstance(value, list) else [value])]
    return words


def worst(codes: Sequence[ExitCode | int]) -> ExitCode:
    """Return the exit code of a command to which `codes` apply: the one that docs/cli.md lists first, or OK if
    there are none."""
    order = (ExitCode.FAILED, ExitCode.UNAVAILABLE, ExitCode.INPUT, ExitCode.BUDGET, ExitCode.GATE)
    return next((code for code in order if code in codes), ExitCode.OK)


def _refuse(
    options: ClusterRunOptions | ClusterDetectOptions, refused: Sequence[str], hint: str | None = None
) -> None:
    """Raise UsageError if the command line has one of the `refused` options."""
    for name in sorted(options.explicit.intersection(refused)):
        raise UsageError(
            "not-with-cluster", f"--{options.declared[name].key} is about one machine",
            why="--cluster asks many", hint=hint,
        )  # fmt: skip


def fleet_limits(options: Any) -> FleetLimits:
    """Return the time limits of a fleet from the options. Raises UsageError for a text that is no duration, and
    for a --silence-timeout that is no longer than the time between two signs of life of a node."""
    limits = FleetLimits(
        queue_s=parse_duration(options.queue_timeout, option="--queue-timeout"),
        silence_s=parse_duration(options.silence_timeout, option="--silence-timeout"),
        deadline_s=parse_duration(options.deadline, option="--deadline"),
    )
    if limits.silence_s <= HEARTBEAT_S:
        why = f"a node tells every {HEARTBEAT_S:g} s that it is there"
        hint = "wait longer than that"
        raise UsageError("bad-value", f"--silence-timeout {options.silence_timeout}", why=why, hint=hint)
    return limits


def _output(options: ClusterRunOptions) -> str:
    """Return the path of the fleet's file, by default of a new file in the results folder. Raises UsageError for
    several files or another suffix, and GpubenchError if the file cannot be written."""
    name, paths = ("append", [options.append]) if options.append else ("output", options.output)
    if paths:
        if len(paths) != 1 or not store.is_result_name(paths[0]):
            raise UsageError(
                "unknown-suffix", f"--{name}: a fleet is one file", why="it ends in .json or .json.gz"
            )
        store.check_writable(paths[0])
        return paths[0]
    folder = options.results_dir or store.default_results_dir()
    store.check_folder(folder)
    Path(folder).mkdir(parents=True, exist_ok=True)
    return str(Path(folder) / f"fleet-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json")


def _saved_nodes(path: str | None) -> list[Node] | None:
    """Return the nodes of the fleet that `--append` names, or None if there is no such file yet. Raises InputError
    if the file is no fleet."""
    if path is None or not os.path.exists(path):
        return None
    fleet = document(path)
    if not isinstance(fleet, Fleet):
        raise InputError(
            "wrong-document", f"{path} is no fleet", why="with --cluster, --append goes on with a fleet",
            hint="name a file that `run --cluster` or `merge` wrote",
        )  # fmt: skip
    return fleet.nodes


def fleet_code(document: Fleet | Inventory, ends: Sequence[NodeEnd], expect: int | None) -> ExitCode:
    """Return the exit code for a document of nodes. `ends` say which nodes the deadline ended. Nodes that are
    busy, unreachable or lack GPUs do not count if `expect` is given and the document is complete."""
    cut = {end.name for end in ends if end.cut == "deadline"}
    reasons = [node.reason for node in document.nodes if node.reason is not None and node.name not in cut]
    codes = [ExitCode.BUDGET] if cut else []
    codes += [ExitCode.FAILED for reason in reasons if reason not in _UNAVAILABLE]
    if expect is None or not document.complete:
        codes += [ExitCode.UNAVAILABLE for reason in reasons if reason in _UNAVAILABLE]
        codes += [ExitCode.UNAVAILABLE] if not document.complete and not reasons and not cut else []
    return worst(codes)


def _report(options: ClusterRunOptions, output: str, fleet: Fleet) -> ExitCode:
    to_terminal = sys.stdout.isatty()
    shared = {
        name: getattr(options, name) for name in FleetReportOptions.declared
        if name in options.declared and name not in ("output", *_RUN_REFUSES)
    }  # fmt: skip
    format = options.format or ("table" if to_terminal else "plain")
    return report_fleet(output, fleet, format, FleetReportOptions(**shared), to_terminal=to_terminal)
