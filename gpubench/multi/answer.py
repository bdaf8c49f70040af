"""The answer of a run of gangs alone: how fast the links are, or what several GPUs gain over one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.thresholds import Extent, extent, size_text
from gpubench.base.escaping import printable, shortened
from gpubench.base.table import Cell, Column, Table
from gpubench.base.units import format_bytes, format_rate, listed
from gpubench.multi.collectives import CollectiveResult, collectives, declared_path, slow_links
from gpubench.multi.scaling import GangFrom, Weak, scaling
from gpubench.multi.twins import twin_checks
from gpubench.report.sections.answer_table import AnswerPart, bare_table
from gpubench.report.wording import mark, with_text
from gpubench.result.case import WAITED, gang_ranks

BUSBW = "busbw: bytes a second on the busiest link, as nccl-tests count them."
COPIES = ("p2p", "p2p_both")
_FIRST = (*COPIES, "allreduce")  # what people ask for, then the others by name
_MOST_NAMES, _MOST_SIZES, _MOST_PAIRS = 3, 6, 2


def answer_part(analysis: Analysis, *, alone: bool) -> AnswerPart:
    """Return what several GPUs add to an answer: GPUs that are not alike, slow links; alone what they gain."""
    there = alone and bool(collectives(analysis))
    return AnswerPart(
        needed=(
            *(printable(check.text) for check in twin_checks(analysis)), *slow_links(analysis),
            *([BUSBW] if there else []),
        ),
        sentences=gang_sentences(analysis) if alone else (),
        context=links_context(analysis) if there else "", table=links_table(analysis) if there else None,
        times_below=bool(scaling(analysis).strong),
    )  # fmt: skip


def gang_sentences(analysis: Analysis) -> tuple[str, ...]:
    """The first lines where gangs have times and no GPU was held against a CPU; none of other runs."""
    if collectives(analysis):
        return (_links_sentence(analysis),)
    gains = scaling(analysis)
    texts = [_weak_sentence(gains.weak)] if gains.weak else []
    regimes = dict.fromkeys(row.regime for row in gains.pays_from)
    regime = WAITED if WAITED in regimes else next(iter(regimes), "")
    most = max((row.ranks for row in gains.pays_from), default=0)
    rows = [row for row in gains.pays_from if (row.regime, row.ranks) == (regime, most)]
    cases = {row.op: row.row.case for row in gains.strong}
    return (
        (*texts, _strong_sentence(rows, {op: extent(case) for op, case in cases.items()}))
        if rows
        else tuple(texts)
    )


def _strong_sentence(rows: Sequence[GangFrom], extents: Mapping[str, Extent]) -> str:
    """`2 GPUs beat one with data on the GPU: matmul from 1229², sum from 268 M; softmax at no size measured.`"""
    wins = [
        f"{row.op} from {size_text(round(row.n or 0) if row.verdict == 'at' else row.first, extents[row.op])}"
        for row in rows
        if row.verdict != "no-size"
    ]
    losers = [row.op for row in rows if row.verdict == "no-size"]
    begin = f"{rows[0].ranks} GPUs {with_text(rows[0].regime)}"
    if not wins:
        return f"{begin} do not beat one, as far as measured: {listed(losers)}."
    lost = f"; not {listed(losers)}" if losers else ""
    return f"{begin} beat one: {listed(wins)}{lost}."


def links_table(analysis: Analysis) -> Table:
    """Bus bandwidth by op, gang and size, the small sizes for where there is room; of many pairs the slowest and the
    fastest."""
    sizes = sorted({row.n for row in collectives(analysis)})[-_MOST_SIZES:]
    rows = []
    for label, gang in _lanes(collectives(analysis)):
        rates = {row.n: _rate_text(row) for row in gang}
        rows.append([Cell(label), *(Cell(rates.get(n, "-")) for n in sizes)])
    # The largest size stays.
    columns = [Column(format_bytes(n), right=True, rank=rank) for rank, n in enumerate(reversed(sizes))]
    return bare_table((Column("busbw"), *reversed(columns)), rows)


def links_context(analysis: Analysis) -> str:
    """`2 x NVIDIA H200, nvlink, 18 lanes via switch, nccl 2.28.9.`: what is joined, how, and by which library."""
    rows = collectives(analysis)
    if not rows:
        return ""
    largest = max(rows, key=lambda row: row.ranks)
    device = next((one for one in analysis.run.devices if one.id == largest.device_id), None)
    pair = next((row.device_id for row in rows if row.ranks == 2), "")
    path = declared_path(analysis.run, pair)
    lanes = path.lanes.value if path else None
    parts = (
        shortened(device.name, 40) if device else "", path.kind.value if path else "",
        f"{lanes} lanes{' via switch' if path and path.via.value == 'switch' else ''}" if lanes else "",
        *sorted({row.by for row in rows if row.by}),
    )  # fmt: skip
    return printable(", ".join(part for part in parts if part)) + "."


def _links_sentence(analysis: Analysis) -> str:
    """`Between 2 GPUs: p2p 391 GB/s, p2p_both 764 GB/s and allreduce 317 GB/s (busbw at 1 GiB; 4 more below).`"""
    rows = collectives(analysis)
    most, n = max(row.ranks for row in rows), max(row.n for row in rows)
    names = sorted({row.op for row in rows}, key=lambda op: (*(op != name for name in _FIRST), op))
    texts = []
    for op in names[:_MOST_NAMES]:
        ours = [row for row in rows if row.op == op]
        largest = [row for row in ours if row.n == max(row.n for row in ours)]
        # Of a collective on 2, 4 and 8 ranks the largest gang is the one that a program would use.
        widest = [row for row in largest if row.ranks == max(row.ranks for row in largest)]
        texts.append(f"{op} {_range_text([row.busbw for row in widest])}")
    more = f"; {len(names) - _MOST_NAMES} more below" if len(names) > _MOST_NAMES else ""
    return f"Between {most} {_members(analysis)}: {listed(texts)} (busbw at {format_bytes(n)}{more})."


def _members(analysis: Analysis) -> str:
    """Ranks in host memory are no GPUs."""
    gangs = {row.device_id for row in collectives(analysis)}
    kinds = {device.kind for device in analysis.run.devices if device.id in gangs}
    return "GPUs" if kinds == {"gpu"} else "ranks in host memory"


def _range_text(rates: Sequence[float]) -> str:
    """`391 GB/s`, `764 to 770 GB/s`."""
    low, high = format_rate(min(rates), "B/s"), format_rate(max(rates), "B/s")
    number, _, unit = low.partition(" ")
    return high if low == high else f"{number if high.endswith(f' {unit}') else low} to {high}"


def _lanes(rows: Sequence[CollectiveResult]) -> list[tuple[str, list[CollectiveResult]]]:
    """One line a gang, named by its ranks; of more than two gangs of an op and size the slowest and the fastest."""
    found = []
    order = sorted(
        rows, key=lambda row: (*(row.op != name for name in _FIRST), row.op, row.ranks, row.device_id)
    )
    for (op, _), group in groupby(order, key=lambda row: (row.op, row.ranks)):
        gangs = [(id, list(ours)) for id, ours in groupby(group, key=lambda row: row.device_id)]
        if len(gangs) <= _MOST_PAIRS:
            found += [(f"{op} {_ranks_text(op, id)}", ours) for id, ours in gangs]
            continue
        gangs.sort(key=lambda gang: max(gang[1], key=lambda row: row.n).busbw)
        for word, (id, ours) in (("slowest", gangs[0]), ("fastest", gangs[-1])):
            found.append((f"{op} {_ranks_text(op, id)}, {word} of {len(gangs)}", ours))
    return found


def _ranks_text(op: str, device_id: str) -> str:
    """`0 to 1` of a copy, which has a direction; else `0+1`."""
    members = gang_ranks(device_id)
    if op == "p2p" and len(members) == 2:
        return f"{members[0]} to {members[1]}"
    word = device_id.rpartition(":")[2]
    return f"{word} ranks" if word.isdecimal() else word


def _rate_text(row: CollectiveResult) -> str:
    return format_rate(row.busbw, "B/s") + mark(row.row.label)


def _weak_sentence(rows: Sequence[Weak]) -> str:
    """`2 GPUs at once keep 99 to 100 % of their rates alone (matmul, copy; the last 3 of 10 s).`"""
    shares = sorted(100 * row.late for row in rows)
    ops = list(dict.fromkeys(row.op for row in rows))
    low, high = f"{shares[0]:.0f}", f"{shares[-1]:.0f}"
    between = low if low == high else f"{low} to {high}"
    return (
        f"{max(row.gpus for row in rows)} GPUs at once keep {between} % of their rates alone ({listed(ops)})."
    )
