"""The table of overheads: what a device costs beside its kernels."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.report.analysis.types import Analysis, CaseResult, PoolOverhead
from gpubench.report.formats._document import Column, Table, cells, printable
from gpubench.report.formats._names import devices_text
from gpubench.report.formats._numbers import (
    legend,
    mark,
    seconds_text,
    share_text,
    time_interval_text,
    time_text,
)
from gpubench.units import format_bytes, format_rate

_MOVES = ("upload", "download")
_SIZED = ("allocate", *_MOVES)
# What the two forms of a call are, where the backend is known; elsewhere they keep their names.
_WAYS = {
    ("cupy", "library"): "pageable", ("cupy", "tuned"): "pinned",
    ("wgpu", "library"): "plain call", ("wgpu", "tuned"): "staging",
}  # fmt: skip
_MEMORY = {"library": "fresh", "tuned": "pool"}
_SHOWN_BYTES = 2**20  # on a terminal: the smallest size, the largest, and the one next to this
_SOME = "The smallest, the largest and a middle size; all sizes: --sections anatomy or --format markdown"


def overhead_lines(analysis: Analysis, unit: str) -> list[str]:
    """What an empty launch costs, and what the pool does, device by device."""
    return [*_empty_text(analysis, unit), *(_pool_text(pool) for pool in analysis.overheads.pools)]


def _empty_text(analysis: Analysis, unit: str) -> list[str]:
    """Of GPUs, and of the CPU beside them: by itself it has nobody to wait for."""
    kinds = {device.id: device.kind for device in analysis.run.devices}
    empty = analysis.overheads.empty
    if all(kinds.get(name) == "cpu" for name in empty):
        return []
    told = ", ".join(f"{printable(name)} {seconds_text(seconds, unit)}" for name, seconds in empty.items())
    return [f"An empty launch and its wait: {told}. It is part of every wall time, and nothing is subtracted."]


def overheads_table(analysis: Analysis, unit: str, *, full: bool) -> Table | None:
    """A row per device, call, size and form; None if none was measured."""
    everything = analysis.overheads.rows
    if not everything:
        return None
    rows = [row for row in everything if full or _is_shown(row, everything)]
    columns = (
        Column("device"), Column("what"), Column("size", right=True), Column("time", right=True),
        Column("95 % interval", right=True, rank=1), Column("rate", right=True),
    )  # fmt: skip
    body = [
        cells(
            row.case.device_id, what(row), _size(row), time_text(row.time, unit) + mark(row.label),
            time_interval_text(row.time, unit) if row.time else "-", rate(row),
        )
        for row in rows
    ]  # fmt: skip
    marks = legend({row.label for row in rows})
    words = [_SOME] if len(rows) < len(everything) else []
    devices = list(dict.fromkeys(row.case.device_id for row in rows))
    return Table(
        columns, tuple(body), title="Overheads", note=printable(devices_text(analysis, devices)),
        legend="; ".join([*words, *([marks] if marks else [])]),
    )  # fmt: skip


def what(row: CaseResult) -> str:
    """`upload, pinned`, `allocate, pool`, `sync`."""
    case = row.case
    if case.op == "allocate":
        return f"allocate, {_MEMORY[case.form]}"
    if case.op in _MOVES:
        return f"{case.op}, {_WAYS.get((case.backend, case.form), case.form)}"
    return case.op if case.form == "library" else f"{case.op}, {case.form}"


def rate(row: CaseResult) -> str:
    """Bytes a second of a transfer, `-` for what moves none."""
    if row.case.op not in _MOVES or row.time is None:
        return "-"
    return format_rate(row.case.params["n"] / row.time.estimate, "B/s")


def pool_share(pool: PoolOverhead) -> str:
    """`3.0%`, and of a call that is waited for alone where that was timed; what rounds to nothing is said so."""
    share = _share(pool.share)
    return share if pool.single_share is None else f"{_share(pool.single_share)} ({share} of launches in a row)"


def _share(share: float) -> str:
    return share_text(share) if share >= 1e-3 else "less than 0.1%"


def _size(row: CaseResult) -> str:
    return format_bytes(row.case.params["n"]) if row.case.op in _SIZED else "-"


def _is_shown(row: CaseResult, everything: Sequence[CaseResult]) -> bool:
    peers = [
        other.case.params["n"]
        for other in everything
        if (other.case.op, other.case.device_id) == (row.case.op, row.case.device_id)
    ]
    middle = min(peers, key=lambda n: (abs(n - _SHOWN_BYTES), n))
    return row.case.params["n"] in (min(peers), middle, max(peers))


def _pool_text(pool: PoolOverhead) -> str:
    memory = format_bytes(pool.allocate.case.params["n"])
    op = pool.op.case
    return (
        f"Pool overhead on {op.device_id}: {pool_share(pool)} of {op.op} at 1 Mi elements "
        f"({memory} from the pool against one call)."
    )
