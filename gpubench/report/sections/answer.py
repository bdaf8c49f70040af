"""The answer on one screen: a sentence, the two sides, a table of two situations, and what limits it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.answer import ABOUT_EQUAL, MachineAnswer, Trouble, answer
from gpubench.analysis.labels import workers
from gpubench.analysis.machine import fact
from gpubench.analysis.samples import used_sessions
from gpubench.analysis.speedup import blas_text
from gpubench.foreign_text import columns, cut, filled, printable, shortened
from gpubench.model.result import Run
from gpubench.report.layout import Cell, Column, Line, RenderOptions, Section, Table
from gpubench.report.sections.answer_grid import (
    AnswerGrid,
    drawn,
    forms_grid,
    one_op_grids,
    sizes_grids,
    thresholds_grids,
)
from gpubench.report.sections.answer_text import (
    DETAILS,
    backend_text,
    factor_text,
    machine_sentences,
    op_sentence,
    sizes_sentence,
    why_text,
)
from gpubench.units import listed

KEY, TITLE = "answer", "Answer"
HEIGHT, MOST_ROWS = 24, 16  # a screen; of more rows all are printed
_SENTENCE_LINES = 3
_COMMANDS = "all: gpubench report   page: gpubench report -o r.html"
_MOST_FORMS = 6  # names of ops in the sentence of a machine without a GPU
_ALIKE = 1.5  # thresholds that differ by less are not worth a line


class Screen(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn. `needed` lines below the table stay; `spare` ones, each with its rank, go where there is no room,
    the highest rank first. `troubles` say what was wrong or failed: they become one line before any of them goes."""

    sentences: tuple[tuple[str, ...], ...]
    context: tuple[str, ...]
    grids: tuple[AnswerGrid, ...]
    troubles: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    spare: tuple[tuple[int, str], ...] = ()


def answer_section(analysis: Analysis, options: RenderOptions, *, full: bool) -> Section:
    """The screen as it is for a terminal and for plain text; as sentences and a table where `full`."""
    screen = _screen(analysis, options, "")
    if not full:
        return Section(key=KEY, title="", screen=tuple(screen_lines(screen, options.width)))
    below = (*screen.troubles, *screen.needed, *(text for _, text in screen.spare))
    tables = tuple(_table(grid) for grid in screen.grids[:1] if grid.rows)
    lines = (*screen.sentences[0], *screen.context, *below)
    return Section(key=KEY, title=TITLE, lines=lines, tables=tables)


def answer_screen(
    analysis: Analysis, options: RenderOptions, *, saved: str = "", height: int = HEIGHT
) -> list[Line]:
    """What a run ends with. `saved`: the file; `height`: lines of the terminal, above which the sentence is repeated
    as the last line."""
    return screen_lines(_screen(analysis, options, saved), options.width, height)


def screen_lines(screen: Screen, width: int, height: int = HEIGHT) -> list[Line]:
    """At most 24 lines of a table of at most 16 rows, none wider than `width`."""
    grid = drawn(screen.grids, width) if screen.grids else []
    short = all(len(one.rows) <= MOST_ROWS for one in screen.grids[:1])
    sentence = _sentence_lines(screen.sentences, width, one_more=width < 64)
    context = [cut(text, width) for text in screen.context]
    head = _plain([*sentence, *context])
    needed = [line for text in screen.needed for line in filled(text, width)]
    troubles = [cut(text, width) for text in screen.troubles]
    commands = [cut(_COMMANDS, width)]
    spare = {rank: filled(text, width) for rank, text in screen.spare}
    fixed = len(head) + len(grid) + len(needed)
    if short:
        if fixed + len(troubles) + len(commands) > HEIGHT and len(troubles) > 1:
            troubles = [cut(f"{len(troubles)} kinds of failures: gpubench report --sections skipped", width)]
        if fixed + len(troubles) + len(commands) > HEIGHT:
            commands = []
        room = HEIGHT - fixed - len(troubles) - len(commands)
        while spare and sum(map(len, spare.values())) > room:
            del spare[max(spare)]
    notes = [line for rank, _ in screen.spare for line in spare.get(rank, ())]
    below = _plain([*troubles, *notes, *needed, *commands])
    found = [*head, *grid, *below]
    return [*found, *_plain(sentence)] if not short and len(found) > height else found


def _plain(texts: Sequence[str]) -> list[Line]:
    return [(Cell(text),) for text in texts]


def _sentence_lines(levels: Sequence[Sequence[str]], width: int, *, one_more: bool) -> list[str]:
    """The first wording that takes three lines at most, else the shortest."""
    found: list[str] = []
    for sentences in levels:
        found = [line for text in sentences for line in filled(text, width, "")]
        if len(found) <= _SENTENCE_LINES + one_more:
            break
    return found


def _screen(analysis: Analysis, options: RenderOptions, saved: str) -> Screen:
    found = answer(analysis)
    notes = _notes(analysis, found)
    common = Screen(
        sentences=(), context=(_sides(analysis.run, found, options.width),), grids=(), troubles=tuple(_troubles(found)),
        needed=tuple(_ending(analysis.run, found, printable(saved))),
        spare=tuple(notes),
    )  # fmt: skip
    replace, ascii_only = msgspec.structs.replace, options.ascii_only
    if not found.rows:
        context = tuple(text for text in (_looked_for(analysis.run), *common.context) if text)
        return replace(
            common, sentences=_no_gpu(analysis.run, found), context=context,
            grids=(forms_grid(found, ascii_only=ascii_only),) if found.forms else (),
        )  # fmt: skip
    row = found.rows[0]
    if len(found.rows) == 1 and found.named:
        said: tuple[tuple[str, ...], ...] = ((sizes_sentence(row, found.regimes),),)
        grids = sizes_grids(found, ascii_only=ascii_only)
    elif len(found.rows) == 1:
        said = ((op_sentence(row, found.regimes, ascii_only=ascii_only),),)
        grids = one_op_grids(row, ascii_only=ascii_only)
    else:
        said = tuple(tuple(machine_sentences(found, detail)) for detail in DETAILS)
        grids = (sizes_grids if found.named else thresholds_grids)(found, ascii_only=ascii_only)
    return replace(common, sentences=said, grids=grids)


def _sides(run: Run, found: MachineAnswer, width: int) -> str:
    """`NVIDIA H200 (CuPy) against 16 CPU threads (NumPy, OpenBLAS), float32, 55 s.`, in one line: where it is too long
    without the BLAS, then without the CPU's libraries, then with the GPU's name cut."""
    texts = [
        _sides_text(run, found, length, libraries=libraries)
        for libraries, length in ((2, 40), (1, 40), (0, 40), (0, 20))
    ]
    return next((text for text in texts if columns(text) <= width), texts[-1])


def _sides_text(run: Run, found: MachineAnswer, length: int, *, libraries: int) -> str:
    cpus = [device.id for device in run.devices if device.kind == "cpu"]
    records = [record for device_id in cpus for record in workers(run, device_id)]
    threads = min((record.threads for record in records if record.threads), default=None)
    blas = next((blas_text(record.blas).partition(" ")[0] for record in records if record.blas), None)
    counted = "the CPU" if threads is None else f"{threads} CPU thread{'s' if threads != 1 else ''}"
    names = dict.fromkeys([*map(backend_text, cpus), *([blas] if blas and libraries > 1 else [])])
    cpu = f"{counted} ({', '.join(names)})" if names and libraries else counted
    dtypes = dict.fromkeys([row.dtype for row in found.rows] or [form.dtype for form in found.forms])
    parts = [f"{_gpus(run, found, length)} against {cpu}" if found.devices else cpu, *dtypes]
    seconds = _seconds(run)
    parts += [] if seconds is None else [f"{seconds:.0f} s"]
    text = ", ".join(parts)
    return text[:1].upper() + text[1:] + "."


def _gpus(run: Run, found: MachineAnswer, length: int) -> str:
    names = {device.id: shortened(device.name, length) for device in run.devices}
    counts = Counter(names.get(device_id, device_id) for device_id in found.devices)
    texts = [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]
    return f"{', '.join(texts)} ({backend_text(found.devices[0])})"


def _seconds(run: Run) -> float | None:
    if run.finished_at is None:
        return None
    try:
        return (
            datetime.fromisoformat(run.finished_at) - datetime.fromisoformat(run.started_at)
        ).total_seconds()
    except (ValueError, TypeError):
        return None


def _no_gpu(run: Run, found: MachineAnswer) -> tuple[tuple[str, ...], ...]:
    """With names, and without."""
    ops = len({form.op for form in found.forms})
    if found.gpu_timed or not ops:
        return (
            (
                "No op was timed on both sides: there is nothing to compare (gpubench report has what was timed).",
            ),
        )
    gpus = any(device.kind == "gpu" for device in run.devices)
    there = [gpu for gpu in run.machine.gpus if fact(gpu, "kind") != "software"]
    begin = (
        "The GPU gave no time"
        if gpus
        else "No GPU was measured"
        if there
        else "No GPU here: compute on the CPU"
    )
    better = list(dict.fromkeys(form.op for form in found.forms if form.ratio is not None))
    if not better:
        return ((f"{begin}. No faster code than plain NumPy was measured.",),)
    if ops == 1:
        best = max(found.forms, key=lambda form: form.ratio or 0.0)
        return (
            (
                f"{begin}. Faster code than plain NumPy exists for {best.op}: up to {factor_text(best.ratio or 1.0)}.",
            ),
        )
    share = f"all {ops}" if len(better) == ops else f"{len(better)} of {ops}"
    counted = f"{begin}. Faster code than plain NumPy exists for {share} ops"
    return (
        (f"{counted}: {listed(better)}." if len(better) <= _MOST_FORMS else f"{counted}.",),
        (f"{counted}.",),
    )


def _looked_for(run: Run) -> str:
    """What was looked for and not found, by the words of the run."""
    found: dict[str, str] = {}
    for warning in run.warnings:
        backend, _, why = warning.message.partition(":")
        name = str(warning.data.get("backend") or backend)
        if warning.code == "unavailable" and name not in ("torch", "numpy", "hybrid"):
            found.setdefault(backend_text(name), shortened(why or warning.message, 50))
    software = [device for device in run.devices if device.kind == "software"]
    found |= {backend_text(device.id): f"{shortened(device.name, 30)}: not a GPU" for device in software}
    return (
        f"Looked for: {', '.join(f'{shortened(name, 20)} ({why})' for name, why in found.items())}."
        if found
        else ""
    )


def _troubles(found: MachineAnswer) -> list[str]:
    texts = [f"{_ops(one)} gave wrong numbers ({printable(one.detail)}): not timed" for one in found.wrong]
    for one in found.broken:
        what = f"{backend_text(one.backend)} gave no time" if one.whole else f"{_ops(one)} failed"
        texts.append(f"{what}: {printable(one.detail)}" + (f"; {printable(one.hint)}" if one.hint else ""))
    return texts


def _ops(one: Trouble) -> str:
    names = listed(one.ops) if len(one.ops) <= 3 else f"{len(one.ops)} ops"
    return f"{names} on {backend_text(one.backend)}"


def _ending(run: Run, found: MachineAnswer, saved: str) -> list[str]:
    """Where the file is; of an interrupted run how to go on with it."""
    if run.complete or run.exit_reason != "interrupted":
        return [f"saved {saved}"] if saved else []
    seconds, budget = _seconds(run), run.settings.budget_s
    after = "" if seconds is None else f" at {seconds:.0f}" + (f" of {budget:.0f} s" if budget else " s")
    lost = f": {len(found.missing)} of {found.ops} ops not measured" if found.missing else ""
    return [f"Stopped{after}{lost}. Go on: gpubench run --append {saved or 'FILE'}"]


def _notes(analysis: Analysis, found: MachineAnswer) -> list[tuple[int, str]]:
    """What a reader can do without, as it is shown, each with its rank: the highest goes first."""
    texts = [(1, text) for text in _reasons(found)]
    gain = found.queued_gain if len(found.rows) > 1 else None
    if gain is not None and gain >= _ALIKE:
        texts.append(
            (4, f"Calls queued without waiting pay from about {gain:.0f} times smaller sizes (report).")
        )
    texts.append((3, _range_line(analysis, found)))
    if found.others:
        texts.append((2, f"Measured too, and not shown: {', '.join(map(backend_text, found.others))}."))
    count = len(analysis.findings)
    if count:
        texts.append((0, f"{count} note{'s' if count != 1 else ''}: gpubench report --sections warnings"))
    return texts


def _range_line(analysis: Analysis, found: MachineAnswer) -> str:
    # One op shows all its situations, a table of many two of them.
    regimes = found.regimes if len(found.rows) > 1 else found.rows[0].cells if found.rows else ()
    cells = [cell for row in found.rows for regime, cell in row.cells.items() if regime in regimes]
    ranged = any(cell.kind == "range" for cell in cells) and not found.named
    texts = ["A range: the threshold lies in it."] if ranged else []
    timed = [row for row in analysis.cases if row.time is not None]
    noisy = sum(bool({"noisy", "unstable"} & set(row.findings)) for row in timed)
    texts += [f"{noisy} of {len(timed)} times are noisy."] if noisy else []
    used = used_sessions(analysis.run)
    sessions = analysis.run.settings.sessions if used is None else len(used)
    return " ".join([*texts, f"{sessions} session{'s' if sessions != 1 else ''}."])


def _reasons(found: MachineAnswer) -> list[str]:
    """Why cells say `?`; the situation goes, as what holds of one often holds of both."""
    whys: dict[str, list[str]] = {}
    for row in found.rows:
        for regime in found.regimes:
            cell = row.cells.get(regime)
            why = (
                "not measured"
                if cell is None
                else why_text(cell.why)
                if cell.kind == "open" and cell.why != ABOUT_EQUAL
                else ""
            )
            if why and row.op not in whys.setdefault(why, []):
                whys[why].append(row.op)
    whys = {why: ops for why, ops in whys.items() if ops}
    named_ops = "; ".join(
        f"{', '.join(ops) if len(ops) <= 4 else f'{len(ops)} ops'} ({why})" for why, ops in whys.items()
    )
    return [f"? no threshold: {named_ops}."] if whys and not found.named else []


def _table(grid: AnswerGrid) -> Table:
    """The grid as a table with one heading for each column."""
    columns = tuple(
        Column(f"{group}: {name}" if group and name else group or name, right=right)
        for group, name, right in zip(grid.spread(), grid.names, grid.right, strict=True)
    )
    return Table(columns=columns, rows=grid.rows)
