"""`gpubench report`: render saved results from the files alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpubench.cli.options import ReportOptions
from gpubench.errors import InputError, require_choice

if TYPE_CHECKING:
    from gpubench.analysis.fleet import Fleet, Node
    from gpubench.model.result import Run


def report(options: ReportOptions) -> int:
    """Render saved results: answer, break-even, speedup, where the time goes, warnings."""
    import msgspec

    from gpubench import report as reports
    from gpubench import selectors, store
    from gpubench.cli import ci, fleet, rendering
    from gpubench.model.result import Run
    from gpubench.report.layout import RenderOptions

    to_terminal = options.output in (None, "-") and sys.stdout.isatty()
    name = rendering.chosen_format(options.format, options.output, to_terminal)
    require_choice(name, [*reports.FORMATS, *reports.PICTURES], "--format")
    rendering.check_picture(name, to_terminal=to_terminal)
    keep = selectors.selection(options.filter or [], options.skip or [])
    channels = ci.channels(options, os.environ)
    gates = ci.gates(options.min_speedup or [], options.fail_on, also=(fleet.SLOW_GPU,))
    rendering.check_plots(options)
    if options.output is not None:
        store.check_writable(options.output)
    paths = options.files or [_newest(options.results_dir)]
    documents = [(path, document(path)) for path in _files(paths)]
    fleets = [(path, found) for path, found in documents if not isinstance(found, Run)]
    if len(documents) == len(fleets) == 1 and fleet.wanted(options, name):
        return fleet.report_fleet(*fleets[0], name, options, to_terminal=to_terminal)
    fleet.refuse_fleet_options(options)
    runs = _runs(documents) if options.node is None else fleet.runs_of(fleets, options.node)
    analyses = reports.analysed(
        runs,
        baseline=options.baseline,
        keep=keep,
        claims=rendering.loaded_claims(options.claims),
        gates=gates,
    )
    ci.require_measured(gates, analyses)
    style = rendering.render_options(options, to_terminal=to_terminal)
    if options.by_device and options.sections is None and name in ("table", "plain"):
        style = msgspec.structs.replace(style, sections=("answer",))
    if name in reports.PICTURES:
        rendering.write_picture(analyses, name, options.output, style.sections, style.time_unit)
    else:
        rendering.write(channels.comment(reports.drawn(analyses, name, style), name), options.output)
    rendering.write_plots(analyses, options, style.sections, style.time_unit)
    code = ci.exit_code(analyses)
    channels.tell_reports(
        analyses, code, paths[0],
        markdown=lambda: reports.drawn(
            analyses, "markdown",
            RenderOptions(sections=style.sections, time_unit=style.time_unit, sort=style.sort),
        ),
    )  # fmt: skip
    return code


def _files(paths: Sequence[object]) -> list[str]:
    """`paths` with all results of a folder, oldest first, in place of the folder. Raises InputError if it has none."""
    from gpubench import store

    found: list[str] = []
    for path in map(str, paths):
        inside = [str(one) for one in store.newest_first([path])[::-1]] if os.path.isdir(path) else [path]
        if not inside:
            raise InputError(
                "no-results", f"{path} holds no result", why="it is a folder without a result file",
                hint="name a file that `gpubench run` has written, or the folder that it lies in",
            )  # fmt: skip
        found += inside
    return found


def _runs(documents: Sequence[tuple[str, Run | Fleet]]) -> list[Run]:
    """The runs of all files, those of a fleet's nodes included; a node without a result is reported on stderr."""
    found: list[Run] = []
    for path, content in documents:
        runs, failed, _ = parts(content, path)
        found += runs
        for node in failed:
            print(f"{path}: the node {node.key} brought no result: {node.error}", file=sys.stderr)
    if found:
        return found
    raise InputError(
        "no-results", f"no node of {', '.join(path for path, _ in documents)} brought a result",
        why="every one of them failed", hint="`gpubench merge` the fleet with the result files of its nodes",
    )  # fmt: skip


def parts(content: Run | Fleet, path: str) -> tuple[list[Run], list[Node], int | None]:
    """The runs of a file, the nodes of it that brought none, and how many nodes a fleet expects (None: it is a
    result)."""
    from gpubench.model.result import Run

    if isinstance(content, Run):
        return [content], [], None
    from gpubench.cli.fleet import opened

    nodes = [opened(node, path) for node in content.nodes]
    runs = [run for node in nodes for run in node.runs]
    return runs, [node for node in nodes if not node.runs], content.nodes_expected


def document(path: str) -> Run | Fleet:
    """The result or the fleet in `path` (`-`: standard input). Raises InputError."""
    import msgspec

    from gpubench import store
    from gpubench.store import limits
    from gpubench.store.document import RESULT_NAME, Header

    data, source = store.read(path)
    try:
        name = msgspec.json.decode(data, type=Header).name
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        name = RESULT_NAME  # the reader of results says what is wrong with it
    if name == RESULT_NAME:  # what fleets take is not loaded for it
        return store.loads(data, source)
    from gpubench.analysis.fleet import NAME, VERSION, Fleet

    if name != NAME:
        return store.loads(data, source)
    found = store.loads_as(Fleet, data, source, name=NAME, newest=VERSION)
    runs = [run for node in found.nodes for run in node.runs]
    limits.require_runs(runs, source)
    for run in runs:
        store.checked(run, source)
    return found


def _newest(results_dir: Path) -> str:
    from gpubench import store

    found = store.newest([results_dir]) or store.newest([store.user_data_dir() / "results"])
    if found is None:
        raise InputError(
            "no-results", "there is no result to report",
            why=f"no result file in {results_dir} nor in the user's data folder",
            hint="run `gpubench run` first, or name a FILE",
        )  # fmt: skip
    return str(found)
