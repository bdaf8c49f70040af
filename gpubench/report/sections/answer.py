"""The answer on one screen: a sentence, both sides, a table, and how precise the answer is."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.answer import (
    OUT_OF_TIME,
    Absence,
    AnswerRow,
    BestImplementation,
    GpuTimes,
    MachineAnswer,
    Trouble,
    answer,
)
from gpubench.analysis.findings import findings
from gpubench.analysis.hybrid import shared_calls
from gpubench.analysis.roofline import overheads
from gpubench.analysis.samples import OTHER_USERS, count_sessions, seconds_of
from gpubench.analysis.thresholds import ALWAYS, AnswerCell, why_text
from gpubench.base import group_by
from gpubench.base.installation import quote
from gpubench.base.plugins.sections import section
from gpubench.base.streams import columns, cut, fill, printable, shorten
from gpubench.base.table import Cell, Line, Table, table_lines
from gpubench.base.units import count_noun, format_seconds, list_words
from gpubench.report.layout import RenderOptions, Section, visible
from gpubench.report.sections.answer_table import (
    answer_part,
    implementations_table,
    one_op_table,
    series_labels,
    sizes_table,
    thresholds_table,
    times_table,
)
from gpubench.report.sections.answer_text import (
    DETAILS,
    adapter_times,
    best_text,
    brief_text,
    disturbed_text,
    factor_text,
    left_out_functions,
    machine_sentences,
    named_size_text,
    noise_text,
    op_sentence,
    raising_functions,
    sizes_sentence,
    with_own_names,
)
from gpubench.report.sections.cases import merge_findings
from gpubench.report.sections.hybrid import shared_clause, shared_sentences
from gpubench.report.wording import backend_text, cpu_names, cpu_text, gpus_text, plain_text
from gpubench.result.case import WAITED
from gpubench.result.run import Failure, Run

KEY, TITLE = "answer", "Answer"
HEIGHT = 24  # lines of a screen
MOST_ROWS = 16  # a table with more rows is printed whole
_FEW_LINES = 10  # the most lines for one op at requested sizes
_SENTENCE_LINES = 3
_OPTION_ROOM = 32  # the columns of `26 notes: ... --sections warnings` without the command
_MOST_NAMES = 5  # the most names of ops that were not measured
_MOST_CODES = 3  # the most users' functions for which other code is faster
_MOST_SPLITS = 3  # the most sentences on splits; further splits are counted
_MOST_DTYPES = 2  # the most dtypes in the line of the sides; more are counted
_ALIKE = 1.5  # a line is shown only if break-evens differ by at least this factor
# The ranks of the lines below the table. Lines of the highest rank are dropped first. Needed lines are never dropped.
NEEDED, COUNTED, COMMANDS, REASONS, MORE, OTHERS, RANGE, QUEUED_GAIN, OVERHEADS = range(9)


class Screen(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the screen."""

    sentences: tuple[tuple[str, ...], ...]  # the first sentences, in several wordings, the longest first
    context: tuple[str, ...]  # the lines that name the devices
    table: Table | None  # the break-evens and gains; None if nothing was compared
    troubles: tuple[str, ...]  # failures and wrong results; if there is no room for them, they are counted
    notes: tuple[tuple[int, str], ...]  # further lines, each with its rank
    files: tuple[str, ...]  # the lines with file names, which are never wrapped
    commands: str = ""  # the last line, with commands for further reports; empty: none
    command: str = "gpubench report"  # the command that shows the lines that were left out
    most: int  # the most lines of the screen


@section("answer", order=30, help="From which size on the GPU pays, and by how much")
def answer_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Return the section of the answer: the final screen, or in a full report sentences and a table."""
    alone = tuple(options.sections) == (KEY,) and not options.full and bool(options.command)
    screen = make_screen(analysis, options, alone=alone)
    if not options.full:
        return Section(title="", screen=tuple(screen_lines(screen, options.width)))
    below = (*screen.troubles, *(text for _, text in screen.notes), *screen.files)
    tables = (screen.table,) if screen.table is not None and screen.table.rows else ()
    return Section(title=TITLE, lines=(*screen.sentences[0], *screen.context, *below), tables=tables)


def answer_screen(
    analysis: Analysis, options: RenderOptions, *, saved: Sequence[str] = (), more: Sequence[str] = (),
    height: int = HEIGHT,
) -> list[Line]:  # fmt: skip
    """Return the lines of the screen at the end of a run. It names the `saved` files, and the sections `more`
    that `--full` adds. If the table is long and the screen exceeds `height` lines, the sentence is repeated at
    the end. The last line names commands, unless `options.command` is empty."""
    screen = make_screen(analysis, options, saved, more, alone=bool(options.command))
    return screen_lines(screen, options.width, height)


def brief_answer(analysis: Analysis) -> str:
    """Return the answer in a few words, for a line in a list of runs."""
    brief = answer(analysis, thresholds=False)
    # The text for several ops counts wins. The text for one op needs its break-even.
    alone = len(brief.first) == 1
    answered = with_own_names(answer(analysis) if alone else brief, analysis.run)
    if answered.absence is None:
        return brief_text(answered)
    own = answer_part(analysis, alone=True).sentences
    if own:
        return own[0].rstrip(".")
    kind, ops = answered.absence.kind, {winner.op for winner in answered.implementations}
    better = {winner.op for winner in answered.implementations if winner.ratio is not None}
    faster = f": faster than {plain_text(answered.cpu)} for {len(better)} of {len(ops)}" if ops else ""
    return (_BRIEF.get(kind) or _BEGIN[kind].partition(":")[0]) + faster


def answer_sentences(
    analysis: Analysis, backend: str | None = None, regimes: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Return the answer in sentences, then sentences on the splits and stage assignments that pay. `backend`
    replaces the fastest GPU backend, and `regimes` the regimes of the table."""
    answered = with_own_names(answer(analysis, backend=backend), analysis.run)
    return (
        *_first_lines(analysis, answered, regimes or answered.regimes)[0],
        *shared_sentences(shared_calls(analysis)),
    )


def screen_lines(screen: Screen, width: int, height: int = HEIGHT) -> list[Line]:
    """Return the lines of the screen. Only file names may exceed `width`. If the table has at most MOST_ROWS
    rows, notes are left out until `screen.most` lines suffice. With a longer table nothing is left out, and the
    sentence is repeated at the end if there are more than `height` lines."""
    table = [] if screen.table is None else table_lines(screen.table, width)
    sentence: list[str] = []
    for sentences in screen.sentences:
        sentence = [line for text in sentences for line in fill(text, width, "")]
        if len(sentence) <= _SENTENCE_LINES + (width < 64):
            break
    head = [*sentence, *(cut(text, width) for text in screen.context)]
    troubles = [cut(text, width) for text in screen.troubles]
    notes = [(rank, fill(text, width)) for rank, text in screen.notes]
    notes += [(NEEDED, [path]) for path in screen.files]
    notes += [(COMMANDS, [screen.commands])] if screen.commands else []
    short = screen.table is None or len(screen.table.rows) <= MOST_ROWS
    if short:
        room = screen.most - len(head) - len(table)
        needed = sum(len(lines) for rank, lines in notes if rank in (NEEDED, COMMANDS))
        if len(troubles) > 1 and len(troubles) + needed > room:
            troubles = [f"{len(troubles)} kinds of failures: {screen.command} --sections skipped"]
        while sum(len(lines) for _, lines in notes) > room - len(troubles):
            last = max((rank for rank, _ in notes), default=NEEDED)
            if last == NEEDED:
                break
            notes = [note for note in notes if note[0] != last]
    below = [*troubles, *(line for _, lines in notes for line in lines)]
    drawn = [*_plain(head), *table, *_plain(below)]
    return [*drawn, *_plain(sentence)] if not short and len(drawn) > height else drawn


def _plain(texts: Sequence[str]) -> list[Line]:
    return [(Cell(text),) for text in texts]


def make_screen(
    analysis: Analysis, options: RenderOptions, saved: Sequence[str] = (), more: Sequence[str] = (), *, alone: bool,
    backend: str | None = None,
) -> Screen:  # fmt: skip
    """Return the content of the final screen. It names the `saved` files, and the sections `more` that `--full`
    adds. `alone` means that no sections follow, so the screen names commands for them. `backend` replaces the
    fastest GPU backend."""
    run = analysis.run
    answered = with_own_names(answer(analysis, by_device=options.by_device, backend=backend), run)
    part = answer_part(analysis, alone=answered.absence is not None)
    needed = [
        *_best_code(answered),
        *_on_host(answered),
        *(adapter_times(analysis, options.time_unit) if answered.absence is not None else ()),
        *_allocations(answered),
        *_name_rest(run, answered),
        *left_out_functions(run, _short_command(options) if alone else ""),
        *raising_functions(run),
        *_splits(analysis, _short_command(options)),
        *(printable(f"{item.message}.") for item in run.warnings if item.code in ("listed-twice", "widens")),
        *part.needed,
    ]
    rest = [(MORE, f"--full adds {', '.join(more)}.")] if more else []
    looked = looked_for(run) if answered.absence is not None and part.table is None else ""
    sides = part.context or sides_line(run, answered, options.width)
    table = None if answered.times and part.times_below else answer_table(answered)
    screen = Screen(
        sentences=_first_lines(analysis, answered, answered.regimes), context=tuple(filter(None, (looked, sides))),
        table=part.table if table is None else table,
        troubles=(*_troubles(answered), *_lost(analysis), *_shared_gpus(run), *disturbed_text(analysis)),
        notes=(*_notes(analysis, answered, options, alone=alone), *((NEEDED, text) for text in needed), *rest),
        files=tuple(_ending(run, answered, [printable(path) for path in saved], options.width)),
        commands=_command_line(answered, options) if alone else "",
        command=_short_command(options), most=_most_lines(answered),
    )  # fmt: skip
    drawn: Screen = visible(screen, ascii_only=True) if options.ascii_only else screen
    return drawn


def _first_lines(
    analysis: Analysis, answered: MachineAnswer, regimes: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    """Return the first sentences in several wordings, the longest first: the answer, or why there is none."""
    if answered.absence is not None:
        own = answer_part(analysis, alone=True).sentences
        if own:
            return (own,)
        texts = absence_sentences(answered, answered.absence)
        ops = answered.implementations
        figures = [implementation for implementation in ops if implementation.ratio is not None]
        one_op = len({implementation.op for implementation in ops}) == 1
        seconds = {second for best in figures for second in (best.plain_s, best.best_s)} if one_op else set()
        return tuple((*lines[:-1], lines[-1] + noise_text(analysis, seconds)) for lines in texts)
    first = answered.first
    sentence = sizes_sentence if answered.named else op_sentence
    wordings = (
        [[sentence(first[0], regimes)]]
        if len(first) == 1
        else [machine_sentences(answered, detail, regimes) for detail in DETAILS]
    )
    split = shared_clause(shared_calls(analysis), first, regimes)
    end = f"; {split}." if split else "."
    cells = [first[0].cells.get(regime) for regime in regimes] if answered.named and len(first) == 1 else []
    gains = [gain for cell in cells if cell is not None for gain in cell.gains]
    end += noise_text(analysis, {second for gain in gains for second in (gain.cpu_s, gain.gpu_s)})
    return tuple((*texts[:-1], texts[-1].removesuffix(".") + end) for texts in wordings)


def answer_table(answered: MachineAnswer) -> Table | None:
    """Return the table of the answer, or None if nothing has a time."""
    if answered.absence is not None:
        if answered.times:
            return times_table(answered)
        return implementations_table(answered) if answered.implementations else None
    if answered.named:
        return sizes_table(answered)
    if len(answered.rows) == 1:
        return one_op_table(answered.rows[0])
    return thresholds_table(answered)


def _most_lines(answered: MachineAnswer) -> int:
    """Return how many lines the screen may have. A run of one op at one or two sizes has a short screen."""
    if not answered.named or len(answered.rows) > 1:
        return HEIGHT
    sizes = {gain.n for cell in answered.rows[0].cells.values() for gain in cell.gains}
    return _FEW_LINES if len(sizes) <= 2 else HEIGHT


def _short_command(options: RenderOptions) -> str:
    """Return the command that reports the run, or a short form if it leaves no room for an option."""
    named = options.command or "gpubench report"
    return named if columns(named) + _OPTION_ROOM <= options.width else "gpubench report FILE"


def _command_line(answered: MachineAnswer, options: RenderOptions) -> str:
    """Return the commands that show more, as many as `options.width` has room for."""
    others = f"   {', '.join(map(backend_text, answered.others))}: --by-device" if answered.others else ""
    texts = [f"all: {options.command} --full", "   page: -o r.html", others]
    lines = ["".join(texts[:end]) for end in (3, 2, 1)]
    return next((line for line in lines if columns(line) <= options.width), lines[-1])


def _best_code(answered: MachineAnswer) -> list[str]:
    """Return sentences on users' functions for which other code than the user's is faster."""
    texts = []
    for code in answered.best_code[:_MOST_CODES]:
        cpu, text = code.cpu, "no other code is faster on the CPU"
        if cpu is not None and cpu.ratio is not None:
            compiled = cpu.implementation == "tuned"
            name = "compiled as one kernel" if compiled else f"by {backend_text(cpu.device_id or '')}"
            gain = factor_text(cpu.ratio, cpu.within)
            text = f"{name} {gain} as fast as NumPy at {named_size_text(cpu.n, cpu.size_unit)}"
        both = [best_text(code.cells.get(regime), code, named=answered.named) for regime in (WAITED, ALWAYS)]
        dtype = f" {code.dtype}" if len({other.dtype for other in answered.best_code}) > 1 else ""
        texts.append(f"{code.op}{dtype}: {text}; at the best of both sides {both[0]}, copied {both[1]}.")
    more = len(answered.best_code) - _MOST_CODES
    return [*texts, *([f"Other code is faster for {more} more."] if more > 0 else [])]


def _on_host(answered: MachineAnswer) -> list[str]:
    """Return a sentence with the CPU times of the ops that no GPU can run."""
    times = [
        f"{label} {format_seconds(winner.plain_s or winner.best_s)} at "
        f"{named_size_text(winner.n, winner.size_unit)}"
        for label, winner in zip(series_labels(answered.host), answered.host, strict=True)
    ]
    return [f"On the host in any case: {list_words(times)}."] if times else []


def _allocations(answered: MachineAnswer) -> list[str]:
    """Return a sentence that names the ops whose result plain NumPy allocates, if faster code for them exists.
    Without such ops, the list is empty."""
    better = {winner.op for winner in answered.implementations if winner.ratio is not None}
    allocating = dict.fromkeys(winner.op for winner in answered.implementations if winner.allocates)
    ops = [op for op in allocating if op in better]
    if not ops:
        return []
    every = len(ops) == len({winner.op for winner in answered.implementations})
    some = list_words(ops) if len(ops) <= _MOST_NAMES else f"{len(ops)} ops"
    whose = "" if every else f" of {some}"
    return [
        f"Plain NumPy allocates its result{whose} at every call; tuned code writes into an array that is there."
    ]


def _name_rest(run: Run, answered: MachineAnswer) -> list[str]:
    """Return a sentence with the ops and sizes that the time budget did not reach, if there are any."""
    if not run.complete:
        return []  # `_ending` tells it
    if not (answered.rows or answered.implementations or answered.times):
        failed = any(isinstance(outcome, Failure) for outcome in run.outcomes)  # more time does not help
        over = not failed and answered.absence is not None and OUT_OF_TIME in answered.absence.causes
        budget = run.settings.budget_s
        return [f"{budget:g} s end before anything is timed: raise --budget."] if over and budget else []
    sizes = [f"{op} at {named_size_text(n, size_unit)}" for op, n, size_unit in answered.late]
    names = [*answered.missing, *sizes]
    if not names:
        return []
    what = list_words(names)
    if len(names) > _MOST_NAMES:
        counts = [f"{len(answered.missing)} of {answered.ops} ops"] if answered.missing else []
        what = list_words([*counts, *([count_noun(len(sizes), "size")] if sizes else [])])
    return [f"Not measured in time: {what}. A larger --budget measures more."]


def _splits(analysis: Analysis, command: str) -> list[str]:
    """Return sentences on the splits that pay, or one sentence if none pays. The list is empty if no split
    was measured."""
    calls = shared_calls(analysis)
    if not calls:
        return []
    texts = shared_sentences(calls)
    more = len(texts) - _MOST_SPLITS
    rest = [f"{more} more splits pay: {command} --sections hybrid"] if more > 0 else []
    return [*texts[:_MOST_SPLITS], *rest] or ["No op is faster when it is split over CPU and GPU."]


# The wordings of the line that names both sides: the word between them, whether the CPU's libraries have short
# names (None: no names), and the most characters of a GPU's name.
_WORDINGS = (
    ("against", False, 40), ("against", True, 40), ("vs", True, 40), ("against", None, 40), ("against", None, 20),
)  # fmt: skip


def sides_line(run: Run, answered: MachineAnswer, width: int) -> str:
    """Return a line such as `NVIDIA H200 (CuPy) against 16 CPU threads (numba, OpenBLAS), float32.`, in the
    first wording that fits into `width`. Returns an empty text if nothing has a time."""
    timed: list[AnswerRow | BestImplementation | GpuTimes] = [
        *answered.rows,
        *answered.implementations,
        *answered.times,
    ]
    if not timed:
        return ""
    ids = answered.devices or dict.fromkeys(entry.device_id for entry in answered.times)
    dtypes = sorted({entry.dtype for entry in timed})
    text = ""
    for between, short, length in _WORDINGS:
        gpus = gpus_text(run, ids, length)
        cpu = cpu_text(run, [] if short is None else cpu_names(answered.cpu, short=short))
        sides = gpus if answered.times else f"{gpus} {between} {cpu}" if answered.devices else cpu
        parts = [sides, *(dtypes if len(dtypes) <= _MOST_DTYPES else [f"{len(dtypes)} dtypes"])]
        parts += ["page-locked arrays"] if run.page_locked else []
        text = ", ".join(parts)
        text = f"{text[:1].upper()}{text[1:]}."
        if columns(text) <= width:
            break
    return text


def _troubles(answered: MachineAnswer) -> list[str]:
    texts = [
        f"{_ops(item)} gave wrong numbers ({printable(item.detail)}): not timed" for item in answered.wrong
    ]
    for item in answered.broken:
        what = f"{backend_text(item.backend)} gave no time" if item.whole else f"{_ops(item)} failed"
        texts.append(f"{what}: {'; '.join(map(printable, filter(None, (item.detail, item.hint))))}")
    return texts


def _lost(analysis: Analysis) -> list[str]:
    """Return sentences on cases that have a time but failed in some sessions."""
    return [
        printable(entry.message.replace("these cases", count_noun(len(entry.ids), "case")))
        for entry in findings(analysis)
        if entry.code == "session-failed"
    ]


def _shared_gpus(run: Run) -> list[str]:
    """Return sentences that name GPUs whose times are too long because another process used them."""
    answered = [item for item in run.warnings if item.code == OTHER_USERS and item.severity == "warning"]
    places = dict.fromkeys(printable(str(item.data.get("devices", "a GPU"))) for item in answered)
    return [f"Another process computed on {place}: times there are too long." for place in places]


def _ops(item: Trouble) -> str:
    names = list_words(item.ops) if len(item.ops) <= 3 else f"{len(item.ops)} ops"
    return f"{names} on {backend_text(item.backend)}"


def _ending(run: Run, answered: MachineAnswer, saved: Sequence[str], width: int) -> list[str]:
    """Return lines with the saved files. An interrupted run has lines on what is missing and how to go on."""
    if run.complete or run.exit_reason != "interrupted":
        return [f"saved {path}" for path in saved]
    seconds, budget = seconds_of(run), run.settings.budget_s
    limit = f" of {budget:.0f}" if budget and not run.paused_s else ""  # a continued run had several budgets
    after = "" if seconds is None else f" at {seconds:.0f}{limit} s"
    if answered.missing:
        some = f"{len(answered.missing)} of {answered.ops} ops not measured"
        lost = some if answered.ops > 1 else "nothing measured"
    elif answered.unreached:
        lost = f"{count_noun(answered.unreached, 'case')} not measured"
    elif not run.outcomes:
        lost = "nothing measured"
    elif not all(run.selection.sizes.get(op) for op in run.selection.ops):
        # This run chose its sizes, so no size is missing.
        lost = "every op was reached; more sizes would narrow the break-evens"
    else:
        lost = "every case was reached, but not in every session"
    texts = [f"Stopped{after}: {lost}."]
    # What was not saved, because nothing was measured, is no file to go on with.
    if saved or run.measurements:
        texts.append(f"Go on: gpubench run --append {quote(saved[0]) if saved else 'FILE'}")
    return texts if columns(" ".join(texts)) > width else [" ".join(texts)]


def _notes(
    analysis: Analysis, answered: MachineAnswer, options: RenderOptions, *, alone: bool
) -> list[tuple[int, str]]:
    """Return the lines that may be left out, as pairs (rank, text)."""
    texts = [(REASONS, text) for text in _reasons(answered)]
    gain = answered.queued_gain
    if gain is not None and gain >= _ALIKE:
        texts.append(
            (QUEUED_GAIN, f"Calls queued without waiting pay from about {gain:.0f} times smaller sizes.")
        )
    if answered.others and not alone:
        how = "" if options.full else " (--by-device)"
        texts.append((OTHERS, f"Measured too: {', '.join(map(backend_text, answered.others))}{how}."))
    if overheads(analysis).rows and answered.ops and alone:
        texts.append((OVERHEADS, f"Overheads: {_short_command(options)} --sections breakdown"))
    limits = _range_line(analysis, answered)
    count = len(merge_findings(findings(analysis)))
    if not (count and alone):
        return [*texts, (RANGE, limits)]
    notes = f"{count_noun(count, 'note')}: {_short_command(options)} --sections warnings"
    if columns(f"{limits} {notes}") <= options.width:
        return [*texts, (COUNTED, f"{limits} {notes}")]
    return [*texts, (RANGE, limits), (COUNTED, notes)]


def _range_line(analysis: Analysis, answered: MachineAnswer) -> str:
    """Return a sentence on how precise the break-evens are, with the numbers of sessions and seconds."""
    # A table of one op shows all situations. A table of several ops shows only the situations of the answer.
    regimes = answered.regimes if len(answered.rows) > 1 else answered.rows[0].cells if answered.rows else ()
    cells = [cell for entry in answered.rows for regime, cell in entry.cells.items() if regime in regimes]
    seconds = seconds_of(analysis.run)
    took = "" if seconds is None else f", {seconds:.0f} s"
    sessions = count_noun(count_sessions(analysis.run), "session")
    return f"{' '.join([*([] if answered.named else _sureness(cells)), sessions])}{took}."


def _sureness(cells: Sequence[AnswerCell]) -> list[str]:
    """Return a sentence such as `Break-evens: 9 within 1.5x, 5 within 2x.`, if there are break-evens."""
    thresholds = [cell for cell in cells if cell.kind in ("at", "range")]
    sharp = sum(cell.sharp for cell in thresholds)
    rough = sum(cell.kind == "at" and not cell.sharp for cell in thresholds)
    wide = len(thresholds) - sharp - rough
    counts = {"within 1.5x": sharp, "within 2x": rough, "within a range": wide}
    texts = [f"{count} {how}" for how, count in counts.items() if count]
    return [f"Break-evens: {', '.join(texts)}."] if texts else []


def _reasons(answered: MachineAnswer) -> list[str]:
    """Return a line with the reasons for the cells that are `?`, or an empty list without such cells."""
    whys = [
        (entry.op, "not measured" if cell is None else why_text(cell.reason))
        for entry in answered.rows
        if {cell.reason for cell in entry.cells.values()} != {"bad-function"}
        for cell in map(entry.cells.get, answered.regimes)
        if cell is None or (cell.kind == "open" and not cell.tied)
    ]
    texts = []
    for why, pairs in group_by(whys, lambda pair: pair[1]).items():
        ops = list(dict.fromkeys(op for op, _ in pairs))
        texts.append(f"{', '.join(ops) if len(ops) <= 4 else f'{len(ops)} ops'} ({why})")
    return [f"? break-even unknown: {'; '.join(texts)}."] if texts and not answered.named else []


_MISSING = "No module named"  # the words of Python's message for a package that is not installed
_ADAPTER = re.compile(r"(\S+) \((.+)\) is a software adapter")
MOST_IMPLEMENTATIONS = 6  # the most names of ops in the sentence
_BEGIN = {
    "no-gpu": "No GPU here: compute on the CPU", "not-asked": "No GPU was measured", "no-time": "The GPU gave no time",
    "wrong": "The GPU gave wrong numbers", "hidden": "No case of a GPU is among those shown",
}  # fmt: skip

_BRIEF = {
    "checked": "checked, not timed", "nothing": "nothing measured", "overheads": "overheads alone",
    "no-cpu": "the GPU alone, and no CPU beside it",
}  # fmt: skip


def absence_sentences(answered: MachineAnswer, why: Absence) -> tuple[tuple[str, ...], ...]:
    """Return the sentence on why CPU and GPU are not compared, in one or two wordings. The first wording names
    the ops that have faster CPU code."""
    if why.kind == "checked":
        right = "1 case is right" if why.checked == 1 else f"{why.checked} cases are right"
        were = "was" if why.unchecked == 1 else "were"
        others = f", {why.unchecked} {were} not checked" if why.unchecked else ""
        return ((f"{right}{others}; nothing was timed (--check-only).",),)
    if why.kind == "nothing":
        return ((f"Nothing was measured{_because(why)}.",),)
    if why.kind == "overheads":
        return ((f"Overheads were measured, and no op{_because(why)}: there is nothing to compare.",),)
    if why.kind == "no-cpu":
        return (("The GPU was measured, and no CPU beside it: there is nothing to compare with.",),)
    begin = _BEGIN[why.kind] + ("" if why.kind == "no-gpu" else _because(why))
    best = " Without numba the CPU is not at its best." if any(code.weaker for code in answered.cpu) else ""
    return tuple((f"{begin}{rest}{best}",) for rest in _implementations(answered))


def _because(why: Absence) -> str:
    causes = "; ".join(shorten(cause.rstrip("."), 240) for cause in why.causes[:2])
    return f" ({causes})" if causes else ""


def _implementations(answered: MachineAnswer) -> tuple[str, ...]:
    """Return the end of the sentence in one or two wordings, the longer first: whether faster CPU code
    exists."""
    ops = len({winner.op for winner in answered.implementations})
    better = list(dict.fromkeys(winner.op for winner in answered.implementations if winner.ratio is not None))
    if not any(winner.plain_s is not None for winner in answered.implementations):
        return (".",)
    plain = plain_text(answered.cpu)
    if not better and answered.missing:
        return (f". The time sufficed for {ops} of {answered.ops} ops: no faster code than {plain} there.",)
    if not better:
        return (f". No faster code than {plain} was measured.",)
    if ops == 1:
        gains = [
            (winner.ratio, winner.within) for winner in answered.implementations if winner.ratio is not None
        ]
        gain = factor_text(*max(gains))
        return (f". Faster code than plain NumPy exists for {better[0]}: up to {gain}.",)
    share = f"{len(better)} of {ops} ops"
    if len(better) == ops:
        share = "both ops" if ops == 2 else f"all {ops} ops"
    counted = f". Faster code than plain NumPy exists for {share}"
    return (
        f"{counted}: {list_words(better)}." if len(better) <= MOST_IMPLEMENTATIONS else f"{counted}.",
        f"{counted}.",
    )


def looked_for(run: Run) -> str:
    """Return a line with the backends that gave no GPU, and the reasons, or an empty text without such
    backends."""
    answered: dict[str, str] = {}
    for warning in run.warnings:
        backend, _, why = warning.message.partition(":")
        name = str(warning.data.get("backend") or backend)
        if warning.code == "unavailable" and name not in ("torch", "numpy", "hybrid"):
            why = (why or warning.message).strip().removeprefix(f"{backend_text(name)} ")
            answered.setdefault(backend_text(name), "not installed" if _MISSING in why else shorten(why, 50))
        elif warning.code == "software-device" and (adapter := _ADAPTER.match(warning.message)):
            answered.setdefault(backend_text(adapter[1]), _software(adapter[2]))
    software = [device for device in run.devices if device.kind == "software" and not device.composed]
    answered |= {backend_text(device.id): _software(device.name) for device in software}
    texts = [f"{shorten(name, 20)} ({printable(why)})" for name, why in answered.items()]
    return f"Looked for: {', '.join(texts)}." if texts else ""


def _software(name: str) -> str:
    """Return a text such as `llvmpipe: not a GPU`, without the versions in brackets after the name."""
    return f"{shorten(name.partition(' (')[0], 30)}: not a GPU"
