"""`gpubench report`: render saved results from the files alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpubench.base.errors import InputError
from gpubench.base.plugins import wings
from gpubench.cli.options import ReportOptions

if TYPE_CHECKING:
    from gpubench.result.run import Run


class Collection(Protocol):
    """A file of several results, of a kind that a wing brings."""

    def runs_beside(self, path: str) -> list[Run]:
        """Return the runs that the file at `path` holds or names; say on stderr what brought none."""


def report(options: ReportOptions) -> int:
    """Render saved results: answer, break-even, speedup, where the time goes, warnings."""
    from gpubench import report as reports
    from gpubench.cli import ci, rendering
    from gpubench.report.ci import of_reports
    from gpubench.result import store
    from gpubench.result.case import select_cases

    style = rendering.report_style(options, options.output)
    keep = select_cases(options.filter or [], options.skip or [])
    channels = ci.channels(options, os.environ)
    rendering.check_plots(options)
    if options.output is not None:
        store.check_writable(options.output)
    newest = None if options.files else _newest(options.results_dir)
    paths = _files([newest] if newest else options.files or [])
    documents = [(path, document(path)) for path in paths]
    to_terminal = options.output in (None, "-") and sys.stdout.isatty()
    whole = options.whole(documents, style.format, to_terminal=to_terminal)
    if whole is not None:
        return whole
    runs = options.runs(documents)
    sources = _runs(documents) if runs is None else [("", run) for run in runs]
    gates = ci.gates(options.min_speedup or [], options.fail_on)
    analyses = reports.analysed(
        [run for _, run in sources],
        baseline=options.baseline,
        keep=keep,
        claims=rendering.loaded_claims(options.claims),
        gates=gates,
    )
    ci.require_in_files(gates, analyses)
    named = paths[0] if len(paths) == 1 else "-"
    command = rendering.report_command(named, store.default_results_dir() if named == newest else None)
    if style.screen:
        rendering.write(style.final_screen(analyses, command, files=[path for path, _ in sources]), None)
    else:
        rendering.write_report(analyses, style, style.format, options.output, channels)
    if options.open_page:
        rendering.open_page(analyses, style, [options.output or ""])
    rendering.write_plots(analyses, options, style.options.sections, style.options.time_unit)
    code = ci.exit_code(analyses)
    channels.tell(lambda: of_reports(analyses, code), lambda: style.render(analyses, "markdown"), paths[0])
    return code


def _files(paths: Sequence[object]) -> list[str]:
    """`paths` with all results of a folder, oldest first, in place of the folder. Raises InputError if it has none."""
    from gpubench.result import store

    files: list[str] = []
    for path in map(str, paths):
        inside = [str(result) for result in store.newest_first([path])[::-1]] if os.path.isdir(path) else [path]
        if not inside:
            raise InputError(
                "no-results", f"{path} holds no result", why="it is a folder without a result file",
                hint="name a file that `gpubench run` has written, or the folder that it lies in",
            )  # fmt: skip
        files += inside
    return files


def _runs(documents: Sequence[tuple[str, Run | Collection]]) -> list[tuple[str, Run]]:
    """Return the runs of all files, each with its file. Raises InputError if there is none."""
    from gpubench.result.run import Run

    runs = [
        (path, run)
        for path, content in documents
        for run in ([content] if isinstance(content, Run) else content.runs_beside(path))
    ]
    if runs:
        return runs
    raise InputError(
        "no-results", f"no node of {', '.join(path for path, _ in documents)} brought a result",
        why="every one of them failed", hint="`gpubench merge` the fleet with the result files of its nodes",
    )  # fmt: skip


def document(path: str) -> Run | Collection:
    """Return the result, or what a wing reads, in `path` (`-`: standard input). Raises InputError."""
    import msgspec

    from gpubench.result import store
    from gpubench.result.store.document import RESULT_NAME, Header

    data, source = store.read(path)
    try:
        name = msgspec.json.decode(data, type=Header).name
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        name = RESULT_NAME  # the reader of results says what is wrong with it
    if name != RESULT_NAME:
        place = wings.brought("readers").get(name)
        if place is not None:
            collection: Collection = wings.find(place)(data, source)
            return collection
    return store.loads(data, source)


def _newest(results_dir: Path) -> str:
    from gpubench.result import store

    newest = store.newest([results_dir]) or store.newest([store.user_data_dir() / "results"])
    if newest is None:
        raise InputError(
            "no-results", "there is no result to report",
            why=f"no result file in {results_dir} nor in the user's data folder",
            hint="run `gpubench run` first, or name a FILE",
        )  # fmt: skip
    return str(newest)
