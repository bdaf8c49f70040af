"""A fleet as text: one line that tells the truth, then what is wrong, the worst first; at most 300 lines.

The inventory of a fleet as text: who answered, then what is missing, what the nodes are made of, what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubench.analysis.machine import counted
from gpubench.base.table import Cell, Column, Table, cells, heads, number
from gpubench.base.units import format_bytes
from gpubench.curves.shortfall import FEWEST_PEERS
from gpubench.fleet.inventory import EqualNodes, Inventory
from gpubench.fleet.survey import Drift, FleetReport, PeerGroup, SlowGpu
from gpubench.report.layout import Section, TextDocument

MOST_ROWS = 20
_NAMED = 3  # nodes of one kind that the first line names
_TONES = {"severe": "bad", "slow": "bad", "suspect": "plain"}


def headline(report: FleetReport) -> str:
    """`Fleet: 14 of 16 nodes complete, 111 of 128 GPUs compared; 1 missing (gpu-12); 2 slow GPUs`."""
    nodes = f"{report.nodes_complete} of {report.nodes_expected} nodes complete"
    parts = [f"Fleet: {nodes}, {report.peers.compared} of {report.gpus} GPUs compared"]
    parts += counts([(row.word, row.name) for row in report.nodes if row.word != "complete"])
    unknown = report.nodes_expected - len(report.nodes)
    if unknown > 0:
        parts.append(f"nothing is known of {unknown} more")
    slow, suspect = report.slow, len({one.gpu for one in report.peers.verdicts if not one.confirmed})
    parts += [f"{slow or 'no'} slow GPU{'s' if slow != 1 else ''}"] if report.peers.compared or slow else []
    parts += [f"{suspect} suspect"] if suspect else []
    return "; ".join(parts)


def counts(rows: Sequence[tuple[str, str]]) -> list[str]:
    """`2 hung (gpu-07, gpu-09)`: of pairs of a word and a node each word with its nodes."""
    nodes: dict[str, list[str]] = {}
    for word, name in rows:
        nodes.setdefault(word, []).append(name)
    return [f"{len(names)} {word} ({shortened(names)})" for word, names in nodes.items()]


def shortened(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])


def fleet_document(report: FleetReport) -> TextDocument:
    """The report of a fleet in tables."""
    sections = [
        Section(key="fleet", title="Fleet", screen=((Cell(headline(report)),),)),
        absent_nodes(
            "Nodes that are not complete",
            [(row.name, row.word, row.why) for row in report.nodes if row.word != "complete"],
        ),
        _slow(report), _not_compared(report), _uneven(report), _known_good(report), drift_section(report.drift),
        _cases(report),
    ]  # fmt: skip
    return TextDocument(headings=(), sections=tuple(part for part in sections if part is not None))


def table_section(key: str, title: str, table: Table, *lines: str) -> Section:
    """A table below its lines."""
    return Section(key=key, title=title, lines=lines, tables=(table,))


def _more(rows: Sequence[object]) -> list[str]:
    return [f"and {len(rows) - MOST_ROWS} more"] if len(rows) > MOST_ROWS else []


def bounded(columns: Iterable[Column], rows: Sequence[tuple[Cell, ...]], legend: str = "") -> Table:
    """A table of the first rows, which says how many more there are."""
    legend = "; ".join([*_more(rows), *filter(None, [legend])])
    return Table(tuple(columns), tuple(rows[:MOST_ROWS]), legend=legend)


def absent_nodes(title: str, nodes: Iterable[tuple[str, str, str | None]]) -> Section | None:
    """Nodes by name, what became of each, and why."""
    rows = [cells(name, word, why or "") for name, word, why in nodes]
    if not rows:
        return None
    return table_section("absent", title, bounded(map(Column, ("node", "is", "why")), rows))


def _slow(report: FleetReport) -> Section:
    peers = report.peers
    chance = f"expected by chance: {report.expected_by_chance:.2g} suspects, before any is confirmed"
    if not report.peers.compared:
        chance = f"no case has {FEWEST_PEERS} GPUs that are alike, so no GPU is judged by its peers"
    found = len({one.gpu for one in peers.verdicts})
    line = f"{found or 'no'} GPU{'s' if found != 1 else ''} slow or suspect; {chance}"
    if not peers.verdicts:
        return Section(key="slow", title="Slow GPUs", lines=(line, *_pairs(report)))
    columns = heads(
        "node", "GPU", "is", number("short by"), number("allowed"),
        number("of"), number("sessions", 1), Column("PCI", rank=2),
        Column("throttled", rank=3), "case",
    )  # fmt: skip
    legend = (
        f"short by: of the peers' median; allowed: the larger of {peers.tolerance:.0%} and {peers.k:.2g} robust "
        f"standard deviations ({peers.looks} looks); slow: in two sessions or more, each by itself; suspect: not "
        "confirmed"
    )
    rows = [_verdict_row(one) for one in peers.verdicts]
    return table_section("slow", "Slow GPUs", bounded(columns, rows, legend), line, *_pairs(report))


def _verdict_row(one: SlowGpu) -> tuple[Cell, ...]:
    of = "itself, known good" if one.known_good else f"{one.peers} peers"
    return cells(
        one.node, one.device, Cell(one.word, _TONES[one.word]), f"{one.shortfall:.1%}", f"{one.threshold:.1%}", of,  # type: ignore[arg-type]
        str(one.sessions), one.bdf or "", ", ".join(one.throttle), one.case,
    )  # fmt: skip


def _pairs(report: FleetReport) -> list[str]:
    """Too few for a verdict, enough for a difference."""
    few = [group for group in report.peers.groups if group.threshold is None and group.uneven]
    return [
        f"{group.case}: the slowest of {group.peers} GPUs is {1 - group.low_per_s / group.high_per_s:.0%} below the "
        f"fastest; a verdict takes {FEWEST_PEERS}"
        for group in few[:MOST_ROWS]
    ]


def _not_compared(report: FleetReport) -> Section | None:
    rows = [cells(one.node, one.device, one.reason) for one in report.peers.not_compared]
    if not rows:
        return None
    table = bounded(map(Column, ("node", "GPU", "why")), rows)
    return table_section("not-compared", "GPUs that are not compared", table)


def _uneven(report: FleetReport) -> Section | None:
    found = [
        group
        for group in report.peers.groups
        if group.threshold is not None and (group.uneven or not group.uniform)
    ]
    lines = [_uneven_line(group) for group in found]
    if not lines:
        return None
    shown = (*lines[:MOST_ROWS], *_more(lines))
    return Section(key="uneven", title="Groups that are not uniform", lines=shown)


def _uneven_line(group: PeerGroup) -> str:
    spread = (group.high_per_s - group.low_per_s) / group.median_per_s
    text = f"{group.case}: {group.peers} GPUs spread over {spread:.0%} of their median"
    if group.uniform:
        return text
    return f"{text}; {group.suspects} are short, too many to name any: compare with --known-good"


def _known_good(report: FleetReport) -> Section | None:
    changed = [
        f"{group.case}: the median of {group.peers} GPUs is {group.known_good_change:+.1%} against the known good one"
        for group in report.peers.groups
        if group.known_good_change is not None and abs(group.known_good_change) > report.peers.tolerance
    ]
    for word, gpus in (("new", report.peers.new), ("gone", report.peers.gone)):
        if gpus:
            changed.append(f"{len(gpus)} GPU{'s are' if len(gpus) != 1 else ' is'} {word}: {shortened(gpus)}")
    lines = (*changed[:MOST_ROWS], *_more(changed))
    return Section(key="known-good", title="Against the known good fleet", lines=lines) if lines else None


def drift_section(drift: Iterable[Drift]) -> Section | None:
    """The software that is not the same on all nodes."""
    rows = [
        cells(
            one.what,
            one.usual,
            version,
            str(len(names)),
            ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else ""),
        )  # fmt: skip
        for one in drift
        for version, names in one.others.items()
    ]
    if not rows:
        return None
    columns = heads(
        "software", "usual", "here", number("nodes"), "such as",
    )  # fmt: skip
    return table_section("drift", "Software that differs", bounded(columns, rows))


def _cases(report: FleetReport) -> Section | None:
    groups = sorted(report.peers.groups, key=lambda group: (-group.peers, group.case, group.group))
    rows = [
        cells(
            str(group.peers), f"{1 - group.low_per_s / group.median_per_s:.1%}",
            f"{group.high_per_s / group.median_per_s - 1:.1%}", f"{group.sigma:.1%}",
            "-" if group.threshold is None else f"{group.threshold:.1%}", group.case,
        )
        for group in groups
    ]  # fmt: skip
    if not rows:
        return None
    columns = heads(
        number("GPUs"), number("slowest below"),
        number("fastest above"), number("spread"), number("allowed"),
        "case",
    )  # fmt: skip
    legend = "below, above: of the median; spread: robust standard deviation over the median"
    return table_section("peers", "Peer groups", bounded(columns, rows, legend))


def inventory_headline(found: Inventory) -> str:
    """`Fleet: 14 of 16 nodes answered, 112 GPUs; 1 hung (gpu-07); 1 busy (gpu-12); 2 kinds of nodes`."""
    gpus = f"{found.gpus or 'no'} GPU{'s' if found.gpus != 1 else ''}"
    parts = [f"Fleet: {found.nodes_answered} of {found.nodes_expected} nodes answered, {gpus}"]
    parts += counts([(node.reason, node.name) for node in found.nodes if node.reason])
    unknown = found.nodes_expected - len(found.nodes)
    parts += [f"nothing is known of {unknown} more"] if unknown > 0 else []
    unusable = sum(gpu.usable is False for node in found.nodes for gpu in node.gpus)
    parts += [f"{unusable} GPU{'s' if unusable != 1 else ''} not usable"] if unusable else []
    parts += [f"{len(found.groups)} kinds of nodes"] if len(found.groups) > 1 else []
    parts += [f"software differs ({shortened([one.what for one in found.drift])})"] if found.drift else []
    return "; ".join(parts)


def inventory_document(found: Inventory) -> TextDocument:
    """The inventory in tables."""
    sections = [
        Section(key="inventory", title="Fleet", screen=((Cell(inventory_headline(found)),),)),
        absent_nodes(
            "Nodes that did not answer", [(node.name, node.reason, node.why) for node in found.nodes if node.reason]
        ),
        _groups(found), _unusable(found), drift_section(found.drift),
    ]  # fmt: skip
    return TextDocument(headings=(), sections=tuple(part for part in sections if part is not None))


def _groups(found: Inventory) -> Section | None:
    if not found.groups:
        return None
    columns = heads(
        number("nodes"), "CPU", number("CPUs"), number("RAM"),
        "GPUs", Column("such as", rank=1),
    )  # fmt: skip
    return table_section(
        "nodes", "Equal nodes", bounded(columns, [_group_row(group) for group in found.groups])
    )


def _group_row(group: EqualNodes) -> tuple[Cell, ...]:
    memory = "unknown" if group.memory_bytes is None else format_bytes(group.memory_bytes)
    cpus = "unknown" if group.cpus is None else str(group.cpus)
    return cells(
        str(len(group.nodes)), group.cpu or "unknown", cpus, memory, "; ".join(counted(group.gpus)) or "none",
        shortened(group.nodes),
    )  # fmt: skip


def _unusable(found: Inventory) -> Section | None:
    rows = [
        cells(node.name, gpu.text, gpu.id, ", ".join(gpu.why_not))
        for node in found.nodes
        for gpu in node.gpus
        if gpu.usable is False
    ]
    columns = [Column("node"), Column("GPU"), Column("id", rank=1), Column("why")]
    return table_section("unusable", "GPUs that cannot be used", bounded(columns, rows)) if rows else None
