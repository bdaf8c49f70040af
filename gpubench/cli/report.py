"""`gpubench report`: render saved results from the files alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpubench.base.errors import InputError, require_choice
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
    import msgspec

    from gpubench import report as reports
    from gpubench.cli import ci, rendering
    from gpubench.report.ci import of_reports
    from gpubench.report.layout import RenderOptions
    from gpubench.result import store
    from gpubench.result.case import select_cases

    to_terminal = options.output in (None, "-") and sys.stdout.isatty()
    name = rendering.chosen_format(options.format, options.output, to_terminal)
    require_choice(name, [*reports.FORMATS, *reports.PICTURES], "--format")
    rendering.check_picture(name, to_terminal=to_terminal)
    keep = select_cases(options.filter or [], options.skip or [])
    channels = ci.channels(options, os.environ)
    rendering.check_plots(options)
    if options.output is not None:
        store.check_writable(options.output)
    paths = options.files or [_newest(options.results_dir)]
    documents = [(path, document(path)) for path in _files(paths)]
    whole = options.whole(documents, name, to_terminal=to_terminal)
    if whole is not None:
        return whole
    runs = options.runs(documents)
    gates = ci.gates(options.min_speedup or [], options.fail_on)
    analyses = reports.analysed(
        _runs(documents) if runs is None else runs,
        baseline=options.baseline,
        keep=keep,
        claims=rendering.loaded_claims(options.claims),
        gates=gates,
    )
    ci.require_in_files(gates, analyses)
    style = rendering.render_options(options, to_terminal=to_terminal)
    if options.by_device and options.sections is None and name in ("table", "plain"):
        style = msgspec.structs.replace(style, sections=("answer",))
    if name in reports.PICTURES:
        rendering.write_picture(analyses, name, options.output, style.sections, style.time_unit)
    else:
        rendering.write(channels.comment(reports.drawn(analyses, name, style), name), options.output)
    rendering.write_plots(analyses, options, style.sections, style.time_unit)
    code = ci.exit_code(analyses)
    plain = RenderOptions(sections=style.sections, time_unit=style.time_unit, sort=style.sort)
    channels.tell(
        lambda: of_reports(analyses, code), lambda: reports.drawn(analyses, "markdown", plain), paths[0]
    )
    return code


def _files(paths: Sequence[object]) -> list[str]:
    """`paths` with all results of a folder, oldest first, in place of the folder. Raises InputError if it has none."""
    from gpubench.result import store

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


def _runs(documents: Sequence[tuple[str, Run | Collection]]) -> list[Run]:
    """Return the runs of all files. Raises InputError if there is none."""
    from gpubench.result.run import Run

    runs = [
        run
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

    found = store.newest([results_dir]) or store.newest([store.user_data_dir() / "results"])
    if found is None:
        raise InputError(
            "no-results", "there is no result to report",
            why=f"no result file in {results_dir} nor in the user's data folder",
            hint="run `gpubench run` first, or name a FILE",
        )  # fmt: skip
    return str(found)
