"""The commands for several files: `gpubench merge` joins results into one result or a fleet. `gpubench report`
of a whole fleet shows its nodes and its slow GPUs, writes lists of nodes for a scheduler, and applies its
gates."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpubench.analysis.machine import RunOutline, group_by_machine
from gpubench.base import disk
from gpubench.base.errors import ExitCode, InputError, UsageError, require_choice
from gpubench.base.streams import visible
from gpubench.base.units import parse_percent, split_words, truncate
from gpubench.cli import ci, delivery
from gpubench.cli.report import document
from gpubench.fleet.nodes import (
    EMBEDDED_NODES,
    Fleet,
    Node,
    alike,
    beside,
    digest_file,
    file_stem,
    gather,
    merge_runs,
    node_of,
    open_node,
    refuse_twice,
)
from gpubench.fleet.options import INCOMPLETE, SLOW_GPU, FleetReportOptions, MergeOptions
from gpubench.fleet.survey import Figure, node_figures, survey_fleet
from gpubench.fleet.tables import fleet_document, headline
from gpubench.report.renderers import render_documents
from gpubench.result import store
from gpubench.result.run import Run
from gpubench.result.store.document import MAX_BYTES, RESULT_NAME, Header, require_json

_NAMED = 5  # the largest number of missing nodes that a message names


def join_files(options: MergeOptions) -> None:
    """Write one result with all sessions if the files are of one machine with the same device ids and no option or
    file says how many nodes there are, otherwise a fleet.

    Raises UsageError for an output that is no result file. Raises InputError for a file that cannot be used; with
    `--expect` or `--nodes` such a file is a failed node instead. Also raises InputError for an incomplete fleet,
    after writing it.
    """
    output, expect = options.output, options.expect
    if not store.is_result_name(output):
        raise UsageError(
            "unknown-suffix", f"--output: {output!r} is no name for a result", why="merge writes JSON"
        )
    store.check_writable(output, *options.files)
    tolerant = expect is not None or options.nodes is not None
    sources, failed, declared = _collect(options.files, tolerant=tolerant)
    names = parse_nodes(options.nodes)
    expected = expect if expect is not None else declared
    outlines = [source.outline for source in sources]
    refuse_twice(outlines)
    groups = [[sources[place] for place in places] for places in group_by_machine(outlines)]
    # One result needs device ids that mean the same GPUs in all files.
    if expected is None and not names and len(groups) == 1:
        runs = [source.load() for source in groups[0]]
        if len(alike(runs)) == 1:
            store.save(merge_runs(runs), output)
            return
    apart = len(groups) > EMBEDDED_NODES and not options.embed
    nodes: list[Node] = []
    for group in groups:  # with results beside the fleet, only one node is in memory at a time
        runs = _load(group, failed if tolerant else None)
        if runs:
            node = node_of(runs)
            nodes.append(_put_beside(node, output, group) if apart else node)
    fleet = gather(nodes, failed, expected=expected, names=names)
    store.replace(output, store.dumps(fleet))
    if not fleet.complete:
        raise InputError(
            "incomplete-fleet", f"{fleet.nodes_collected} of {fleet.nodes_expected} nodes brought a result",
            why=_missing(fleet) or "no file of the others was named",
            hint=f"{Path(output).name} holds what there is; merge it with the missing files to complete it",
        )  # fmt: skip


class _Source(NamedTuple):
    """A run that is to be merged."""

    outline: RunOutline | Run  # the run, or only its outline if the run is not kept in memory
    load: Callable[[], Run]  # returns the run, which it reads from the file if it is not in memory
    path: str = ""  # the path of that file; empty if the run is in memory


def _put_beside(node: Node, output: str, sources: Sequence[_Source]) -> Node:
    """Write the results of `node` to a folder beside `output`, and return the node with references to these
    files. `sources` are the runs from which the node was made. Raises GpubenchError if a file cannot be written."""
    folder = beside(output, ".d")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise store.cannot_save(folder, error) from error
    stem = file_stem(node.label, node.key)
    files = []
    for place, run in enumerate(node.runs):
        path = folder / f"{stem}{f'-{place}' if place else ''}.json.gz"
        # Encoding a result takes longer than everything else here, so a single file is copied.
        copied = len(sources) == 1 and sources[0].path
        store.replace(path, store.read(copied)[0] if copied else store.dumps(run))
        files.append(digest_file(path))
    return msgspec.structs.replace(node, result=None, others=[], files=files)


def parse_nodes(text: str | None) -> list[str]:
    """Return the names in a list separated by commas, or the words in the file of `@FILE`, without duplicates.
    None gives no names. Raises UsageError if the file cannot be read, and for ranges in brackets, as Slurm
    writes them."""
    text = text or ""
    words = split_words(text)
    if text.startswith("@"):
        try:
            words = disk.read_text(text[1:], MAX_BYTES).decode().split()
        except (OSError, UnicodeDecodeError) as error:
            why = disk.reason(error) if isinstance(error, OSError) else str(error)
            raise UsageError(
                "unreadable-input", f"--nodes: cannot read {text[1:]}", why=why,
                hint="name a file with a node's name on each line",
            ) from error  # fmt: skip
    if ranges := [word[:60] for word in words if "[" in word]:
        raise UsageError(
            "bad-value", f"--nodes: {ranges[0]} is no name", why="ranges in brackets are not read",
            hint="scontrol show hostnames > nodes, then --nodes @nodes",
        )  # fmt: skip
    return list(dict.fromkeys(words))


def _missing(fleet: Fleet) -> str:
    reasons = [
        f"{node.label}: {node.error}" if node.label else node.error or node.key
        for node in fleet.nodes
        if node.status == "failed"
    ]
    return truncate(reasons, _NAMED, between="; ")


def _collect(files: Sequence[str], *, tolerant: bool) -> tuple[list[_Source], list[Node], int | None]:
    """Return all runs in `files`, the failed nodes, and the largest number of nodes that a fleet among the files
    expects (None: there is no fleet). Raises InputError for an unusable file, unless `tolerant` makes it a failed
    node."""
    sources: list[_Source] = []
    failed: list[Node] = []
    expected: int | None = None
    for file in files:
        try:
            runs, missing, count = _sources(file)
        except InputError as error:
            if not tolerant:
                raise
            _add_unusable(failed, file, error)
            continue
        sources += runs
        failed += missing
        expected = count if expected is None else max(expected, count or 0)
    return sources, failed, expected


def _sources(file: str) -> tuple[list[_Source], list[Node], int | None]:
    """Return the runs in one file. Also return, if it is a fleet, its nodes without a run and its number of
    expected nodes, else an empty list and None."""
    if file != "-":
        data, _ = store.read(file)
        require_json(data, file)
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            if msgspec.json.decode(data, type=Header).name == RESULT_NAME:
                outline = msgspec.json.decode(data, type=RunOutline)
                # The file of a result is read again when its node is merged; standard input and fleets are kept
                # in memory.
                return [_Source(outline, partial(store.load, file), file)], [], None
    content = document(file)
    if isinstance(content, Run):
        return [_keep(content)], [], None
    assert isinstance(content, Fleet)
    nodes = [open_node(node, file) for node in content.nodes]
    sources = [_keep(run) for node in nodes for run in node.runs]
    return sources, [node for node in nodes if not node.runs], content.nodes_expected


def _keep(run: Run) -> _Source:
    return _Source(run, lambda: run)


def _load(group: Sequence[_Source], failed: list[Node] | None) -> list[Run]:
    """Return the runs of a group. A file that cannot be used is added to `failed`. If `failed` is None, raise
    InputError instead."""
    runs = []
    for source in group:
        try:
            runs.append(source.load())
        except InputError as error:
            if failed is None:
                raise
            _add_unusable(failed, source.path, error)
    return runs


def _add_unusable(failed: list[Node], file: str, error: InputError) -> None:
    """Add a failed node for a file that cannot be used, and print why."""
    print(visible(f"{error.message}: {error.why}"), file=sys.stderr)
    name = key = Path(file).name
    # Files of one name in several folders get different keys.
    if any(node.key == name for node in failed):
        key = f"{name} ({len(failed) + 1})"
    why = f"{name}: {error.why or error.message}"
    failed.append(Node(key=key, status="failed", reason="unusable", error=why))


# ---------------------------------------------------------------- the report of a whole fleet


def runs_of(fleets: Sequence[tuple[str, Fleet]], name: str) -> list[Run]:
    """Return the runs of the node with the label `name`, or else of all nodes whose key begins with `name`. Raises
    UsageError if there is no such node, and InputError if the nodes brought no result."""
    nodes = [(path, node) for path, fleet in fleets for node in fleet.nodes]
    matching = [pair for pair in nodes if pair[1].label == name] or [
        pair for pair in nodes if pair[1].key.startswith(name)
    ]
    if not matching:
        require_choice(name, [node.name for _, node in nodes], "--node")
    chosen = [open_node(node, path) for path, node in matching]
    runs = [run for node in chosen for run in node.runs]
    if not runs:
        raise InputError(
            "no-results", f"the node {name} brought no result", why=chosen[0].error or "there is no file of it",
            hint="`gpubench merge` the fleet with the file of the node",
        )  # fmt: skip
    return runs


def report_fleet(
    source: str, fleet: Fleet, format: str, options: FleetReportOptions, *, to_terminal: bool
) -> ExitCode:
    """Print the report of `fleet`, write the requested lists of nodes, and return the exit code. `source` is the
    path of the fleet's file. Raises InputError if the requested gate on slow GPUs could never fail."""
    channels = ci.channels(options, os.environ)
    style = delivery.render_options(options, to_terminal=to_terminal)
    tolerance = parse_percent(options.tolerance, option="--tolerance")
    saved = None if options.known_good is None else _figures_of(options.known_good)
    nodes = (open_node(node, source) for node in fleet.nodes)
    report = survey_fleet(nodes, expected=fleet.nodes_expected, tolerance=tolerance, known_good=saved)
    gates = split_words(options.fail_on)
    if SLOW_GPU in gates and saved is None and not report.peers.compared:
        raise InputError(
            "gate-impossible", "--fail-on slow-gpu could not fail",
            why="no case was measured on four GPUs that are alike, and no known good fleet is named",
            hint="add --known-good FILE, or leave the gate out",
        )  # fmt: skip

    def draw(name: str) -> str:
        return render_documents(report, lambda: [fleet_document(report)], name, style, "gpubench fleet")

    delivery.write(channels.comment(draw(format), format), options.output, quiet=options.quiet)
    _write_names(options.ok_nodes, report.ok_nodes)
    _write_names(options.bad_nodes, report.bad_nodes)
    errors = []
    if INCOMPLETE in gates and not report.complete:
        errors.append(f"{report.nodes_complete} of {report.nodes_expected} nodes are complete")
    if SLOW_GPU in gates and report.slow:
        errors.append(f"{report.slow} GPUs are slow")
    code = ExitCode.GATE if errors else ExitCode.OK
    outcome = ci.CiOutcome(
        verdict="failed" if errors else "ok", exit_code=code, errors=tuple(errors),
        warnings=() if report.complete and not report.peers.verdicts else (headline(report),),
    )  # fmt: skip
    channels.tell(lambda: outcome, lambda: draw("markdown"), source)
    return code


def _figures_of(path: str) -> list[Figure]:
    """Return the figures in a saved fleet or result. Raises InputError if there are none."""
    content = document(path)
    assert isinstance(content, Run | Fleet)
    nodes = (
        [node_of([content])] if isinstance(content, Run) else [open_node(node, path) for node in content.nodes]
    )
    known_good = [figure for node in nodes for figure in node_figures(node)]
    if not known_good:
        raise InputError(
            "no-results", f"{path} has no GPU to compare with", why="no matmul, copy, upload or download ran on a GPU",
            hint="name a fleet, or a result, that measured them",
        )  # fmt: skip
    return known_good


def _write_names(path: str | None, names: Sequence[str]) -> None:
    """Write one name on each line, as `srun --nodelist` and `--exclude` read them. Do nothing if `path` is None."""
    if path is None:
        return
    try:
        disk.write_whole(path, "".join(f"{name}\n" for name in names).encode())
    except OSError as error:
        raise delivery.cannot_write(path, error) from error
