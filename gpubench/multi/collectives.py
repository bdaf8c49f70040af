"""Findings about several GPUs of one host: the bytes per second that links carry, and identical GPUs that are
slower than the others. Also the answer of a run that measured only device groups.

A collective has two rates: the rate that its caller sees (algbw), and the rate of the busiest link (busbw).
Four or more identical GPUs are judged by the rule for fleets (docs/fleet.md); for fewer, the difference is
reported without a verdict. A GPU counts as slow only if each half of its blocks shows it independently.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import COLLECTIVE, CaseResult, declaration
from gpubench.base import at_largest, group_by
from gpubench.base.plugins.sections import Rows, section
from gpubench.base.streams import printable, shorten
from gpubench.base.table import Cell, Column, Table, cells, heads, number
from gpubench.base.units import count_noun, format_bytes, format_rate, list_words
from gpubench.curves.stats import FEWEST_PEERS, TOLERANCE, growing_k, is_uniform, median, robust_spread
from gpubench.multi.scaling import GroupFrom, Weak, from_text, scaling
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.sections.answer_table import AnswerPart, bare_table
from gpubench.report.wording import device_text, legend, mark, time_text, with_text
from gpubench.result.case import WAITED, Case, group_ranks
from gpubench.result.machine import LinkPath
from gpubench.result.run import IdenticalGpuTimes, Run


class CollectiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of one collective on a number of ranks with n bytes."""

    aside: ClassVar = ("row",)
    id: str  # id of the case
    op: str  # name of the collective
    device_id: str  # id of the device group
    ranks: int  # number of ranks that exchange data
    n: int  # bytes of the largest buffer of a rank
    by: str | None  # library of the exchange, with its version; null: unknown
    algbw: float  # bytes per second: n divided by the time
    busbw: float  # bytes per second on the busiest link, as nccl-tests count them
    low: float  # lower end of the 95 % interval of busbw
    high: float  # upper end of the 95 % interval of busbw
    row: CaseResult  # case with its estimates


@derive_once
def collectives(analysis: Analysis) -> tuple[CollectiveResult, ...]:
    """Return the rates of each collective that the report shows, ordered by op, number of ranks, device group
    and size."""
    rows = (result for result in analysis.cases if result.case.group == COLLECTIVE)
    results = [rates for result in rows if (rates := _rates(result)) is not None]
    return tuple(sorted(results, key=lambda result: (result.op, result.ranks, result.device_id, result.n)))


def _rates(result: CaseResult) -> CollectiveResult | None:
    case, time = result.case, result.time
    factor = bus_factor(case)
    if time is None or factor is None:
        return None
    return CollectiveResult(
        id=result.id, op=case.op, device_id=case.device_id, ranks=case.params["ranks"], n=case.params["n"],
        by=result.kernel, algbw=result.bytes / time.estimate, busbw=factor * result.bytes / time.estimate,
        low=factor * result.bytes / time.high, high=factor * result.bytes / time.low, row=result,
    )  # fmt: skip


def bus_factor(case: Case) -> float | None:
    """Return the factor that converts the algbw of the case to its busbw. Returns None if the op of the case is
    unknown or no collective, or if its params have no `ranks`."""
    op, ranks = declaration(case.op), case.params.get("ranks", 0)
    return op.collective.bus(ranks) if op is not None and op.collective and ranks > 0 else None


def declared_path(run: Run, device_id: str) -> LinkPath | None:
    """Return the path from the first rank of a device group to the second one, as detection tells it. Returns None
    if that is unknown, or if the run has no such device group."""
    members = next((device.gpu_ids for device in run.devices if device.id == device_id), [])
    gpu = next((gpu for gpu in run.machine.gpus if gpu.id == members[0]), None) if len(members) > 1 else None
    return None if gpu is None else next((path for path in gpu.link.paths if path.to == members[1]), None)


TITLE = "Collectives"
_MEANING = (
    "S bytes is the largest buffer of a rank; a time is one exchange, waited for on all ranks. algbw is S / time; "
    "busbw is what the busiest link carries, as nccl-tests count it (times 2(k-1)/k for allreduce on k ranks, (k-1)/k "
    "for reducescatter, allgather and alltoall). Every element of every rank was compared."
)


@section("collectives", order=120, help="What links carry when GPUs exchange data")
def collectives_section(analysis: Analysis, options: RenderOptions) -> Section:
    rows = collectives(analysis)
    device_groups = group_by(rows, lambda result: (result.op, result.ranks, result.device_id))
    tables = tuple(_table(analysis, results, options.time_unit) for results in device_groups.values())
    lines = (_MEANING, *slow_links(analysis)) if rows else ()
    return Section(title=TITLE, lines=lines, tables=tables, folded=True)


COPIES = ("p2p", "p2p_both")
# A pair of GPUs is slow if it carries less than this share of the median of its peers.
HALF = 0.5


def slow_links(analysis: Analysis) -> tuple[str, ...]:
    """Return a sentence for each slow copy between two GPUs (`p2p`, `p2p_both`). A copy is slow if its whole
    interval lies below half of the median rate of its peers: copies by the same op, of the same size, on the same
    kind of path."""

    def kind_of(result: CollectiveResult) -> Hashable:
        path = declared_path(analysis.run, result.device_id)
        return result.op, result.n, path and path.kind.value

    copies = (result for result in collectives(analysis) if result.op in COPIES)
    texts = []
    for peers in group_by(copies, kind_of).values():
        middle = median([result.busbw for result in peers])
        texts += [
            printable(
                f"link-slow: {result.op} on {result.device_id} carries {format_rate(result.busbw, 'B/s')} at "
                f"{format_bytes(result.n)}, the median of its peers {format_rate(middle, 'B/s')}: look at the path "
                "between the two in `gpubench detect`."
            )
            for result in peers
            if result.high < HALF * middle
        ]
    return tuple(texts)


def _table(analysis: Analysis, rows: Sequence[CollectiveResult], unit: str) -> Table:
    columns = heads(
        number("S"), number("time"), number("algbw"), number("busbw"),
        number("95 % interval", 1),
    )  # fmt: skip
    first = rows[0]
    by = f" by {printable(first.by)}" if first.by else ""
    path = declared_path(analysis.run, first.device_id) if first.ranks == 2 else None
    return Table(
        columns, tuple(_cells(result, unit) for result in rows),
        title=f"{first.op}, {first.ranks} ranks{by} on {device_text(analysis, first.device_id)}",
        note=f"declared: {_path_text(path)}" if path else "", legend=legend({result.row.label for result in rows}),
    )  # fmt: skip


def _path_text(path: LinkPath) -> str:
    """Return a text such as `nvlink, 18 lanes via switch, 478 GB/s`."""
    lanes, rate = path.lanes.value, path.max_bytes_per_s.value
    via = f" via {path.via.value}" if path.via.value == "switch" else ""
    parts = (
        path.kind.value, f"{lanes} lanes{via}" if lanes else "", format_rate(rate, "B/s") if rate else "",
        f"common {path.common.value}" if path.common.value else "",
    )  # fmt: skip
    return printable(", ".join(part for part in parts if part) or "nothing is known")


def _cells(result: CollectiveResult, unit: str) -> tuple[Cell, ...]:
    interval = f"[{format_rate(result.low, 'B/s')}, {format_rate(result.high, 'B/s')}]"
    return cells(
        format_bytes(result.n), time_text(result.row.time, unit) + mark(result.row.label),
        format_rate(result.algbw, "B/s"), format_rate(result.busbw, "B/s"), interval,
    )  # fmt: skip


# ---------------------------------------------------------------- the identical GPUs that a search left out

# The least number of blocks in each half.
FEWEST_BLOCKS = 2
_USERS = "other-gpu-users"


class SlowIdenticalGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that is slower than GPUs of the same model."""

    device_id: str  # id of the device
    gpu_id: str | None  # id of the GPU in the machine; null: unknown
    op: str  # op with the largest shortfall
    # 1 - its rate / the median rate of four or more GPUs (of fewer: the fastest rate), from 0 to 1
    shortfall: float
    judged: bool  # whether there are enough GPUs (four) for a verdict


class IdenticalGpuCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of GPUs of the same model."""

    name: str  # name of the model
    measured_id: str  # id of the GPU that was measured in full
    device_ids: tuple[str, ...]  # ids of all GPUs of the model
    compared: tuple[str, ...]  # ids of the GPUs that have times
    worst: str | None  # id of the GPU with the largest shortfall; null: none was compared
    worst_shortfall: float | None  # its shortfall, from 0 to 1; null without `worst`
    slower: tuple[SlowIdenticalGpu, ...]  # GPUs that are slower than chance explains
    left_out: dict[str, str]  # why a GPU was not compared, by its id
    text: str  # result as a sentence


@derive_once
def identical_gpu_checks(analysis: Analysis) -> tuple[IdenticalGpuCheck, ...]:
    """Return a check for each group of identical GPUs."""
    run = analysis.run
    names = {device.id: device.name for device in run.devices}
    # The times of a group begin with those of the GPU that was measured in full.
    groups: dict[str, list[IdenticalGpuTimes]] = {}
    first = ""
    for times in run.identical_gpus or ():
        first = times.device_id if times.device_id in names else first
        groups.setdefault(first, []).append(times)
    return tuple(_check(run, names.get(first, ""), own) for first, own in groups.items())


def _check(run: Run, name: str, times: Sequence[IdenticalGpuTimes]) -> IdenticalGpuCheck:
    devices = tuple(dict.fromkeys(gpu.device_id for gpu in times))
    shared = _shared_gpus(run)
    left_out = {id: "other processes compute on it" for id in devices if id in shared}
    left_out |= {gpu.device_id: gpu.reason for gpu in times if gpu.reason is not None}
    by_case: dict[str, dict[str, IdenticalGpuTimes]] = {}
    for gpu in times:
        if gpu.device_id not in left_out and len(gpu.blocks_s) >= 2 * FEWEST_BLOCKS and min(gpu.blocks_s) > 0:
            by_case.setdefault(gpu.case_id.rpartition("@")[0], {})[gpu.device_id] = gpu
    by_case = {case: by_device for case, by_device in by_case.items() if len(by_device) > 1}
    compared = [id for id in devices if any(id in by_device for by_device in by_case.values())]
    left_out |= {id: "there was no time for it" for id in devices if id not in compared and id not in left_out}
    looks = len(by_case) * len(devices)
    worst: dict[str, float] = {}
    slower: dict[str, SlowIdenticalGpu] = {}
    for case, by_device in by_case.items():
        for id, shortfall in _shortfalls({id: gpu.blocks_s for id, gpu in by_device.items()}).items():
            worst[id] = max(worst.get(id, 0.0), shortfall)
        for slow in _slow(case, by_device, looks):
            if slow.device_id not in slower or slower[slow.device_id].shortfall < slow.shortfall:
                slower[slow.device_id] = slow
    last = max(worst, key=worst.__getitem__, default=None)
    check = IdenticalGpuCheck(
        name=name, measured_id=devices[0], device_ids=devices, compared=tuple(compared), worst=last,
        worst_shortfall=None if last is None else worst[last],
        slower=tuple(sorted(slower.values(), key=lambda gpu: -gpu.shortfall)), left_out=left_out, text="",
    )  # fmt: skip
    return msgspec.structs.replace(check, text=_text(check))


def _shared_gpus(run: Run) -> set[str]:
    """Return the ids of the GPUs that other processes use, as a warning of the run says."""
    warnings = [warning for warning in run.warnings if warning.code == _USERS and warning.severity == "warning"]
    return {id for warning in warnings for id in str((warning.data or {}).get("devices", "")).split(", ")}


def _shortfalls(blocks: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return, by the id of each GPU, how far its rate falls short of the others', as a share of theirs."""
    rates = {id: 1 / median(blocks_s) for id, blocks_s in blocks.items()}
    # Four or more GPUs are compared with their median, fewer with the fastest.
    like = median(list(rates.values())) if len(rates) >= FEWEST_PEERS else max(rates.values())
    return {id: 1 - rate / like for id, rate in rates.items()}


def _slow(case: str, times: Mapping[str, IdenticalGpuTimes], looks: int) -> list[SlowIdenticalGpu]:
    """Return the GPUs that are slow in all blocks together and in each half of them, or none if too many are."""
    whole = {id: gpu.blocks_s for id, gpu in times.items()}
    middle = min(map(len, whole.values())) // 2
    halves = [
        {id: blocks[part] for id, blocks in whole.items()} for part in (slice(middle), slice(middle, None))
    ]
    named = set.intersection(*(_suspects(blocks, looks) for blocks in (whole, *halves)))
    # If so many GPUs are slow, the GPUs are not alike.
    if not is_uniform(len(named), len(whole)):
        return []
    short = _shortfalls(whole)
    op, judged = case.partition("/")[0], len(whole) >= FEWEST_PEERS
    return [
        SlowIdenticalGpu(device_id=id, gpu_id=times[id].gpu_id, op=op, shortfall=short[id], judged=judged)
        for id in sorted(named)
    ]


def _suspects(blocks: Mapping[str, Sequence[float]], looks: int) -> set[str]:
    threshold = TOLERANCE
    if len(blocks) >= FEWEST_PEERS:
        rates = [1 / median(blocks_s) for blocks_s in blocks.values()]
        threshold = max(TOLERANCE, growing_k(looks) * robust_spread(rates))
    return {id for id, shortfall in _shortfalls(blocks).items() if shortfall > threshold}


def _text(check: IdenticalGpuCheck) -> str:
    """Return a text such as `8 x NVIDIA H200: cupy:0 measured in full, the 7 others within 1.3 % (worst cupy:5).`"""
    first, others = check.measured_id, len(check.device_ids) - 1
    head = f"{others + 1} x {check.name}: {first} measured in full"
    rest = [f"{id} not compared ({reason})" for id, reason in check.left_out.items()]
    like = "" if check.worst_shortfall is None else f"within {check.worst_shortfall:.1%}".replace("%", " %")
    if check.slower:
        worst, more = check.slower[0], len(check.slower) - 1
        what = f"{worst.device_id} is {worst.shortfall:.0%} slower at {worst.op}".replace("%", " %")
        what += f", {count_noun(more, 'more GPU')} too" if more else ""
        what += ": `gpubench run --ops health`" if worst.judged else f" (of {others + 1} GPUs no verdict)"
        parts = [head, what]
    elif len(check.compared) < 2:
        parts = [head]
    elif others == 1:
        parts = [head, f"{check.device_ids[1]} {like}"]
    else:
        same = len(check.compared) == others + 1
        parts = [head, f"{f'the {others} others' if same else 'those compared'} {like} (worst {check.worst})"]
    if len(rest) > 1:
        rest = [f"{len(rest)} not compared"]
    return ", ".join([*parts, *rest]) + "."


# ---------------------------------------------------------------- the answer

BUSBW = "busbw: bytes a second on the busiest link, as nccl-tests count them."
_FIRST = (*COPIES, "allreduce")  # these ops are shown first, then the others by name
_MOST_NAMES, _MOST_SIZES, _MOST_PAIRS = 3, 6, 2


def answer_part(analysis: Analysis, *, alone: bool) -> AnswerPart:
    """Return the part of an answer that is about several GPUs: which identical GPUs differ, and which links are
    slow. If the run has no other answer (`alone`), the part also says what collectives carry or, without
    collectives, what several GPUs gain."""
    there = alone and bool(collectives(analysis))
    return AnswerPart(
        needed=(
            *(printable(check.text) for check in identical_gpu_checks(analysis)), *slow_links(analysis),
            *([BUSBW] if there else []),
        ),
        sentences=group_sentences(analysis) if alone else (),
        context=links_context(analysis) if there else "", table=links_table(analysis) if there else None,
        times_below=bool(scaling(analysis).strong),
    )  # fmt: skip


def group_sentences(analysis: Analysis) -> tuple[str, ...]:
    """Return the first sentences of an answer that compares no GPU with a CPU: what the links carry. Without
    collectives: what GPUs that work at once keep of their rates, and from which sizes device groups beat one
    GPU."""
    if collectives(analysis):
        return (_links_sentence(analysis),)
    gains = scaling(analysis)
    texts = [_weak_sentence(gains.weak)] if gains.weak else []
    regimes = dict.fromkeys(gain.regime for gain in gains.pays_from)
    regime = WAITED if WAITED in regimes else next(iter(regimes), "")
    most = max((gain.ranks for gain in gains.pays_from), default=0)
    rows = [gain for gain in gains.pays_from if (gain.regime, gain.ranks) == (regime, most)]
    return (*texts, _strong_sentence(rows)) if rows else tuple(texts)


def _strong_sentence(rows: Sequence[GroupFrom]) -> str:
    """Return a text such as `2 GPUs with data on the GPU beat one: matmul from 1229² and sum from 268 M; not
    softmax.`"""
    wins = [f"{gain.op} from {from_text(gain)}" for gain in rows if gain.verdict != "no-size"]
    losers = [gain.op for gain in rows if gain.verdict == "no-size"]
    begin = f"{rows[0].ranks} GPUs {with_text(rows[0].regime)}"
    if not wins:
        return f"{begin} do not beat one, as far as measured: {list_words(losers)}."
    lost = f"; not {list_words(losers)}" if losers else ""
    return f"{begin} beat one: {list_words(wins)}{lost}."


def links_table(analysis: Analysis) -> Table:
    """Return a table of bus bandwidths: a row for each op and device group, and a column for each of the six
    largest sizes. If an op ran on more than two groups with the same number of ranks, only the slowest and the
    fastest have a row."""
    sizes = sorted({result.n for result in collectives(analysis)})[-_MOST_SIZES:]
    rows = []
    for label, device_group in _lanes(collectives(analysis)):
        rates = {result.n: format_rate(result.busbw, "B/s") + mark(result.row.label) for result in device_group}
        rows.append([Cell(label), *(Cell(rates.get(n, "-")) for n in sizes)])
    # On a narrow screen the columns of the smallest sizes are dropped first.
    columns = [Column(format_bytes(n), right=True, rank=rank) for rank, n in enumerate(reversed(sizes))]
    return bare_table((Column("busbw"), *reversed(columns)), rows)


def links_context(analysis: Analysis) -> str:
    """Return a text with the GPUs, their path and the library, such as `2 x NVIDIA H200, nvlink, nccl 2.28.9.`
    The run must have collectives."""
    rows = collectives(analysis)
    largest = max(rows, key=lambda result: result.ranks)
    device = next((device for device in analysis.run.devices if device.id == largest.device_id), None)
    path = declared_path(analysis.run, largest.device_id)
    parts = (
        shorten(device.name, 40) if device else "", _path_text(path) if path else "",
        *sorted({result.by for result in rows if result.by}),
    )  # fmt: skip
    return printable(", ".join(part for part in parts if part)) + "."


def _links_sentence(analysis: Analysis) -> str:
    """Return a text such as `Between 2 GPUs: p2p 391 GB/s, p2p_both 764 GB/s and allreduce 317 GB/s (busbw at 1 GiB; 4
    more below).`"""
    rows = collectives(analysis)
    most = max(result.ranks for result in rows)
    names = sorted({result.op for result in rows}, key=_op_order)
    # If a collective ran on 2, 4 and 8 ranks, a program would use the largest device group.
    largest = at_largest(rows, lambda result: result.op, lambda result: result.n)
    widest = at_largest(largest, lambda result: result.op, lambda result: result.ranks)
    rates = group_by(widest, lambda result: result.op)
    texts = [f"{op} {_range_text([result.busbw for result in rates[op]])}" for op in names[:_MOST_NAMES]]
    sizes = {result.n for op in names[:_MOST_NAMES] for result in rates[op]}
    size = format_bytes(min(sizes)) if len(sizes) == 1 else "the largest size of each"
    more = f"; {len(names) - _MOST_NAMES} more below" if len(names) > _MOST_NAMES else ""
    begin = f"{'Between' if most == 2 else 'Among'} {most} {_members(analysis)}"
    return f"{begin}: {list_words(texts)} (busbw at {size}{more})."


def _op_order(op: str) -> tuple[object, ...]:
    return (*(op != name for name in _FIRST), op)


def _members(analysis: Analysis) -> str:
    """Return the word for the ranks of this run: `GPUs`, or `ranks in host memory`."""
    device_groups = {result.device_id for result in collectives(analysis)}
    kinds = {device.kind for device in analysis.run.devices if device.id in device_groups}
    return "GPUs" if kinds == {"gpu"} else "ranks in host memory"


def _range_text(rates: Sequence[float]) -> str:
    """Return a text such as `391 GB/s` or `764 to 770 GB/s`."""
    low, high = format_rate(min(rates), "B/s"), format_rate(max(rates), "B/s")
    number, _, unit = low.partition(" ")
    return high if low == high else f"{number if high.endswith(f' {unit}') else low} to {high}"


def _lanes(rows: Sequence[CollectiveResult]) -> list[tuple[str, list[CollectiveResult]]]:
    """Return the lines of the table of bus bandwidths, each a label with its results."""
    lanes = []
    order = sorted(rows, key=lambda result: (_op_order(result.op), result.ranks, result.device_id))
    for (op, _), same in group_by(order, lambda result: (result.op, result.ranks)).items():
        device_groups = list(group_by(same, lambda result: result.device_id).items())
        # Of more groups only the slowest and the fastest have a line.
        if len(device_groups) <= _MOST_PAIRS:
            lanes += [(f"{op} {_ranks_text(op, id)}", results) for id, results in device_groups]
            continue
        device_groups.sort(key=lambda pair: max(pair[1], key=lambda result: result.n).busbw)
        for word, (id, results) in (("slowest", device_groups[0]), ("fastest", device_groups[-1])):
            lanes.append((f"{op} {_ranks_text(op, id)}, {word} of {len(device_groups)}", results))
    return lanes


def _ranks_text(op: str, device_id: str) -> str:
    """Return the ranks of a device group as text: `0 to 1` for `p2p`, else `0+1` or `4 ranks`."""
    members = group_ranks(device_id)
    if op == "p2p" and len(members) == 2:
        return f"{members[0]} to {members[1]}"
    word = device_id.rpartition(":")[2]
    return f"{word} ranks" if word.isdecimal() else word


def _weak_sentence(rows: Sequence[Weak]) -> str:
    """Return a text such as `2 GPUs at once keep 99 to 100 % of their rates alone (matmul and copy).`"""
    most = max(gain.gpus for gain in rows)
    # The largest number of GPUs that ran at once.
    rows = [gain for gain in rows if gain.gpus == most]
    shares = sorted(100 * gain.late for gain in rows)
    ops = list(dict.fromkeys(gain.op for gain in rows))
    low, high = f"{shares[0]:.0f}", f"{shares[-1]:.0f}"
    between = low if low == high else f"{low} to {high}"
    return f"{most} GPUs at once keep {between} % of their rates alone ({list_words(ops)})."


ROWS = (
    Rows(
        "collectives", CollectiveResult, collectives, order=70, csv={"algbw": "algbw", "busbw": "busbw"},
    ),
    Rows("identical_gpus", IdenticalGpuCheck, identical_gpu_checks, order=160),
)  # fmt: skip
