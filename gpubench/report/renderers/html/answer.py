"""The answer on a page and in a notebook. For each GPU backend it has sentences, tiles with the most important
facts, advice, and the map together with its table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.answer import AnswerRow, MachineAnswer, answer
from gpubench.analysis.samples import count_sessions
from gpubench.analysis.thresholds import ALWAYS, AnswerCell, Gain, cell_text, size_text
from gpubench.base.table import Cell
from gpubench.base.units import count_noun, list_words
from gpubench.report.layout import RenderOptions
from gpubench.report.sections.answer import (
    COUNTED,
    MORE,
    OTHERS,
    QUEUED_GAIN,
    RANGE,
    answer_sentences,
    make_screen,
)
from gpubench.report.sections.answer_table import series_labels
from gpubench.report.sections.answer_text import (
    CLOSE_GAIN,
    factor_text,
    gain_cell,
    gain_text,
    threshold_cell,
    with_own_names,
)
from gpubench.report.sections.map import (
    MapRow,
    MapView,
    axis_text,
    lane_specs,
    map_view,
    strip_cells,
)
from gpubench.report.wording import backend_text, short_text, situation_text, with_params
from gpubench.result.case import STREAMED, WAITED

_LETTERS = 24  # the length of a lane in characters, if no script draws it
_MOST_NAMES = 3
_ALIKE = 1.5  # advice is given only for factors from this on
Content = dict[str, Any]  # what the template shows of a run, a view or a row, by the name of the field
_HEADS = {WAITED: "Data already on the GPU", ALWAYS: "Copied at every call"}


def views(analysis: Analysis, options: RenderOptions, prefix: str, *, draws: bool, maps: bool) -> list[Content]:
    """Return the answer for each GPU backend, the fastest first. If no GPU was compared, return a single
    answer without a backend. `prefix` is the prefix of the anchors. If `maps` is True, the answers have maps,
    with specs for drawing them if `draws` is True."""
    first = answer(analysis)
    names = [*dict.fromkeys(device.partition(":")[0] for device in first.devices), *first.others]
    answers = []
    for place, backend in enumerate([*names] or [None]):
        anchor = f"{prefix}map-{backend}" if place else f"{prefix}map"
        drawing = map_view(analysis, backend) if maps else None
        panels = [*_panels(drawing, anchor, draws=draws)] if drawing else []
        answers.append(_view(analysis, options, backend, drawing) | {"id": anchor, "panels": panels})
    return answers


def _view(analysis: Analysis, options: RenderOptions, backend: str | None, drawing: MapView | None) -> Content:
    """Return the answer for one GPU backend, without the panels of its map `drawing`."""
    answered = with_own_names(answer(analysis, backend=backend), analysis.run)
    screen = make_screen(analysis, options, alone=False, backend=backend)
    shown = drawing and not answered.named and len(answered.rows) > 1
    regimes = answered.regimes if answered.rows else ()
    choices = ("", *regimes) if len(regimes) > 1 else ("",)
    notes = [text for rank, text in screen.notes if rank not in (COUNTED, MORE, QUEUED_GAIN, OTHERS, RANGE)]
    return {
        "backend": backend or "", "name": backend_text(backend or ""),
        "sides": drawing.title if drawing else "".join(screen.context[-1:]),
        "sentences": {
            regime and short_text(regime): answer_sentences(analysis, backend, (regime,) if regime else None)
            for regime in choices
        },
        "tiles": [*_tiles(analysis, answered)], "steps": [*_steps(answered)],
        "axis": axis_text(next(iter(drawing.panels.values()))) if drawing else "",
        "tables": [] if shown or screen.table is None or not screen.table.rows else [screen.table],
        "notes": [*(() if regimes else screen.context[:-1]), *screen.troubles, *notes],
        "situations": {short_text(regime): situation_text(regime) for regime in regimes} if drawing else {},
    }  # fmt: skip


def _panels(view: MapView, name: str, *, draws: bool) -> Iterator[Content]:
    """Yield the map and the table of each situation, with anchors that begin with `name`."""
    specs = lane_specs(view) if draws else [None] * len(view.panels)
    for regime, (title, rows), spec in zip(view.ends.situations, view.panels.items(), specs, strict=True):
        situation = short_text(regime)
        yield {
            "id": f"{name}-{situation}", "situation": situation, "title": title, "spec": spec, "picture": "",
            "heading": _gain_heading(rows), "several": any(entry.side for entry in rows),
            "rows": [_lane_row(entry, view) for entry in rows],
        }  # fmt: skip


def _gain_heading(rows: Sequence[MapRow]) -> str:
    """Return a heading such as `at 16 M` if all gains have the same size, else `gain`."""
    gains = [(entry.lane.row, entry.strip.cell.gain) for entry in rows if entry.strip and entry.strip.cell.gain]
    sizes = {op.elements(gain.n) for op, gain in gains}
    plain = all(op.size_unit == "plain" for op, _ in gains)
    return f"at {size_text(sizes.pop(), 'plain' if plain else 'elements')}" if len(sizes) == 1 else "gain"


def _lane_row(entry: MapRow, view: MapView) -> Content:
    """Return the row of one op on one GPU, with the series of its charts and with its lane in characters."""
    lane = entry.lane.row
    cell = entry.strip.cell if entry.strip else None
    return {
        "op": entry.op, "side": entry.side, "series": with_params(f"{lane.op} {lane.dtype}", lane.params),
        "numbers": (
            threshold_cell(cell, cell_text(cell, lane.size_unit)) if cell else Cell("-", "muted"),
            gain_cell(cell.gain if cell and not cell.tied else None),
        ),
        "letters": strip_cells(entry.strip, view.ends, _LETTERS),
    }  # fmt: skip


# ---------------------------------------------------------------- tiles, and what to do


def _gains(answered: MachineAnswer, regime: str) -> dict[str, tuple[AnswerRow, AnswerCell, Gain]]:
    """Return the row, the cell and the gain of each op on the first GPU in this regime, by the op's label."""
    return {
        label: (entry, cell, cell.gain)
        for entry, label in zip(answered.rows, series_labels(answered.rows), strict=True)
        if entry.device_id == answered.devices[0] and (cell := entry.cells.get(regime)) and cell.gain
    }  # fmt: skip


def _tiles(analysis: Analysis, answered: MachineAnswer) -> Iterator[Content]:
    for regime in answered.regimes if answered.rows else ():
        gains, name = _gains(answered, regime), situation_text(regime)
        wins = {name: entry for name, entry in gains.items() if entry[2].winner == "gpu"}
        losses = [gain for _, _, gain in gains.values() if gain.winner == "cpu"]
        text = f"CPU {_between(losses)}" if losses else ""
        if wins:
            text = f"GPU {_between([gain for _, _, gain in wins.values()])}"
        if len(wins) < len(gains) and 0 < len(wins) <= _MOST_NAMES:
            starts = [
                op if answered.named else f"{op} from {cell_text(cell, entry.size_unit)}"
                for op, (entry, cell, _) in wins.items()
            ]
            text = f"{list_words(starts)}: {text}"
        side, count = ("CPU", len(losses)) if losses and not wins else ("GPU", len(wins))
        figure = f"{side} wins {count} of {count_noun(len(gains), 'op')}" if gains else "not measured"
        if len(gains) == 1:
            ((entry, cell, gain),) = gains.values()
            figure = gain_text(gain)
            text = f"at {size_text(gain.n, entry.size_unit)}"
            text = text if answered.named else f"{text}; pays from {cell_text(cell, entry.size_unit)}"
        yield {
            "head": _HEADS.get(regime, f"{name[:1].upper()}{name[1:]}"), "situation": short_text(regime),
            "text": text, "figure": figure, "tone": "gpu" if wins else "cpu" if losses else "plain",
        }  # fmt: skip
    if answered.rows:
        yield _sureness_tile(analysis, answered)


def _between(gains: Sequence[Gain]) -> str:
    """Return the smallest and the largest factor of the gains as text, such as `~14x to 33x`."""
    # A gain of the CPU has a ratio below 1, but its factor is above 1.
    factors = sorted((max(gain.ratio, 1 / gain.ratio), gain.within) for gain in gains)
    ends = list(dict.fromkeys(factor_text(*factor) for factor in (factors[0], factors[-1])))
    return " to ".join(ends)


def _sureness_tile(analysis: Analysis, answered: MachineAnswer) -> Content:
    cells = [cell for regime in answered.regimes for _, cell, _ in _gains(answered, regime).values()]
    thresholds = [cell for cell in cells if cell.kind in ("at", "range")]
    sharp, near = sum(cell.sharp for cell in thresholds), sum(cell.kind == "at" for cell in thresholds)
    rough = sum(cell.gain is not None and cell.gain.within > CLOSE_GAIN for cell in cells)
    gains, sessions = count_noun(len(cells), "gain"), count_noun(count_sessions(analysis.run), "session")
    if answered.named:
        figure, texts = (
            f"{len(cells) - rough} of {gains} within 15 %",
            ["~: may be off by more"] if rough else [],
        )
    else:
        total = count_noun(len(thresholds), "break-even")
        figure = f"{near} of {total} within 2x" if thresholds else "no break-even"
        texts = [f"{sharp} within 1.5x"] if sharp else []
        texts += [f"{len(thresholds) - near} within a range"] if len(thresholds) > near else []
        texts += [f"{rough} of {gains} may be off by more than 15 % (~)"] if rough else []
    text = "; ".join([*texts, sessions])
    return {"head": "How sure", "situation": "", "figure": figure, "text": text, "tone": "plain"}


def _steps(answered: MachineAnswer) -> Iterator[str]:
    """Yield the lines of advice that the numbers support."""
    if not answered.rows:
        return
    by_regime = {
        regime: {name: gain for name, (_, _, gain) in _gains(answered, regime).items()}
        for regime in answered.regimes
    }
    copied = by_regime.get(ALWAYS, {})
    winners = {
        regime: {name for name, gain in gains.items() if gain.winner == "gpu"}
        for regime, gains in by_regime.items()
    }
    only_resident = winners.get(WAITED, set()) & copied.keys() - winners.get(ALWAYS, set())
    if only_resident:
        yield f"Keep data on the GPU between calls: only then does the GPU win {_names(only_resident, 'op')}."
    elif winners.get(ALWAYS):
        yield "The GPU pays even where every call copies."
    if (factor := _typical_factor(copied, by_regime.get(WAITED, {}))) >= _ALIKE:
        yield f"Copy seldom: a call that copies takes about {factor_text(factor)} as long at the largest size."
    if (factor := _typical_factor(copied, by_regime.get(STREAMED, {}))) >= _ALIKE:
        yield f"Write independent calls as a pipeline: they take 1/{factor:.2g} of the time of copied calls."
    if (queued := answered.queued_gain) is not None and queued >= _ALIKE:
        yield f"Queue calls and wait once: then the GPU pays from about {factor_text(queued)} smaller sizes."
    losers = {
        name for name in set().union(*by_regime.values())
        if all(name in gains and gains[name].winner == "cpu" for gains in by_regime.values())
    }  # fmt: skip
    if losers:
        yield f"Leave {_names(losers, 'op')} on the CPU."


def _typical_factor(copied: dict[str, Gain], others: dict[str, Gain]) -> float:
    """Return the median over the ops of the GPU's time for a call that copies / its time in another situation.
    Returns 0 if no op has both gains at one size."""
    return statistics.median(
        [copied[op].gpu_s / gain.gpu_s for op, gain in others.items() if op in copied and copied[op].n == gain.n]
        or [0.0]
    )  # fmt: skip


def _names(names: set[str], noun: str) -> str:
    return list_words(sorted(names)) if len(names) <= _MOST_NAMES else count_noun(len(names), noun)
