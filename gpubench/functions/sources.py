"""Parent side: make ops from words such as `options.py`, `options.py:pairwise` or `package.module:pairwise`."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gpubench import kernels
from gpubench.base import disk, processes, units
from gpubench.base.errors import UsageError, suggest
from gpubench.functions.describe import Code, CodeSource, add_to_manifest, make_op, shape_text, worker_alone
from gpubench.functions.trial import TRIAL_S, TrialReport, TrialRequest
from gpubench.result.run import RunWarning, warning

# The largest number of child processes that try functions at the same time.
MOST_CHILDREN = 4
MOST_NAMES = 20  # the most names of functions that an error lists
DECORATORS = (
    "put @gpubench.function above those to measure, or write name = gpubench.pair(cpu=..., gpu=..., inputs=...)"
)

# The warnings of a run about each source, by the name of the source.
_said: dict[str, list[RunWarning]] = {}


class CodePlace(NamedTuple):
    """A word of the command line that names functions."""

    where: str  # path of a file, or the name of a module
    name: str  # name of one function; empty if all functions are meant


def parse_place(word: str) -> CodePlace | None:
    """Return the place of functions that a word names, or None if the word is the name of an op. A place is
    `PATH`, `PATH:NAME` or `MODULE:NAME`; `PATH::NAME`, as pytest writes it, is the same."""
    where, colon, name = word.rpartition(":")
    if colon and len(where) > 1:  # C:\options.py has a colon too
        return CodePlace(where.rstrip(":"), name.strip())
    return CodePlace(word, "") if _is_path(word) else None


def _is_path(word: str) -> bool:
    return word.endswith(".py") or "/" in word or os.sep in word


def source_of(where: str) -> CodeSource:
    """Return the source for a path or a dotted module name. Raises UsageError if the file cannot be read or
    does not end in .py. Whether a module exists is not checked."""
    if _is_path(where):
        path = Path(os.path.abspath(where))
        try:
            disk.read_regular(where, 0)
            path = Path(os.path.realpath(where))
        except OSError as error:
            near = []
            with contextlib.suppress(UnicodeEncodeError, OSError):  # no path of this system
                near = [file.name for file in path.parent.glob("*.py") if file.is_file()]
            raise UsageError(
                "bad-function", f"there is no file {where}",
                why=f"it was looked for in {path.parent}: {disk.reason(error)}",
                hint=suggest(path.name, near)
                or ("a blank separates two functions" if "," in where else "give the path of a Python file"),
            ) from error  # fmt: skip
        if path.suffix != ".py":
            raise UsageError(
                "bad-function", f"{where} is not a file with functions", why="a file of functions ends in .py",
                hint="save them as options.py; in a notebook call gpubench.bench(f)",
            )  # fmt: skip
        return CodeSource(re.sub(r"\W", "_", path.stem), "file", str(path))
    return CodeSource(where.rpartition(".")[2], "module", where, path=(os.getcwd(),))


def declare(places: Sequence[CodePlace], **trial: Any) -> list[str]:
    """Make ops from the functions at these places, and return the ids of the ops. `trial` has fields of
    TrialRequest, such as `sizes`. Raises UsageError for a file that cannot be used, for a name that the file
    does not declare, and if no function can be measured."""
    by_source: dict[CodeSource, list[str]] = {}
    for place in places:
        source = source_of(place.where)
        other = next((entry for entry in by_source if entry.name == source.name and entry != source), None)
        if other is not None:
            raise UsageError(
                "bad-function", f"two files are called {source.name}", why=f"{other.place} and {source.place}",
                hint="the name of a file is a part of its functions' names: measure them in two runs",
            )  # fmt: skip
        by_source.setdefault(source, []).append(place.name)
    requests = [
        TrialRequest(source, None if "" in names else list(dict.fromkeys(names)), **trial)
        for source, names in by_source.items()
    ]
    return add(requests)


def add(requests: Sequence[TrialRequest]) -> list[str]:
    """Make ops from the functions that child processes describe, and return the ids of the ops.

    Raises UsageError if a source cannot be imported, if it declares no function or not the requested one, or if
    no function can be measured.
    """
    reports = _try_out(requests)
    ids = [name for request in requests for name in _enter(request, reports[request.source.name])]
    if not ids:
        left_out = notes([f"{request.source.name}.any" for request in requests])
        why = "; ".join(note.message for note in left_out)
        raise UsageError("bad-function", "there is no function to measure", why=why, hint=left_out[0].hint)
    return ids


def _enter(request: TrialRequest, report: TrialReport) -> list[str]:
    """Add the functions of a report to the ops and the manifest, and return the ids of their ops. Raises
    UsageError, as `add` describes."""
    source = request.source
    shown = source.place if source.kind != "pickle" else source.name
    if report.broken:
        place = Path(source.place)
        hint = f"mend it: `python {place}` shows the whole traceback"
        if "ModuleNotFoundError" in report.broken:
            hint = f"install it for {sys.executable}, or import it inside of the function that needs it"
        if "relative import" in report.broken:
            hint = f"name it as a module, in {place.parent.parent}: {place.parent.name}.{place.stem}:NAME"
        raise UsageError(
            "bad-function", f"{shown} cannot be imported", why=report.broken,
            hint=hint if source.kind == "file" else None,
        )  # fmt: skip
    if not report.known and not request.names:
        others = units.truncate([name for name in report.undeclared if name[0] != "_"], MOST_NAMES)
        raise UsageError(
            "bad-function", f"{shown} declares no function",
            why="@gpubench.function stands above none"
            f"{f' of its functions {others}' if others else ', and it has no functions'}",
            hint=f"name the one to measure: gpubench run {shown}:NAME; or {DECORATORS}" if others else DECORATORS,
        )  # fmt: skip
    every_name = [*report.known, *report.undeclared]
    for name in request.names or []:
        if name not in every_name:
            raise UsageError(
                "bad-function", f"{shown} has no function {name!r}",
                why=f"it has {units.truncate(every_name, MOST_NAMES) or 'none'}",
                hint=f"write {shown}:{name.replace(',', f' {shown}:')}" if "," in name
                else suggest(name, every_name) or "take one of these",
            )  # fmt: skip
    add_to_manifest(source, report.functions)
    ops = [make_op(description, Code(worker_alone)) for description in report.functions]
    if not request.dtypes:
        ops = [msgspec.structs.replace(op, dtypes=(request.pick_dtype(op.dtypes),)) for op in ops]
    kernels.add_functions(source.name, ops)
    _said[source.name] = _notes(report)
    return [op.name for op in ops]


def notes(names: Iterable[str]) -> list[RunWarning]:
    """Return the warnings about the sources of the functions with these ids."""
    return [
        note
        for source in dict.fromkeys(name.rpartition(".")[0] for name in names)
        for note in _said.get(source, ())
    ]


def _notes(report: TrialReport) -> list[RunWarning]:
    """Return the warnings about a source: functions left out, not compiled, or of wider results; shapes
    of inputs."""
    plain = [f"{f.name} ({f.untraced})" for f in report.functions if f.operations is None and not f.pair]
    sizes = [
        f"{f.name} takes "
        + (
            ", ".join(f"{shown.name} {shape_text(shown)}" for shown in arrays)
            or "no inputs (arguments with a default get some by inputs= alone), so n changes nothing"
        )
        for f in report.functions
        if (arrays := [shown for shown in f.inputs if f.own_inputs and shown.extents]) or not f.inputs
    ]
    notes = [warning("bad-function", f"{name} is left out: {why}") for name, why in report.wrong.items()]
    if plain:
        notes.append(
            warning("not-compiled", f"measured as written: {units.list_words(plain)}", severity="info")
        )
    if wide := [f.name for f in report.functions if f.widens]:
        text = (
            f"{units.list_words(wide)}: the results are float64 for float32 inputs; np.sqrt(2) widens arrays,"
        )
        notes.append(warning("widens", f"{text} math.sqrt(2) does not"))
    if sizes:
        notes.append(warning("own-sizes", "; ".join(sizes), severity="info"))
    return notes


def _try_out(requests: Sequence[TrialRequest]) -> dict[str, TrialReport]:
    """Let child processes try the functions, and return their reports by the name of the source."""
    reports = {request.source.name: TrialReport() for request in requests}
    # If the first call of a function ends its child or takes too long, the function is left out, and new children
    # try the rest. A failure at a larger size does not count here, because the run finds it.
    while waiting := [request for request in requests if reports[request.source.name].trying is not None]:
        count = min(len(waiting), os.cpu_count() or 1, MOST_CHILDREN)
        groups = [waiting[place::count] for place in range(count)]
        for group, ended in zip(groups, _run_children(groups), strict=True):
            try:
                attempts = msgspec.json.decode(ended.message, type=list[TrialReport])
            except msgspec.DecodeError:
                attempts = [TrialReport()]
            for request, report in zip(group, attempts, strict=False):
                whole = reports[request.source.name]
                _join(whole, report, ended)
                request.skip = [*whole.wrong, *(f.name for f in whole.functions)]
    return reports


def _join(whole: TrialReport, report: TrialReport, ended: processes.Ended) -> None:
    """Add a child's report to the report of its whole source. `ended` says how the child ended."""
    whole.functions += report.functions
    if report.partial is not None:
        whole.functions.append(report.partial)
    # A timeout after other functions is not this function's fault: it is tried again.
    elif report.trying and (ended.status is not None or not report.functions):
        report.wrong[report.trying] = f"its first call {_end(ended)}"
    whole.wrong |= report.wrong
    whole.known, whole.undeclared, whole.broken = report.known, report.undeclared, report.broken
    whole.trying = report.trying
    if report.trying == "":
        whole.trying, whole.broken = None, _end(ended)
    if not whole.broken:
        order = [*whole.known, *whole.undeclared]
        whole.functions.sort(key=lambda description: order.index(description.name))


def _run_children(groups: Sequence[Sequence[TrialRequest]]) -> list[processes.Ended]:
    try:
        commands = [
            (
                processes.python("gpubench.functions.trial", msgspec.json.encode(group).decode()),
                TRIAL_S * len(group),
            )
            for group in groups
        ]
        return processes.run_all(commands)
    except (OSError, UnicodeEncodeError) as error:
        why = f"no process can be started: {error}"
        if isinstance(error, UnicodeEncodeError):
            why = f"{error.object!r} is not valid UTF-8: rename that"
        raise UsageError(
            "bad-function", f"{groups[0][0].source.name} was not tried", why=why
        ) from error  # fmt: skip


def _end(ended: processes.Ended) -> str:
    if ended.status is None or "Timeout (" in ended.errors:  # a message of faulthandler
        how = f"did not end within {TRIAL_S:g} s"
    else:
        how = f"ended the process, which {processes.ending(ended.status)}"
    errors = re.findall(r"^\w*(?:Error|Exception): .*", ended.errors, re.MULTILINE)
    return "; the last error that it printed: ".join([how, *errors[-1:]])
