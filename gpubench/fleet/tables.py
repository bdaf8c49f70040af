"""The report of a fleet and the inventory, each as a document of tables with at most 300 lines. The report of a fleet
begins with its result in one line, and then lists the problems, the worst first. The inventory lists the nodes
that did not answer, the hardware of the others, and the differences in software."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubench.analysis.machine import count_texts
from gpubench.base import group_by
from gpubench.base.table import Cell, Column, Table, cells, heads, number
from gpubench.base.units import count_noun, format_bytes, truncate
from gpubench.curves.stats import FEWEST_PEERS
from gpubench.fleet.survey import Drift, FleetReport, Inventory, PeerGroup
from gpubench.report.layout import Section, TextDocument

MOST_ROWS = 20
_NAMED = 3  # how many nodes of one kind the first line names
_TONES = {"severe": "bad", "slow": "bad", "suspect": "plain"}


# ---------------------------------------------------------------- the first lines


def headline(report: FleetReport) -> str:
    """Return a line such as `Fleet: 14 of 16 nodes complete, 111 of 128 GPUs compared; 1 missing (gpu-12); 2 slow
    GPUs`."""
    compared = report.peers.compared
    suspect = len({verdict.gpu for verdict in report.peers.verdicts if not verdict.confirmed})
    return _first_line(
        f"{report.nodes_complete} of {report.nodes_expected} nodes complete, {compared} of {report.gpus} GPUs compared",
        [(node.word, node.name) for node in report.nodes if node.word != "complete"],
        report.nodes_expected - len(report.nodes),
        f"{report.slow or 'no'} slow GPU{'s' if report.slow != 1 else ''}" if compared or report.slow else "",
        f"{suspect} suspect" if suspect else "",
    )


def inventory_headline(inventory: Inventory) -> str:
    """Return a line such as `Fleet: 14 of 16 nodes answered, 112 GPUs; 1 hung (gpu-07); 1 busy (gpu-12); 2 kinds of
    nodes`."""
    gpus = f"{inventory.gpus or 'no'} GPU{'s' if inventory.gpus != 1 else ''}"
    unusable = sum(gpu.usable is False for node in inventory.nodes for gpu in node.gpus)
    drift = truncate([part.what for part in inventory.drift], _NAMED)
    return _first_line(
        f"{inventory.nodes_answered} of {inventory.nodes_expected} nodes answered, {gpus}",
        [(node.reason, node.name) for node in inventory.nodes if node.reason],
        inventory.nodes_expected - len(inventory.nodes),
        f"{count_noun(unusable, 'GPU')} not usable" if unusable else "",
        f"{len(inventory.groups)} kinds of nodes" if len(inventory.groups) > 1 else "",
        f"software differs ({drift})" if drift else "",
    )


def _first_line(counts: str, absent: Sequence[tuple[str, str]], unknown: int, *more: str) -> str:
    """Return the first line: `counts`, the absent nodes by reason, the number of unknown nodes, and `more`."""
    by_word = group_by(absent, lambda node: node[0])
    parts = [f"Fleet: {counts}"]
    parts += [
        f"{len(nodes)} {word} ({truncate([name for _, name in nodes], _NAMED)})"
        for word, nodes in by_word.items()
    ]
    parts += [f"nothing is known of {unknown} more"] if unknown > 0 else []
    return "; ".join([*parts, *filter(None, more)])


# ---------------------------------------------------------------- the documents


def fleet_document(report: FleetReport) -> TextDocument:
    """Return the report of a fleet as a document of tables."""
    absent = [(node.name, node.word, node.why) for node in report.nodes if node.word != "complete"]
    return _document(
        "fleet", headline(report), _absent("Nodes that are not complete", absent), _slow(report), _alone(report),
        _uneven(report), _known_good(report), _drift(report.drift), _cases(report),
    )  # fmt: skip


def inventory_document(inventory: Inventory) -> TextDocument:
    """Return the inventory as a document of tables."""
    absent = [(node.name, node.reason, node.why) for node in inventory.nodes if node.reason]
    return _document(
        "inventory", inventory_headline(inventory), _absent("Nodes that did not answer", absent),
        _equal_nodes(inventory), _unusable(inventory), _drift(inventory.drift),
    )  # fmt: skip


def _document(key: str, first_line: str, *sections: Section | None) -> TextDocument:
    first = Section(key=key, title="Fleet", screen=((Cell(first_line),),))
    return TextDocument(headings=(), sections=(first, *(part for part in sections if part is not None)))


def _listing(
    key: str, title: str, columns: Iterable[Column], rows: Sequence[tuple[Cell, ...]], *lines: str, legend: str = ""
) -> Section | None:  # fmt: skip
    """Return a section with a table of the first MOST_ROWS rows, or None if there are no rows."""
    if not rows:
        return None
    notes = "; ".join([*_more(rows), *filter(None, [legend])])
    table = Table(tuple(columns), tuple(rows[:MOST_ROWS]), legend=notes)
    return Section(key=key, title=title, lines=lines, tables=(table,))


def _sentences(key: str, title: str, lines: Sequence[str]) -> Section | None:
    shown = (*lines[:MOST_ROWS], *_more(lines))
    return Section(key=key, title=title, lines=shown) if lines else None


def _more(rows: Sequence[object]) -> list[str]:
    return [f"and {len(rows) - MOST_ROWS} more"] if len(rows) > MOST_ROWS else []


def _absent(title: str, nodes: Iterable[tuple[str, str, str | None]]) -> Section | None:
    """Return a section that lists the absent nodes with name, state and reason, or None if there are none."""
    rows = [cells(name, word, why or "") for name, word, why in nodes]
    return _listing("absent", title, heads("node", "is", "why"), rows)


def _drift(drift: Iterable[Drift]) -> Section | None:
    """Return a section that lists the software that differs between nodes, or None if none differs."""
    rows = [
        cells(
            part.what, part.usual, version, str(len(names)),
            ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else ""),
        )
        for part in drift
        for version, names in part.others.items()
    ]  # fmt: skip
    columns = heads("software", "usual", "here", number("nodes"), "such as")
    return _listing("drift", "Software that differs", columns, rows)


# ---------------------------------------------------------------- the report of a fleet


def _slow(report: FleetReport) -> Section | None:
    peers = report.peers
    chance = f"expected by chance: {report.expected_by_chance:.2g} suspects, before any is confirmed"
    if not peers.compared:
        chance = f"no case has {FEWEST_PEERS} GPUs that are alike, so no GPU is judged by its peers"
    slow = len({verdict.gpu for verdict in peers.verdicts})
    line = f"{slow or 'no'} GPU{'s' if slow != 1 else ''} slow or suspect; {chance}"
    columns = heads(
        "node", "GPU", "is", number("short by"), number("allowed"), number("of"), number("sessions", 1),
        Column("PCI", rank=2), Column("throttled", rank=3), "case",
    )  # fmt: skip
    legend = (
        f"short by: of the peers' median; allowed: the larger of {peers.tolerance:.0%} and {peers.k:.2g} robust "
        f"standard deviations ({peers.looks} looks); slow: in two sessions or more, each by itself; suspect: not "
        "confirmed"
    )
    rows = [
        cells(
            slow.node, slow.device, Cell(slow.word, _TONES[slow.word]),  # type: ignore[arg-type]
            f"{slow.shortfall:.1%}", f"{slow.threshold:.1%}",
            "itself, known good" if slow.known_good else f"{slow.peers} peers", str(slow.sessions), slow.bdf or "",
            ", ".join(slow.throttle), slow.case,
        )
        for slow in peers.verdicts
    ]  # fmt: skip
    section = _listing("slow", "Slow GPUs", columns, rows, line, legend=legend)
    return section or Section(key="slow", title="Slow GPUs", lines=(line,))


def _alone(report: FleetReport) -> Section | None:
    rows = [cells(gpu.node, gpu.device, gpu.reason) for gpu in report.peers.not_compared]
    return _listing("not-compared", "GPUs that are not compared", heads("node", "GPU", "why"), rows)


def _uneven(report: FleetReport) -> Section | None:
    lines = [_uneven_line(group) for group in report.peers.groups if group.uneven or not group.uniform]
    return _sentences("uneven", "Groups that are not uniform", lines)


def _uneven_line(group: PeerGroup) -> str:
    spread = (group.high_per_s - group.low_per_s) / group.median_per_s
    text = f"{group.case}: {group.peers} GPUs spread over {spread:.0%} of their median"
    if group.threshold is None:
        short = f"the slowest of {group.peers} GPUs is {1 - group.low_per_s / group.high_per_s:.0%} below the fastest"
        return f"{group.case}: {short}; a verdict takes {FEWEST_PEERS}"
    if group.uniform:
        return text
    return f"{text}; {group.suspects} are short, too many to name any: compare with --known-good"


def _known_good(report: FleetReport) -> Section | None:
    lines = [
        f"{group.case}: the median of {group.peers} GPUs is {group.known_good_change:+.1%} against the known good one"
        for group in report.peers.groups
        if group.known_good_change is not None and abs(group.known_good_change) > report.peers.tolerance
    ]
    for word, gpus in (("new", report.peers.new), ("gone", report.peers.gone)):
        if gpus:
            lines.append(
                f"{len(gpus)} GPU{'s are' if len(gpus) != 1 else ' is'} {word}: {truncate(gpus, _NAMED)}"
            )
    return _sentences("known-good", "Against the known good fleet", lines)


def _cases(report: FleetReport) -> Section | None:
    rows = [
        cells(
            str(group.peers), f"{1 - group.low_per_s / group.median_per_s:.1%}",
            f"{group.high_per_s / group.median_per_s - 1:.1%}", f"{group.sigma:.1%}",
            "-" if group.threshold is None else f"{group.threshold:.1%}", group.case,
        )
        for group in sorted(report.peers.groups, key=lambda group: (-group.peers, group.case, group.group))
    ]  # fmt: skip
    columns = heads(
        number("GPUs"), number("slowest below"), number("fastest above"), number("spread"), number("allowed"), "case",
    )  # fmt: skip
    legend = "below, above: of the median; spread: robust standard deviation over the median"
    return _listing("peers", "Peer groups", columns, rows, legend=legend)


# ---------------------------------------------------------------- the inventory


def _equal_nodes(inventory: Inventory) -> Section | None:
    rows = [
        cells(
            str(len(group.nodes)), group.cpu or "unknown", "unknown" if group.cpus is None else str(group.cpus),
            "unknown" if group.memory_bytes is None else format_bytes(group.memory_bytes),
            "; ".join(count_texts(group.gpus)) or "none", truncate(group.nodes, _NAMED),
        )
        for group in inventory.groups
    ]  # fmt: skip
    columns = heads(number("nodes"), "CPU", number("CPUs"), number("RAM"), "GPUs", Column("such as", rank=1))
    return _listing("nodes", "Equal nodes", columns, rows)


def _unusable(inventory: Inventory) -> Section | None:
    rows = [
        cells(node.name, gpu.text, gpu.id, ", ".join(gpu.why_not))
        for node in inventory.nodes
        for gpu in node.gpus
        if gpu.usable is False
    ]
    columns = heads("node", "GPU", Column("id", rank=1), "why")
    return _listing("unusable", "GPUs that cannot be used", columns, rows)
