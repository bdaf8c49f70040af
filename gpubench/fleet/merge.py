"""`gpubench merge`: several result files become one result, or a fleet; and `gpubench report` of a whole fleet: its
nodes, its slow GPUs, lists of nodes for a scheduler, and its gates.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from gpubench.base import disk
from gpubench.base.errors import ExitCode, InputError, UsageError, require_choice
from gpubench.base.streams import visible
from gpubench.fleet.options import FleetReportOptions, MergeOptions

if TYPE_CHECKING:
    from gpubench.analysis.machine import RunOutline
    from gpubench.cli.ci import CiOutcome
    from gpubench.fleet.nodes import Fleet, Node, NodeFile
    from gpubench.fleet.survey import Figure, FleetReport
    from gpubench.result.run import Run


_NAMED = 5  # missing nodes that one message names


def merge(options: MergeOptions) -> None:
    """Join result files: of one machine into one result with all sessions, of several into a fleet."""
    from gpubench.result import store

    output, expect = options.output, options.expect
    if not store.is_result_name(output):
        raise UsageError(
            "unknown-suffix", f"--output: {output!r} is no name for a result", why="merge writes JSON"
        )
    store.check_writable(output)
    tolerant = expect is not None or options.nodes is not None
    sources, failed, declared = _collect(options.files, tolerant=tolerant)
    from gpubench.analysis.machine import connect_marks, marks
    from gpubench.fleet.nodes import EMBEDDED_NODES, alike, gather, merge_runs, node_of, refuse_twice

    names = parse_nodes(options.nodes)
    expected = expect if expect is not None else declared
    refuse_twice([source.outline for source in sources])
    groups = [
        [sources[place] for place in places]
        for places in connect_marks([marks(source.outline) for source in sources])
    ]
    if expected is None and not names and len(groups) == 1:
        runs = [source.load() for source in groups[0]]
        if len(alike(runs)) == 1:
            store.save(merge_runs(runs), output)
            return
    apart = len(groups) > EMBEDDED_NODES and not options.embed
    nodes: list[Node] = []
    for group in groups:  # one node in memory at a time, where each has files of its own
        runs, broken = _load(group, tolerant=tolerant)
        failed += broken
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


class _Source:
    """A run that is merged: in memory, or `on_disk` in a file of which the outline alone is kept."""

    def __init__(self, outline: RunOutline | Run, load: Callable[[], Run], path: str, *, on_disk: bool) -> None:
        self.outline, self.load, self.path = outline, load, path
        self.on_disk = on_disk


def _put_beside(node: Node, output: str, sources: Sequence[_Source]) -> Node:
    """`node` with its results in files of the folder beside the fleet, in place of the results themselves. The file of
    a node that has but one is copied: encoding takes longer than all the rest."""
    import hashlib

    import msgspec

    from gpubench.fleet.driver import beside, file_stem
    from gpubench.fleet.nodes import NodeFile
    from gpubench.result import store

    folder = beside(output, ".d")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise store.cannot_save(folder, error) from error
    stem = file_stem(node.label, node.key)
    files = []
    for place, run in enumerate(node.runs):
        path = folder / f"{stem}{f'-{place + 1}' if len(node.runs) > 1 else ''}.json.gz"
        copied = len(sources) == 1 and sources[0].on_disk
        store.replace(path, store.read(sources[0].path)[0] if copied else store.dumps(run))
        files.append(
            NodeFile(
                path=f"{folder.name}/{path.name}", sha256=hashlib.sha256(disk.read_regular(path)).hexdigest()
            )
        )
    return msgspec.structs.replace(node, result=None, others=[], files=files)


def parse_nodes(text: str | None) -> list[str]:
    """The names of a list with commas, or of the lines of @FILE. Raises UsageError."""
    from gpubench.result.store import document

    if text is None:
        return []
    words = text.split(",")
    if text.startswith("@"):
        try:
            words = disk.read_regular(text[1:], document.MAX_BYTES).decode().split()
        except (OSError, UnicodeDecodeError) as error:
            why = disk.reason(error) if isinstance(error, OSError) else str(error)
            raise UsageError(
                "unreadable-input", f"--nodes: cannot read {text[1:]}", why=why,
                hint="name a file with a node's name on each line",
            ) from error  # fmt: skip
    return list(dict.fromkeys(word.strip() for word in words if word.strip()))


def _missing(fleet: Fleet) -> str:
    reasons = [
        f"{node.label}: {node.error}" if node.label else node.error or node.key
        for node in fleet.nodes
        if node.status == "failed"
    ]
    return "; ".join(
        [*reasons[:_NAMED], *([f"and {len(reasons) - _NAMED} more"] if len(reasons) > _NAMED else [])]
    )


def _collect(files: Sequence[str], *, tolerant: bool) -> tuple[list[_Source], list[Node], int | None]:
    """All runs and failed nodes of `files`, and how many nodes were expected by the fleets among them.

    `tolerant`: a file that cannot be used is a node that failed. Raises InputError.
    """
    sources: list[_Source] = []
    failed: list[Node] = []
    expected: int | None = None
    for file in files:
        try:
            runs, missing, count = _sources(file)
        except InputError as error:
            if not tolerant:
                raise
            failed.append(_unusable(file, error))
            continue
        sources += runs
        failed += missing
        expected = count if expected is None else max(expected, count or 0)
    return sources, failed, expected


def _sources(file: str) -> tuple[list[_Source], list[Node], int | None]:
    """The runs of one file. A result is read again when its node's turn comes; standard input and fleets stay."""
    import msgspec

    from gpubench.analysis.machine import RunOutline
    from gpubench.cli.report import document
    from gpubench.fleet.nodes import Fleet
    from gpubench.result import store
    from gpubench.result.run import Run
    from gpubench.result.store.document import RESULT_NAME, Header, require_json

    if file != "-":
        data, _ = store.read(file)
        require_json(data, file)
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            if msgspec.json.decode(data, type=Header).name == RESULT_NAME:
                outline = msgspec.json.decode(data, type=RunOutline)
                return [_Source(outline, partial(store.load, file), file, on_disk=True)], [], None
    content = document(file)
    if isinstance(content, Run):
        return [_Source(content, partial(_itself, content), file, on_disk=False)], [], None
    assert isinstance(content, Fleet)
    nodes = [open_node(node, file) for node in content.nodes]
    sources = [_Source(run, partial(_itself, run), file, on_disk=False) for node in nodes for run in node.runs]
    return sources, [node for node in nodes if not node.runs], content.nodes_expected


def _itself(run: Run) -> Run:
    return run


def _load(group: Sequence[_Source], *, tolerant: bool) -> tuple[list[Run], list[Node]]:
    runs, failed = [], []
    for source in group:
        try:
            runs.append(source.load())
        except InputError as error:
            if not tolerant:
                raise
            failed.append(_unusable(source.path, error))
    return runs, failed


def _unusable(file: str, error: InputError) -> Node:
    """The node of a file that cannot be used; said on stderr too."""
    from gpubench.fleet.nodes import Node

    print(visible(f"{error.message}: {error.why}"), file=sys.stderr)
    name = Path(file).name
    return Node(key=name, status="failed", reason="unusable", error=f"{name}: {error.why or error.message}")


# ---------------------------------------------------------------- the report of a whole fleet

SLOW_GPU, INCOMPLETE = "slow-gpu", "incomplete"


def report_whole(
    files: Sequence[tuple[str, Any]], format: str, options: FleetReportOptions, *, to_terminal: bool
) -> int | None:
    """Report the fleet, if it is the only file and to be reported as a whole. Returns None otherwise."""
    # A fleet's types are not loaded for a result.
    if len(files) != 1 or not hasattr(files[0][1], "nodes") or not reports_whole(options, format):
        return None
    return report_fleet(*files[0], format, options, to_terminal=to_terminal)


def reports_whole(options: FleetReportOptions, format: str) -> bool:
    """Whether a fleet is to be reported as a whole. Whoever names sections, cases or another format asks for the
    reports of its nodes."""
    from gpubench.report.renderers import DOCUMENT_FORMATS

    words = _words(options.fail_on)
    of_nodes = (
        options.sections, options.filter, options.skip, options.baseline, options.by_device, options.plots,
        options.claims, options.min_speedup, options.sort, options.columns, options.node,
    )  # fmt: skip
    return format in DOCUMENT_FORMATS and not any(of_nodes) and words <= {SLOW_GPU, INCOMPLETE}


def refuse_fleet_options(options: FleetReportOptions) -> None:
    """Raises UsageError for what only the report of a whole fleet understands."""
    fleet_only = {
        "--known-good": options.known_good, "--ok-nodes": options.ok_nodes, "--bad-nodes": options.bad_nodes,
        "--fail-on slow-gpu": SLOW_GPU in _words(options.fail_on),
    }  # fmt: skip
    for name, value in fleet_only.items():
        if value:
            raise UsageError(
                "not-a-fleet", f"{name} is about a fleet", why="this is no report of one whole fleet",
                hint="give one file that `gpubench merge` wrote, and no option that shows single nodes or cases",
            )  # fmt: skip


def _words(text: str | None) -> set[str]:
    return {word.strip() for word in (text or "").split(",") if word.strip()}


def open_node(node: Node, fleet_path: str) -> Node:
    """`node` with the results of its files, which stand beside the fleet in `fleet_path`; with the reason where one
    cannot be used."""
    if not node.files:
        return node
    import msgspec

    from gpubench.result import store

    folder = Path(fleet_path).parent
    try:
        runs = [store.load(_inside(folder, file)) for file in node.files]
    except InputError as error:
        why = f"{error.message}: {error.why}"
        return msgspec.structs.replace(node, status="failed", reason="unusable", error=why, files=[])
    return msgspec.structs.replace(node, result=runs[-1], others=runs[:-1], files=[])


def _inside(folder: Path, file: NodeFile) -> Path:
    """The file, if it lies below `folder` and is still the one that the fleet was made of. Raises InputError."""
    import hashlib

    path, inner = folder / file.path, PurePosixPath(file.path)
    if inner.is_absolute() or ".." in inner.parts or not path.resolve().is_relative_to(folder.resolve()):
        raise InputError(
            "bad-document", f"{file.path} cannot be used", why="it lies outside of the fleet's folder"
        )
    try:
        digest = hashlib.sha256(disk.read_regular(path)).hexdigest()
    except OSError as error:
        raise InputError(
            "unreadable", f"{file.path} cannot be used", why=error.strerror or str(error)
        ) from error
    if digest != file.sha256:
        raise InputError(
            "bad-document", f"{file.path} cannot be used", why="it changed since the fleet was merged"
        )
    return path


def runs_of(fleets: Sequence[tuple[str, Fleet]], name: str) -> list[Run]:
    """The runs of the node that is called `name`, or whose key begins so. Raises InputError or UsageError."""
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
    """Print the report of `fleet`, which `source` holds, write the lists of nodes, and say how the command ends."""
    from gpubench.base.units import parse_percent
    from gpubench.cli import ci, delivery
    from gpubench.fleet.survey import FleetSurvey
    from gpubench.fleet.tables import fleet_document
    from gpubench.report.renderers import render_documents

    channels = ci.channels(options, os.environ)
    style = delivery.render_options(options, to_terminal=to_terminal)
    tolerance = parse_percent(options.tolerance, option="--tolerance")
    survey = FleetSurvey()
    for node in fleet.nodes:
        survey.add(open_node(node, source))
    saved = None if options.known_good is None else _figures_of(options.known_good)
    report = survey.report(expected=fleet.nodes_expected, tolerance=tolerance, known_good=saved)
    gates = _words(options.fail_on)
    if SLOW_GPU in gates and not report.judges(saved is not None):
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
    errors = gate_errors(report, gates)
    code = ExitCode.GATE if errors else ExitCode.OK
    channels.tell(lambda: _outcome(report, errors, code), lambda: draw("markdown"), source)
    return code


def gate_errors(report: FleetReport, gates: set[str]) -> list[str]:
    """A sentence for each gate that failed."""
    errors = []
    if INCOMPLETE in gates and not report.complete:
        errors.append(f"{report.nodes_complete} of {report.nodes_expected} nodes are complete")
    if SLOW_GPU in gates and report.slow:
        errors.append(f"{report.slow} GPUs are slow")
    return errors


def _outcome(report: FleetReport, errors: Sequence[str], code: ExitCode) -> CiOutcome:
    from gpubench.cli.ci import CiOutcome
    from gpubench.fleet.tables import headline

    return CiOutcome(
        verdict="failed" if errors else "ok", exit_code=code, errors=tuple(errors),
        warnings=() if report.complete and not report.peers.verdicts else (headline(report),),
    )  # fmt: skip


def _figures_of(path: str) -> list[Figure]:
    """Return the figures of a saved fleet, or of one node's result. Raises InputError."""
    from gpubench.cli.report import document
    from gpubench.fleet.nodes import Fleet
    from gpubench.fleet.survey import figures
    from gpubench.result.run import Run

    content = document(path)
    if isinstance(content, Run):
        known_good = figures(content, "known-good")
    else:
        assert isinstance(content, Fleet)
        known_good = [
            figure
            for node in content.nodes
            for run in open_node(node, path).runs
            for figure in figures(run, node.name)
        ]
    if not known_good:
        raise InputError(
            "no-results", f"{path} has no GPU to compare with", why="no matmul, copy, upload or download ran on a GPU",
            hint="name a fleet, or a result, that measured them",
        )  # fmt: skip
    return known_good


def _write_names(path: str | None, names: Sequence[str]) -> None:
    """One name a line, as `srun --nodelist` and `--exclude` read them from a file."""
    from gpubench.cli import delivery

    if path is None:
        return
    try:
        disk.write_regular(path, "".join(f"{name}\n" for name in names).encode())
    except OSError as error:
        raise delivery.cannot_write(path, error) from error
