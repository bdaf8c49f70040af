"""The inventory of a fleet as text: who answered, then what is missing, what the nodes are made of, what differs."""

from __future__ import annotations

from gpubench.analysis.machine import counted
from gpubench.base.table import Cell, Column, cells, heads, number
from gpubench.base.units import format_bytes
from gpubench.fleet.inventory import EqualNodes, Inventory
from gpubench.fleet.tables import (
    absent_nodes,
    bounded,
    counts,
    drift_section,
    shortened,
    table_section,
)
from gpubench.report.layout import Section, TextDocument


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
