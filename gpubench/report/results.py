"""The results that speak for this machine: the files in the results' folders, newest first."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gpubench.errors import GpubenchError, InputError
from gpubench.model.result import Run
from gpubench.report.analysis.experiment import experiment

MOST_FILES = 20  # of this machine; older ones say nothing that these do not
RESULTS_DIR = Path("results")


def runs(source: str | Path | None = None, results_dir: Path = RESULTS_DIR) -> Iterator[Run]:
    """The runs that `source` holds, newest first, each read when it is asked for.

    A file (`-`: standard input) is taken as it is. A folder, or None for `results_dir` and the user's data folder,
    gives the runs of this machine, without those of zeros or ones, cold caches or fewer threads. Raises InputError
    for an unreadable file, and for folders without a usable result.
    """
    from gpubench import store

    if source is not None and not os.path.isdir(source):
        yield store.load(source)
        return
    folders = [Path(source)] if source is not None else [results_dir, store.user_data_dir() / "results"]
    yield from _of_this_machine(store.newest_first(folders), folders)


def _of_this_machine(paths: Iterable[Path], folders: Sequence[Path]) -> Iterator[Run]:
    from gpubench import detect, store

    given, foreign = 0, ""
    for path in paths:
        try:
            run = store.load(path)
        except GpubenchError:  # somebody else's JSON beside our results
            continue
        different = {**detect.differences(run.machine), **experiment(run)}
        if different:
            foreign = foreign or "; ".join(f"{name}: {words}" for name, words in different.items())
            continue
        yield run
        given += 1
        if given == MOST_FILES:
            return
    if not given:
        raise _nothing(folders, foreign)


def _nothing(folders: Sequence[Path], foreign: str) -> InputError:
    places = " and ".join(str(folder) for folder in folders)
    if foreign:
        return InputError(
            "other-machine", "there is no result of this machine",
            why=f"those in {places} are of another one, or of an experiment ({foreign})",
            hint="run `gpubench run` here, or name a file, which is not asked where and how it was made",
        )  # fmt: skip
    return InputError(
        "no-results", "there is no result to answer from", why=f"no result file in {places}",
        hint="run `gpubench run` first, or name a file",
    )  # fmt: skip
