"""The texts of the final screen: sizes, cells, gains and the first sentence."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.answer import (
    FEWEST_OPS,
    AnswerRow,
    BestCode,
    BestImplementation,
    GpuTimes,
    MachineAnswer,
)
from gpubench.analysis.speedup import fastest
from gpubench.analysis.thresholds import (
    ALWAYS,
    AnswerCell,
    Gain,
    SizeUnit,
    both_text,
    cell_text,
    size_text,
    size_unit_of,
    why_text,
)
from gpubench.base import group_by
from gpubench.base.streams import cut_middle, printable
from gpubench.base.table import Cell, Tone
from gpubench.base.units import SIZE_UNITS, count_noun, list_words
from gpubench.report.layout import each_text
from gpubench.report.wording import (
    backend_text,
    data_text,
    short_text,
    situation_text,
    time_text,
    with_params,
    with_text,
)
from gpubench.result.case import QUEUED, WAITED, beside_size, own_names
from gpubench.result.run import Run, Skip

MOST_NAMES, MOST_LOSERS = 4, 3
_MOST_RAISING = 3  # the most failing functions that are named; the others are counted
CLOSE_GAIN = 0.15  # the largest error of a gain, as a share of it, that is shown without `~`


def rough_size_text(n: float) -> str:
    """Return a number of elements rounded to one digit, such as `0.7 M` or `60 K`."""
    unit, scale = next(((unit, scale) for unit, scale in SIZE_UNITS if n >= scale / 2), ("", 1))
    digits = 10 ** math.floor(math.log10(n / scale))
    value = round(n / scale / digits) * digits
    return f"{value:.1f} {unit}" if value < 1 else f"{value:.0f} {unit}".strip()


def asked_size_text(n: int, size_unit: SizeUnit) -> str:
    """Return a requested size without rounding, such as `1.1 K` or `16 M`, or `1,000,000` if K and M do not
    fit."""
    if size_unit == "side" or (size_unit == "plain" and n < 10_000):
        return size_text(n, size_unit)
    for unit, scale in SIZE_UNITS:
        for decimals in (0, 1):
            value = round(n / scale, decimals)
            if value >= 1 and round(value * scale) == n:
                return f"{value:.{decimals}f} {unit}"
    return f"{n:,}"


def named_size_text(n: int, size_unit: SizeUnit) -> str:
    """Return a size with its name and without rounding, such as `n = 1 K` or `side 1024`."""
    return f"side {n}" if size_unit == "side" else f"n = {asked_size_text(n, size_unit)}"


def adapter_times(analysis: Analysis, unit: str) -> list[str]:
    """Return a sentence with the times of software adapters at the largest sizes, or an empty list without
    such times."""
    timed = [
        result
        for result in analysis.shown_of(analysis.compared)
        if result.device_kind == "software" and result.time is not None and result.case.shared_with is None
    ]
    dtypes = len({result.case.dtype for result in timed}) > 1
    texts = []
    for same in group_by(timed, lambda result: (result.case.device_id, result.case.series)).values():
        largest = max(same, key=lambda result: result.n).case
        op = with_params(largest.op, dict(beside_size(largest.params))) + (
            f" {largest.dtype}" if dtypes else ""
        )
        by_data = group_by(
            (result for result in same if result.n == largest.n), lambda result: data_text(result.case)
        )
        best = [(data, fastest(rows)) for data, rows in by_data.items()]
        times = [f"{time_text(case.time, unit)} {data}" for data, case in best if case is not None]
        texts.append(f"{op} at {named_size_text(largest.n, size_unit_of(largest))} {', '.join(times)}")
    more = f"; {len(texts) - MOST_LOSERS} more" if len(texts) > MOST_LOSERS else ""
    return [f"Software adapter: {'; '.join(texts[:MOST_LOSERS])}{more}."] if texts else []


def threshold_cell(cell: AnswerCell | None, text: str) -> Cell:
    """Return `text` as a cell, in the colour for the kind of `cell`."""
    kind = "open" if cell is None else cell.kind
    tones: dict[str, Tone] = {
        "wrong": "bad",
        "failed": "bad",
        **dict.fromkeys(("no-size", "above", "pending"), "muted"),
    }
    return Cell(text, tones.get(kind, "plain"))


def factor_text(factor: float, within: float = 0.0) -> str:
    """Return a factor with two digits, such as `14x` or `2.1x`. If its error `within` exceeds CLOSE_GAIN, `~`
    precedes it."""
    rounded = float(f"{factor:.1e}")
    decimals = max(0, 1 - math.floor(math.log10(rounded))) if rounded > 0 and math.isfinite(rounded) else 0
    return f"{'~' if within > CLOSE_GAIN else ''}{rounded:.{decimals}f}x"


def gain_text(gain: Gain) -> str:
    """Return the winner and its factor, such as `GPU 14x`, `CPU ~2.1x` or `about equal`. If the winner is not
    sure, ` ?` follows."""
    doubt = " ?" if gain.winner == "noisy" else ""
    if gain.about_equal:
        return f"about equal{doubt}"
    side, factor = ("GPU", gain.ratio) if gain.ratio >= 1 else ("CPU", 1 / gain.ratio)
    return f"{side} {factor_text(factor, gain.within)}{doubt}"


def gain_cell(gain: Gain | None, tail: str = "") -> Cell:
    """Return a cell with the text of a gain, followed by `tail`, in the colour of the side that wins. The cell
    is empty for None."""
    if gain is None:
        return Cell("")
    tones: dict[str, Tone] = {"gpu": "gpu", "cpu": "cpu"}
    return Cell(gain_text(gain) + tail, tones.get(gain.winner, "plain"))


def with_own_names(answer: MachineAnswer, run: Run) -> MachineAnswer:
    """Return the answer, where users' functions have the names that they have in their source."""
    names = {op: name for op, name in own_names(run.selection.ops).items() if op != name}
    renamed: MachineAnswer = each_text(answer, lambda text: names.get(text, text)) if names else answer
    return renamed


def series_text(entry: AnswerRow | BestImplementation | GpuTimes) -> str:
    """Return the op, followed by its params other than the size."""
    return with_params(entry.op, entry.params)


# How much a sentence says: names of ops, numbers of ops, or so little that one line suffices for each dtype.
Detail = Literal["names", "counts", "least"]
DETAILS: tuple[Detail, ...] = ("names", "counts", "least")
MOST_DTYPES = 3


def machine_sentences(answer: MachineAnswer, detail: Detail, regimes: Sequence[str]) -> list[str]:
    """Return a sentence for each dtype, up to MOST_DTYPES: which ops the first GPU wins in each of `regimes`, at
    their largest measured sizes. Ops with wrong or failed results are not counted."""
    dtypes = sorted({entry.dtype for entry in answer.rows})
    sentences = []
    for dtype in dtypes[:MOST_DTYPES]:
        rows = [entry for entry in answer.first if entry.dtype == dtype]
        clauses = _Clauses(rows, detail, thresholds=not answer.named)
        text = clauses.least(regimes) if detail == "least" else clauses.sentence(regimes)
        if answer.named and any(len(cell.gains) > 1 for entry in rows for cell in entry.cells.values()):
            text = f"at the largest size, {text}"
        sentences.append(f"{dtype}: {text}" if len(dtypes) > 1 else text[:1].upper() + text[1:])
    if len(dtypes) > MOST_DTYPES:
        more = len(dtypes) - MOST_DTYPES
        sentences[-1] += f" {count_noun(more, 'more dtype')}: below."
    return sentences


def gain_of(entry: AnswerRow, regime: str) -> Gain | None:
    """Return the gain of an op in a regime, or None if there is none, such as for a wrong or failed result."""
    cell = entry.cells.get(regime)
    return None if cell is None else cell.gain


def count_wins(answer: MachineAnswer, regime: str) -> tuple[int, int]:
    """Return how many ops the first GPU wins at their largest size in this regime, and how many ops have a gain
    there, whoever wins."""
    gains = [gain for entry in answer.first if (gain := gain_of(entry, regime))]
    return sum(gain.winner == "gpu" for gain in gains), len(gains)


def brief_text(answer: MachineAnswer) -> str:
    """Return the GPU's gains in a few words, such as `GPU wins 14 of 14, 1 of 14 copied`, or for a single op
    `matmul: from ~230², from 982² copied`. Regimes without a case of the first GPU are left out."""
    first = answer.first
    texts = []
    for regime in answer.regimes:
        cells = [entry.cells[regime] for entry in first if regime in entry.cells]
        if not cells:
            continue
        if len(first) > 1:
            text = "{} of {}".format(*count_wins(answer, regime))
        elif answer.named and cells[0].gain is not None:
            text = gain_text(cells[0].gain)
        else:
            text = ("from " if cells[0].kind in ("at", "range") else "") + cell_text(
                cells[0], first[0].size_unit
            )
        texts.append(text if regime in (WAITED, QUEUED) else f"{text} {short_text(regime)}")
    what = "GPU wins " if len(first) > 1 else f"{series_text(first[0])}: "
    return f"{what}{', '.join(texts)}"


class _Clauses(msgspec.Struct, frozen=True):
    """The sentence about one dtype, in parts: one clause for each regime."""

    rows: Sequence[AnswerRow]  # the ops of the dtype
    detail: Detail  # whether clauses name the ops or count them
    thresholds: bool  # whether clauses mention break-evens, because the user requested no sizes

    def sentence(self, regimes: Sequence[str]) -> str:
        """Return the sentence with a clause for each regime."""
        clauses, subject = [], "the GPU"
        for regime in regimes:
            clause = self._clause(regime, subject)
            if clause:
                clauses.append(f"{with_text(regime)} {clause}")
                # `it` follows a clause whose subject is the GPU.
                subject = "the GPU" if clause.startswith("the CPU") else "it"
        return f"{'; '.join(clauses) or 'no op was timed on both sides'}."

    def least(self, regimes: Sequence[str]) -> str:
        """Return the sentence with counts only."""
        counts = []
        for regime in regimes:
            gains = self._gains(regime)
            wins = sum(gain.winner == "gpu" for gain in gains.values())
            where = "with data on it" if regime == WAITED else with_text(regime)
            counts += [f"{wins} of {len(gains)} {where}"] if gains else []
        return f"the GPU wins {', '.join(counts) or 'none'}."

    def _gains(self, regime: str) -> dict[int, Gain]:
        """Return the gains in a regime, by the index of their row."""
        return {i: gain for i, entry in enumerate(self.rows) if (gain := gain_of(entry, regime))}

    def _clause(self, regime: str, subject: str) -> str:
        gains = self._gains(regime)
        if not gains:
            return ""
        places = {
            side: [i for i, g in gains.items() if g.winner == side] for side in ("gpu", "cpu", "equal", "noisy")
        }
        # ops that the CPU wins up to the largest size that the op declares
        tops = [i for i in places["cpu"] if gains[i].top and self.thresholds]
        short = [i for i in places["cpu"] if i not in tops]
        wins, total = len(places["gpu"]), len(gains)
        so_far = " as far as measured" if self.thresholds else ""
        if not wins and len(places["cpu"]) == total:
            return f"the CPU wins {self._all(places['cpu'])}" + (so_far if short else "")
        extras = []
        if wins and short and (self.thresholds or len(short) <= MOST_LOSERS):
            loses = "loses" if len(short) == 1 else "lose"
            who = self._names(short) if len(short) <= MOST_LOSERS else len(short)
            extras.append(f"{who} {loses}{so_far}")
        if places["equal"]:
            extras.append(f"{self._names(places['equal'])} about equal")
        if places["noisy"]:
            extras.append(f"{len(places['noisy'])} too noisy to say")
        rest = f" ({'; '.join(extras)})" if extras else ""
        if not wins:
            return f"{subject} wins none of {total}{rest}"
        clause = f"{subject} wins {self._wins(places['gpu'], tops, total)}"
        return f"{clause}{self._half(regime, places['gpu'], clause)}{rest}"

    def _wins(self, gpu: Sequence[int], cpu: Sequence[int], total: int) -> str:
        """Return how many of `total` ops the GPU wins, with names if they are few."""
        if len(gpu) == total:
            return self._all(gpu)
        count = f"{len(gpu)} of {total}"
        if self.detail != "names":
            return count
        if len(gpu) <= MOST_NAMES:
            return f"{count}: {self._names(gpu)}"
        if total - len(gpu) <= MOST_LOSERS and cpu:
            return f"{count}, not {self._names(cpu)}"
        return count

    def _all(self, places: Sequence[int]) -> str:
        if len(places) == 1:
            return series_text(self.rows[places[0]])
        count = "both" if len(places) == 2 else f"all {len(places)}"
        if len(places) == len(self.rows):
            return count
        # The table also has rows without a gain, such as for wrong results.
        names = self._names(places)
        return f"{count} that have times" if names == str(len(places)) else names

    def _names(self, places: Sequence[int]) -> str:
        names = [series_text(self.rows[i]) for i in places]
        return list_words(names) if self.detail == "names" and len(names) <= MOST_NAMES else str(len(names))

    def _half(self, regime: str, places: Sequence[int], clause: str) -> str:
        """Return a text with the size from which the GPU wins half of its ops, or an empty text if that size is
        unknown."""
        winners = [self.rows[i] for i in places]
        vectors = sum(entry.size_unit == "elements" for entry in winners)
        if regime != WAITED or not self.thresholds or vectors < FEWEST_OPS:
            return ""
        guesses = sorted(_guess(entry, entry.cells[regime]) for entry in winners)
        middle = guesses[(len(guesses) - 1) // 2]
        if not math.isfinite(middle):
            return ""
        whom = f"the {len(winners)}" if ", not " in clause or ": " in clause else "them"
        return f", half of {whom} from about {rough_size_text(middle)} elements"


def _guess(entry: AnswerRow, cell: AnswerCell) -> float:
    """Return the most likely break-even as a number of elements, or infinity if it is unknown."""
    size = (
        cell.n if cell.kind in ("at", "range") else cell.high if cell.kind in ("all-sizes", "below") else None
    )
    return math.inf if size is None else entry.elements(size)


def op_sentence(entry: AnswerRow, regimes: Sequence[str]) -> str:
    """Return a sentence on the gain of one op: a clause for each regime, and the largest measured size."""
    cells = {regime: entry.cells[regime] for regime in regimes if regime in entry.cells}
    ends = {cell.gain.n for cell in cells.values() if cell.gain is not None}
    # If all clauses have the same largest size, only the last one names it.
    together = len(ends) == 1 and any(cell.kind in ("at", "range") for cell in cells.values())
    clauses = [
        f"{with_text(regime)} {_op_clause(entry, cell, ends=not together)}" for regime, cell in cells.items()
    ]
    if together:
        clauses.append(f"measured up to {size_text(max(ends), entry.size_unit)}")
    return f"{series_text(entry)}: {'; '.join(clauses)}."


def _op_clause(entry: AnswerRow, cell: AnswerCell, *, ends: bool) -> str:
    """Return the clause of one situation, with the largest measured size if `ends` is True."""
    size = cell_text(cell, entry.size_unit).removesuffix(", mixed")
    both = both_text(cell, entry.size_unit).removesuffix(", mixed")
    mixed = ", and wins and loses by turns below" if cell.mixed else ""
    last = "" if cell.gain is None else size_text(cell.gain.n, entry.size_unit)
    if cell.kind == "open":
        if cell.gain is None:
            return f"nothing is known ({why_text(cell.reason)})"
        if cell.tied:
            return f"the CPU and the GPU are about equal at {last}, the largest size"
        sides = {"gpu": "the GPU wins", "cpu": "the CPU wins", "equal": "the CPU and the GPU are about equal"}
        side = sides.get(cell.gain.winner, "it is too noisy to say")
        if cell.low is not None:
            return f"the GPU does not pay below {size.removeprefix('> ')} ({why_text(cell.reason)}); at {last} {side}"
        return f"no break-even is known ({why_text(cell.reason)}); at {last} {side}"
    measured, up_to = (f"{words} {last}" if ends else "" for words in (", measured up to", " up to"))
    first = size.removeprefix("< ")
    below = f"every size measured, from {first}{f' to {last}' if ends else ''}"
    above = f"up to {size.removeprefix('> ')}"
    if len(cell.gains) == 1:
        below, above = f"the one size measured, {last}", f"at the one size measured, {last}"
    return {
        "at": f"the GPU pays from {both}{mixed}{measured}",
        "range": f"the GPU pays from somewhere in {size}{mixed}{measured}",
        "all-sizes": f"the GPU wins at all sizes{up_to}", "no-size": f"the CPU wins at all sizes{up_to}",
        "below": f"the GPU wins at {below}",
        "above": f"the CPU wins {above}", "wrong": "the GPU gave wrong numbers",
        "failed": "nothing ran on the GPU",
    }[cell.kind]  # fmt: skip


def sizes_sentence(entry: AnswerRow, regimes: Sequence[str]) -> str:
    """Return a sentence on the gain of one op at the requested sizes, with a clause for each regime, such as
    `data on the GPU: the GPU wins at both sizes, 6.7x to 22x`."""
    gains_by_regime = {regime: entry.cells[regime].gains for regime in regimes if regime in entry.cells}
    clauses = [
        f"{situation_text(regime)}: {_sizes_clause(gains)}"
        for regime, gains in gains_by_regime.items()
        if gains
    ]
    if not clauses:
        return f"{series_text(entry)}: no time on both sides."
    sizes = {gain.n for gains in gains_by_regime.values() for gain in gains}
    at = f" at {named_size_text(max(sizes), entry.size_unit)}" if len(sizes) == 1 else ""
    return f"{series_text(entry)}{at}, {'; '.join(clauses)}."


def _sizes_clause(gains: Sequence[Gain]) -> str:
    """Return a clause with the range of the gains. If one side wins at all sizes, it is named."""
    least, most = (end(gains, key=lambda gain: gain.ratio) for end in (min, max))
    first, last = (gain_text(gain).replace(" ?", " (too noisy)") for gain in (least, most))
    winners = {gain.winner for gain in gains}
    if winners == {"cpu"}:
        first, last = last, first
    factors = [text.partition(" ")[2] for text in (first, last)]
    between = factors[0] if factors[0] == factors[1] else f"{factors[0]} to {factors[1]}"
    if winners in ({"gpu"}, {"cpu"}):
        where = {1: "", 2: " at both sizes"}.get(len(gains), f" at all {len(gains)} sizes")
        return f"the {first.partition(' ')[0]} wins{where}, {between}"
    if first == last:
        return f"CPU and GPU are {first}" if least.about_equal else first
    return f"GPU {between}" if first.startswith("GPU") and last.startswith("GPU") else f"{first} to {last}"


def raising_functions(run: Run) -> list[str]:
    """Return sentences on users' functions that fail, with the reason and the smallest size at which each
    fails. Functions that fail only in some sessions come first."""
    on_gpu = {device.id for device in run.devices if device.kind != "cpu"}
    timed = {x.case.op for x in run.measurements if x.case.device_id in on_gpu}
    smallest: dict[str, Skip] = {}
    for skip in run.outcomes:
        case = skip.case
        # Failures on NumPy count, and those on a GPU if no GPU gave the op a time.
        if isinstance(skip, Skip) and skip.reason == "bad-function" and (
            case.backend == "numpy" or (case.device_id in on_gpu and case.op not in timed)
        ):  # fmt: skip
            smallest[case.op] = min(
                smallest.get(case.op, skip),
                skip,
                key=lambda entry: (entry.case.backend != "numpy", entry.case.params["n"]),
            )
    names = own_names(run.selection.ops)
    texts = [
        printable(
            f"{names.get(op, op)}{'' if skip.case.backend == 'numpy' else f' on {backend_text(skip.case.backend)}'}"
            f" at {named_size_text(skip.case.params['n'], 'elements')}: "
            f"{cut_middle(skip.detail.rstrip('.'), 220)}."  # arrays stand in the middle of an error
        )
        for op, skip in smallest.items()
    ]
    texts = [*_bad_functions(run, late=True), *texts]
    if more := texts[_MOST_RAISING:]:
        texts[_MOST_RAISING:] = [f"Further functions that do not run at some size: {len(more)}."]
    return texts


def left_out_functions(run: Run, command: str) -> list[str]:
    """Return sentences on the users' functions that were not measured, with the reasons of the first few.
    `command` is the command that shows the other reasons; empty: it is not named."""
    texts = _bad_functions(run, late=False)
    if more := texts[_MOST_RAISING:]:
        names = list_words([text.partition(" is left out: ")[0] for text in more])
        texts[_MOST_RAISING:] = [
            f"Left out: {names}." + (f" Why: {command} --sections warnings" if command else "")
        ]
    return texts


def _bad_functions(run: Run, *, late: bool) -> list[str]:
    """Return the sentences of the warnings on users' functions, `late` those on a case, else those before the run."""
    bad = [warning for warning in run.warnings if warning.code == "bad-function" and bool(warning.id) is late]
    return [*dict.fromkeys(printable(f"{warning.message.rstrip('.')}.") for warning in bad)]


def best_text(cell: AnswerCell | None, code: BestCode, *, named: bool) -> str:
    """Return the gain at the largest size, such as `GPU 14x`, if the sizes were requested (`named`). Otherwise
    return the break-even, such as `the GPU pays from 23 K`, or `23 K` for copied calls."""
    if named and cell is not None and cell.gain is not None:
        return gain_text(cell.gain)
    text = cell_text(cell, code.size_unit)
    return text if code.cells.get(ALWAYS) is cell else f"the GPU pays from {text}"


def noise_text(analysis: Analysis, seconds: Collection[float | None]) -> str:
    """Return a sentence on noise if an unstable case has one of the times in `seconds`, or if others disturbed the
    sessions. Otherwise return an empty text."""
    unstable = [case.time for case in analysis.cases if "unstable" in case.findings]
    noisy = any(time is not None and time.estimate in seconds for time in unstable) or disturbed_text(analysis)
    return " Noisy: run it again on an idle machine." if noisy else ""


def disturbed_text(analysis: Analysis) -> list[str]:
    """Return a sentence if there are times and every session that counts lost much CPU time to others, else an empty
    list."""
    least = min(analysis.run.counting, key=lambda session: session.disturbance, default=None)
    if least is None or not least.contended or not any(case.time for case in analysis.cases):
        return []
    who = "the hypervisor" if least.disturbance == least.steal_share else "other programs"
    return [f"CPU times are too long: {who} took {round(least.disturbance * 100)} % of the CPU."]
