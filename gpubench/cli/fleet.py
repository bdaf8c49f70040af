"""`gpubench report` of a whole fleet: its nodes, its slow GPUs, lists of nodes for a scheduler, and its gates."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpubench.cli.options import ReportOptions
from gpubench.errors import ExitCode, InputError, UsageError, require_choice
from gpubench.units import parse_percent

if TYPE_CHECKING:
    from gpubench.analysis.fleet import Fleet
    from gpubench.analysis.fleet_report import FleetReport
    from gpubench.analysis.peers import Figure
    from gpubench.model.result import Run
    from gpubench.report.ci import CiOutcome

SLOW_GPU, INCOMPLETE = "slow-gpu", "incomplete"
_FORMATS = ("table", "plain", "markdown", "json")


def wanted(options: ReportOptions, format: str) -> bool:
    """Whether a fleet is to be reported as a whole. Whoever names sections, cases or another format asks for the
    reports of its nodes."""
    words = _words(options.fail_on)
    of_nodes = (
        options.sections, options.filter, options.skip, options.baseline, options.by_device, options.plots,
        options.claims, options.min_speedup, options.sort, options.columns, options.node,
    )  # fmt: skip
    return format in _FORMATS and not any(of_nodes) and words <= {SLOW_GPU, INCOMPLETE}


def refuse_fleet_options(options: ReportOptions) -> None:
    """Raises UsageError for what only the report of a whole fleet understands."""
    asked = {
        "--known-good": options.known_good, "--ok-nodes": options.ok_nodes, "--bad-nodes": options.bad_nodes,
        "--fail-on slow-gpu": SLOW_GPU in _words(options.fail_on),
    }  # fmt: skip
    for name, given in asked.items():
        if given:
            raise UsageError(
                "not-a-fleet", f"{name} is about a fleet", why="this is no report of one whole fleet",
                hint="give one file that `gpubench merge` wrote, and no option that shows single nodes or cases",
            )  # fmt: skip


def _words(text: str | None) -> set[str]:
    return {word.strip() for word in (text or "").split(",") if word.strip()}


def runs_of(fleets: Sequence[Fleet], name: str) -> list[Run]:
    """The runs of the node that is called `name`, or whose key begins so. Raises InputError or UsageError."""
    nodes = [node for fleet in fleets for node in fleet.nodes]
    found = [node for node in nodes if node.label == name] or [
        node for node in nodes if node.key.startswith(name)
    ]
    if not found:
        require_choice(name, [node.name for node in nodes], "--node")
    runs = [run for node in found for run in node.runs]
    if not runs:
        raise InputError(
            "no-results", f"the node {name} brought no result", why=found[0].error or "there is no file of it",
            hint="`gpubench merge` the fleet with the file of the node",
        )  # fmt: skip
    return runs


def report_fleet(
    fleet: Fleet, format: str, options: ReportOptions, *, to_terminal: bool, source: str
) -> ExitCode:
    """Print the report of `fleet`, write the lists of nodes, and say how the command ends."""
    from gpubench.analysis.fleet_report import FleetSurvey
    from gpubench.cli import ci, rendering
    from gpubench.report.renderers import render_documents
    from gpubench.report.sections.fleet import fleet_document

    channels = ci.channels(options, os.environ, formats=[format])
    style = rendering.render_options(options, to_terminal=to_terminal)
    tolerance = parse_percent(options.tolerance, option="--tolerance")
    survey = FleetSurvey()
    for node in fleet.nodes:
        survey.add(node)
    saved = None if options.known_good is None else _figures_of(options.known_good)
    found = survey.report(expected=fleet.nodes_expected, tolerance=tolerance, known_good=saved)
    asked = _words(options.fail_on)
    if SLOW_GPU in asked and not found.judges(saved is not None):
        raise InputError(
            "gate-impossible", "--fail-on slow-gpu could not fail",
            why="no case was measured on four GPUs that are alike, and no known good fleet is named",
            hint="add --known-good FILE, or leave the gate out",
        )  # fmt: skip

    def drawn(name: str) -> str:
        return render_documents(found, lambda: [fleet_document(found)], name, style, "gpubench fleet")

    rendering.write(channels.comment(drawn(format), format), options.output)
    _write_names(options.ok_nodes, found.ok_nodes)
    _write_names(options.bad_nodes, found.bad_nodes)
    errors = gate_errors(found, asked)
    code = ExitCode.GATE if errors else ExitCode.OK
    channels.tell(lambda: _outcome(found, errors, code), lambda: drawn("markdown"), source)
    return code


def gate_errors(found: FleetReport, asked: set[str]) -> list[str]:
    """A sentence for each gate that failed."""
    errors = []
    if INCOMPLETE in asked and not found.complete:
        errors.append(f"{found.nodes_complete} of {found.nodes_expected} nodes are complete")
    if SLOW_GPU in asked and found.slow:
        errors.append(f"{found.slow} GPUs are slow")
    return errors


def _outcome(found: FleetReport, errors: Sequence[str], code: ExitCode) -> CiOutcome:
    from gpubench.report.ci import CiOutcome
    from gpubench.report.sections.fleet import headline

    return CiOutcome(
        verdict="failed" if errors else "ok", slower=0, faster=0, unsure=0, exit_code=code, errors=tuple(errors),
        warnings=() if found.complete and not found.peers.verdicts else (headline(found),),
    )  # fmt: skip


def _figures_of(path: str) -> list[Figure]:
    """Those of a saved fleet, or of one node's result. Raises InputError."""
    from gpubench.analysis.fleet import members
    from gpubench.analysis.peers import figures
    from gpubench.cli.report import document
    from gpubench.model.result import Run

    known = document(path)
    runs = [known] if isinstance(known, Run) else members(known)[0]
    found = [one for run in runs for one in figures(run, "known-good")]
    if not found:
        raise InputError(
            "no-results", f"{path} has no GPU to compare with", why="no matmul, copy, upload or download ran on a GPU",
            hint="name a fleet, or a result, that measured them",
        )  # fmt: skip
    return found


def _write_names(path: str | None, names: Sequence[str]) -> None:
    """One name a line, as `srun --nodelist` and `--exclude` read them from a file."""
    from gpubench.cli import rendering

    if path is None:
        return
    try:
        Path(path).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    except OSError as error:
        raise rendering.cannot_write(path, error) from error
