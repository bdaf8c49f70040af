"""The answer on one screen: a sentence, the two sides, a table of two situations, and what limits it; or why
no GPU was compared with a CPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.answer import OUT_OF_TIME, Absence, BestCode, MachineAnswer, Trouble, answer
from gpubench.analysis.findings import findings
from gpubench.analysis.hybrid import shared_calls
from gpubench.analysis.labels import OTHER_USERS
from gpubench.analysis.overheads import overheads
from gpubench.analysis.samples import count_sessions, seconds_of
from gpubench.analysis.thresholds import ALWAYS, AnswerCell, cell_text, why_text
from gpubench.base.escaping import columns, cut, filled, printable, shortened
from gpubench.base.installation import quote
from gpubench.base.plugins.sections import section
from gpubench.base.table import Cell, Line, Table, table_lines
from gpubench.base.units import format_seconds, listed
from gpubench.report.layout import RenderOptions, Section, visible
from gpubench.report.sections.answer_table import (
    answer_part,
    forms_table,
    one_op_table,
    sizes_table,
    thresholds_table,
    times_table,
)
from gpubench.report.sections.answer_text import (
    DETAILS,
    backend_text,
    factor_text,
    gain_text,
    left_out_functions,
    machine_sentences,
    named_size_text,
    op_sentence,
    raising_functions,
    sizes_sentence,
    with_own_names,
)
from gpubench.report.sections.baseline import cpu_names, plain_text, threads_text
from gpubench.report.sections.hybrid import shared_sentences
from gpubench.report.sections.problems import merged
from gpubench.result.case import WAITED
from gpubench.result.run import Run

KEY, TITLE = "answer", "Answer"
HEIGHT, MOST_ROWS = 24, 16  # a screen; of more rows all are printed
_FEW_LINES = 10  # of one op at sizes that were asked for
_SENTENCE_LINES = 3
_COMMANDS = "all: gpubench report   page: gpubench report -o r.html"
_MOST_NAMES = 5  # of ops that were not measured
_MOST_CODES = 3  # users' functions by other code than theirs
_MOST_SPLITS = 3  # sentences on splits; the others are counted
_MOST_DTYPES = 2  # of more their number; each row has its own
_ALIKE = 1.5  # thresholds that differ by less are not worth a line


class Screen(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn. `needed` lines below the table stay, and those of `files` are never broken; `spare` ones, each
    with its rank, go where there is no room, the highest rank first. `troubles` say what was wrong or failed: they
    become one line before any of them goes. `commands` is the last line, and has the least to say."""

    sentences: tuple[tuple[str, ...], ...]
    context: tuple[str, ...]
    table: Table | None
    troubles: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    spare: tuple[tuple[int, str], ...] = ()
    commands: str = ""
    most: int = HEIGHT


@section("answer", order=30, help="From which size on the GPU pays, and by how much")
def answer_section(analysis: Analysis, options: RenderOptions) -> Section:
    """Draw the screen as it is for a terminal and for plain text; in full as sentences and a table."""
    # Alone, nothing follows that says more.
    screen = _screen(analysis, options, alone=tuple(options.sections) == (KEY,) and not options.full)
    if not options.full:
        return Section(title="", screen=tuple(screen_lines(screen, options.width)))
    below = (*screen.troubles, *screen.needed, *(text for _, text in screen.spare))
    tables = (screen.table,) if screen.table is not None and screen.table.rows else ()
    lines = (*screen.sentences[0], *screen.context, *below)
    return Section(title=TITLE, lines=lines, tables=tables)


def answer_screen(
    analysis: Analysis, options: RenderOptions, *, saved: Sequence[str] = (), height: int = HEIGHT
) -> list[Line]:
    """What a run ends with. `saved`: the files; `height`: lines of the terminal, above which the sentence is repeated
    as the last line. A run without files names no command that reads one."""
    return screen_lines(_screen(analysis, options, saved, alone=bool(saved)), options.width, height)


def answer_sentences(analysis: Analysis) -> tuple[str, ...]:
    """What the run says in words: of the machine, then of splits and placements that pay."""
    return (
        *_first_lines(analysis, with_own_names(answer(analysis)))[0],
        *shared_sentences(shared_calls(analysis)),
    )


def screen_lines(screen: Screen, width: int, height: int = HEIGHT) -> list[Line]:
    """At most 24 lines of a table of at most 16 rows, none wider than `width` but for the name of a file."""
    table = [] if screen.table is None else table_lines(screen.table, width)
    short = screen.table is None or len(screen.table.rows) <= MOST_ROWS
    sentence = _sentence_lines(screen.sentences, width, one_more=width < 64)
    context = [cut(text, width) for text in screen.context]
    head = _plain([*sentence, *context])
    needed = [*(line for text in screen.needed for line in filled(text, width)), *screen.files]
    troubles = [cut(text, width) for text in screen.troubles]
    commands = [cut(screen.commands, width)] if screen.commands else []
    spare = {rank: filled(text, width) for rank, text in screen.spare}
    fixed = len(head) + len(table) + len(needed)
    if short:
        if fixed + len(troubles) + len(commands) > screen.most and len(troubles) > 1:
            troubles = [cut(f"{len(troubles)} kinds of failures: gpubench report --sections skipped", width)]
        if fixed + len(troubles) + len(commands) + _counted(spare) > screen.most:
            commands = []
        room = screen.most - fixed - len(troubles) - len(commands)
        while spare and sum(map(len, spare.values())) > room:
            del spare[max(spare)]
    notes = [line for rank, _ in screen.spare for line in spare.get(rank, ())]
    below = _plain([*troubles, *notes, *needed, *commands])
    found = [*head, *table, *below]
    return [*found, *_plain(sentence)] if not short and len(found) > height else found


def _counted(spare: Mapping[int, Sequence[str]]) -> int:
    """Lines of what is counted rather than said: they stay longer than the commands."""
    return len(spare.get(0, ()))


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


def _screen(
    analysis: Analysis, options: RenderOptions, saved: Sequence[str] = (), *, alone: bool = True
) -> Screen:
    found = with_own_names(answer(analysis, by_device=options.by_device))
    part = answer_part(analysis, alone=found.absence is not None)
    needed = (
        *_best_code(found),
        *_on_host(found),
        *_allocations(found),
        *_unmeasured(analysis.run, found),
        *left_out_functions(analysis.run, alone=alone),
        *raising_functions(analysis.run),
        *_splits(analysis),
        *_adapters(analysis.run),
        *part.needed,
    )
    ending = _ending(analysis.run, found, [printable(path) for path in saved], options.width)
    # Why there is no GPU says what was looked for, as long as one could have been found.
    looked = looked_for(analysis.run) if found.absence is not None and part.table is None else ""
    sides = part.context or sides_line(analysis.run, found, options.width)
    table = None if found.times and part.times_below else answer_table(found)
    screen = Screen(
        sentences=_first_lines(analysis, found),
        table=part.table if table is None else table,
        context=tuple(text for text in (looked, sides) if text),
        troubles=(*_troubles(found), *_lost(analysis), *_shared_gpus(analysis)), needed=needed, files=tuple(ending),
        spare=tuple(_notes(analysis, found, options.width, alone=alone)), most=_most_lines(found),
        commands=_commands(found, options.width) if alone else "",
    )  # fmt: skip
    drawn: Screen = visible(screen, ascii_only=True) if options.ascii_only else screen
    return drawn


def _first_lines(analysis: Analysis, found: MachineAnswer) -> tuple[tuple[str, ...], ...]:
    """Return what a wing says of a run without a GPU beside a CPU, else the answer, in wordings that get shorter."""
    own = answer_part(analysis, alone=True).sentences if found.absence is not None else ()
    return (own,) if own else _sentences(found)


def _sentences(found: MachineAnswer) -> tuple[tuple[str, ...], ...]:
    if found.absence is not None:
        return absence_sentences(found, found.absence)
    first = [row for row in found.rows if row.device_id == found.devices[0]]
    if len(first) > 1 or (len(found.rows) > 1 and not first):
        return tuple(tuple(machine_sentences(found, detail)) for detail in DETAILS)
    if found.named:
        return ((sizes_sentence(first[0], found.regimes),),)
    return ((op_sentence(first[0], found.regimes),),)


def answer_table(found: MachineAnswer) -> Table | None:
    """None where nothing has a time."""
    if found.absence is not None:
        if found.times:
            return times_table(found)
        return forms_table(found) if found.forms else None
    if found.named:
        return sizes_table(found)
    if len(found.rows) == 1:
        return one_op_table(found.rows[0])
    return thresholds_table(found)


def _most_lines(found: MachineAnswer) -> int:
    """Two sizes of one op fit one glance."""
    if not found.named or len(found.rows) > 1:
        return HEIGHT
    sizes = {gain.n for cell in found.rows[0].cells.values() for gain in cell.gains}
    return _FEW_LINES if len(sizes) <= 2 else HEIGHT


def _commands(found: MachineAnswer, width: int) -> str:
    """How to see the rest; a narrow screen has no room for that of the other GPU backends."""
    others = f"   {', '.join(map(backend_text, found.others))}: --by-device" if found.others else ""
    return _COMMANDS + others if columns(_COMMANDS + others) <= width else _COMMANDS


def _best_code(found: MachineAnswer) -> list[str]:
    """Say what other code than the user's text gives: on the CPU, and on both sides at their best."""
    texts = []
    for code in found.best_code[:_MOST_CODES]:
        cpu, text = code.cpu, "no other code is faster on the CPU"
        if cpu is not None:
            name = (
                "compiled as one kernel" if cpu.form == "tuned" else f"by {backend_text(cpu.device_id or '')}"
            )
            gain = factor_text(cpu.ratio or 1.0, cpu.within)
            text = f"{name} {gain} as fast as NumPy at {named_size_text(cpu.n, cpu.extent)}"
        both = [_best_text(code.cells.get(regime), code, named=found.named) for regime in (WAITED, ALWAYS)]
        dtype = f" {code.dtype}" if len({other.dtype for other in found.best_code}) > 1 else ""
        texts.append(f"{code.op}{dtype}: {text}; at the best of both sides {both[0]}, copied {both[1]}.")
    more = len(found.best_code) - _MOST_CODES
    return [*texts, *([f"Other code is faster for {more} more."] if more > 0 else [])]


def _best_text(cell: AnswerCell | None, code: BestCode, *, named: bool) -> str:
    """`GPU 14x` at the largest size if sizes were named, else `the GPU pays from 23 K`."""
    if named and cell is not None and cell.gain is not None:
        return gain_text(cell.gain)
    text = cell_text(cell, code.extent)
    return text if code.cells.get(ALWAYS) is cell else f"the GPU pays from {text}"


def _on_host(found: MachineAnswer) -> list[str]:
    """What takes its time on the CPU whatever the mode."""
    times = [
        f"{form.op} {format_seconds(form.plain_s or form.best_s)} at {named_size_text(form.n, form.extent)}"
        for form in found.host
    ]
    return [f"On the host in any case: {listed(times)}."] if times else []


def _allocations(found: MachineAnswer) -> list[str]:
    """Why plain NumPy is slower even where it computes as fast; nothing where no other form wins."""
    better = {form.op for form in found.forms if form.ratio is not None}
    ops = [op for op in dict.fromkeys(form.op for form in found.forms if form.allocates) if op in better]
    if not ops:
        return []
    whose = "" if len(ops) == len({form.op for form in found.forms}) else f" of {listed(ops)}"
    whose = whose if len(ops) <= _MOST_NAMES or not whose else f" of {len(ops)} ops"
    return [
        f"Plain NumPy allocates its result{whose} at every call; tuned forms write into an array that is there."
    ]


def _unmeasured(run: Run, found: MachineAnswer) -> list[str]:
    """Ops and named sizes for which the time did not suffice; of an interrupted run the line of its end counts them."""
    if not run.complete:
        return []
    if not (found.rows or found.forms or found.times):
        over = found.absence is not None and OUT_OF_TIME in found.absence.causes
        budget = run.settings.budget_s
        return [f"{budget:g} s end before anything is timed: raise --budget."] if over and budget else []
    sizes = [f"{op} at {named_size_text(n, extent)}" for op, n, extent in found.late]
    names = [*found.missing, *sizes]
    if not names:
        return []
    what = listed(names)
    if len(names) > _MOST_NAMES:
        counts = [f"{len(found.missing)} of {found.ops} ops"] if found.missing else []
        what = listed([*counts, *([f"{len(sizes)} sizes"] if sizes else [])])
    return [f"Not measured in time: {what}. A larger --budget measures more."]


_NO_GAIN = "No op is faster when it is split over CPU and GPU."


def _splits(analysis: Analysis) -> list[str]:
    """Where two sides pay, as far as that was measured."""
    calls = shared_calls(analysis)
    if not calls:
        return []
    texts = shared_sentences(calls)
    more = len(texts) - _MOST_SPLITS
    rest = [f"{more} more splits pay: gpubench report --sections hybrid"] if more > 0 else []
    return [*texts[:_MOST_SPLITS], *rest] or [_NO_GAIN]


class _Wording(NamedTuple):
    """How the line of both sides says it: `names` of what computes on the CPU, `length` of a GPU's name."""

    between: str = "against"
    names: Literal["all", "short", "none"] = "all"
    seconds: bool = True
    length: int = 40


_WORDINGS = (
    _Wording(), _Wording(names="short"), _Wording("vs", names="short"), _Wording("vs", names="short", seconds=False),
    _Wording(names="none"), _Wording(names="none", length=20),
)  # fmt: skip


def sides_line(run: Run, found: MachineAnswer, width: int) -> str:
    """`NVIDIA H200 (CuPy) against 16 CPU threads (numba, OpenBLAS), float32, 55 s.`, in one line: where it is too long
    with shorter names of the CPU's code, then without the seconds, then without these names, then with the GPU's name
    cut."""
    texts = [_sides_text(run, found, wording) for wording in _WORDINGS]
    return next((text for text in texts if columns(text) <= width), texts[-1])


def _sides_text(run: Run, found: MachineAnswer, wording: _Wording) -> str:
    if not (found.rows or found.forms or found.times):
        return ""  # neither side has a time
    names = [] if wording.names == "none" else cpu_names(found.cpu, short=wording.names == "short")
    cpu = threads_text(run) + (f" ({', '.join(names)})" if names else "")
    gpus = _gpus(run, found, wording.length)
    sides = gpus if found.times else f"{gpus} {wording.between} {cpu}" if found.devices else cpu
    dtypes = sorted(
        {one.dtype for one in found.rows}
        | {one.dtype for one in found.forms}
        | {one.dtype for one in found.times}
    )
    parts = [sides, *(dtypes if len(dtypes) <= _MOST_DTYPES else [f"{len(dtypes)} dtypes"])]
    parts += [_seconds_text(run)] if wording.seconds else []
    text = ", ".join(filter(None, parts))
    return text[:1].upper() + text[1:] + "."


def _seconds_text(run: Run) -> str:
    seconds = seconds_of(run)
    return "" if seconds is None else f"{seconds:.0f} s"


def _gpus(run: Run, found: MachineAnswer, length: int) -> str:
    """`NVIDIA H200 (CuPy, WebGPU)`: the GPUs of one name with the backends that drive them. A GPU that backends name
    differently has the name that comes first."""
    names: dict[str, str] = {}
    for device in run.devices:
        names.setdefault(device.gpu_id or device.id, shortened(device.name, length))
    gpus = {device.id: device.gpu_id or device.id for device in run.devices}
    by_name: dict[str, dict[str, set[str]]] = {}
    for device_id in found.devices or dict.fromkeys(row.device_id for row in found.times):
        gpu = gpus.get(device_id, device_id)
        driven = by_name.setdefault(names.get(gpu, device_id), {})
        driven.setdefault(backend_text(device_id), set()).add(gpu)
    texts = []
    for name, driven in by_name.items():
        count = max(map(len, driven.values()))
        texts.append(f"{name if count == 1 else f'{count} x {name}'} ({', '.join(driven)})")
    return ", ".join(texts)


def _troubles(found: MachineAnswer) -> list[str]:
    texts = [f"{_ops(one)} gave wrong numbers ({printable(one.detail)}): not timed" for one in found.wrong]
    for one in found.broken:
        what = f"{backend_text(one.backend)} gave no time" if one.whole else f"{_ops(one)} failed"
        texts.append(f"{what}: {printable(one.detail)}" + (f"; {printable(one.hint)}" if one.hint else ""))
    return texts


def _lost(analysis: Analysis) -> list[str]:
    """What broke in one session alone: the case has a number, and the run ends as one that failed."""
    return [
        printable(row.message.replace("these cases", f"{len(row.ids)} case{'s' if len(row.ids) != 1 else ''}"))
        for row in findings(analysis)
        if row.code == "session-failed"
    ]


def _shared_gpus(analysis: Analysis) -> list[str]:
    """GPUs on which others computed meanwhile: their times are too long."""
    found = [one for one in analysis.run.warnings if one.code == OTHER_USERS and one.severity == "warning"]
    places = dict.fromkeys(printable(str(one.data.get("devices", "a GPU"))) for one in found)
    return [f"Another process computed on {place}: times there are too long." for place in places]


def _adapters(run: Run) -> list[str]:
    """GPUs that a backend lists several times, and which adapter was measured."""
    return [printable(f"{one.message}.") for one in run.warnings if one.code == "listed-twice"]


def _ops(one: Trouble) -> str:
    names = listed(one.ops) if len(one.ops) <= 3 else f"{len(one.ops)} ops"
    return f"{names} on {backend_text(one.backend)}"


def _ending(run: Run, found: MachineAnswer, saved: Sequence[str], width: int) -> list[str]:
    """Where the files are; of an interrupted run how to go on with the first."""
    if run.complete or run.exit_reason != "interrupted":
        return [f"saved {path}" for path in saved]
    seconds, budget = seconds_of(run), run.settings.budget_s
    limit = f" of {budget:.0f}" if budget and not run.paused_s else ""  # a budget is that of one command
    after = "" if seconds is None else f" at {seconds:.0f}{limit} s"
    lost = "every case was reached, but not in every session"
    if not all(
        run.selection.sizes.get(op) for op in run.selection.ops
    ):  # a search lacks no size that it has not chosen
        lost = "every op was reached; more sizes would narrow the thresholds"
    if found.missing:
        lost = f"{len(found.missing)} of {found.ops} ops not measured" if found.ops > 1 else "nothing measured"
    elif found.unreached:
        lost = f"{found.unreached} case{'s' if found.unreached != 1 else ''} not measured"
    texts = [
        f"Stopped{after}: {lost}.",
        f"Go on: gpubench run --append {quote(saved[0]) if saved else 'FILE'}",
    ]
    return texts if columns(" ".join(texts)) > width else [" ".join(texts)]


def _notes(analysis: Analysis, found: MachineAnswer, width: int, *, alone: bool) -> list[tuple[int, str]]:
    """What a reader can do without, as it is shown, each with a rank of its own: the highest goes first."""
    texts = [(1, text) for text in _reasons(found)]
    gain = found.queued_gain if len(found.rows) > 1 else None
    if gain is not None and gain >= _ALIKE:
        texts.append(
            (4, f"Calls queued without waiting pay from about {gain:.0f} times smaller sizes (report).")
        )
    if found.others and not alone:
        names = ", ".join(map(backend_text, found.others))
        texts.append((2, f"Measured too: {names} (--by-device)."))
    if overheads(analysis).rows and found.ops and alone:
        texts.append((5, "Overheads: gpubench report --sections anatomy"))
    count = len(merged(findings(analysis)))
    counted = (
        f"{count} note{'s' if count != 1 else ''}: gpubench report --sections warnings"
        if count and alone
        else ""
    )
    limits = _range_line(analysis, found, width)
    if counted and columns(f"{limits} {counted}") <= width:
        return [*texts, (0, f"{limits} {counted}")]
    return [*texts, (3, limits), *([(0, counted)] if counted else [])]


def _range_line(analysis: Analysis, found: MachineAnswer, width: int) -> str:
    # One op shows all its situations, a table of many two of them.
    regimes = found.regimes if len(found.rows) > 1 else found.rows[0].cells if found.rows else ()
    cells = [cell for row in found.rows for regime, cell in row.cells.items() if regime in regimes]
    texts = [] if found.named else _sureness(cells)
    count = count_sessions(analysis.run)
    texts.append(f"{count} session{'s' if count != 1 else ''}")
    took = _seconds_text(analysis.run)
    # Where the line of both sides has no room for the seconds, they stand here, if there is room for them.
    text, longer = (f"{' '.join(texts)}{end}." for end in ("", f", {took}"))
    shown = not took or f", {took}." in sides_line(analysis.run, found, width)
    return text if shown or columns(longer) > width else longer


def _sureness(cells: Sequence[AnswerCell]) -> list[str]:
    """How closely the thresholds are known: `Thresholds: 9 within 1.5x, 5 within 2x either way.`"""
    known = [cell for cell in cells if cell.kind in ("at", "range")]
    sharp, rough = (
        sum(cell.sharp for cell in known),
        sum(cell.kind == "at" and not cell.sharp for cell in known),
    )
    wide = len(known) - sharp - rough
    texts = [f"{sharp} within 1.5x"] if sharp else []
    texts += [f"{rough} within 2x"] if rough else []
    either = [f"{', '.join(texts)} either way"] if texts else []
    return (
        [f"Thresholds: {'; '.join([*either, *([f'{wide} within a range'] if wide else [])])}."] if known else []
    )


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
                if cell.kind == "open" and not cell.tied
                else ""
            )
            if why and row.op not in whys.setdefault(why, []):
                whys[why].append(row.op)
    whys = {why: ops for why, ops in whys.items() if ops}
    named_ops = "; ".join(
        f"{', '.join(ops) if len(ops) <= 4 else f'{len(ops)} ops'} ({why})" for why, ops in whys.items()
    )
    return [f"? no threshold: {named_ops}."] if whys and not found.named else []


_MISSING = "No module named"  # how Python says that a package is not installed
_ADAPTER = re.compile(r"(\S+) \((.+)\) is a software adapter")
MOST_FORMS = 6  # names of ops in the sentence
_BEGIN = {
    "no-gpu": "No GPU here: compute on the CPU", "not-asked": "No GPU was measured", "no-time": "The GPU gave no time",
    "wrong": "The GPU gave wrong numbers", "hidden": "No case of a GPU is among those shown",
}  # fmt: skip


def absence_sentences(found: MachineAnswer, why: Absence) -> tuple[tuple[str, ...], ...]:
    """With the names of ops, and without."""
    if why.kind == "checked":
        right = "1 case is right" if why.checked == 1 else f"{why.checked} cases are right"
        others = (
            f", {why.unchecked} {'was' if why.unchecked == 1 else 'were'} not checked" if why.unchecked else ""
        )
        return ((f"{right}{others}; nothing was timed (--check-only).",),)
    if why.kind == "nothing":
        return ((f"Nothing was measured{_because(why)}.",),)
    if why.kind == "overheads":
        return ((f"Overheads were measured, and no op{_because(why)}: there is nothing to compare.",),)
    if why.kind == "no-cpu":
        return (("The GPU was measured, and no CPU beside it: there is nothing to compare with.",),)
    begin = _BEGIN[why.kind] + ("" if why.kind == "no-gpu" else _because(why))
    return tuple((f"{begin}{rest}",) for rest in _forms(found))


def _because(why: Absence) -> str:
    causes = "; ".join(shortened(cause.rstrip("."), 100) for cause in why.causes[:2])
    return f" ({causes})" if causes else ""


def _forms(found: MachineAnswer) -> tuple[str, ...]:
    """Which CPU forms win: how the sentence goes on."""
    ops = len({form.op for form in found.forms})
    better = list(dict.fromkeys(form.op for form in found.forms if form.ratio is not None))
    if not any(form.plain_s is not None for form in found.forms):
        return (".",)
    plain = plain_text(found.cpu)
    if not better and found.missing:
        return (f". The time sufficed for {ops} of {found.ops} ops: no faster code than {plain} there.",)
    if not better:
        return (f". No faster code than {plain} was measured.",)
    if ops == 1:
        best = max(found.forms, key=lambda form: form.ratio or 1.0)
        gain = factor_text(best.ratio or 1.0, best.within)
        return (f". Faster code than plain NumPy exists for {better[0]}: up to {gain}.",)
    share = f"{len(better)} of {ops} ops"
    if len(better) == ops:
        share = "both ops" if ops == 2 else f"all {ops} ops"
    counted = f". Faster code than plain NumPy exists for {share}"
    return (f"{counted}: {listed(better)}." if len(better) <= MOST_FORMS else f"{counted}.", f"{counted}.")


def looked_for(run: Run) -> str:
    """What was looked for and not found, by the words of the run; empty without such words."""
    found: dict[str, str] = {}
    for warning in run.warnings:
        backend, _, why = warning.message.partition(":")
        name = str(warning.data.get("backend") or backend)
        if warning.code == "unavailable" and name not in ("torch", "numpy", "hybrid"):
            why = (why or warning.message).strip().removeprefix(f"{backend_text(name)} ")
            found.setdefault(backend_text(name), "not installed" if _MISSING in why else shortened(why, 50))
        elif warning.code == "software-device" and (adapter := _ADAPTER.match(warning.message)):
            found.setdefault(backend_text(adapter[1]), _software(adapter[2]))
    software = [device for device in run.devices if device.kind == "software"]
    found |= {backend_text(device.id): _software(device.name) for device in software}
    texts = [f"{shortened(name, 20)} ({printable(why)})" for name, why in found.items()]
    return f"Looked for: {', '.join(texts)}." if texts else ""


def _software(name: str) -> str:
    """`llvmpipe: not a GPU`, without the versions in brackets behind its name."""
    return f"{shortened(name.partition(' (')[0], 30)}: not a GPU"
