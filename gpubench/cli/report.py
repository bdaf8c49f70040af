"""`gpubench report`: shows saved results, by default the newest one. It measures nothing: all that it shows
comes from files (results, documents of wings such as fleets, claims)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpubench.base.errors import ExitCode, InputError
from gpubench.base.plugins import wings
from gpubench.base.streams import printable
from gpubench.cli.options import ReportOptions

if TYPE_CHECKING:
    from gpubench.result.run import Run


class Collection(Protocol):
    """A document with several results, of a kind that a wing adds."""

    def runs_beside(self, path: str) -> list[Run]:
        """Return the runs that the document at `path` contains or names. Prints on stderr which parts have no
        run."""


def report(options: ReportOptions) -> int:
    """Render saved results: answer, break-even, speedup, where the time goes, warnings."""
    from gpubench import report as reports
    from gpubench.analysis.findings import has_failures
    from gpubench.cli import ci, delivery
    from gpubench.result import store
    from gpubench.result.case import select_cases

    style = delivery.report_style(options, options.output)
    keep = select_cases(options.filter or [], options.skip or [])
    channels = ci.channels(options, os.environ)
    delivery.check_plots(options)
    newest = None if options.files else _newest(options.results_dir)
    documents, damaged = _documents([newest] if newest else options.files or [], quiet=options.quiet)
    paths = [path for path, _ in documents]
    if options.output is not None:
        store.check_writable(options.output, *paths, options.claims or "")
    to_terminal = options.output in (None, "-") and sys.stdout.isatty()
    whole = options.whole(documents, style.format, to_terminal=to_terminal)
    if whole is not None:
        return whole
    runs = options.runs(documents)
    sources = _runs(documents, quiet=options.quiet) if runs is None else [("", run) for run in runs]
    gates = ci.parse_gates(options.min_speedup, options.fail_on)
    analyses = reports.analyse_runs(
        [run for _, run in sources],
        baseline=options.baseline,
        keep=keep,
        claims=delivery.loaded_claims(options.claims),
        gates=gates,
    )
    ci.require_in_files(gates, analyses)
    named = paths[0] if len(paths) == 1 else "-"
    command = delivery.report_command(named, store.default_results_dir() if named == newest else None)
    if style.screen:
        delivery.write(style.final_screen(analyses, command, files=[path for path, _ in sources]), None)
    else:
        delivery.write_report(analyses, style, style.format, options.output, channels)
    if options.open_page:
        delivery.open_page(analyses, style, [options.output or ""])
    delivery.write_plots(analyses, options, style.options)
    code = ExitCode.INPUT if damaged else ExitCode.GATE if has_failures(analyses) else ExitCode.OK
    channels.tell(lambda: ci.of_reports(analyses, code), lambda: style.render(analyses, "markdown"), paths[0])
    return code


def _documents(paths: Sequence[object], *, quiet: bool) -> tuple[list[tuple[str, Run | Collection]], bool]:
    """Return the contents of files and folders, each with its path, and whether a folder's file is damaged.
    Raises InputError for a named file that cannot be used, and for a folder without results."""
    from gpubench.result import store

    documents: list[tuple[str, Run | Collection]] = []
    damaged = False
    for path in map(str, paths):
        if not os.path.isdir(path):
            documents.append((path, document(path)))
            continue
        before = len(documents)
        for file in map(str, store.newest_first([path])[::-1]):
            try:
                documents.append((file, document(file)))
            except InputError as error:
                foreign = error.code == "wrong-document"
                damaged |= not foreign
                if not (foreign and quiet):
                    print(printable(f"left out: {error.message}: {error.why}"), file=sys.stderr)
        if len(documents) == before:
            raise InputError(
                "no-results", f"{path} holds no result", why="it is a folder without a result file",
                hint="name a file that `gpubench run` has written, or the folder that it lies in"
            )  # fmt: skip
    return documents, damaged


def _runs(documents: Sequence[tuple[str, Run | Collection]], *, quiet: bool) -> list[tuple[str, Run]]:
    """Return the runs of all documents, each with its file. Of equal runs only the first is returned. Raises
    InputError if there is none."""
    from gpubench.result.run import Run

    runs: list[tuple[str, Run]] = []
    for path, content in documents:
        for run in [content] if isinstance(content, Run) else content.runs_beside(path):
            twin = next((other for other, earlier in runs if earlier.id == run.id and earlier == run), None)
            if twin is None:
                runs.append((path, run))
            elif not quiet:
                print(printable(f"left out: {path} holds the same run as {twin}"), file=sys.stderr)
    if runs:
        return runs
    raise InputError(
        "no-results", f"no node of {', '.join(path for path, _ in documents)} brought a result",
        why="every one of them failed", hint="`gpubench merge` the fleet with the result files of its nodes"
    )  # fmt: skip


def document(path: str) -> Run | Collection:
    """Return the result in the file `path`, or in standard input for `-`. It may also be a document of a wing,
    such as a fleet. Raises InputError if it cannot be used."""
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
